# SPDX-License-Identifier: GPL-2.0-only
"""The spec file for RPM: what its scriptlets do when a package is removed or upgraded."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from paths import ROOT
from scan_trees import plant
from test_debian_files import beside_the_pages
from test_prerm import BY_PIP, elsewhere

import lightsleep

SPEC = (ROOT / "contrib/lightsleep.spec").read_text()
UPGRADED, REMOVED = "1", "0"
"""What rpm tells a scriptlet: how many versions of the package will be left."""


OURS, FOREIGN = "# Written by lightsleep enable: lightsleep disable removes it.\n", "# by hand\n"


def scriptlet(name: str) -> str:
    found = re.search(rf"(?m)^%{name}\n((?:(?!%files|%pre|%post|#).*\n)+)", SPEC)
    shared = re.search(r"(?ms)^%global undo %\{expand:\n(.*?)^\}\n\n", SPEC)
    assert found
    assert shared
    script = re.sub(r"(?m)^%systemd_.*\n", "", found[1]).replace("%{undo}\n", shared[1])
    return script.replace("%{name}", "lightsleep").replace("%{version}", lightsleep.__version__)


def ran(
    folder: Path,
    name: str,
    left: str,
    status: int,
    there: bool = True,
    root: str = "/",
    loaded: bool = True,
    said: str = "",
    file: str = OURS,
    dkms: str = "",
) -> tuple[int, str]:
    """Run a scriptlet with commands that only note what they are told; return status and notes.

    ``root`` is the root folder of the machine, which is another one for who is in a chroot.
    ``file`` is what the files of modules-load.d and modprobe.d hold. The commands print ``said``
    and ``dkms``. The notes also have what the scriptlet prints.
    """
    notes, tools = folder / "notes", folder / "bin"
    tools.mkdir()
    for command in ("lightsleep", "dkms") if there else ("dkms",):
        tool = tools / command
        printed = f"printf '{said if command == 'lightsleep' else dkms}'\n"
        tool.write_text(f'#!/bin/sh\necho {command} "$1" >> {notes}\n{printed}exit {status}\n')
        tool.chmod(0o755)
    for command in ("head", "grep", "rm", "tail", "uname"):
        (tools / command).symlink_to(str(shutil.which(command)))
    for place in ("modules-load.d", "modprobe.d"):
        (folder / "etc" / place).mkdir(parents=True, exist_ok=True)
        if not (folder / "etc" / place / "lightsleep.conf").is_symlink():
            (folder / "etc" / place / "lightsleep.conf").write_text(file)
    modules = folder / "modules"
    (modules / "cpuidle_lightsleep" if loaded else modules).mkdir(parents=True)
    script = scriptlet(name).replace("/proc/1/root", root).replace("/sys/module", str(modules))
    script = script.replace(" /etc/", f" {folder}/etc/").replace(" /run/", f" {folder}/run/")
    script = elsewhere(script, folder)
    with notes.open("a") as output:
        done = subprocess.run(
            ["/bin/sh", "-e", "-c", script, "sh", left],
            env={"PATH": str(tools)},
            stdout=output,
            stderr=output,
            check=False,
        )
    return done.returncode, notes.read_text()


def files(folder: Path) -> int:
    """Return how many of the files are there that tell a boot to load the driver."""
    return len(list(folder.glob("etc/*/lightsleep.conf")))


@pytest.mark.parametrize("status", [0, 1, 4])
@pytest.mark.parametrize("package", ["preun", "preun dkms"])
def test_either_package_takes_along_what_was_enabled(
    package: str, status: int, tmp_path: Path
) -> None:
    found, told = ran(tmp_path, package, REMOVED, status)
    assert found == 0  # else rpm would not remove it
    assert told.startswith("lightsleep disable\n")
    assert files(tmp_path) == (0 if status == 1 else 2)  # else the command removes them


@pytest.mark.parametrize(
    ("status", "said"),
    [(0, "undid it\nand more\n"), (1, "Error: no\nbut this\n"), (4, "stays\n")],
)
@pytest.mark.parametrize("package", ["preun", "preun dkms"])
def test_what_disable_says_is_told_unless_it_is_nothing(
    package: str, status: int, said: str, tmp_path: Path
) -> None:
    nothing = "Error: lightsleep is not enabled\n"
    _, told = ran(tmp_path, package, REMOVED, status, said=(nothing if status == 4 else "") + said)
    assert told.startswith(f"lightsleep disable\n{said}")
    assert nothing not in told


@pytest.mark.parametrize("package", ["preun", "preun dkms"])
def test_in_a_chroot_the_machine_s_driver_stays(package: str, tmp_path: Path) -> None:
    found, told = ran(tmp_path, package, REMOVED, 0, root=str(tmp_path))
    assert found == 0
    assert "lightsleep" not in told
    assert files(tmp_path) == 0


@pytest.mark.parametrize("package", ["preun", "preun dkms"])
def test_what_a_crash_left_of_our_files_goes(package: str, tmp_path: Path) -> None:
    left = [tmp_path / f"etc/{x}/.lightsleep.conf.new" for x in ("modules-load.d", "modprobe.d")]
    for file in left:
        plant(tmp_path, f"{file.relative_to(tmp_path)}: half")
    ran(tmp_path, package, REMOVED, 1)
    assert not any(file.exists() for file in left)


@pytest.mark.parametrize(("package", "undone"), [("preun", True), ("preun dkms", False)])
def test_what_needs_no_driver_stays_without_it(package: str, undone: bool, tmp_path: Path) -> None:
    plant(tmp_path, 'run/lightsleep/kept: {"module": "cpuidle_haltpoll", "old": null}')
    found, told = ran(tmp_path, package, REMOVED, 0, loaded=False)
    assert found == 0
    assert ("lightsleep disable" in told) == undone
    assert files(tmp_path) == (2 if undone else 0)


def test_what_the_driver_replaced_comes_back_without_it(tmp_path: Path) -> None:
    plant(tmp_path, 'run/lightsleep/kept: {"module": "cpuidle_lightsleep", "old": null}')
    _, told = ran(tmp_path, "preun dkms", REMOVED, 0, loaded=False)
    assert told.startswith("lightsleep disable\n")


@pytest.mark.parametrize("package", ["preun", "preun dkms"])
def test_an_upgrade_disables_nothing(package: str, tmp_path: Path) -> None:
    found, told = ran(tmp_path, package, UPGRADED, 0)
    assert found == 0
    assert "lightsleep" not in told
    assert files(tmp_path) == 2


def test_the_driver_may_be_there_without_the_command(tmp_path: Path) -> None:
    assert ran(tmp_path, "preun dkms", REMOVED, 0, there=False) == (0, "dkms remove\n")
    assert files(tmp_path) == 0


@pytest.mark.parametrize("place", BY_PIP)
def test_the_command_from_pip_undoes_what_it_enabled(place: str, tmp_path: Path) -> None:
    command = f"{place}/lightsleep"
    plant(tmp_path, f"{command}: #!/bin/sh\n{command}: echo by pip: $1")
    (tmp_path / command).chmod(0o755)
    found, told = ran(tmp_path, "preun dkms", REMOVED, 0, there=False)
    assert (found, told) == (0, "by pip: disable\ndkms remove\n")


@pytest.mark.parametrize("package", ["preun", "preun dkms"])
@pytest.mark.parametrize("root", ["/", "/tmp"])
def test_files_of_somebody_else_stay(package: str, root: str, tmp_path: Path) -> None:
    ran(tmp_path, package, REMOVED, 1, root=root, file=FOREIGN)
    assert files(tmp_path) == 2


@pytest.mark.parametrize("package", ["preun", "preun dkms"])
def test_a_link_to_a_copy_of_our_file_stays(package: str, tmp_path: Path) -> None:
    link = plant(tmp_path, f"kept elsewhere: {OURS}") / "etc/modules-load.d/lightsleep.conf"
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "kept elsewhere")
    ran(tmp_path, package, REMOVED, 1)
    assert link.is_symlink()
    assert not (tmp_path / "etc/modprobe.d/lightsleep.conf").exists()


def test_what_the_pages_point_to_is_beside_them(tmp_path: Path) -> None:
    assert "\n%doc %{_docdir}/%{name}\n" in SPEC
    (commands,) = re.findall(r"(?ms)^# Pages link to .*?\n\n", SPEC)
    script = commands.replace("%{name}", "lightsleep").replace("%{buildroot}", str(tmp_path))
    script = script.replace("%{_docdir}", "/doc").replace("%{python3_sitelib}", "/site")
    plant(tmp_path, "site/lightsleep/scan/scan.schema.json: {}")
    subprocess.run(["sh", "-ec", script], cwd=ROOT, check=True)
    there = tmp_path / "doc/lightsleep"
    pages = (ROOT / "debian/lightsleep.docs").read_text().split()
    assert all((there / name).exists() for name in (*pages, *beside_the_pages()))
    assert not (there / "lightsleep").readlink().is_absolute()
    assert (there / "docs/../lightsleep/scan/scan.schema.json").exists()


@pytest.mark.parametrize("status", [0, 1])
@pytest.mark.parametrize(
    ("dkms", "told"),
    [
        ("lightsleep/0.1.0, 6.12.0, x86_64: installed\\n", False),
        ("lightsleep/0.1.0: added\\n", True),
        ("lightsleep/0.1.0, 6.12.0, x86_64: built\\n", True),
        ("", True),
    ],
)
def test_a_kernel_without_module_is_told(
    dkms: str, told: bool, status: int, tmp_path: Path
) -> None:
    found, notes = ran(tmp_path, "post dkms", UPGRADED, status, dkms=dkms)
    assert found == 0
    words = " ".join(re.findall(r"(?m)^dkms (\w+)$", notes))
    assert words == "remove add autoinstall status"
    kernel = os.uname().release
    assert (f"lightsleep-dkms: no module is installed for kernel {kernel}. DKMS" in notes) == told


def test_the_comment_says_how_to_build_and_install(tmp_path: Path) -> None:
    """On a machine that has built no package yet."""
    tree, folder = "0.1.0~2.gb", "~/rpmbuild/RPMS/noarch"
    names = [f"lightsleep-{x}-1.noarch.rpm" for x in (tree, f"dkms-{tree}", "0.1.0~1.ga")]
    tools = {
        "python3": f'mkdir -p "$2"; touch "$2/pyproject.toml"; echo {tree}',
        "rpmbuild": "tar -tzf ~/rpmbuild/SOURCES/*.tar.gz > ~/packed\n"
        f"mkdir -p {folder}; cd {folder} && touch {' '.join(names)}",
        "sudo": 'echo "$@" >> ~/asked',
    }
    (tmp_path / "bin").mkdir()
    for name, script in tools.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh -e\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    commands = re.findall(r"(?m)^#   (.*)$", SPEC)
    environment = {"HOME": str(tmp_path), "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    subprocess.run(["sh", "-ec", "\n".join(commands)], cwd=tmp_path, env=environment, check=True)
    packed = (tmp_path / "packed").read_text().split()
    assert packed == [f"lightsleep-{tree}/", f"lightsleep-{tree}/pyproject.toml"]
    asked = (tmp_path / "asked").read_text().splitlines()
    assert "dnf builddep contrib/lightsleep.spec" in asked
    built = [Path(word).name for word in asked[-1].split()[2:]]
    assert sorted(built) == sorted(names[:2])


def test_the_version_is_that_of_the_tree() -> None:
    """A tree that is no release has one that names the commit; else it is the next release."""
    assert f"%{{!?tree:%global tree {lightsleep.__version__}}}\n" in SPEC
    assert "\nVersion:        %{tree}\n" in SPEC
    script = runpy.run_path(str(ROOT / "scripts/debian_source.py"))
    then = datetime(2026, 11, 29, tzinfo=UTC)
    printed = script["version"](lightsleep.__version__, False, then, "84bd20577", then)
    assert "~" in printed
    assert "+" in printed
    assert re.fullmatch(r"[\w.+~^]+", printed)  # all that rpm allows


def test_dkms_knows_the_modules_by_the_version_of_the_package() -> None:
    (install,) = re.findall(r"(?ms)^%install\n(.*?)^#? ?%post", SPEC)
    (command,) = re.findall(r"(?m)^sed -i '(.*)' \\$", install)
    text = (ROOT / "kernel/dkms.conf").read_text()
    done = subprocess.run(["sed", command], input=text, capture_output=True, text=True, check=True)
    assert '\nPACKAGE_VERSION="%{version}"\n' in done.stdout
    # With it, make.log says what to do with apt.
    assert "DKMS_PACKAGE=" in text
    assert "DKMS_PACKAGE" not in done.stdout
    assert '/build modules"\n' in done.stdout
