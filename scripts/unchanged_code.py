# SPDX-License-Identifier: GPL-2.0-only
"""Whether our series leaves the kernel's code as it is where its options are off.

    python scripts/unchanged_code.py [ARCH [BASE]]

Compiles every file that the series changes, before and after, both times without its options, and
compares the disassembly function by function. Says which functions differ; exit status 1 if any do.
Takes as long as building a few files of a kernel does, and as much space as a kernel's source.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from lightsleep import cache
from lightsleep.lab.kernels import build
from lightsleep.lab.kernels.config import ARCHES, lookup


def main(arch_name: str = "x86_64", base: str = "6.12") -> int:
    """Compare, print a line per object, and return the exit status."""
    arch = lookup("architecture", ARCHES, arch_name)
    plain = lookup("kernel", arch.built, f"{base}-plain")
    cache.folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.folder(), prefix=".unchanged-") as scratch:
        objects = build.code_without_options(arch, plain, Path(scratch))
    different = 0
    for name, (before, after) in objects.items():
        changed = sorted(x for x in before.keys() | after.keys() if before.get(x) != after.get(x))
        different += len(changed)
        verdict = f"differ: {', '.join(changed)}" if changed else "are the same"
        print(f"{arch.name} {name}: {len(before)} functions, {verdict}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
