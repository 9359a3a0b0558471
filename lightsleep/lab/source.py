# SPDX-License-Identifier: GPL-2.0-only
"""The distribution's kernel source, for its tools now and to build kernels from."""

from __future__ import annotations

from pathlib import Path

from lightsleep.lab import cache, host
from lightsleep.lab.config import ARCHES
from lightsleep.lab.roots import unpack

STYLE_TOOLS = ("checkpatch.pl", "spelling.txt", "const_structs.checkpatch")


def kernel_source(version: str = "6.12", suite: str = "bookworm", target: str = "") -> Path:
    """Return the source archive of the newest ``version`` in ``suite`` (150 MB to fetch).

    ``target`` is the suite's backports, where it comes from there.

    Raises LightsleepError where it cannot be fetched or the disk is full.
    """
    package = f"linux-source-{version}"

    def build(scratch: Path) -> None:
        tree = scratch / "tree"
        unpack(ARCHES["x86_64"], suite, target or suite, [package], tree)
        (tree / f"usr/src/{package}.tar.xz").rename(scratch / "source.tar.xz")
        host.run(["rm", "-rf", tree], "removing what is not the source")

    return cache.entry(package, build, needs_mb=600) / "source.tar.xz"


def style_tools() -> Path:
    """Return a folder with the kernel's own style checker, checkpatch.pl."""

    def build(scratch: Path) -> None:
        names = [f"*/scripts/{name}" for name in STYLE_TOOLS]
        archive = kernel_source()
        host.run(
            ["tar", "-xJf", archive, "-C", scratch, "--strip-components=2", "--wildcards", *names],
            "unpacking checkpatch",
        )

    return cache.entry("linux-style-tools", build, needs_mb=10)
