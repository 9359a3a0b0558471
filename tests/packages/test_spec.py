# SPDX-License-Identifier: GPL-2.0-only
"""The spec file for RPM: what its scriptlets do when a package is removed or upgraded."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from paths import ROOT

import lightsleep

SPEC = (ROOT / "contrib/lightsleep.spec").read_text()
UPGRADED, REMOVED = "1", "0"
"""What rpm tells a scriptlet: how many versions of the package will be left."""


def scriptlet(name: str) -> str:
    found = re.search(rf"(?m)^%{name}\n((?:(?!%files|%pre|%post|#).*\n)+)", SPEC)
    assert found
    script = found[1]
    return script.replace("%{name}", "lightsleep").replace("%{version}", lightsleep.__version__)


def ran(
    folder: Path,
    name: str,
    left: str,
    status: int,
    there: bool = True,
    root: str = "/",
    loaded: bool = True,
) -> tuple[int, str]:
    """Run a scriptlet with commands that only note what they are told; return status and notes.

    ``root`` is the root folder of the machine, which is another one for who is in a chroot.
    """
    notes = folder / "notes"
    for command in ("lightsleep", "dkms") if there else ("dkms",):
        tool = folder / command
        tool.write_text(f'#!/bin/sh\necho {command} "$1" >> {notes}\nexit {status}\n')
        tool.chmod(0o755)
    modules = folder / "modules"
    (modules / "cpuidle_lightsleep" if loaded else modules).mkdir(parents=True)
    script = scriptlet(name).replace("/proc/1/root", root).replace("/sys/module", str(modules))
    done = subprocess.run(
        ["/bin/sh", "-e", "-c", script, "sh", left],
        env={"PATH": str(folder)},
        check=False,
    )
    return done.returncode, notes.read_text() if notes.exists() else ""


@pytest.mark.parametrize("status", [0, 1, 4])
@pytest.mark.parametrize("package", ["preun", "preun dkms"])
def test_either_package_takes_along_what_was_enabled(
    package: str, status: int, tmp_path: Path
) -> None:
    found, told = ran(tmp_path, package, REMOVED, status)
    assert found == 0  # else rpm would not remove it
    assert told.startswith("lightsleep disable\n")


@pytest.mark.parametrize("package", ["preun", "preun dkms"])
def test_in_a_chroot_the_machine_s_driver_stays(package: str, tmp_path: Path) -> None:
    found, told = ran(tmp_path, package, REMOVED, 0, root=str(tmp_path))
    assert found == 0
    assert "lightsleep" not in told


@pytest.mark.parametrize(("package", "undone"), [("preun", True), ("preun dkms", False)])
def test_what_needs_no_driver_stays_without_it(package: str, undone: bool, tmp_path: Path) -> None:
    found, told = ran(tmp_path, package, REMOVED, 0, loaded=False)
    assert found == 0
    assert ("lightsleep disable" in told) == undone


@pytest.mark.parametrize("package", ["preun", "preun dkms"])
def test_an_upgrade_disables_nothing(package: str, tmp_path: Path) -> None:
    found, told = ran(tmp_path, package, UPGRADED, 0)
    assert found == 0
    assert "lightsleep" not in told


def test_the_driver_may_be_there_without_the_command(tmp_path: Path) -> None:
    assert ran(tmp_path, "preun dkms", REMOVED, 0, there=False) == (0, "dkms remove\n")


def test_what_the_pages_point_to_is_beside_them() -> None:
    (line,) = re.findall(r"(?m)^%doc (.*)$", SPEC)
    assert line.split() == ["README.md", "docs", "contrib"]


def test_the_versions_agree() -> None:
    assert f"Version:        {lightsleep.__version__}\n" in SPEC
