# SPDX-License-Identifier: GPL-2.0-only
"""Kernels that somebody else made: a built tree, or an image and the folder of its modules.

Nothing of them is changed. The modules of a tree need not be installed: a folder of links to them
is enough to list what depends on what. Our own modules are built with the compiler of this machine,
where the tree (or the link ``build`` among the modules) has what that needs.
"""

from __future__ import annotations

import contextlib
import filecmp
import itertools
import os
import platform
import re
import shutil
import struct
import subprocess
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightsleep import cache
from lightsleep.errors import LightsleepError, WrongUsage
from lightsleep.lab import host
from lightsleep.lab.boot.initramfs import module_files
from lightsleep.lab.boot.machine import ForeignKernel
from lightsleep.lab.kernels.build import FRAGMENTS, settings
from lightsleep.lab.kernels.config import NEEDED_OPTIONS, Arch
from lightsleep.lab.kernels.modules import project_modules
from lightsleep.sources import kernel_sources

RELEASE = re.compile(r"\d+\.\d")
"""How the name of a kernel's release begins."""

SYSTEM_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
"""Where programs are that a build takes first."""

LLVM = {"clang": "clang", "ld.lld": "lld", "llvm-ar": "llvm"}
"""What a build with LLVM=1 needs, program by package."""

HEAD = 1 << 16
"""Bytes of an image that say what it is."""

ELF_MACHINES = {(62, 1): "x86_64", (183, 1): "aarch64", (21, 1): "ppc64le", (21, 2): "ppc64"}
"""e_machine and the byte order (1: little endian) of an ELF file."""
PE_MACHINES = {0x8664: "x86_64", 0xAA64: "aarch64", 0x5064: "riscv64", 0x6264: "loongarch64"}
X86_64_BIT = 1
"""Of xloadflags in the header of an x86 image."""


@dataclass(frozen=True)
class ForeignTree:
    """What guests boot of such a kernel; ``headers`` is None where no modules can be built."""

    release: str
    image: Path
    modules: Path
    key: str
    headers: Path | None
    lacks: str = ""
    """Why there are no headers, and what to do."""

    def config(self) -> dict[str, str]:
        """Return the settings of its configuration, by option; none where it is not there."""
        file = self.headers / ".config" if self.headers else None
        return settings(file.read_text()) if file and file.exists() else {}

    def make(self, arch: Arch, work: Path, given: Sequence[str]) -> list[str]:
        """Return the command that builds modules: with this machine's compiler, the tree unchanged.

        Raises LightsleepError where there are no headers, or no compiler.
        """
        if self.headers is None:
            raise LightsleepError(
                f"our modules cannot be built for kernel {self.release}: {self.lacks}"
            )
        config = self.config()
        programs, told = _compiler(arch, config)
        path = _path_of(_version(config), *programs, "make")
        programs = {"make": "make", **programs}
        host.need(*programs, packages=programs)
        return host.contained(
            [
                *("env", "-i", f"PATH={path}", "LC_ALL=C", "make", "-j2"),
                *(*given, f"ARCH={arch.kbuild}", *told),
                *("-C", str(self.headers), f"M={work}", "modules"),
            ],
            *("--bind", "/", "/"),
            folder=work,
            shown=self.headers,
        )


