# SPDX-License-Identifier: GPL-2.0-only
"""Debian trees: a kernel with what builds its modules, and the root of a guest.

Packages are fetched and unpacked by mmdebstrap, from the mirrors this machine's own apt uses.
Nothing is installed on the host and no package script runs. One of them would compile the Python
files: compile_python() does. A guest that has to compile them takes seconds for each start of a
program in Python.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lightsleep import cache
from lightsleep.errors import LightsleepError
from lightsleep.lab import host
from lightsleep.lab.kernels.config import (
    ARCHES,
    BUILD_TOOLS,
    GUEST_SUITE,
    ROOTS,
    Arch,
    BuiltKernel,
    Kernel,
    lookup,
)

OUT_OF_STEP = re.compile(r"Mirror sync in progress\?|Failed to fetch \S+\.deb +404 ")
"""What apt says where a mirror's lists of packages are not those that its release file promises, or
name packages that it does not have. Seen with updates for a rarer architecture, and with a release
itself for days after it changed, which it does every few months."""


NOT_THERE = "Unable to locate package"
"""What apt says of a package that a suite does not have, or has no longer."""

FETCHING = "Failed to fetch"
"""What apt says where a mirror cannot be reached, or does not have what it names."""

NO_LISTS = (
    "mmdebstrap's own mirror was used, because this machine's apt has no lists of a Debian "
    "archive; if its sources have one, run apt-get update first"
)

REACHES = re.compile(r"Acquire::(https?::(?!Pipeline)|Retries |ForceIPv)")
"""Lines of apt's configuration that say how to reach a mirror."""

ROLLING = ("sid", "experimental")
"""Suites that change every day, and have no updates beside them. Their lists of packages expire
within days: a mirror that is updated less often still has a kernel to boot, signed like any other.
"""


PYTHON = ("python3", "dash", "coreutils", "base-files")
"""The packages of a Python of the guests' version that runs here."""

FETCH_S = 6 * 3600.0
"""For how long packages may come over a slow line. apt gives up one on which nothing comes."""

UNCOMPRESSED = ("-comp", "gzip", "-noI", "-noD", "-noF", "-noX")
"""How mksquashfs packs: an emulated CPU takes longer to decompress than the host to read. The file
names a format all the same, and a kernel without it does not mount it: this is the one that each
kernel with squashfs has, unless somebody left it out."""

COMPILE = """\
umask 022
python3 -I -m compileall -q -j0 --invalidation-mode {how} -s/mnt -p/ /mnt/usr
# 1: some of the files are of another Python, or of none.
test $? -le 1
"""


class MirrorOutOfStep(LightsleepError):
    """A mirror has no list of packages that can be trusted, and nobody here can mend that.

    ``foreign`` is whether they are those of another architecture than this machine's.
    """

    def __init__(self, message: str, foreign: bool) -> None:
        """Say what is wrong, and with whose packages."""
        super().__init__(message)
        self.foreign = foreign


class BootFiles(Protocol):
    """A kernel as guests boot it, whoever made it."""

    @property
    def release(self) -> str:
        """As ``uname -r`` prints it."""

    @property
    def image(self) -> Path:
        """What QEMU starts."""

    @property
    def modules(self) -> Path:
        """The folder of the kernel's own modules."""

    @property
    def key(self) -> str:
        """What determines all of it, shortened."""


class Headers(Protocol):
    """What builds modules for a kernel."""

    @property
    def release(self) -> str:
        """The kernel that they are for."""

    @property
    def key(self) -> str:
        """What determines them, shortened."""

    def make(self, arch: Arch, work: Path, given: Sequence[str]) -> list[str]:
        """Return the command that builds the modules in ``work``, with ``given`` for make."""


@dataclass(frozen=True)
class KernelTree:
    """An unpacked kernel: image, modules, headers and the compiler it was built with."""

    kernel: Kernel | BuiltKernel
    path: Path
    release: str

    @functools.cached_property
    def key(self) -> str:
        """The name of its entry in the cache, its release and its image, shortened.

        An entry may be fetched anew: then the release may be another one, or be as before, where
        only the revision of its package is another one.
        """
        return f"{self.path.parent.name} {self.release} {cache.digest(self.image.read_bytes())}"

    def make(self, arch: Arch, work: Path, given: Sequence[str]) -> list[str]:
        """Return the command that builds modules: in the tree, with the compiler there."""
        return host.contained(
            [
                *("env", "-i", "PATH=/usr/bin:/bin", "LC_ALL=C", "make", "-j2", *given),
                # Also right where it is this machine's own.
                *(f"ARCH={arch.kbuild}", f"CROSS_COMPILE={arch.triplet}-"),
                *("-C", f"/lib/modules/{self.release}/build", "M=/mnt", "modules"),
            ],
            *("--bind", str(self.path), "/", "--bind", str(work), "/mnt"),
            *("--tmpfs", "/run", "--tmpfs", "/tmp"),  # noqa: S108 (inside)
        )

    @property
    def image(self) -> Path:
        """The bootable image; newer packages keep it beside the modules."""
        old = list((self.path / "boot").glob(f"vmlinu[xz]-{self.release}"))
        return old[0] if old else self.modules / "vmlinuz"

    @property
    def modules(self) -> Path:
        """The folder of the kernel's own modules."""
        return self.path / "lib" / "modules" / self.release


