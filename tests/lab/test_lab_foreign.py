# SPDX-License-Identifier: GPL-2.0-only
"""Kernels that somebody else made: what is right about one, and what an error says where it is not.

The image is one that looks like the kernel's, and the tree has only the files that are asked for.
"""

from __future__ import annotations

import shutil
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lightsleep.errors import LightsleepError, WrongUsage
from lightsleep.lab.boot import foreign, guest, initramfs
from lightsleep.lab.boot.initramfs import with_dependencies
from lightsleep.lab.boot.machine import ForeignKernel, Machine
from lightsleep.lab.kernels.config import ARCHES, DRIVERS, NEEDED_OPTIONS, Arch
from lightsleep.lab.kernels.roots import GuestRoot

X86 = ARCHES["x86_64"]
RELEASE = "7.4.0-mine"


def x86_image(release: str = RELEASE, flags: int = 1) -> bytes:
    data = bytearray(8192)
    data[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", data, 0x20E, 0x300)
    struct.pack_into("<H", data, 0x236, flags)
    text = f"{release} (me@here) #1 SMP\0".encode()
    data[0x500 : 0x500 + len(text)] = text
    return bytes(data)


def elf_image(machine: int, order: int) -> bytes:
    head = bytearray(b"\x7fELF\x02" + bytes([order]) + bytes(58))
    struct.pack_into("<H" if order == 1 else ">H", head, 18, machine)
    return bytes(head)


def pe_image(machine: int) -> bytes:
    head = bytearray(256)
    head[:2], head[0x80:0x84] = b"MZ", b"PE\0\0"
    struct.pack_into("<I", head, 0x3C, 0x80)
    struct.pack_into("<H", head, 0x84, machine)
    return bytes(head)


ARM64 = bytes(0x38) + b"ARM\x64" + bytes(64)


def gzipped(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("head", "found"),
    [
        (x86_image(), ("x86_64", RELEASE)),
        (x86_image(flags=0), ("i386", RELEASE)),
        (ARM64, ("aarch64", None)),
        (gzipped(ARM64), ("aarch64", None)),
        (elf_image(21, 1), ("ppc64le", None)),
        (elf_image(21, 2), ("ppc64", None)),
        (elf_image(243, 1), ("ELF machine 243", None)),
        (pe_image(0xAA64), ("aarch64", None)),
        (b"", (None, None)),
        (b"#!/bin/sh\n" * 2000, (None, None)),
        (b"MZ", (None, None)),
        (x86_image()[:0x20E], (None, None)),
        (elf_image(21, 1)[:5], (None, None)),
        (b"\x1f\x8b" + b"not gzip", (None, None)),
    ],
)
def test_an_image_says_what_it_is_for(head: bytes, found: tuple[str | None, str | None]) -> None:
    assert foreign.identify(head) == found


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTSLEEP_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def installed(tmp_path: Path) -> ForeignKernel:
    """An image and its modules, as a distribution installs them."""
    (tmp_path / "vmlinuz").write_bytes(x86_image())
    folder = tmp_path / "lib/modules" / RELEASE
    folder.mkdir(parents=True)
    (folder / "modules.dep").write_text("")
    return ForeignKernel(image=tmp_path / "vmlinuz", modules=folder)


@pytest.fixture
def built(tmp_path: Path, cache: None) -> Path:
    """A tree in which a kernel was built, one module with it."""
    tree = tmp_path / "linux"
    for name, text in {
        "Kbuild": "",
        "include/config/kernel.release": f"{RELEASE}\n",
        ".config": "".join(f"CONFIG_{x}=y\n" for x in ("MODULES", *NEEDED_OPTIONS)),
        "modules.order": "drivers/a.o\n",
        "modules.builtin": "kernel/drivers/virtio/virtio_pci.ko\n",
        "Module.symvers": "",
        "Makefile": "",
    }.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    (tree / "drivers").mkdir()
    (tree / "drivers/a.ko").write_bytes(elf_image(62, 1))
    (tree / X86.built_image).parent.mkdir(parents=True)
    (tree / X86.built_image).write_bytes(x86_image())
    return tree


def test_an_image_and_its_modules(installed: ForeignKernel) -> None:
    found = foreign.tree(X86, installed)
    assert (found.release, found.image, found.headers) == (RELEASE, installed.image, None)
    assert found.modules == installed.modules


def test_the_folder_of_modules_may_have_another_name_where_the_image_has_none(
    installed: ForeignKernel, tmp_path: Path
) -> None:
    """As where modules were copied from a board. The image of an arm64 kernel has no release."""
    assert installed.image
    assert installed.modules
    arm64 = tmp_path / "Image"
    arm64.write_bytes(bytes(0x38) + b"ARM\x64" + bytes(8))
    (tmp_path / "current").symlink_to(installed.modules)
    (tmp_path / "mods").mkdir()
    (tmp_path / "mods/modules.dep").write_text("")
    for folder, release in ((installed.modules, RELEASE), ("current", RELEASE), ("mods", None)):
        named = ForeignKernel(image=arm64, modules=tmp_path / folder)
        assert foreign.release_of(foreign.tree(ARCHES["aarch64"], named)) == release
    linked = ForeignKernel(image=installed.image, modules=tmp_path / "current")
    assert foreign.tree(X86, linked).release == RELEASE


def test_the_modules_may_be_named_by_the_folder_of_their_installation(
    installed: ForeignKernel, tmp_path: Path
) -> None:
    other = tmp_path / "lib/modules/6.1.0"
    other.mkdir()
    (other / "modules.dep").write_text("")
    found = foreign.tree(X86, ForeignKernel(image=installed.image, modules=tmp_path))
    assert found.modules == installed.modules


def test_the_key_changes_with_the_image(installed: ForeignKernel) -> None:
    before = foreign.tree(X86, installed).key
    assert foreign.tree(X86, installed).key == before
    assert installed.image
    installed.image.write_bytes(x86_image() + b"\0")
    assert foreign.tree(X86, installed).key != before


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (ARM64, "is a kernel for aarch64, but the guests are x86_64"),
        (b"hello", "is no kernel image"),
        (x86_image("6.6.6"), "is kernel 6.6.6, but .* has the modules of 7.4.0-mine"),
    ],
)
def test_an_image_that_cannot_be_booted(
    installed: ForeignKernel, content: bytes, said: str
) -> None:
    assert installed.image
    installed.image.write_bytes(content)
    with pytest.raises(LightsleepError, match=said):
        foreign.tree(X86, installed)


