# SPDX-License-Identifier: GPL-2.0-only
"""The lab's tables, its packages and its mirrors."""

import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from paths import ROOT

from lightsleep.errors import LightsleepError
from lightsleep.lab import experiments, host
from lightsleep.lab.boot import accel, guest, initramfs
from lightsleep.lab.boot.foreign import ForeignTree
from lightsleep.lab.boot.guest import prepare
from lightsleep.lab.boot.machine import Devices, ForeignKernel, Machine
from lightsleep.lab.kernels import config, modules, roots, source
from lightsleep.lab.kernels.build import FRAGMENTS
from lightsleep.lab.kernels.config import ARCHES, KERNELS
from lightsleep.lab.kernels.roots import BootFiles

X86 = ARCHES["x86_64"]


@pytest.mark.parametrize("arch", ARCHES.values(), ids=ARCHES.keys())
def test_package_names_are_complete(arch: config.Arch) -> None:
    for kernel in arch.kernels.values():
        for package in (kernel.image, kernel.headers):
            assert re.fullmatch(r"linux-(image|headers)-[a-z0-9.-]+", package.format(debian="x"))


FORMATS = {1: "ZLIB", 4: "XZ", 6: "ZSTD"}
"""Of squashfs, by number: Documentation/filesystems/squashfs.rst names them, squashfs_fs.h both."""


def test_kernels_have_the_format_that_a_root_names(tmp_path: Path) -> None:
    """Nothing in it is compressed; a kernel without its format does not mount it all the same."""
    (tmp_path / "tree").mkdir()
    roots.squashed(tmp_path / "tree", tmp_path / "root")
    (number,) = struct.unpack_from("<H", (tmp_path / "root").read_bytes(), 20)
    option = f"SQUASHFS_{FORMATS[number]}"
    assert option in config.NEEDED_OPTIONS
    assert f"CONFIG_{option}=y\n" in (FRAGMENTS / "base.config").read_text()


def test_what_is_merged_into_a_kernel_of_ones_own_leaves_alone_what_is_compared() -> None:
    text = (FRAGMENTS / "guest.config").read_text()
    options = dict(line.split("=") for line in text.splitlines() if line.startswith("CONFIG_"))
    assert {*options.values()} == {"y"}
    assert options.keys() >= {f"CONFIG_{x}" for x in config.NEEDED_OPTIONS}
    compared = re.compile("HZ|PREEMPT|IDLE|GOV|TICK|RCU|SCHED|CPU|PM|TIMERS|PARAVIRT|KVM")
    assert not [x for x in options if compared.search(x)]
    assert "guest.config" in (ROOT / "docs/lab.md").read_text()


def rows_of_docs() -> dict[str, list[str]]:
    """Return the cells of the tables of docs/lab.md, by each of the names in the first one."""
    lines = (ROOT / "docs/lab.md").read_text().splitlines()
    rows = [[x.strip() for x in line.strip("|").split("|")] for line in lines if line[:1] == "|"]
    return {name: cells for cells in rows for name in cells[0].split(", ")}


def test_docs_have_all_kernels() -> None:
    documented = rows_of_docs()
    for arch in ARCHES.values():
        assert documented[arch.name][2].split(", ") == [*arch.kernels]
        assert documented.keys() >= arch.built.keys()


def test_a_kernel_that_was_fetched_anew_is_another_one(tmp_path: Path) -> None:
    kernel = KERNELS["6.12"]
    root = tmp_path / "kernel-x86_64-6.12-0123" / "tree"
    keys = set()
    for release, revision in (("6.12.94", "1"), ("6.12.117", "1"), ("6.12.117", "2")):
        (root / "boot").mkdir(parents=True, exist_ok=True)
        (root / f"boot/vmlinuz-{release}").write_text(f"{release}-{revision}")
        keys.add(roots.KernelTree(kernel, root, release).key)
    assert len(keys) == 3


def test_what_guests_get_can_be_read_by_all_their_users(tmp_path: Path) -> None:
    stage = tmp_path / "stage"
    before = os.umask(0o077)
    try:
        (stage / "usr/lib").mkdir(parents=True)
        (stage / "usr/lib/init").touch(mode=0o700)
        (stage / "sh").symlink_to("nowhere")
    finally:
        os.umask(before)
    initramfs.readable(stage)
    modes = {str(x.relative_to(stage)): x.lstat().st_mode & 0o777 for x in stage.rglob("*")}
    assert modes == {"usr": 0o755, "usr/lib": 0o755, "usr/lib/init": 0o744, "sh": 0o777}


def test_a_full_disk_is_told_where_an_initramfs_is_packed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="No space left"):
        initramfs.pack(tmp_path, Path("/dev/full"))


