# SPDX-License-Identifier: GPL-2.0-only
"""What status says of what is enabled, now and at the next boot, and of what did not come."""

import errno
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from enabled import LOAD, MODULE, done, run, status
from scan_trees import plant

from lightsleep.scan.collect import collect
from lightsleep.scan.model import Scan
from lightsleep.scan.tree import Tree
from lightsleep.settings import restorer

pytest_plugins = "enabled"


@pytest.fixture
def as_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Status reads a machine whose modules only root may load."""

    def collected(root: Path) -> tuple[Scan, Tree]:
        scan, tree = collect(root)
        return replace(scan, loading=replace(scan.loading, root=False)), tree

    monkeypatch.setattr("lightsleep.enable.status.collect", collected)


def test_what_only_the_next_boot_brings_is_not_in_force(root: Path) -> None:
    done("enable", "lightsleep:fixed:100us")
    since = status()["since"]
    assert status()["later"] is None
    for later in ("lightsleep:off", "lightsleep:adaptive:50us"):
        done("enable", "--persist", "--later", later)
        found = status()
        assert (found["enabled"], found["later"]) == ("lightsleep:fixed:100us", later)
        assert found["since"] == since
    said = run("status").output
    assert "lightsleep:fixed:100us, since" in said
    assert "brings lightsleep:adaptive:50us\n" in said
    done("enable", "--persist", "lightsleep:off")
    assert (status()["enabled"], status()["later"]) == ("lightsleep:off", None)
    done("disable")
    assert (status()["enabled"], status()["later"]) == (None, None)


def test_what_the_next_boot_brings_where_nothing_is_enabled_now(root: Path) -> None:
    done("enable", "--persist", "--later", "lightsleep:off")
    found = status()
    assert (found["enabled"], found["later"]) == (None, "lightsleep:off")
    assert found["by"]
    assert f"brings lightsleep:off, enabled {found['since']} by {found['by']}" in (
        run("status").output
    )
    assert "undid lightsleep enable lightsleep:off" in done("disable")


def said(root: Path) -> str:
    return " ".join(run("status").output.split())


def test_what_is_not_loaded_is_loaded_by_enable(root: Path) -> None:
    assert said(root).endswith("To load it now: sudo lightsleep enable")
    done("enable", "--persist", "--later", "lightsleep:off")
    assert "The next boot loads cpuidle_lightsleep. To load it now: sudo lightsleep enable" in (
        said(root)
    )
    assert said(root).endswith("enable lightsleep:off")
    shutil.rmtree(root / "run/lightsleep")  # as after a reboot
    assert "The boot did not load cpuidle_lightsleep, or somebody has unloaded it" in said(root)
    assert "journalctl -b -u systemd-modules-load" in said(root)
    (root / MODULE).unlink()
    plant(root, "lib/modules/6.12.0/build/Makefile: all")
    assert "To load it now" not in said(root)  # not-built says what to do first


def test_who_is_not_root_is_told_how_to_load_it(root: Path, as_user: None) -> None:
    assert "To load it now: sudo lightsleep enable" in said(root)
    assert "only root may load a module" in said(root)


def test_after_a_boot_that_the_command_line_rescued(root: Path) -> None:
    done("enable", "--persist", "--later")
    shutil.rmtree(root / "run/lightsleep")
    plant(root, "proc/cmdline: quiet module_blacklist=cpuidle_lightsleep")
    assert [x["id"] for x in status()["obstacles"]] == ["blacklisted"]
    assert "module_blacklist on the kernel command line forbids cpuidle_lightsleep" in said(root)
    assert "To load it now" not in said(root)
    done("disable")


@pytest.mark.parametrize(
    ("folder", "at_boot", "line"),
    [
        ("etc/modules-load.d", None, "unknown: only root may look into /etc/modules-load.d"),
        ("etc/modprobe.d", True, f"yes: /{LOAD}; only root may look into /etc/modprobe.d"),
    ],
)
def test_a_folder_that_only_root_may_look_into(
    folder: str, at_boot: bool | None, line: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done("enable", "--persist", "lightsleep:off")
    read_file = restorer.read_file

    def refused(root: Path, name: str) -> str | None:
        if Path(name).parent == root / folder:
            raise PermissionError(errno.EACCES, "Permission denied")
        return read_file(root, name)

    monkeypatch.setattr(restorer, "read_file", refused)
    found = status()
    assert (found["active"], found["enabled"], found["at_boot"]) == (
        True,
        "lightsleep:off",
        at_boot,
    )
    assert found["unreadable"] == [f"/{folder}/lightsleep.conf"]
    assert found["interrupted"] is False
    assert line in said(root)