def test_modules_that_nobody_listed(installed: ForeignKernel) -> None:
    assert installed.modules
    (installed.modules / "modules.dep").unlink()
    with pytest.raises(LightsleepError, match=r"has no modules\.dep: .*run depmod"):
        foreign.tree(X86, installed)


@pytest.mark.parametrize("listed", [True, False])
def test_modules_without_what_reaches_a_root_are_refused(
    installed: ForeignKernel, listed: bool
) -> None:
    found = foreign.tree(X86, installed)
    (found.modules / "modules.dep").write_text("kernel/drivers/virtio/virtio_pci.ko.xz:\n")
    (found.modules / "modules.builtin").unlink(missing_ok=True)
    if listed:
        (found.modules / "modules.builtin").write_text("kernel/fs/squashfs/squashfs.ko\n")
    with pytest.raises(
        LightsleepError,
        match=rf"^kernel {RELEASE} has virtio_blk neither built in nor among the modules in "
        rf"{found.modules}: guests need virtio_pci, virtio_blk, .*; enable them in its config",
    ):
        with_dependencies(found, DRIVERS)


def test_without_headers_only_what_needs_our_modules_fails(installed: ForeignKernel) -> None:
    found, noted = foreign.tree(X86, installed), list[str]()
    assert foreign.modules(X86, found, [], noted.append) == []
    assert noted == [f"no headers of {RELEASE}: guests are without our modules"]
    with pytest.raises(
        LightsleepError, match=r"(?s)build does not lead to its headers.*-kernel-tr"
    ):
        foreign.modules(X86, found, ["cpuidle_lightsleep"], noted.append)


