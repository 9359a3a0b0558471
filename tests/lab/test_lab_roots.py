# SPDX-License-Identifier: GPL-2.0-only
"""Programs that the lab needs, packages that it unpacks, and the mirrors that have them."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest
from paths import ROOT

from lightsleep.errors import LightsleepError
from lightsleep.lab import host
from lightsleep.lab.boot.guest import prepare
from lightsleep.lab.boot.machine import Machine
from lightsleep.lab.kernels import roots, source
from lightsleep.lab.kernels.config import ARCHES

X86 = ARCHES["x86_64"]


def test_a_missing_program_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "SYSTEM_PATH", "")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(LightsleepError, match="apt-get install bubblewrap mmdebstrap"):
        host.need("mmdebstrap", "bwrap")
    with pytest.raises(LightsleepError, match="apt-get install qemu-system-x86"):
        prepare(Machine())


BWRAP = (
    "bwrap: Creating new namespace failed: Operation not permitted",
    "bwrap: Can't mount proc on /newroot/proc: Operation not permitted",
    "bwrap: No permissions to create new namespace, likely because the kernel does not allow it",
    "bwrap: setting up uid map: Permission denied",
    "bwrap: Failed to make / slave: Permission denied",
    "bwrap: pivot_root: Operation not permitted",
)


@pytest.mark.parametrize("said", BWRAP)
def test_a_container_without_namespaces_is_told(said: str) -> None:
    script = ["sh", "-c", 'echo begun; echo "$1" >&2; exit 1', "sh", said]
    with pytest.raises(LightsleepError) as raised:
        host.run(script, "unpacking linux-image")
    first, *_, last = raised.value.message.splitlines()
    assert first == "unpacking linux-image failed (exit status 1):"
    assert said in raised.value.message
    for word in (
        "namespaces",
        "container",
        "docker run --privileged",
        "virtual machine",
        "sysctl user",
    ):
        assert word in last


@pytest.mark.parametrize(
    "said", ["bwrap: execvp make: No such file or directory", f"E: {BWRAP[0]}", "no bwrap"]
)
def test_what_else_fails_is_not_taken_for_a_container(said: str) -> None:
    with pytest.raises(LightsleepError, match=r"failed \(exit status 1\)") as raised:
        host.run(["sh", "-c", 'echo "$1"; exit 1', "sh", said], "a build")
    assert "container" not in raised.value.message


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="/dev/shm cannot be written")
def test_a_cache_below_dev_is_there_where_packages_are_unpacked() -> None:
    with tempfile.TemporaryDirectory(prefix="lightsleep-", dir="/dev/shm") as name:
        here, tree = Path(name), Path(name) / "tree"
        tree.mkdir()
        (tree / "file").touch()
        script = f"touch {here}/there && test -e {tree}/file && ! touch {tree}/no 2> /dev/null"
        argv = host.contained(["sh", "-c", script], "--bind", "/", "/", folder=here, shown=tree)
        host.run(argv, "writing below /dev")
        assert (here / "there").exists()


def test_every_needed_program_has_a_package() -> None:
    used = {
        word
        for file in Path(host.__file__).parent.glob("*.py")
        for word in re.findall(r'need\("(\w+)"', file.read_text())
    }
    assert used
    assert used <= host.PACKAGES.keys()


def apt_says(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    done = subprocess.CompletedProcess([], 0, stdout=text)
    monkeypatch.setattr("lightsleep.lab.kernels.roots.subprocess.run", lambda *_, **__: done)


def test_mirrors_are_the_machines_own(monkeypatch: pytest.MonkeyPatch) -> None:
    apt_says(
        monkeypatch,
        "Docker|Docker CE|https://other.example/\n"
        "Debian|Debian-Security|https://sec.example/\n"
        "Debian|Debian|https://deb.example/debian/\n"
        "Debian|Debian Backports|https://back.example/\n"
        "Debian|Debian|https://second.example/\n",
    )
    assert roots.sources("trixie", "trixie-backports") == [
        "deb https://deb.example/debian/ trixie main",
        "deb https://deb.example/debian/ trixie-backports main",
        "deb https://deb.example/debian/ trixie-updates main",
        "deb https://sec.example/ trixie-security main",
    ]


def test_a_suite_that_changes_every_day_has_no_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    apt_says(monkeypatch, "Debian|Debian|https://deb.example/\nDebian|Debian-Security|https://s/\n")
    assert roots.sources("sid", "experimental") == [
        "deb [check-valid-until=no] https://deb.example/ sid main",
        "deb [check-valid-until=no] https://deb.example/ experimental main",
    ]


def test_without_mirrors_mmdebstrap_uses_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    apt_says(monkeypatch, "Ubuntu|Ubuntu|https://ubuntu.example/\n")
    assert roots.sources("bookworm", "bookworm") == []
    with pytest.raises(LightsleepError, match=r"trixie-backports .*run apt-get update first$"):
        roots.sources("trixie", "trixie-backports")


def test_a_mirror_that_apt_does_not_name_before_an_update_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Images are made without lists of packages: what apt's sources say then counts for nothing."""
    apt_says(monkeypatch, "")
    failed = "unpacking make failed: E: Failed to fetch http://deb.debian.org  Could not connect"
    monkeypatch.setattr(host, "run", Mock(side_effect=LightsleepError(failed)))
    monkeypatch.setattr(host, "need", lambda *_: None)
    with pytest.raises(LightsleepError) as raised:
        roots.unpack(X86, "bookworm", "bookworm", ["make"], tmp_path / "into")
    assert raised.value.format_message().splitlines()[1:] == [
        "mmdebstrap's own mirror was used, because this machine's apt has no lists of a Debian "
        "archive; if its sources have one, run apt-get update first"
    ]
    full = LightsleepError("unpacking make failed: No space left on device")
    monkeypatch.setattr(host, "run", Mock(side_effect=full))
    with pytest.raises(LightsleepError, match="No space") as raised:
        roots.unpack(X86, "bookworm", "bookworm", ["make"], tmp_path / "into")
    assert "mirror" not in raised.value.format_message()


