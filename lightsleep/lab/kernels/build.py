# SPDX-License-Identifier: GPL-2.0-only
"""Kernels built from the distribution's source, for what no packaged kernel offers.

The build runs inside a Debian tree with the compiler of the source's suite, so the host's own
release does not matter. What is left of it looks as a packaged kernel does: image, modules, and
what builds modules.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from lightsleep import cache
from lightsleep.errors import LightsleepError
from lightsleep.lab import host
from lightsleep.lab.kernels.config import (
    ARCHES,
    BUILD_TOOLS,
    KERNEL_TOOLS,
    Arch,
    BuiltKernel,
    Kernel,
    lookup,
)
from lightsleep.lab.kernels.roots import KernelTree, kernel_tree, unpack
from lightsleep.lab.kernels.series import Patch, apply, read_series
from lightsleep.lab.kernels.source import kernel_source

FRAGMENTS = Path(__file__).parent / "fragments"
BUILD_S = 2 * 3600.0
"""On two idle cores it takes minutes; on a busy machine, many of them."""

SETTING = re.compile(r"(CONFIG_\w+)=.+|# (CONFIG_\w+) is not set")


def any_tree(
    arch: Arch, kernel: Kernel | BuiltKernel, note: Callable[[str], None] = lambda _: None
) -> KernelTree:
    """Return the tree of a kernel, packaged or built; ``note`` hears what takes long."""
    if isinstance(kernel, Kernel):
        return kernel_tree(arch, kernel)
    return built_tree(arch, kernel, note)


def built_tree(arch: Arch, kernel: BuiltKernel, note: Callable[[str], None]) -> KernelTree:
    """Return the tree of ``kernel``; built, where source, configuration or tools are new.

    Takes minutes and, meanwhile, 3 GB the first time. Raises LightsleepError where the source
    or the tools cannot be fetched, where an option of a fragment cannot be had, or where a patch
    of our series does not apply.
    """
    note(f"source of kernel {kernel.name}")
    recipe = recipe_of(arch, kernel)

    def build(scratch: Path) -> None:
        note(f"building kernel {kernel.name}, for the first time: some minutes")
        make = recipe.prepare(scratch)
        for patch in recipe.patches:
            apply(patch, make.source)
        recipe.configure(make)
        make.parallel(*kernel.make)
        _install(make)
        shutil.rmtree(make.source)

    name = f"kernel-{arch.name}-{kernel.name}-{recipe.key()}"
    path = cache.entry(name, build, needs_mb=3500) / "tree"
    (modules,) = (path / "lib/modules").iterdir()
    return KernelTree(kernel, path, modules.name)


@dataclass(frozen=True)
class Recipe:
    """All that determines what a kernel is."""

    arch: Arch
    kernel: BuiltKernel
    archive: Path
    base: list[Path]
    own: list[Path]
    patches: tuple[Patch, ...]

    def key(self) -> str:
        """Return a short name for it: equal recipe, equal name."""
        # The package's archive has the date of the package.
        date = str(int(self.archive.stat().st_mtime))
        texts = [file.read_bytes() for file in (*self.base, *self.own)]
        texts += [part for patch in self.patches for part in patch.contents()]
        tools = repr((BUILD_TOOLS, KERNEL_TOOLS))
        return cache.digest(repr(self.kernel), date, tools, *texts)

    def prepare(self, scratch: Path) -> Make:
        """Unpack tools and source in ``scratch``."""
        host.need("xz")
        tree, source = scratch / "tree", scratch / "source"
        _toolbox(self.arch, self.kernel, tree)
        source.mkdir()
        host.run(
            ["tar", "-xJf", self.archive, "-C", source, "--strip-components=1"],
            f"unpacking linux-source-{self.kernel.version}",
        )
        return Make(self.arch, tree, source)

    def configure(self, make: Make, needed: Collection[str] | None = None) -> None:
        """Write .config.

        Raises LightsleepError where it did not take an option that is ``needed``; all are, without.
        """
        lost = _configure(make, self.base, self.own)
        if needed is not None:
            lost = [line for line in lost if settings(line).keys() & set(needed)]
        if lost:
            raise LightsleepError(f"these options did not take effect: {', '.join(lost)}")


def recipe_of(arch: Arch, kernel: BuiltKernel) -> Recipe:
    """Return how to build ``kernel``. Raises LightsleepError where its source cannot be fetched."""
    base, own = fragments(arch, kernel)
    patches = read_series(kernel.version) if kernel.patched else ()
    archive = kernel_source(kernel.version, kernel.suite, kernel.target)
    return Recipe(arch, kernel, archive, base, own, patches)


def fragments(arch: Arch, kernel: BuiltKernel) -> tuple[list[Path], list[Path]]:
    """Return the files that configure ``kernel``: those of any kernel, and its own."""
    own = [
        FRAGMENTS / f"{x}{y}" for x in kernel.fragments for y in (".config", f".{arch.name}.config")
    ]
    return (
        [FRAGMENTS / "base.config", FRAGMENTS / f"{arch.name}.config"],
        [file for file in own if file.suffixes == [".config"] or file.exists()],
    )


@dataclass(frozen=True)
class Make:
    """Runs the kernel's own make, on ``source``, with the tools of ``tree``."""

    arch: Arch
    tree: Path
    source: Path

    def __call__(self, *words: str) -> str:
        """Run make and return what it prints. Raises LightsleepError where it fails."""
        return host.run(
            host.contained(
                [
                    *("env", "-i", "PATH=/usr/bin:/bin", "LC_ALL=C"),
                    *("KBUILD_BUILD_USER=lightsleep", "KBUILD_BUILD_HOST=lab"),
                    *("make", "-s", "-C", "/mnt", f"ARCH={self.arch.kbuild}"),
                    *(f"CROSS_COMPILE={self.arch.triplet}-", *words),
                ],
                *("--bind", str(self.tree), "/", "--bind", str(self.source), "/mnt"),
                *("--tmpfs", "/run", "--tmpfs", "/tmp"),  # noqa: S108 (inside)
            ),
            f"make {' '.join(words)} of {self.source.name}",
            timeout_s=BUILD_S,
        )

    def parallel(self, *words: str) -> None:
        """Do the same on all CPUs; without targets among the words, image and modules are built."""
        self(f"-j{len(os.sched_getaffinity(0))}", *words)