@pytest.mark.parametrize("how", ["tree", "objects"])
def test_two_kernels_with_the_headers_of_one_are_refused(
    how: str, built: Path, installed: ForeignKernel, tmp_path: Path
) -> None:
    """As where an image and modules were kept, and their source was patched and built again."""
    assert installed.modules
    headers = built
    if how == "objects":  # of make O=objects
        headers = tmp_path / "objects"
        built.rename(headers)
        (headers / "source").symlink_to(tmp_path)
        built.symlink_to("objects")
    (installed.modules / "build").symlink_to(headers)
    machines = {
        "a": Machine(foreign=installed),
        "patched": Machine(foreign=ForeignKernel(tree=built)),
        "again": Machine(foreign=replace(installed)),
        "other": Machine(kernel="6.1"),
    }
    with pytest.raises(WrongUsage) as raised:
        guest.check_kernels(machines)
    source = tmp_path if how == "objects" else built
    said = f"arms a and patched boot two kernels with the headers of one source, {source}: our mod"
    assert raised.value.message.startswith(said)
    del machines["patched"]
    guest.check_kernels(machines)


@pytest.mark.parametrize("changed", ["", X86.built_image, "drivers/a.ko"])
def test_two_trees_with_one_build_are_refused(changed: str, built: Path) -> None:
    """As where a tree was copied, and make forgotten. A patch may change a module alone.

    Builds that are reproducible say the same date: what counts is the content.
    """
    patched = built.with_name("patched")
    shutil.copytree(built, patched)
    machines = {
        "a": Machine(foreign=ForeignKernel(tree=built)),
        "again": Machine(foreign=ForeignKernel(tree=built.parent / "patched/../linux")),
        "patched": Machine(foreign=ForeignKernel(tree=patched)),
    }
    if changed:
        with (patched / changed).open("ab") as file:
            file.write(b"more")
        guest.check_kernels(machines)
        return
    with pytest.raises(WrongUsage) as raised:
        guest.check_kernels(machines)
    said = f"arms a and patched boot one build: {built / X86.built_image} and {patched}/arch"
    assert raised.value.message.startswith(said)
    assert raised.value.message.endswith(f"with make -C {patched}")


def test_a_tree_and_its_own_image_are_refused(built: Path, installed: ForeignKernel) -> None:
    """Its modules may differ, as those that are installed are signed, or compressed."""
    assert installed.modules
    (installed.modules / "build").symlink_to(built)
    own = replace(installed, image=built / X86.built_image)
    machines = {"a": Machine(foreign=own), "b": Machine(foreign=ForeignKernel(tree=built))}
    with pytest.raises(WrongUsage, match=r"arms a and b boot one kernel: .* the image of the tree"):
        guest.check_kernels(machines)


def test_one_kernel_may_be_spelled_in_two_ways(built: Path, installed: ForeignKernel) -> None:
    """As in a file whose arms differ by what is appended."""
    assert installed.modules
    there = built / "x" / ".."
    there.parent.mkdir()
    for two in (
        {"a": ForeignKernel(tree=built), "b": ForeignKernel(tree=there)},
        {"a": installed, "b": replace(installed, modules=installed.modules.parents[2])},
    ):
        guest.check_kernels({name: Machine(foreign=kernel) for name, kernel in two.items()})


def test_modules_alone_may_differ(
    installed: ForeignKernel, built: Path, tmp_path: Path, cache: None
) -> None:
    assert installed.modules
    other = tmp_path / "new/lib/modules" / RELEASE
    shutil.copytree(installed.modules, other)
    (other / "modules.dep").write_text("kernel/a.ko:\n")
    (other / "kernel").mkdir()
    (other / "kernel/a.ko").touch()
    patched = replace(installed, modules=other)
    guest.check_kernels({"a": Machine(foreign=installed), "b": Machine(foreign=patched)})


