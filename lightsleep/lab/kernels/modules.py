# SPDX-License-Identifier: GPL-2.0-only
"""Kernel modules, built by the compiler release and the headers of the kernel they are for.

How the build runs is the kernel's business: see ``Headers`` in ``roots.py``.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from lightsleep import cache
from lightsleep.lab import host
from lightsleep.lab.kernels.config import Arch
from lightsleep.lab.kernels.roots import Headers
from lightsleep.sources import kernel_sources

SOURCES = ("*.[chS]", "Kbuild", "Makefile", "Kconfig")


def is_source(path: Path) -> bool:
    """Return whether a file determines what the modules are (object files do not)."""
    return not path.name.endswith(".mod.c") and any(path.match(x) for x in SOURCES)


def build_modules(
    arch: Arch, tree: Headers, source: Path, variables: Mapping[str, str] | None = None
) -> list[Path]:
    """Build the modules under ``source`` for ``tree`` and return their .ko files.

    ``variables`` are given to make, e.g. {"W": "1"}. Raises LightsleepError with the compiler's
    output where they do not build.
    """
    given = [f"{name}={value}" for name, value in (variables or {}).items()]
    files = sorted(x for x in source.rglob("*") if x.is_file() and is_source(x))

    def build(scratch: Path) -> None:
        work = scratch / "source"
        for file in files:
            copy = work / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)
        output = host.run(tree.make(arch, work, given), f"building modules for {tree.release}")
        (scratch / "build.log").write_text(output)
        for module in work.rglob("*.ko"):
            shutil.move(module, scratch)
        shutil.rmtree(work)

    contents = [x for f in files for x in (str(f.relative_to(source)), f.read_bytes())]
    key = cache.digest(tree.key, *given, *contents)
    entry = cache.entry(f"modules-{arch.name}-{key}", build, needs_mb=50)
    return sorted(entry.glob("*.ko"))


def project_modules(arch: Arch, tree: Headers) -> list[Path]:
    """Return this project's own modules for ``tree``, those that only tests load among them.

    All that the compiler can say of them is in the ``build.log`` beside them.
    """
    return build_modules(arch, tree, kernel_sources(), {"LIGHTSLEEP_TESTS": "1", "W": "1"})