def test_rows_are_found_by_their_own_names() -> None:
    assert all(name == row.name for name, row in ARCHES.items())
    assert all(name == row.name for arch in ARCHES.values() for name, row in arch.kernels.items())


def test_every_architecture_has_the_kernel_that_is_booted_by_default() -> None:
    assert all(Machine().kernel in arch.kernels for arch in ARCHES.values())


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(LightsleepError, match=r"no x86_64 kernel '5\.4'; there are: 6\.12"):
        prepare(Machine(kernel="5.4"))
    with pytest.raises(LightsleepError, match="no architecture 'vax'; there are: x86_64"):
        prepare(Machine(arch="vax"))
    with pytest.raises(LightsleepError, match=r"no experiment 'nap'; there are: .*idle"):
        experiments.load("nap")


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        (Machine(kernel="5.4"), "no x86_64 kernel"),
        (Machine(root="tree"), "no root 'tree'; there are: base"),
        (Machine(idle_state="acpi"), "--idle-state needs --arch aarch64"),
        (Machine(foreign=ForeignKernel(tree=Path("/nowhere"))), "/nowhere"),
    ],
)
def test_nothing_is_fetched_for_a_machine_that_cannot_be(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, said: str
) -> None:
    monkeypatch.setattr(guest, "aside", Mock(side_effect=AssertionError))
    with pytest.raises(LightsleepError, match=said):
        prepare(machine)


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


def test_an_architecture_without_the_kernel_names_those_it_has() -> None:
    with pytest.raises(
        LightsleepError, match=r"no ppc64le kernel 'backports'; there are: 6\.12, 6\.1"
    ):
        prepare(Machine(arch="ppc64le", kernel="backports"))


def test_a_machine_says_how_to_boot_it() -> None:
    machine = Machine(
        append="idle=poll quiet",
        modules=("cpuidle_lightsleep x=1",),
        devices=Devices(
            device=("virtio-blk-pci,drive=d",),
            drive=("driver=null-co,id=d",),
            object=("iothread,id=t",),
            netdev=("user,id=n",),
        ),
        vcpus=4,
        threads=2,
        cpu="qemu64",
    )
    assert machine.command() == (
        "lightsleep lab shell --arch x86_64 --kernel 6.12 --append 'idle=poll quiet' "
        "--module 'cpuidle_lightsleep x=1' --object iothread,id=t --netdev user,id=n "
        "--drive driver=null-co,id=d --device virtio-blk-pci,drive=d "
        "--vcpus 4 --threads 2 --cpu qemu64"
    )


def test_a_machine_with_a_kernel_of_its_own_says_so_too() -> None:
    foreign = ForeignKernel(image=Path("/boot/vmlinuz"), modules=Path("/lib/modules/x y"))
    assert Machine(foreign=foreign, pin=True, boot_timeout=90).command() == (
        "lightsleep lab shell --arch x86_64 --image /boot/vmlinuz --modules '/lib/modules/x y' "
        "--boot-timeout 90s --pin"
    )


def test_what_is_built_does_not_determine_what_to_build() -> None:
    names = ["a.c", "a.h", "Kbuild", "a.mod.c", "a.o", "a.ko", "notes.txt"]
    assert [x for x in names if modules.is_source(Path(x))] == ["a.c", "a.h", "Kbuild"]


def test_another_architecture_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    tree = roots.KernelTree(KERNELS["6.12"], Path("/nowhere"), "6.12")
    chosen = accel.choose("auto", X86, tree)
    assert (chosen.name, chosen.reason) == ("tcg", "a x86_64 guest on a riscv64 host")
    with pytest.raises(LightsleepError, match="use --accel tcg"):
        accel.choose("kvm", X86, tree)


def test_no_permission_for_kvm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tree = roots.KernelTree(KERNELS["6.12"], Path("/nowhere"), "6.12")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(accel, "KVM", tmp_path / "kvm")
    assert accel.choose("auto", X86, tree).reason == "no /dev/kvm"
    (tmp_path / "kvm").write_text("")
    monkeypatch.setattr("lightsleep.lab.boot.accel.os.access", lambda *_: False)
    assert "group kvm" in accel.choose("auto", X86, tree).reason