def test_a_built_tree_is_left_as_it_is(built: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in built.rglob("*")}
    found = foreign.tree(X86, ForeignKernel(tree=built))
    assert (found.release, found.headers) == (RELEASE, built)
    assert (found.modules / "kernel/drivers/a.ko").resolve() == built / "drivers/a.ko"
    assert "kernel/drivers/a.ko:" in (found.modules / "modules.dep").read_text()
    assert {path: path.stat().st_mtime_ns for path in built.rglob("*")} == before


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What the initramfs of a guest has, by path, once one was made."""
    found = dict[str, bytes]()

    def pack(stage: Path, into: Path) -> None:
        assert not any(x.is_symlink() for x in (stage / "payload").rglob("*"))
        files = (x for x in stage.rglob("*") if x.is_file() and not x.is_symlink())
        found.update({str(x.relative_to(stage)): x.read_bytes() for x in files})
        into.touch()

    monkeypatch.setattr(initramfs, "pack", pack)
    monkeypatch.setattr(initramfs, "compile_python", lambda *_: None)
    monkeypatch.setattr(initramfs, "DRIVERS", ("virtio_pci",))
    (tmp_path / "busybox").touch()
    return found


MODULES = f"payload/usr/lib/modules/{RELEASE}"


def test_guests_have_the_modules_of_ones_own_kernel(
    built: Path, packed: dict[str, bytes], tmp_path: Path
) -> None:
    found = foreign.tree(X86, ForeignKernel(tree=built))
    theirs = initramfs.for_modprobe(found)
    root = GuestRoot(tmp_path / "root/root.squashfs", tmp_path / "busybox")
    initramfs.initramfs(found, root, [], theirs)
    assert packed[f"{MODULES}/kernel/drivers/a.ko"] == elf_image(62, 1)
    assert packed[f"{MODULES}/modules.dep"] == b"kernel/drivers/a.ko:\n"
    assert f"{MODULES}/modules.dep.bin" in packed  # which is what modprobe reads
    packed.clear()
    initramfs.initramfs(found, root, [])
    assert not [name for name in packed if "modules/" in name]


def test_modules_that_are_large_together_are_left_out_of_all_arms_and_told(
    installed: ForeignKernel, built: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And what is listed but gone, or elsewhere, is left out alone, as is where links lead to."""
    assert installed.modules
    (tmp_path / "b.ko").touch()
    (installed.modules / "build").symlink_to("/")
    (installed.modules / "modules.dep").write_text(
        f"kernel/a.ko.xz: kernel/gone.ko\nkernel/gone.ko:\n{tmp_path}/b.ko:\n"
    )
    (installed.modules / "kernel").mkdir()
    (installed.modules / "kernel/a.ko.xz").write_bytes(bytes(1 << 20))
    found = foreign.tree(X86, installed)
    names = [x.name for x in initramfs.for_modprobe(found)]
    assert names == ["a.ko.xz", "modules.dep"]
    machines = {
        "small": Machine(foreign=ForeignKernel(tree=built)),
        "stock": Machine(),
        "large": Machine(foreign=installed),
    }
    assert guest.lacks_modprobe(machines) == ""
    monkeypatch.setattr(initramfs, "MODPROBE_MIB", 1)
    said = guest.lacks_modprobe(machines)
    assert said.startswith(f"{initramfs.NO_MODPROBE}: guests are without the modules of your")
    assert f"(large): the modules of {RELEASE} have 1.0 MiB, over 1: install them with" in said
    assert guest.lacks_modprobe({"small": machines["small"]}) == ""


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        (X86.built_image, "has no arch/x86/boot/bzImage: build it for x86_64 first"),
        ("include/config/kernel.release", "has no kernel.release: build it"),
        ("drivers/a.ko", r"drivers/a\.ko is not there: build the modules"),
        (".config", r"cannot read .*linux/\.config: No such file"),
    ],
)
def test_a_tree_that_is_not_built(built: Path, gone: str, said: str) -> None:
    (built / gone).unlink()
    with pytest.raises(LightsleepError, match=said):
        foreign.tree(X86, ForeignKernel(tree=built))


def test_a_tree_that_is_built_for_another_architecture(built: Path) -> None:
    (built / X86.built_image).unlink()
    (built / "vmlinux").write_bytes(elf_image(183, 1))
    with pytest.raises(
        LightsleepError, match=r"linux is built for aarch64, but the guests are x86_64: build it"
    ):
        foreign.tree(X86, ForeignKernel(tree=built))
    (built / "vmlinux").write_bytes(elf_image(62, 1))
    with pytest.raises(LightsleepError, match="bzImage: build it for x86_64 first"):
        foreign.tree(X86, ForeignKernel(tree=built))


def test_an_image_that_is_older_than_its_tree(built: Path) -> None:
    """Make writes the release before it compiles: a build that failed left the old image."""
    (built / X86.built_image).write_bytes(x86_image("7.4.0-old"))
    with pytest.raises(
        LightsleepError,
        match=rf"bzImage is kernel 7\.4\.0-old, but .*linux is configured as {RELEASE}: "
        r"finish its build, with make -C .*linux$",
    ):
        foreign.tree(X86, ForeignKernel(tree=built))