@dataclass(frozen=True)
class GuestRoot:
    """The root file system of a guest, and the static busybox that finds it."""

    squashfs: Path
    busybox: Path


def mirrors() -> tuple[str | None, str | None]:
    """Return the URIs of this machine's Debian archive and security archive, where it has them.

    apt tells only of archives whose lists of packages it has fetched.
    """
    try:
        listed = subprocess.run(
            ["apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(REPO_URI)"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None, None
    uris: dict[str, str] = {}
    for line in listed.splitlines():
        origin, label, uri = line.split("|", 2)
        if origin == "Debian" and label.startswith("Debian"):
            uris.setdefault(label, uri)
    return uris.get("Debian"), uris.get("Debian-Security")


def apt_options() -> list[str]:
    """Return how this machine's apt reaches its mirrors, as options of mmdebstrap.

    mmdebstrap runs an apt of its own, which does not read the configuration of this machine's.
    """
    form = '%F "%v";%n'
    try:
        listed = subprocess.run(
            ["apt-config", "dump", "--no-empty", "--format", form, "Acquire"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return [f"--aptopt={line}" for line in listed.splitlines() if REACHES.match(line)]


def sources(suite: str, target: str, updates: bool = True, security: bool = True) -> list[str]:
    """Return the sources to give mmdebstrap for ``suite`` and, where another, ``target``.

    Without ``updates`` or ``security``, updates of that kind are left out. Empty where this
    machine's apt knows no Debian archive, or no list of one: mmdebstrap then uses its default.
    """
    archive, of_security = mirrors()
    if archive is None:
        if target != suite:
            raise LightsleepError(
                f"a kernel from {target} needs a Debian archive in this machine's apt sources; if "
                "they have one, run apt-get update first"
            )
        return []
    lines = [
        f"deb {'[check-valid-until=no] ' if name in ROLLING else ''}{archive} {name} main"
        for name in dict.fromkeys((suite, target))
    ]
    if suite not in ROLLING:
        lines += [f"deb {archive} {suite}-updates main"] if updates else []
        lines += [f"deb {of_security} {suite}-security main"] if security and of_security else []
    return lines


def unpack(arch: Arch, suite: str, target: str, packages: list[str], into: Path) -> None:
    """Unpack ``packages`` and all they depend on into the new folder ``into``.

    Without updates where the mirror has none that can be trusted at the moment, and then without
    those of security, too. Raises MirrorOutOfStep where it has nothing else either.
    """
    why = ""
    for updates, security in ((True, True), (False, True), (False, False)):
        lines = sources(suite, target, updates, security)
        try:
            _unpack(arch, packages, into, suite, lines)
            return
        except LightsleepError as error:
            # Some packages are among the updates only.
            expected = OUT_OF_STEP.search(error.message) or (why and NOT_THERE in error.message)
            if not expected and why:
                error.add_note(f"before that, with more of the mirror's updates: {why}")
            if not expected:
                if not lines and FETCHING in error.message:
                    error.add_note(NO_LISTS)
                raise
            shutil.rmtree(into, ignore_errors=True)
            why = why or error.message
    raise MirrorOutOfStep(
        f"the mirror's lists of packages of {suite} for {arch.debian} are not those that its "
        "release file names, or name packages that it does not have: it is being updated, or it is "
        f"stuck. Try again in some hours, or name another one in this machine's apt sources\n{why}",
        foreign=arch.name != platform.machine(),
    )


def _unpack(arch: Arch, packages: list[str], into: Path, suite: str, lines: list[str]) -> None:
    # chrootless needs no privilege, and nothing of it is left to matter: no script ever runs.
    mode = "root" if os.geteuid() == 0 else "chrootless"
    host.need("mmdebstrap")
    host.run(
        host.contained(
            [
                *("env", f"TMPDIR={into.parent}", "mmdebstrap", f"--mode={mode}"),
                *("--variant=extract", f"--architectures={arch.debian}", *apt_options()),
                *(f"--include={','.join(packages)}", suite, str(into), *lines),
            ],
            *("--bind", "/", "/"),
            folder=into.parent,
        ),
        f"unpacking {packages[0]} of {suite}",
        FETCH_S,
    )


def kernel_tree(arch: Arch, kernel: Kernel, tools: Sequence[str] = ()) -> KernelTree:
    """Return the tree of ``kernel``, with more ``tools`` to build with if asked for.

    Takes some 10 s and 500 MB the first time.

    Raises LightsleepError where packages cannot be fetched or the disk is full.
    """

    def build(scratch: Path) -> None:
        host.need("depmod")
        suffix = "" if kernel.target == kernel.suite else f"/{kernel.target}"
        names = [f"{x.format(debian=arch.debian)}{suffix}" for x in (kernel.image, kernel.headers)]
        tree = scratch / "tree"
        common = ["base-files", *BUILD_TOOLS, *tools]
        if arch.name == platform.machine():
            unpack(arch, kernel.suite, kernel.target, [*names, *common], tree)
        else:
            _cross_tree(arch, kernel, names, common, tree)
        # The packages' own scripts, which do not run here, would do these two.
        (tree / "usr/bin/awk").symlink_to("mawk")
        host.run(["depmod", "-b", tree, _release(tree)], "listing module dependencies")

    key = cache.digest(repr(kernel), repr((*BUILD_TOOLS, *tools)))
    path = cache.entry(f"kernel-{arch.name}-{kernel.name}-{key}", build, needs_mb=1600) / "tree"
    return KernelTree(kernel, path, _release(path))


def _cross_tree(
    arch: Arch, kernel: Kernel, names: list[str], common: list[str], tree: Path
) -> None:
    """Unpack a foreign kernel (packages ``names``) among programs that run on this machine."""
    own = lookup("compiler for a host", ARCHES, platform.machine())
    foreign = tree.with_name("foreign")
    unpack(arch, kernel.suite, kernel.target, [*names, "base-files"], foreign)
    # Programs of a kernel's build, made to run here; they handle the files of any architecture.
    kbuild = next(foreign.glob("usr/lib/linux-kbuild-*")).name
    unpack(own, kernel.suite, kernel.target, [kbuild, arch.compiler_package, *common], tree)
    shutil.rmtree(tree / "usr/src")
    for part in ("boot", "lib/modules", "usr/src"):
        if (tree / part).is_dir():
            (tree / part).rmdir()
        (foreign / part).rename(tree / part)
    shutil.rmtree(foreign)


def _release(tree: Path) -> str:
    # Headers leave a folder there too, but only the image's has the modules themselves.
    found = [x.parent.name for x in (tree / "lib/modules").glob("*/kernel")]
    if len(found) != 1:
        raise LightsleepError(f"expected one kernel under {tree}, found {found or 'none'}")
    return found[0]


def guest_root(arch: Arch, name: str = "base") -> GuestRoot:
    """Return the root ``name`` of ROOTS.

    The first time, this takes some 20 s and 700 MB for "base", 40 s and 1.4 GB for "programs".

    Raises LightsleepError where packages cannot be fetched or the disk is full.
    """

    packages = lookup("root", ROOTS, name)

    def build(scratch: Path) -> None:
        tree = scratch / "tree"
        unpack(arch, GUEST_SUITE, GUEST_SUITE, list(packages), tree)
        compile_python(tree, "timestamp")
        shutil.copy2(tree / "usr/bin/busybox", scratch / "busybox")
        squashed(tree, scratch / "root.squashfs", "-all-root")
        shutil.rmtree(tree)

    key = cache.digest(GUEST_SUITE, repr(packages), repr(PYTHON), COMPILE, repr(UNCOMPRESSED))
    path = cache.entry(f"root-{arch.name}-{key}", build, needs_mb=1600)
    return GuestRoot(path / "root.squashfs", path / "busybox")


def squashed(tree: Path, image: Path, *options: str) -> None:
    """Make a squashfs ``image`` of ``tree``; ``options`` are mksquashfs's.

    Raises LightsleepError where the tool is missing or fails.
    """
    host.need("mksquashfs")
    host.run(
        ["mksquashfs", tree, image, *UNCOMPRESSED, *options, "-no-progress", "-quiet"],
        "packing a root file system",
    )


def compile_python(tree: Path, how: str) -> None:
    """Write bytecode beside the Python files of a guest, of any architecture, below ``tree``.

    ``how`` is by what Python later tells whether it is that of the file: ``timestamp``, or
    ``checked-hash`` where times are not kept. Takes some 10 s and 100 MB the first time, for a
    Python that runs here. Where the lab knows none for this machine, the files stay as they are.

    Raises LightsleepError where packages cannot be fetched or the disk is full.
    """
    own = ARCHES.get(platform.machine())
    if own is None:
        return

    def build(scratch: Path) -> None:
        unpack(own, GUEST_SUITE, GUEST_SUITE, list(PYTHON), scratch / "tree")

    key = cache.digest(GUEST_SUITE, repr(PYTHON))
    python = cache.entry(f"python-{own.name}-{key}", build, needs_mb=200) / "tree"
    words = ("env", "-i", "PATH=/usr/bin:/bin", "LC_ALL=C", "sh", "-c", COMPILE.format(how=how))
    host.run(
        host.contained(
            words,
            *("--bind", str(python), "/", "--bind", str(tree), "/mnt"),
            *("--tmpfs", "/run", "--tmpfs", "/tmp"),  # noqa: S108 (inside)
        ),
        "compiling the Python files of a guest",
    )
