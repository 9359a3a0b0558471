# SPDX-License-Identifier: GPL-2.0-only
"""The distribution's kernel source, to build kernels from."""

from __future__ import annotations

from pathlib import Path

from lightsleep import cache
from lightsleep.lab import host
from lightsleep.lab.config import ARCHES
from lightsleep.lab.roots import unpack


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