@pytest.mark.parametrize(
    ("complaint", "attempts", "raised"),
    [
        ("Mirror sync in progress? [IP: x]", 3, roots.MirrorOutOfStep),
        (
            "E: Failed to fetch http://deb.example/libc6_2.41-12%2bdeb13u5_ppc64el.deb  404  Not "
            "Found [IP: x]",
            3,
            roots.MirrorOutOfStep,
        ),
        ("E: Failed to fetch http://deb.example/libc6.deb  503  Busy [IP: x]", 1, LightsleepError),
        ("No space left", 1, LightsleepError),
    ],
)
def test_updates_that_are_out_of_step_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, complaint: str, attempts: int, raised: type
) -> None:
    given: list[str] = []

    def run(argv: list[str], what: str, _: float) -> str:
        given.append(" ".join(argv))
        (tmp_path / "into" / "leftover").mkdir(parents=True)  # fails where it was not removed
        raise LightsleepError(complaint)

    monkeypatch.setattr(roots, "mirrors", lambda: ("https://deb.example/", "https://sec.example/"))
    monkeypatch.setattr(host, "run", run)
    monkeypatch.setattr(host, "need", lambda *_: None)
    with pytest.raises(LightsleepError, match=re.escape(complaint)) as caught:
        roots.unpack(X86, "trixie", "trixie", ["make"], tmp_path / "into")
    assert caught.type is raised
    assert len(given) == attempts
    assert "trixie-updates main" in given[0]
    assert "trixie-security main" in given[0]
    assert "trixie-updates" not in "".join(given[1:])
    assert "trixie-security main" in "".join(given[:2])
    assert "trixie-security" not in "".join(given[2:])