def without_modules(tree: Path, old: str = "", new: str = "") -> None:
    """Leave what make bzImage makes, with a setting replaced."""
    for name in ("Module.symvers", "modules.order"):
        (tree / name).unlink()
    config = tree / ".config"
    config.write_text(config.read_text().replace(f"CONFIG_{old}\n", f"{new}\n"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("", "", r"its modules are not built: run make -C {}\nguests .* ours \(test_smp\)$"),
        (
            "MODULES=y",
            "# CONFIG_MODULES is not set",
            r"it has no modules: set CONFIG_MODULES, or compare",
        ),
    ],
)
def test_why_our_modules_cannot_be_built_is_told(
    old: str, new: str, said: str, built: Path
) -> None:
    without_modules(built, old, new)
    found, noted = foreign.tree(X86, ForeignKernel(tree=built)), list[str]()
    assert foreign.modules(X86, found, [], noted.append) == []
    with pytest.raises(LightsleepError, match=said.format(built)):
        foreign.modules(X86, found, ["test_smp"], noted.append)


def test_drivers_that_are_modules_and_not_built_are_told(built: Path) -> None:
    without_modules(built, "VIRTIO_BLK=y", "CONFIG_VIRTIO_BLK=m")
    with pytest.raises(
        LightsleepError,
        match=rf"^{built} has no modules yet, and guests need CONFIG_VIRTIO_BLK=m: build them, "
        rf"with make -C {built}$",
    ):
        foreign.tree(X86, ForeignKernel(tree=built))


def test_a_folder_that_is_no_tree(tmp_path: Path) -> None:
    with pytest.raises(LightsleepError, match="is no tree of a kernel"):
        foreign.tree(X86, ForeignKernel(tree=tmp_path))


def test_a_tree_that_lacks_what_guests_need_names_it(built: Path) -> None:
    config = built / ".config"
    text = config.read_text().replace("CONFIG_SQUASHFS=y\n", "# CONFIG_SQUASHFS is not set\n")
    config.write_text(text.replace("CONFIG_VIRTIO_BLK=y\n", ""))
    with pytest.raises(
        LightsleepError, match=r"lacks CONFIG_VIRTIO_BLK, CONFIG_SQUASHFS, .*guest\.config"
    ):
        foreign.tree(X86, ForeignKernel(tree=built))


ARM64_ARCH = ARCHES["aarch64"]
CLANG, LLD = "CONFIG_CC_IS_CLANG=y\nCONFIG_CLANG_VERSION=190107\n", "CONFIG_LD_IS_LLD=y\n"


def gcc(name: str) -> str:
    """Return what the configuration says of a compiler."""
    return f'CONFIG_CC_IS_GCC=y\nCONFIG_CC_VERSION_TEXT="{name} (Debian 14.2.0-19) 14.2.0"\n'


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """The words that build modules on an x86_64 machine that has these programs, and make.

    The folder ``bin`` is on the user's PATH alone.
    """

    def words(config: str, programs: str, arch: Arch = X86) -> list[str]:
        (tmp_path / ".config").write_text(config)
        for program in ("system/make", *(f"bin/{name}" for name in programs.split())):
            file = tmp_path / program
            file.parent.mkdir(exist_ok=True)
            file.touch(0o755)
        tree = foreign.ForeignTree(RELEASE, Path("image"), Path("modules"), "key", tmp_path)
        return tree.make(arch, Path("work"), ["W=1"])

    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{tmp_path}/system")
    monkeypatch.setattr(foreign, "SYSTEM_PATH", str(tmp_path / "system"))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("lightsleep.lab.host.contained", lambda words, *_, **__: words)
    return words


