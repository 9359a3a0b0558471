# SPDX-License-Identifier: GPL-2.0-only
"""The lab's tables: kernels, roots, and machines."""

import os
import re
import struct
from pathlib import Path
from unittest.mock import Mock

import pytest
from paths import ROOT

from lightsleep.errors import LightsleepError
from lightsleep.lab import experiments
from lightsleep.lab.boot import guest, initramfs
from lightsleep.lab.boot.guest import prepare
from lightsleep.lab.boot.machine import Devices, ForeignKernel, Machine
from lightsleep.lab.kernels import config, modules, roots
from lightsleep.lab.kernels.build import FRAGMENTS
from lightsleep.lab.kernels.config import ARCHES, KERNELS

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


@pytest.mark.parametrize("name", experiments.names())
def test_every_experiment_is_one(name: str) -> None:
    assert experiments.load(name).title
