# SPDX-License-Identifier: GPL-2.0-only
"""enable and disable in a chroot: its files are changed, and no machine."""

import errno
import json
import os
import signal
from pathlib import Path

import fake_modules
import pytest
from enabled import LOAD, MODULE, OPTIONS, PARAMETERS, done, run, status
from scan_trees import plant

from lightsleep.settings import restorer

pytest_plugins = "enabled"


@pytest.fixture
def chroot(root: Path) -> Path:
    """A folder whose /proc says that init has another root."""
    (root.parent / "machine around").mkdir()
    (root / "proc/1").mkdir(parents=True, exist_ok=True)
    (root / "proc/1/root").symlink_to(root.parent / "machine around")
    return root


@pytest.mark.parametrize(
    "words", [["enable"], ["enable", "--persist"], ["enable", "governor:menu"]]
)
def test_from_a_chroot_no_machine_is_changed(words: list[str], chroot: Path) -> None:
    before = fake_modules.snapshot(chroot)
    refused = run(*words)
    assert refused.exit_code == 1
    said = " ".join(refused.output.split())
    assert "this is a chroot: the kernel and /sys are those of the machine around it" in said
    assert "when it boots: lightsleep enable --persist --later" in said
    assert fake_modules.snapshot(chroot) == before


def test_a_chroot_may_hold_a_system_that_boots_later(chroot: Path) -> None:
    """On another machine, with other kernels, where another driver may be in charge here."""
    plant(
        chroot, "sys/devices/system/cpu/cpuidle/current_driver: intel_idle\nproc/cmdline: idle=poll"
    )
    (chroot / MODULE).unlink()
    before = fake_modules.snapshot(chroot)
    words = ["enable", "lightsleep:fixed:100us", "--persist", "--later"]
    said = done(*words)
    assert f"wrote /{OPTIONS}\nwrote /{LOAD}\n" in said
    assert (
        "options cpuidle_lightsleep mode=fixed poll_limit_us=100" in (chroot / OPTIONS).read_text()
    )
    assert not (chroot / "run/lightsleep").exists()
    assert "is enabled already" in run(*words).output
    assert "only lightsleep lasts" in run("enable", "haltpoll", "--persist", "--later").output
    assert f"removed /{LOAD}\nremoved /{OPTIONS}\n" in done("disable")
    assert run("disable").exit_code == 4
    assert {x: y for x, y in fake_modules.snapshot(chroot).items() if not x.startswith("etc")} == {
        x: y for x, y in before.items() if not x.startswith("etc")
    }


def test_a_container_may_hold_an_image_that_boots_later(root: Path) -> None:
    """The build host may have any driver, and any kernel command line."""
    plant(root, ".dockerenv:")
    plant(root, "sys/devices/system/cpu/cpuidle/current_driver: intel_idle")
    plant(root, "proc/cmdline: idle=poll modules_load=cpuidle_lightsleep modprobe.blacklist=x")
    (root / MODULE).unlink()
    before = fake_modules.snapshot(root)
    for words in (["enable"], ["enable", "--persist"]):
        refused = run(*words)
        assert refused.exit_code == 1
        assert "built here load the driver when it boots: lightsleep enable --persist --later" in (
            " ".join(refused.output.split())
        )
    assert fake_modules.snapshot(root) == before
    words = ["enable", "lightsleep:fixed", "--persist", "--later"]
    said = done(*words)
    assert f"wrote /{OPTIONS}\nwrote /{LOAD}\n" in said
    only = "this is a container (docker), so only its files change, for a system that boots"
    assert f"note: {only}" in said
    assert not (root / "run/lightsleep").exists()
    again = run(*words)
    assert again.exit_code == 4
    assert only in again.output
    assert status()["files"] == [f"/{OPTIONS}", f"/{LOAD}"]
    assert status()["boot_files"] == [f"/{LOAD}"]
    done("disable")
    assert run("disable").exit_code == 4
    assert not (root / LOAD).exists()


def test_disable_in_a_container_takes_the_beginning_of_a_file_for_ours(root: Path) -> None:
    """The machine that builds the image may have the driver loaded."""
    done("enable")
    (root / "run/lightsleep/kept").unlink()
    plant(root, ".dockerenv:")
    scratch = restorer.scratch_of(root / LOAD)
    scratch.parent.mkdir(parents=True, exist_ok=True)
    scratch.write_text("half")
    said = done("disable")
    assert f"removed /{scratch.relative_to(root)}" in said
    assert "note: cpuidle_lightsleep stays loaded: this is a container (docker)" in said
    assert not scratch.exists()
    assert (root / PARAMETERS).exists()
    assert run("disable").exit_code == 1  # an attempt to change the machine


def test_in_a_chroot_it_writes_all_or_nothing(chroot: Path) -> None:
    plant(chroot, "etc/modules-load.d: no folder")
    before = fake_modules.snapshot(chroot)
    refused = run("enable", "lightsleep:off", "--persist", "--later", "--json")
    assert refused.exit_code == 1
    assert f"cannot write {chroot / LOAD}" in refused.stderr
    assert json.loads(refused.stdout)["changed"] == []
    assert fake_modules.snapshot(chroot) == before


def test_in_a_chroot_a_signal_between_two_files_leaves_none(
    chroot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = restorer.write_file

    def ended(root: Path, name: str, value: str | None) -> None:
        if name.endswith(LOAD):
            raise SystemExit(128 + signal.SIGTERM)
        write(root, name, value)

    before = fake_modules.snapshot(chroot)
    monkeypatch.setattr(restorer, "write_file", ended)
    assert run("enable", "lightsleep:off", "--persist", "--later").exit_code == 143
    assert fake_modules.snapshot(chroot) == before


def test_disable_in_a_chroot_leaves_the_driver_of_the_machine(chroot: Path) -> None:
    (chroot / "proc/1/root").rename(chroot / "away")
    done("enable", "--persist")
    (chroot / "away").rename(chroot / "proc/1/root")
    done("disable")
    assert (chroot / PARAMETERS).exists()
    assert not (chroot / LOAD).exists()


def test_disable_in_a_chroot_leaves_nothing_of_a_killed_enable(chroot: Path) -> None:
    done("enable", "lightsleep:off", "--persist", "--later")
    (chroot / LOAD).rename(restorer.scratch_of(chroot / LOAD))
    said = done("disable")
    assert f"removed /{restorer.scratch_of(Path(LOAD))}" in said
    assert f"removed /{OPTIONS}" in said
    assert not list(chroot.glob("etc/mod*/*lightsleep*"))
    assert run("disable").exit_code == 4


def test_disable_in_a_chroot_tells_what_it_did_before_it_failed(
    chroot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done("enable", "lightsleep:off", "--persist", "--later")
    write = restorer.write_file

    def refused(root: Path, name: str, value: str | None) -> None:
        if name.endswith(OPTIONS):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        write(root, name, value)

    monkeypatch.setattr(restorer, "write_file", refused)
    failed = run("disable", "--json")
    assert failed.exit_code == 1
    assert f"cannot write {chroot / OPTIONS}" in failed.stderr
    assert json.loads(failed.stdout)["changed"] == [f"removed /{LOAD}"]
