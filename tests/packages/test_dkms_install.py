# SPDX-License-Identifier: GPL-2.0-only
"""make in kernel/: what dkms-install says where something is missing; clean needs no kernel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from paths import ROOT

SHOWS_THE_CONFIGURATION = 'cat "$6"/lightsleep-[0-9]*/dkms.conf; false'
BUILD_FAILS = '[ "$1" != build ]'


def installed(folder: Path, dkms: str | None, headers: bool, place: str = ".") -> str:
    """Run it with a ``dkms`` made up, or without one; return what it says. It has to fail.

    The ``place`` of dkms is below the only folder in PATH.
    """
    tools, build = folder / "bin", folder / "build"
    for made in (tools, tools / "sbin", build):
        made.mkdir()
    for name in ("cat", "cp", "find", "grep", "mkdir", "mktemp", "rm", "sed", "sh", "test"):
        (tools / name).symlink_to(str(shutil.which(name)))
    for name in ("dpkg", "rpm") if dkms is None else ("dpkg", "rpm", "dkms"):
        script = dkms if name == "dkms" else "exit 1"  # no package owns these sources
        tool = tools / (place if name == "dkms" else ".") / name
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
    if headers:
        (build / "Makefile").touch()
    argv = [str(shutil.which("make")), "-C", str(ROOT / "kernel"), "dkms-install", "KERNEL=9.9.9"]
    done = subprocess.run(
        [*argv, f"BUILD={build}", f"SBIN={tools}/sbin"],
        env={"PATH": str(tools), "TMPDIR": str(folder), "LC_ALL": "C"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert {x.name for x in folder.iterdir()} == {"bin", "build"}
    return done.stdout + done.stderr


@pytest.mark.parametrize("headers", [True, False])
def test_dkms_is_missing(headers: bool, tmp_path: Path) -> None:
    said = installed(tmp_path, None, headers)
    assert "dkms is not installed: apt install dkms" in said
    assert "does not build" not in said


def test_su_may_leave_the_folder_of_dkms_out_of_the_path(tmp_path: Path) -> None:
    said = installed(tmp_path, BUILD_FAILS, headers=True, place="sbin")
    assert "dkms is not installed" not in said
    assert "lightsleep does not build for kernel 9.9.9" in said


def test_the_headers_are_missing(tmp_path: Path) -> None:
    said = installed(tmp_path, BUILD_FAILS, headers=False)
    assert "no headers for kernel 9.9.9: install linux-headers-9.9.9" in said
    assert "does not build" not in said


def test_a_build_that_fails_before_there_is_a_log(tmp_path: Path) -> None:
    said = installed(tmp_path, BUILD_FAILS, headers=True)
    assert "lightsleep does not build for kernel 9.9.9: what was installed before stays" in said
    assert "make.log" not in said


def test_the_log_of_a_build_names_no_package_that_is_not_there(tmp_path: Path) -> None:
    """Only Debian's packages hand their name to the build."""
    said = installed(tmp_path, SHOWS_THE_CONFIGURATION, headers=True)
    (command,) = re.findall(r'(?m)^MAKE\[0\]="(.*)"$', said)
    assert command.endswith("/build modules")
    assert "DKMS_PACKAGE" not in said
    assert 'PACKAGE_NAME="lightsleep"' in said


def test_clean_needs_no_kernel(tmp_path: Path) -> None:
    """The headers may be gone with the kernel that it was built for."""
    sources = tmp_path / "my sources"
    (sources / "drivers").mkdir(parents=True)
    for name in ("Makefile", "dkms.conf"):
        shutil.copy(ROOT / "kernel" / name, sources)
    (sources / "drivers/a.c").touch()
    kept = set(sources.rglob("*"))
    built = ("a.ko", "a.mod", "a.mod.c", "a.mod.o", ".a.ko.cmd", ".module-common.o")
    for name in (*built, "Module.symvers", "modules.order", "drivers/a.o", "drivers/.a.o.d"):
        (sources / name).touch()
    argv = [str(shutil.which("make")), "-C", str(sources), "clean", "BUILD=/nonexistent"]
    subprocess.run(argv, env={"PATH": os.environ["PATH"]}, check=True, capture_output=True)
    assert set(sources.rglob("*")) == kept