@pytest.mark.parametrize(
    ("prints", "name", "reason"),
    [
        ("echo VFS: Unable to mount root fs", "kvm", "kernel 6.12.9 boots under it"),
        (
            "echo Booting from ROM; sleep 99",
            "tcg",
            "kernel 6.12.9 hung for 1 s (last line: 'Booting from ROM')",
        ),
        ("sleep 99", "tcg", "hung for 1 s (before its first line of output)"),
        (
            "echo KVM internal error. Suberror: 1; echo EAX=0; sleep 99",
            "tcg",
            "it stopped kernel 6.12.9 (last line: 'KVM internal error. Suberror: 1')",
        ),
        ("echo assertion failed; exit 6", "tcg", "with kernel 6.12.9, ended with status 6"),
    ],
)
def test_kvm_is_judged_by_a_boot(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prints: str, name: str, reason: str
) -> None:
    qemu = tmp_path / X86.qemu
    qemu.write_text(f"#!/bin/sh\n{prints}\n")
    qemu.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(accel, "PROBE_S", 1.0)
    verdict = accel.probe(X86, roots.KernelTree(KERNELS["6.12"], tmp_path, "6.12.9"))
    assert verdict.name == name
    assert reason in verdict.reason


BOOTS, HANGS = "echo VFS: Unable to mount root fs", "echo Booting; sleep 99"


@pytest.mark.parametrize(
    ("own", "debian", "name", "reason"),
    [
        (BOOTS, HANGS, "kvm", "kernel 7.4.0-mine boots under it"),
        (
            HANGS,
            BOOTS,
            "kvm",
            "kernel 6.12.9 boots under it, although kernel 7.4.0-mine hung for 1 s (last line: "
            "'Booting')",
        ),
        (
            HANGS,
            HANGS,
            "tcg",
            "/dev/kvm is there, but kernel 6.12.9 hung for 1 s (last line: 'Booting')",
        ),
    ],
)
def test_a_kernel_of_ones_own_that_fails_under_kvm_is_not_emulated_for_that(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    own: str,
    debian: str,
    name: str,
    reason: str,
) -> None:
    qemu = tmp_path / X86.qemu
    qemu.write_text(f'#!/bin/sh\ncase "$*" in */mine*) {own};; *) {debian};; esac\n')
    qemu.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("LIGHTSLEEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(accel, "KVM", tmp_path)
    monkeypatch.setattr(accel, "PROBE_S", 1.0)
    monkeypatch.setattr("lightsleep.lab.boot.accel.emulator.version", lambda _: "QEMU")
    mine = ForeignTree("7.4.0-mine", tmp_path / "mine", tmp_path, "mine", None)
    stock = SimpleNamespace(release="6.12.9", image=tmp_path / "stock", key="stock")
    chosen = accel.choose("auto", X86, mine, lambda: cast(BootFiles, stock))
    assert (chosen.name, chosen.reason) == (name, reason)


def test_where_debians_kernel_cannot_be_had_one_of_ones_own_that_fails_is_emulated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_network() -> BootFiles:
        raise LightsleepError("fetching packages: no mirror answers\nits output")

    monkeypatch.setattr(accel, "KVM", tmp_path)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    fails = accel.Accelerator("tcg", f"{accel.BUT}kernel 7.4.0-mine hung for 20 s")
    monkeypatch.setattr(accel, "_judged", lambda *_: fails)
    mine = ForeignTree("7.4.0-mine", tmp_path / "mine", tmp_path, "mine", None)
    chosen = accel.choose("auto", X86, mine, no_network)
    assert chosen.name == "tcg"
    assert chosen.reason == (
        "/dev/kvm is there, but kernel 7.4.0-mine hung for 20 s, and there is none of Debian's to "
        "try KVM with: fetching packages: no mirror answers"
    )
    with pytest.raises(LightsleepError, match=r"KVM cannot be used: .*no mirror answers; use"):
        accel.choose("kvm", X86, mine, no_network)


@pytest.mark.parametrize(
    ("machine", "asks"),
    [
        (Machine(), False),
        (Machine(kernel="rc"), False),
        (Machine(kernel="6.12-series"), True),
        (Machine(foreign=ForeignKernel(tree=Path("linux"))), True),
    ],
)
def test_a_kernel_that_is_not_debians_does_not_judge_kvm_alone(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, asks: bool
) -> None:
    def choose(*given: Any) -> accel.Accelerator:
        if stock := given[-1]:
            stock()
        return accel.Accelerator("kvm", "a test")

    noted = list[str]()
    monkeypatch.setattr(accel, "choose", choose)
    monkeypatch.setattr(guest, "any_tree", lambda *_: None)
    tree = ForeignTree("7.4.0-mine", Path("image"), Path("modules"), "mine", None)
    assert guest._emulation(machine, X86, tree, None, noted.append)[0].name == "kvm"
    assert noted == (["kernel 6.12 of Debian, to try KVM with"] if asks else [])


@pytest.mark.parametrize("name", experiments.names())
def test_every_experiment_is_one(name: str) -> None:
    assert experiments.load(name).title