def test_a_package_that_only_updates_have_does_not_hide_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The kernel 6.12 of bookworm is one of its security updates."""
    said = ["Mirror sync in progress? [IP: x]", *["E: Unable to locate package linux-image-9"] * 2]

    def run(*_: object) -> str:
        raise LightsleepError(said.pop(0))

    monkeypatch.setattr(roots, "mirrors", lambda: ("https://deb.example/", "https://sec.example/"))
    monkeypatch.setattr(host, "run", run)
    monkeypatch.setattr(host, "need", lambda *_: None)
    with pytest.raises(roots.MirrorOutOfStep, match="Mirror sync in progress"):
        roots.unpack(X86, "bookworm", "bookworm", ["linux-image-9"], tmp_path / "into")
    assert not said


def test_what_fails_without_updates_is_not_taken_for_the_mirror(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = ["Mirror sync in progress? [IP: x]", "write: No space left on device"]

    def run(*_: object) -> str:
        raise LightsleepError(said.pop(0))

    monkeypatch.setattr(roots, "mirrors", lambda: ("https://deb.example/", "https://sec.example/"))
    monkeypatch.setattr(host, "run", run)
    monkeypatch.setattr(host, "need", lambda *_: None)
    with pytest.raises(LightsleepError, match="No space left on device") as raised:
        roots.unpack(X86, "bookworm", "bookworm", ["make"], tmp_path / "into")
    assert raised.type is LightsleepError
    assert raised.value.format_message().endswith("updates: Mirror sync in progress? [IP: x]")
    assert not said


def test_mirrors_are_reached_as_this_machines_apt_reaches_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proxy = 'Acquire::http::Proxy "http://proxy.example:3128";'
    retries = 'Acquire::Retries "5";'
    other = 'Acquire::Changelogs::URI::Origin::Debian "https://changelogs.example";'
    apt_says(monkeypatch, f"{proxy}\n{other}\n{retries}\n")
    assert roots.apt_options() == [f"--aptopt={proxy}", f"--aptopt={retries}"]


@pytest.mark.parametrize("target", ["", "trixie-backports"])
def test_a_source_that_a_newer_one_replaced_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: str
) -> None:
    def unpack(*_: object) -> None:
        raise LightsleepError("I: running apt\nE: Unable to locate package linux-source-9.9\n")

    monkeypatch.setenv("LIGHTSLEEP_CACHE", str(tmp_path))
    monkeypatch.setattr(source, "unpack", unpack)
    with pytest.raises(LightsleepError) as caught:
        source.kernel_source("9.9", "trixie", target)
    lacking = f"{target or 'trixie'} does not have linux-source-9.9"
    assert caught.value.message.startswith(lacking)
    assert "\n" not in caught.value.message
    assert "docs/how-to/port-to-a-new-kernel.md" in caught.value.message


def test_each_suite_has_a_source_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Bookworm's 6.12 is another one than trixie's, and that of its backports a third."""

    def unpack(_: object, suite: str, target: str, packages: list[str], into: Path) -> None:
        (into / "usr/src").mkdir(parents=True)
        (into / f"usr/src/{packages[0]}.tar.xz").write_text(f"{suite} {target}")

    monkeypatch.setenv("LIGHTSLEEP_CACHE", str(tmp_path))
    monkeypatch.setattr(source, "unpack", unpack)
    for suite, target in (
        ("bookworm", ""),
        ("trixie", ""),
        ("trixie", "trixie-backports"),
        ("bookworm", ""),
    ):
        text = source.kernel_source("6.12", suite, target).read_text()
        assert text == f"{suite} {target or suite}"


NEEDS_PACKAGES = """\
import pytest
from lightsleep.errors import LightsleepError
from lightsleep.lab.kernels.roots import MirrorOutOfStep

@pytest.fixture
def guest():
    raise MirrorOutOfStep("no list", foreign=True)

def test_boots(guest): pass

def test_builds():
    raise MirrorOutOfStep("no list", foreign=True)

def test_needs_this_machines():
    raise MirrorOutOfStep("no list", foreign=False)

def test_fails():
    raise LightsleepError("the disk is full")
"""


def test_a_test_is_skipped_that_needs_foreign_packages_that_no_mirror_has(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests/conftest.py", tmp_path)
    (tmp_path / "test_packages.py").write_text(NEEDS_PACKAGES)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "2 failed, 2 skipped" in done.stdout
    assert "no list" in done.stdout


ASKS_TWICE = """\
import pytest
from lightsleep.errors import LightsleepError
from lightsleep.lab.kernels import roots
from lightsleep.lab.kernels.config import ARCHES

pytestmark = pytest.mark.boot
ASKED = []

def fails(arch, packages, *_):
    ASKED.append((arch.name, *packages))
    raise LightsleepError("Mirror sync in progress? [IP: x]")

@pytest.mark.parametrize("packages", [["make"], ["make"], ["gcc"]])
@pytest.mark.parametrize("arch", ARCHES)
def test_asks(arch, packages, tmp_path, monkeypatch):
    monkeypatch.setattr(roots.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(roots, "sources", lambda *_: [])
    monkeypatch.setattr(roots, "_unpack", fails)
    roots.unpack(ARCHES[arch], "trixie", "trixie", packages, tmp_path / "into")

def test_asked():
    times = {asked: ASKED.count(asked) for asked in ASKED}
    assert times.pop(("x86_64", "make")) == 6
    assert len(times) == 5 and set(times.values()) == {3}
"""


def test_a_mirror_that_is_out_of_step_is_asked_once_for_foreign_packages(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests/conftest.py", tmp_path)
    (tmp_path / "test_asks.py").write_text(ASKS_TWICE)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "."]
    own = os.environ | {"LIGHTSLEEP_TEST_SNAPSHOTS": ""}  # the answers of another run
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=own)
    assert "3 failed, 1 passed, 6 skipped" in done.stdout