def _compiler(arch: Arch, config: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return what builds modules for a kernel of this configuration, and how make is told.

    These are programs with their packages. It is the compiler that built the kernel, where this
    machine has that; its options may be none of another version's.
    """
    own = arch.name == platform.machine()
    cross = [] if own else [f"CROSS_COMPILE={arch.triplet}-"]
    if _is_on(config, "CC_IS_CLANG"):
        # With clang alone, the rest are GNU's tools.
        whole = _is_on(config, "LD_IS_LLD")
        names = LLVM if whole else {"clang": LLVM["clang"]}
        # 190107 is 19.1.7. Where it was LLVM=-19, there may be no other.
        version = int(_value(config, "CLANG_VERSION") or 0) // 10000
        suffix = f"-{version}" if all(shutil.which(f"{x}-{version}") for x in names) else ""
        told = [f"LLVM={suffix or 1}"] if whole else [f"CC=clang{suffix}", *cross]
        return {f"{name}{suffix}": package for name, package in names.items()}, told
    gcc = "gcc" if own else f"{arch.triplet}-gcc"
    named = _value(config, "CC_VERSION_TEXT").strip('"').partition(" ")[0]
    prefix = rf"(?:{arch.triplet}-)" + ("?" if own else "")
    if named != gcc and re.fullmatch(rf"{prefix}gcc(?:-\d+)?", named) and shutil.which(named):
        return {named: named}, [f"CC={named}", *cross]
    return {gcc: "gcc" if own else arch.compiler_package}, cross


def _version(config: Mapping[str, str]) -> int:
    """Return the major version of the compiler that built a kernel; 0 where it is not known."""
    return max(int(_value(config, f"{x}_VERSION") or 0) // 10000 for x in ("CLANG", "GCC"))


def _path_of(version: int, compiler: str, *programs: str) -> str:
    """Return the PATH of a build: the system's, then where else the user has what that lacks.

    The folder of the user's compiler is first if that is of this major version, and the system's is
    of another.
    """
    lacks = [x for x in (compiler, *programs) if not shutil.which(x, path=SYSTEM_PATH)]
    found = [Path(x).absolute().parent for x in map(shutil.which, lacks) if x]
    systems, users = shutil.which(compiler, path=SYSTEM_PATH), shutil.which(compiler)
    ahead = []
    if version and systems and users and _major(systems) != version == _major(users):
        ahead = [Path(users).absolute().parent]
    return ":".join(dict.fromkeys(map(str, [*ahead, SYSTEM_PATH, *found])))


def _major(compiler: str) -> int:
    """Return the major version of a compiler; 0 where it does not tell."""
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        asked = [compiler, "-dumpversion"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True)
        return int(done.stdout.partition(".")[0])
    return 0


def release_of(tree: ForeignTree) -> str | None:
    """Return the release of a kernel; None where the folder of its modules has another name."""
    return tree.release if RELEASE.match(tree.release) else None


def source_of(tree: Path) -> Path:
    """Return the source of a built tree, to which a link leads where it was built with O=."""
    link = tree / "source"
    return link if link.exists() else tree


def one_source_each(trees: Mapping[str, ForeignTree]) -> None:
    """Raise WrongUsage where two of these kernels, by arm, have the headers of one of them."""
    first: dict[Path, tuple[str, Path]] = {}
    for arm, kernel in trees.items():
        if kernel.headers is None:
            continue
        source, image = source_of(kernel.headers).resolve(), kernel.image.resolve()
        other, its_image = first.setdefault(source, (arm, image))
        if image != its_image:
            raise WrongUsage(
                f"arms {other} and {arm} boot two kernels with the headers of one source, "
                f"{source}: our modules would be built with the headers of one kernel for both; "
                "give each its own source, such as with git worktree. Where arms load none of our "
                "modules, it is enough to remove the link `build` from the folder of --modules"
            )


def one_build_each(
    kernels: Mapping[str, ForeignKernel | None], trees: Mapping[str, ForeignTree]
) -> None:
    """Raise WrongUsage where two of these kernels, by arm, are one: named apart, but built once.

    The content tells, not the date that a kernel says: that is the same in reproducible builds, and
    where a patch changes a module alone. A tree and its own image are one whatever modules are
    named beside the image: those that are installed may be signed, or stripped.
    """
    named = {arm: x for arm, x in kernels.items() if x and arm in trees}
    for (arm, kernel), (other, its) in itertools.combinations(named.items(), 2):
        one, two = trees[arm], trees[other]
        same_image = one.image.samefile(two.image)
        if same_image and _place(kernel, one) == _place(its, two):
            continue  # one kernel, maybe spelled in two ways
        if same_image and bool(kernel.tree) != bool(its.tree):
            raise WrongUsage(
                f"arms {arm} and {other} boot one kernel: {one.image} is the image of the tree "
                f"{kernel.tree or its.tree}. Build the kernel with the patch in a source of its "
                "own, such as with git worktree"
            )
        if _same_content(one, two):
            make = f", with make -C {its.tree}" if its.tree else ""
            raise WrongUsage(
                f"arms {arm} and {other} boot one build: {one.image} and {two.image} have the same "
                "content, and so have their modules. Apply the patch, see that .config enables "
                f"what it changes, and build that kernel{make}"
            )


def _place(kernel: ForeignKernel, found: ForeignTree) -> Path:
    return (kernel.tree or found.modules).resolve()


def _same_content(one: ForeignTree, two: ForeignTree) -> bool:
    """Return whether two kernels are the same to the last byte of their images and modules."""
    if not filecmp.cmp(one.image, two.image, shallow=False):
        return False
    first, second = (
        [x.relative_to(tree.modules) for x in module_files(tree)] for tree in (one, two)
    )
    return sorted(first) == sorted(second) and all(
        filecmp.cmp(one.modules / x, two.modules / x, shallow=False) for x in first
    )


def tree(arch: Arch, kernel: ForeignKernel) -> ForeignTree:
    """Return what guests boot of ``kernel``. Raises LightsleepError for whatever is not right."""
    try:
        return _tree(arch, kernel)
    except OSError as error:
        raise LightsleepError(f"cannot read {error.filename}: {error.strerror}") from error


def _tree(arch: Arch, kernel: ForeignKernel) -> ForeignTree:
    if kernel.tree:
        return _built(arch, kernel.tree.absolute())
    assert kernel.image
    if kernel.modules is None:
        raise WrongUsage(
            f"--image {kernel.image} needs --modules: the folder of the modules of this kernel, "
            "such as /lib/modules/RELEASE"
        )
    release = _check_image(kernel.image, arch)
    folder = _modules_of(kernel.modules.absolute(), release)
    # Who copied the modules may have named the folder as they like, or made a link to it.
    names = [folder.name, Path(os.path.realpath(folder)).name]
    if release and release not in names:
        raise LightsleepError(
            f"{kernel.image} is kernel {release}, but {folder} has the modules of {folder.name}: "
            "give the two that belong together"
        )
    build = Path(os.path.realpath(folder / "build"))
    there = (build / "Module.symvers").exists() and (build / "Makefile").exists()
    return ForeignTree(
        release or next((x for x in names if RELEASE.match(x)), folder.name),
        kernel.image,
        folder,
        _key(kernel.image, folder / "modules.dep", *folder.rglob("*.ko*")),
        build if there else None,
        f"{folder}/build does not lead to its headers; install them, or give a built tree with "
        "--kernel-tree",
    )


def modules(
    arch: Arch, kernel: ForeignTree, needed: Sequence[str], note: Callable[[str], None]
) -> list[Path]:
    """Return our modules for ``kernel``; none where it has no headers and none is needed.

    Raises LightsleepError where one is needed and they cannot be built.
    """
    if not needed and kernel.headers is None:
        note(f"no headers of {kernel.release}: guests are without our modules")
        return []
    try:
        return project_modules(arch, kernel)
    except LightsleepError as error:
        if needed:
            by = _value(kernel.config(), "CC_VERSION_TEXT").strip('"')
            why = (
                f": {kernel_sources()}/dkms-kernels.sh names the kernels that they are for"
                f"{by and f'; this kernel was built with {by}'}"
            )
            raise LightsleepError(
                f"{error.message}\nguests of this comparison load modules of ours ({needed[0]})"
                f"{why if kernel.headers else ''}"
            ) from None
        note(f"our modules do not build for {kernel.release}: guests are without them")
        return []


def _built(arch: Arch, path: Path) -> ForeignTree:
    """Return what a built tree has, and links to its modules where they look installed."""
    image, listed = path / arch.built_image, path / "include/config/kernel.release"
    if not (path / "Kbuild").exists() and not listed.exists():
        raise LightsleepError(f"{path} is no tree of a kernel: it has no Kbuild")
    if not listed.exists() or not image.exists():
        theirs = _built_for(path)
        if theirs not in (None, arch.name):
            raise LightsleepError(
                f"{path} is built for {theirs}, but the guests are {arch.name}: build it for "
                f"{arch.name}, or give --arch {theirs} where `lightsleep lab list` has it"
            )
        raise LightsleepError(
            f"{path} has no {image.relative_to(path) if listed.exists() else 'kernel.release'}: "
            f"build it for {arch.name} first, with make -C {path}"
        )
    release = listed.read_text().strip()
    # Make writes this file before it compiles: a build that failed left the image of another.
    if (of_image := _check_image(image, arch)) not in (None, release):
        raise LightsleepError(
            f"{image} is kernel {of_image}, but {path} is configured as {release}: finish its "
            f"build, with make -C {path}"
        )
    have = settings((path / ".config").read_text())
    if lost := [x for x in NEEDED_OPTIONS if "is not set" in have.get(f"CONFIG_{x}", "is not set")]:
        raise LightsleepError(
            f"kernel {release} in {path} lacks {', '.join(f'CONFIG_{x}' for x in lost)}, without "
            f"which no guest comes up: merge {FRAGMENTS}/guest.config into its configuration "
            "(scripts/kconfig/merge_config.sh), and build it again"
        )
    order, symbols = path / "modules.order", path / "Module.symvers"
    drivers = [f"CONFIG_{x}=m" for x in NEEDED_OPTIONS if _value(have, x) == "m"]
    if drivers and not (order.exists() and symbols.exists()):
        raise LightsleepError(
            f"{path} has no modules yet, and guests need {', '.join(drivers)}: build them, with "
            f"make -C {path}"
        )
    files = [
        path / re.sub(r"\.o$", ".ko", line)
        for line in (order.read_text().split() if order.exists() else [])
    ]
    if missing := [file for file in files if not file.exists()]:
        raise LightsleepError(f"{missing[0]} is not there: build the modules, with make -C {path}")
    key = _key(image, path / ".config", *files)

    def link(scratch: Path) -> None:
        host.need("depmod")
        folder = scratch / "lib/modules" / release
        folder.mkdir(parents=True)
        for file in files:
            place = folder / "kernel" / file.relative_to(path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(file)
        for name in ("modules.order", "modules.builtin"):
            text = (path / name).read_text() if (path / name).exists() else ""
            (folder / name).write_text(text)
        host.run(["depmod", "-b", scratch, release], "listing module dependencies")

    entry = cache.entry(f"foreign-{key}", link, needs_mb=20)
    modular = _is_on(have, "MODULES")
    headers = path if modular and symbols.exists() else None
    lacks = (
        f"its modules are not built: run make -C {path}"
        if modular
        else "it has no modules: set CONFIG_MODULES, or compare arms that load none of ours"
    )
    return ForeignTree(release, image, entry / "lib/modules" / release, key, headers, lacks)


def _modules_of(folder: Path, release: str | None) -> Path:
    """Return the folder with ``modules.dep``, at or below the one that was named."""
    there = [folder, *sorted((folder / "lib/modules").glob("*")), *sorted(folder.glob("*"))]
    found = [x for x in there if (x / "modules.dep").is_file()]
    found = [x for x in found if x.name == release] or found
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(x.name for x in found)
        raise LightsleepError(f"{folder} has modules of {names}: name the folder of one")
    raise LightsleepError(
        f"{folder} has no modules.dep: give the folder /lib/modules/RELEASE of the image, or run "
        f"depmod -b {folder} RELEASE where the modules were copied"
    )


def _built_for(path: Path) -> str | None:
    """Return the architecture that a tree was built for, as its vmlinux says; None: unknown."""
    with contextlib.suppress(OSError):
        return identify(_head(path / "vmlinux"))[0]
    return None


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD)


def _check_image(path: Path, arch: Arch) -> str | None:
    """Return the release of an image, where it says so. Raises LightsleepError for another's."""
    try:
        head = _head(path)
    except OSError as error:
        raise LightsleepError(f"cannot read {path}: {error.strerror}") from error
    theirs, release = identify(head)
    if theirs is None:
        raise LightsleepError(
            f"{path} is no kernel image: give what the kernel's build made, such as "
            f"{arch.built_image}"
        )
    if theirs != arch.name:
        raise LightsleepError(
            f"{path} is a kernel for {theirs}, but the guests are {arch.name}: give the image of "
            f"a kernel for {arch.name}, or --arch {theirs} where `lightsleep lab list` has it"
        )
    return release


def identify(head: bytes) -> tuple[str | None, str | None]:
    """Return the architecture and the release of an image, from its first bytes; None: unknown."""
    try:
        return _identify(head)
    except (IndexError, struct.error, zlib.error):  # cut short, or damaged
        return None, None


def _identify(head: bytes) -> tuple[str | None, str | None]:
    if head[:2] == b"\x1f\x8b":
        head = zlib.decompressobj(wbits=31).decompress(head, HEAD)
    if head[0x202:0x206] == b"HdrS":
        (place,) = struct.unpack_from("<H", head, 0x20E)
        (flags,) = struct.unpack_from("<H", head, 0x236)
        words = head[place + 0x200 :].split(b"\0", 1)[0].split() if place else []
        release = words[0].decode("ascii", "replace") if words else None
        return ("x86_64" if flags & X86_64_BIT else "i386"), release
    if head[0x38:0x3C] == b"ARM\x64":
        return "aarch64", None
    if head[:4] == b"\x7fELF":
        order = head[5]
        (machine,) = struct.unpack_from("<H" if order == 1 else ">H", head, 18)
        return ELF_MACHINES.get((machine, order), f"ELF machine {machine}"), None
    if head[:2] == b"MZ":
        (place,) = struct.unpack_from("<I", head, 0x3C)
        if head[place : place + 4] == b"PE\0\0":
            (machine,) = struct.unpack_from("<H", head, place + 4)
            return PE_MACHINES.get(machine, f"PE machine {machine:#x}"), None
    return None, None


def _value(config: Mapping[str, str], option: str) -> str:
    """Return what a configuration says behind the = of an option; empty where it has none."""
    return config.get(f"CONFIG_{option}", "").partition("=")[2]


def _is_on(config: Mapping[str, str], option: str) -> bool:
    return _value(config, option) == "y"


def _key(*files: Path) -> str:
    """Return a short name for the state of files: where they are, how long, and when written."""
    states = []
    for file in sorted(files):
        found = file.stat()
        states.append(f"{file} {found.st_size} {found.st_mtime_ns}")
    return cache.digest(*states)
