# SPDX-License-Identifier: GPL-2.0-only
"""What the Debian packages undo as they are removed: on a machine, and where an image is built."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from paths import ROOT
from scan_trees import plant

OURS = "# Written by lightsleep enable: lightsleep disable removes it.\n"
COMMAND = "lightsleep"
MACHINE, CHROOT = 1, 0
"""The exit statuses of ischroot."""


BY_PIP = ("usr/local/bin", "opt/lightsleep/bin")
"""Where docs/packages.md has pip, or a person, put the command."""


def elsewhere(script: str, root: Path) -> str:
    """Return a script that looks below ``root`` for what pip installed."""
    for place in BY_PIP:
        script = script.replace(f"/{place}", f"{root}/{place}")
    return script


def removed(package: str, root: Path, ischroot: int, status: int = 1, said: str = "") -> str:
    """Run the script as dpkg does before it removes a package.

    Returns which commands it ran, and what it printed. The command ends with ``status``, and has
    ``said`` something.
    """
    tools, notes = root / "bin", root / "notes"
    tools.mkdir(exist_ok=True)
    for name, printed, ends in ((COMMAND, said, status), ("ischroot", "", ischroot)):
        lines = f"echo {name} $1 >> {notes}", f"printf '{printed}'", f"exit {ends}"
        (tools / name).write_text("\n".join(["#!/bin/sh", *lines, ""]))
        (tools / name).chmod(0o755)
    for name in ("modules-load.d", "modprobe.d"):
        (root / "etc" / name).mkdir(parents=True, exist_ok=True)
        if not (root / "etc" / name / "lightsleep.conf").is_symlink():
            (root / "etc" / name / "lightsleep.conf").write_text(OURS)
    script = (ROOT / f"debian/{package}.prerm").read_text()
    script = script.replace("/sys/module", f"{root}/modules").replace(" /run/", f" {root}/run/")
    script = elsewhere(script.replace(" /etc/", f" {root}/etc/"), root)
    for name in ("head", "grep", "rm", "tail"):  # and no lightsleep that this machine may have
        (tools / name).unlink(missing_ok=True)
        (tools / name).symlink_to(str(shutil.which(name)))
    told = {"PATH": str(tools), "DPKG_MAINTSCRIPT_PACKAGE": package}
    with notes.open("a") as output:
        subprocess.run(
            ["/bin/sh", "-c", script, "sh", "remove"], env=told, stdout=output, check=True
        )
    return notes.read_text()


@pytest.mark.parametrize("package", ["lightsleep", "lightsleep-dkms"])
def test_on_a_machine_the_command_undoes_all(package: str, tmp_path: Path) -> None:
    (tmp_path / "modules/cpuidle_lightsleep").mkdir(parents=True)
    assert "lightsleep disable\n" in removed(package, tmp_path, MACHINE)


@pytest.mark.parametrize(("package", "undone"), [("lightsleep", True), ("lightsleep-dkms", False)])
def test_what_needs_no_driver_stays_without_it(package: str, undone: bool, tmp_path: Path) -> None:
    plant(tmp_path, 'run/lightsleep/kept: {"module": "cpuidle_haltpoll", "old": null}')
    assert ("lightsleep disable\n" in removed(package, tmp_path, MACHINE)) == undone
    if not undone:
        assert not list(tmp_path.glob("etc/*/lightsleep.conf"))


def test_what_the_driver_replaced_comes_back_without_it(tmp_path: Path) -> None:
    plant(tmp_path, 'run/lightsleep/kept: {"module": "cpuidle_lightsleep", "old": null}')
    assert "lightsleep disable\n" in removed("lightsleep-dkms", tmp_path, MACHINE)


@pytest.mark.parametrize(
    ("status", "said"),
    [(0, "undid it\nand more\n"), (1, "Error: no\nbut this\n"), (4, "stays\n")],
)
def test_what_disable_says_is_told_unless_it_is_nothing(
    status: int, said: str, tmp_path: Path
) -> None:
    nothing = "Error: lightsleep is not enabled\n"
    printed = (nothing if status == 4 else "") + said
    told = removed("lightsleep", tmp_path, MACHINE, status, printed)
    assert told.endswith(f"lightsleep disable\n{said}")


@pytest.mark.parametrize("package", ["lightsleep", "lightsleep-dkms"])
def test_in_a_chroot_only_our_files_go(package: str, tmp_path: Path) -> None:
    assert "lightsleep" not in removed(package, tmp_path, CHROOT)
    assert not list(tmp_path.glob("etc/*/lightsleep.conf"))


@pytest.mark.parametrize("package", ["lightsleep", "lightsleep-dkms"])
def test_what_a_crash_left_of_our_files_goes(package: str, tmp_path: Path) -> None:
    left = [tmp_path / f"etc/{x}/.lightsleep.conf.new" for x in ("modules-load.d", "modprobe.d")]
    for file in left:
        plant(tmp_path, f"{file.relative_to(tmp_path)}: half")
    removed(package, tmp_path, CHROOT)
    assert not any(file.exists() for file in left)


def test_without_a_command_our_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver goes; the command may be gone already, or was never a package."""
    monkeypatch.setattr("test_prerm.COMMAND", "other")
    assert "disable" not in removed("lightsleep-dkms", tmp_path, MACHINE)
    assert not list(tmp_path.glob("etc/*/lightsleep.conf"))