def _toolbox(arch: Arch, kernel: BuiltKernel, tree: Path) -> None:
    """Unpack what builds ``kernel`` for ``arch`` on this machine."""
    own = lookup("compiler for a host", ARCHES, platform.machine())
    compilers = ["gcc"] if arch == own else ["gcc", arch.compiler_package]
    packages = ["base-files", *compilers, *BUILD_TOOLS, *KERNEL_TOOLS]
    unpack(own, kernel.suite, kernel.suite, packages, tree)
    (tree / "usr/bin/awk").symlink_to("mawk")  # a package's script would do it


def _configure(make: Make, base: list[Path], own: list[Path]) -> list[str]:
    """Write a .config: what ``base`` names and nothing else, then ``own`` with its defaults.

    Returns the settings that it did not take.
    """
    config = make.source / ".config"
    start = make.source / "lightsleep.config"
    start.write_text("".join(fragment.read_text() for fragment in base))
    make(f"KCONFIG_ALLCONFIG={start.name}", "allnoconfig")
    with config.open("a") as file:
        file.writelines(fragment.read_text() for fragment in own)
    make("olddefconfig")
    wanted = "".join(fragment.read_text() for fragment in [*base, *own])
    return lost_settings(wanted, config.read_text())


def settings(text: str) -> dict[str, str]:
    """Return the lines of a configuration by option; the last one of an option counts."""
    found = (SETTING.fullmatch(line) for line in text.splitlines())
    return {match[1] or match[2]: match[0] for match in found if match}


def lost_settings(wanted: str, got: str) -> list[str]:
    """Return the lines of ``wanted`` that ``got`` contradicts; what it does not name is off."""
    have = settings(got)
    return [
        line
        for option, line in settings(wanted).items()
        if have.get(option, f"# {option} is not set") != line
    ]


def _install(make: Make) -> None:
    """Put image, modules and what builds modules where packages have them."""
    release = make("kernelrelease").strip()
    headers = f"usr/src/linux-headers-{release}"
    (make.tree / "boot").mkdir(exist_ok=True)
    image = make.source / make("image_name").strip()
    shutil.copy(image, make.tree / "boot" / f"vmlinuz-{release}")
    shutil.copy(make.source / ".config", make.tree / "boot" / f"config-{release}")
    make("modules_install")
    # Its programs are to run here, not on the machine that the kernel is for.
    script = f'HOSTCC="$$CC" scripts/package/install-extmod-build /{headers}'
    make("run-command", f"KBUILD_RUN_COMMAND={script}")
    link = make.tree / "lib/modules" / release / "build"
    link.unlink(missing_ok=True)
    link.symlink_to(f"/{headers}")
