# SPDX-License-Identifier: GPL-2.0-only
"""What the Debian packages undo as they are removed: on a machine, and where an image is built."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from paths import ROOT

OURS = "# Written by lightsleep enable: lightsleep disable removes it.\n"
COMMAND = "lightsleep"
MACHINE, CHROOT = 1, 0
"""The exit statuses of ischroot."""


def removed(package: str, root: Path, ischroot: int) -> str:
    """Run the script as dpkg does before it removes a package; return which commands it ran."""
    tools, notes = root / "bin", root / "notes"
    tools.mkdir()
    for name, status in ((COMMAND, 1), ("ischroot", ischroot)):
        (tools / name).write_text(f"#!/bin/sh\necho {name} $1 >> {notes}\nexit {status}\n")
        (tools / name).chmod(0o755)
    for name in ("modules-load.d", "modprobe.d"):
        (root / "etc" / name).mkdir(parents=True)
        (root / "etc" / name / "lightsleep.conf").write_text(OURS)
    script = (ROOT / f"debian/{package}.prerm").read_text()
    script = script.replace("/sys/module", f"{root}/modules")
    script = script.replace(" /etc/", f" {root}/etc/").replace("/usr/local", f"{root}/usr/local")
    for name in ("head", "grep", "rm"):  # and no lightsleep that this machine may have
        (tools / name).symlink_to(str(shutil.which(name)))
    told = {"PATH": str(tools), "DPKG_MAINTSCRIPT_PACKAGE": package}
    subprocess.run(["/bin/sh", "-c", script, "sh", "remove"], env=told, check=True)
    return notes.read_text()


@pytest.mark.parametrize("package", ["lightsleep", "lightsleep-dkms"])
def test_on_a_machine_the_command_undoes_all(package: str, tmp_path: Path) -> None:
    (tmp_path / "modules/cpuidle_lightsleep").mkdir(parents=True)
    assert "lightsleep disable\n" in removed(package, tmp_path, MACHINE)


@pytest.mark.parametrize(("package", "undone"), [("lightsleep", True), ("lightsleep-dkms", False)])
def test_what_needs_no_driver_stays_without_it(package: str, undone: bool, tmp_path: Path) -> None:
    assert ("lightsleep disable\n" in removed(package, tmp_path, MACHINE)) == undone
    if not undone:
        assert not list(tmp_path.glob("etc/*/lightsleep.conf"))


@pytest.mark.parametrize("package", ["lightsleep", "lightsleep-dkms"])
def test_in_a_chroot_only_our_files_go(package: str, tmp_path: Path) -> None:
    assert "lightsleep" not in removed(package, tmp_path, CHROOT)
    assert not list(tmp_path.glob("etc/*/lightsleep.conf"))


def test_without_a_command_our_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver goes; the command may be gone already, or was never a package."""
    monkeypatch.setattr("test_prerm.COMMAND", "other")
    assert "disable" not in removed("lightsleep-dkms", tmp_path, MACHINE)
    assert not list(tmp_path.glob("etc/*/lightsleep.conf"))


@pytest.mark.parametrize("package", ["lightsleep", "lightsleep-dkms"])
def test_files_of_somebody_else_stay(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("test_prerm.OURS", "# by hand\n")
    removed(package, tmp_path, CHROOT)
    assert len(list(tmp_path.glob("etc/*/lightsleep.conf"))) == 2