@pytest.mark.parametrize(
    ("arch", "config", "programs", "asked"),
    [
        (X86, "", "gcc", []),
        (X86, gcc("gcc"), "gcc gcc-14", []),
        (X86, gcc("gcc-14"), "gcc gcc-14", ["CC=gcc-14"]),
        (X86, gcc("gcc-14"), "gcc", []),
        (
            X86,
            gcc("x86_64-linux-gnu-gcc-14"),
            "x86_64-linux-gnu-gcc-14",
            ["CC=x86_64-linux-gnu-gcc-14"],
        ),
        (X86, CLANG, "clang", ["CC=clang"]),
        (X86, CLANG, "clang clang-19", ["CC=clang-19"]),
        (X86, CLANG + LLD, "clang ld.lld llvm-ar", ["LLVM=1"]),
        (X86, CLANG + LLD, "clang clang-19 ld.lld llvm-ar", ["LLVM=1"]),
        (X86, CLANG + LLD, "clang-19 ld.lld-19 llvm-ar-19", ["LLVM=-19"]),
        # gcc-14 of the machine on which this was built.
        (
            ARM64_ARCH,
            gcc("gcc-14"),
            "gcc-14 aarch64-linux-gnu-gcc",
            ["CROSS_COMPILE=aarch64-linux-gnu-"],
        ),
        (
            ARM64_ARCH,
            gcc("aarch64-linux-gnu-gcc-14"),
            "aarch64-linux-gnu-gcc-14",
            ["CC=aarch64-linux-gnu-gcc-14", "CROSS_COMPILE=aarch64-linux-gnu-"],
        ),
        (ARM64_ARCH, CLANG + LLD, "clang ld.lld llvm-ar", ["LLVM=1"]),
        (ARM64_ARCH, CLANG, "clang", ["CC=clang", "CROSS_COMPILE=aarch64-linux-gnu-"]),
    ],
)
def test_modules_are_built_by_the_compiler_of_the_kernel(
    arch: Arch, config: str, programs: str, asked: list[str], told: Callable[..., list[str]]
) -> None:
    words = told(config, programs, arch)
    given = ("LLVM=", "CC=", "CROSS_COMPILE=")
    assert sorted(x for x in words if x.startswith(given)) == sorted(asked)


def test_a_compiler_of_the_users_path_is_found_by_the_build(
    tmp_path: Path, told: Callable[..., list[str]]
) -> None:
    assert f"PATH={tmp_path}/system:{tmp_path}/bin" in told(CLANG, "clang")
    (tmp_path / "system/clang").touch(0o755)
    assert f"PATH={tmp_path}/system" in told(CLANG, "clang")


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ("CONFIG_GCC_VERSION=150100\n", "gcc"),
        ("CONFIG_CC_IS_CLANG=y\nCONFIG_CLANG_VERSION=150107\n" + LLD, "clang"),
    ],
)
@pytest.mark.parametrize(
    ("systems", "users", "is_users"), [(12, 15, True), (15, 15, False), (12, 14, False)]
)
def test_of_two_compilers_of_a_name_the_version_of_the_kernel_is_taken(
    config: str,
    name: str,
    systems: int,
    users: int,
    is_users: bool,
    tmp_path: Path,
    told: Callable[..., list[str]],
) -> None:
    told(config, "gcc clang ld.lld llvm-ar")  # which makes the folders
    for folder, version in (("system", systems), ("bin", users)):
        for program in ("ld.lld", "llvm-ar", name):
            script = tmp_path / folder / program
            script.write_text(f"#!/bin/sh\necho {version}.1.0\n")
            script.chmod(0o755)
    paths = [tmp_path / "bin", tmp_path / "system"][not is_users :]
    words = told(config, name)
    assert f"PATH={':'.join(map(str, paths))}" in words


def test_modules_that_do_not_build_are_told_with_the_compiler_of_the_kernel(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> list[Path]:
        raise LightsleepError("building modules failed")

    monkeypatch.setattr(foreign, "project_modules", fail)
    with (built / ".config").open("a") as file:
        file.write(gcc("gcc"))
    found = foreign.tree(X86, ForeignKernel(tree=built))
    with pytest.raises(LightsleepError) as raised:
        foreign.modules(X86, found, ["cpuidle_lightsleep"], lambda _: None)
    assert raised.value.message.endswith(
        "for; this kernel was built with gcc (Debian 14.2.0-19) 14.2.0"
    )


def test_what_a_kernel_of_clang_needs_is_named(told: Callable[..., list[str]]) -> None:
    with pytest.raises(
        LightsleepError, match=r"needs ld\.lld, llvm-ar, not found .*: apt-get install lld llvm$"
    ):
        told(CLANG + LLD, "clang")
