# SPDX-License-Identifier: GPL-2.0-only
"""The profile for tuned calls lightsleep, and takes "nothing to do" for success."""

from __future__ import annotations

import configparser
import subprocess
from pathlib import Path

import pytest
from enabled import LOAD, OPTIONS, done, run
from paths import ROOT
from scan_trees import plant

pytest_plugins = "enabled"

PROFILE = ROOT / "contrib/tuned/lightsleep"


def called(tmp_path: Path, *words: str, status: int = 0, document: str = "") -> tuple[int, str]:
    """Run the script with a command that notes what it is told; return its status and the notes.

    What it is asked for in JSON, where it prints ``document``, is not noted.
    """
    notes, command, printed = (tmp_path / name for name in ("notes", "lightsleep", "document"))
    notes.unlink(missing_ok=True)
    printed.write_text(document)
    command.write_text(
        f"#!/bin/sh\n[ \"$*\" = 'status --json' ] && cat {printed} && exit 4\n"
        f'echo "$@" >> {notes}\nexit {status}\n'
    )
    command.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(
        [PROFILE / "script.sh", *words], env=environment, stdout=subprocess.PIPE, check=False
    )
    return done.returncode, notes.read_text() if notes.exists() else ""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["start"], "enable\n"),
        (["stop"], "disable\n"),
        (["stop", "full_rollback"], "disable\n"),
        (["verify", "ignore_missing"], "status\n"),
    ],
)
def test_it_tells_lightsleep_what_tuned_tells_it(
    words: list[str], told: str, tmp_path: Path
) -> None:
    assert called(tmp_path, *words) == (0, told)
    assert called(tmp_path, *words, status=1)[0] == 1
    assert called(tmp_path, *words, status=4)[0] == (4 if words[0] == "verify" else 0)


@pytest.mark.parametrize(
    "planted",
    [
        "",
        "etc/modprobe.d/no.conf: blacklist cpuidle_lightsleep",
        "proc/cmdline: modprobe.blacklist=cpuidle_lightsleep",
    ],
)
@pytest.mark.parametrize("later", ["--now", "--later"])
def test_what_an_administrator_enabled_at_every_boot_stays(
    later: str, planted: str, root: Path, tmp_path: Path
) -> None:
    """Where something keeps the module away meanwhile, too."""
    done("enable", "--persist", later)
    plant(root, planted)
    document = run("status", "--json").stdout
    for word in ("start", "stop"):
        assert called(tmp_path, word, document=document) == (0, "")
    assert called(tmp_path, "verify", document=document) == (0, "status\n")


@pytest.mark.parametrize(
    "planted",
    [
        "",
        "etc/modules-load.d/poll.conf: virtio_poll_source",
        f"{LOAD}: cpuidle_lightsleep",
        f"{OPTIONS}: options cpuidle_lightsleep mode=off",
    ],
)
def test_files_of_somebody_else_are_no_reason_to_do_nothing(
    planted: str, root: Path, tmp_path: Path
) -> None:
    plant(root, planted)
    document = run("status", "--json").stdout
    for word, told in (("start", "enable\n"), ("stop", "disable\n")):
        assert called(tmp_path, word, document=document) == (0, told)


def test_our_file_that_is_gone_is_no_reason_to_do_nothing(root: Path, tmp_path: Path) -> None:
    done("enable", "--persist")
    (root / LOAD).unlink()
    document = run("status", "--json").stdout.replace(str(root), "")
    assert f'"/{LOAD}"' in document  # what was changed
    assert called(tmp_path, "stop", document=document) == (0, "disable\n")


def test_the_packages_have_it_where_tuned_looks() -> None:
    """Before tuned 2.23, that is /usr/lib/tuned."""
    installed = (ROOT / "debian/lightsleep.install").read_text()
    assert "contrib/tuned/lightsleep usr/lib/tuned/profiles\n" in installed
    links = (ROOT / "debian/lightsleep.links").read_text()
    assert "usr/lib/tuned/profiles/lightsleep usr/lib/tuned/lightsleep\n" in links


def test_it_refuses_the_rest(tmp_path: Path) -> None:
    assert called(tmp_path, "reload") == (2, "")


def test_the_profile_names_its_script() -> None:
    profile = configparser.ConfigParser(interpolation=None)
    profile.read(PROFILE / "tuned.conf")
    folder, _, name = profile["script"]["script"].rpartition("/")
    assert folder == "${i:PROFILE_DIR}"
    assert (PROFILE / name).stat().st_mode & 0o111
