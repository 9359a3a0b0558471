# SPDX-License-Identifier: GPL-2.0-only
"""The distribution's kernel source, to build kernels from."""

from __future__ import annotations

from pathlib import Path

from lightsleep import cache
from lightsleep.errors import LightsleepError
from lightsleep.lab import host
from lightsleep.lab.kernels.config import ARCHES
from lightsleep.lab.kernels.roots import NOT_THERE, unpack


def kernel_source(version: str = "6.12", suite: str = "bookworm", target: str = "") -> Path:
    """Return the source archive of the newest ``version`` in ``suite`` (150 MB to fetch).

    ``target`` is the suite's backports, where it comes from there.

    Raises LightsleepError where it cannot be fetched or the disk is full, and where the suite does
    not have it: backports and unstable have the newest only.
    """
    package = f"linux-source-{version}"

    def build(scratch: Path) -> None:
        tree = scratch / "tree"
        try:
            unpack(ARCHES["x86_64"], suite, target or suite, [package], tree)
        except LightsleepError as error:
            if f"{NOT_THERE} {package}" not in error.message:
                raise
            raise LightsleepError(
                f"{target or suite} does not have {package} any more: a newer kernel replaced it; "
                "docs/how-to/port-to-a-new-kernel.md says how to go on to that one"
            ) from None
        (tree / f"usr/src/{package}.tar.xz").rename(scratch / "source.tar.xz")
        host.run(["rm", "-rf", tree], "removing what is not the source")

    # Suites have archives of one version that differ.
    name = f"{package}-{target or suite}"
    return cache.entry(name, build, needs_mb=600) / "source.tar.xz"