@pytest.mark.parametrize("place", BY_PIP)
def test_the_command_from_pip_undoes_what_it_enabled(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("test_prerm.COMMAND", "other")
    (tmp_path / "modules/cpuidle_lightsleep").mkdir(parents=True)
    command = f"{place}/lightsleep"
    plant(tmp_path, f"{command}: #!/bin/sh\n{command}: echo by pip: $1")
    (tmp_path / command).chmod(0o755)
    assert "by pip: disable\n" in removed("lightsleep-dkms", tmp_path, MACHINE)


@pytest.mark.parametrize("package", ["lightsleep", "lightsleep-dkms"])
def test_files_of_somebody_else_stay(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("test_prerm.OURS", "# by hand\n")
    removed(package, tmp_path, CHROOT)
    assert len(list(tmp_path.glob("etc/*/lightsleep.conf"))) == 2


@pytest.mark.parametrize("status", [0, 1])
@pytest.mark.parametrize("package", ["lightsleep", "lightsleep-dkms"])
def test_a_link_to_a_copy_of_our_file_stays(package: str, status: int, tmp_path: Path) -> None:
    """It is of whoever keeps /etc elsewhere; disable leaves it, too, and fails for that reason."""
    link = plant(tmp_path, f"kept elsewhere: {OURS}") / "etc/modules-load.d/lightsleep.conf"
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "kept elsewhere")
    for ischroot in (MACHINE, CHROOT):
        (tmp_path / "modules/cpuidle_lightsleep").mkdir(parents=True, exist_ok=True)
        removed(package, tmp_path, ischroot, status)
        assert link.is_symlink()
    assert (tmp_path / "kept elsewhere").read_text().startswith(OURS)


def purged(root: Path) -> None:
    """Run the script as dpkg does when it purges the package of the command."""
    script = (ROOT / "debian/lightsleep.postrm").read_text()
    for place in ("/etc/", "/run/"):
        script = script.replace(f" {place}", f" {root}{place}")
    script = elsewhere(script, root)
    (root / "bin").mkdir()
    for name in ("head", "grep", "rm", "rmdir"):  # and no lightsleep that this machine may have
        (root / "bin" / name).symlink_to(str(shutil.which(name)))
    environment = {"PATH": str(root / "bin")}
    subprocess.run(["/bin/sh", "-c", script, "sh", "purge"], env=environment, check=True)


def test_purge_takes_our_files_along_and_no_link(tmp_path: Path) -> None:
    plant(tmp_path, f"kept elsewhere: {OURS}")
    plant(tmp_path, f"etc/modprobe.d/lightsleep.conf: {OURS}")
    plant(tmp_path, "etc/modprobe.d/.lightsleep.conf.new: half\nrun/lightsleep/lock:")
    link = tmp_path / "etc/modules-load.d/lightsleep.conf"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "kept elsewhere")
    purged(tmp_path)
    assert link.is_symlink()
    assert not list(tmp_path.glob("etc/modprobe.d/*"))
    assert not list(tmp_path.glob("etc/modprobe.d/.*"))
    assert not (tmp_path / "run/lightsleep").exists()


@pytest.mark.parametrize("place", BY_PIP)
def test_purge_leaves_what_another_installation_enabled_since(place: str, tmp_path: Path) -> None:
    plant(tmp_path, f"etc/modprobe.d/lightsleep.conf: {OURS}\nrun/lightsleep/lock:")
    plant(tmp_path, f"{place}/lightsleep: #!/bin/sh")
    (tmp_path / place / "lightsleep").chmod(0o755)
    purged(tmp_path)
    assert (tmp_path / "etc/modprobe.d/lightsleep.conf").exists()
    assert (tmp_path / "run/lightsleep/lock").exists()
