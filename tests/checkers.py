# SPDX-License-Identifier: GPL-2.0-only
"""What checks kernel code for tests, and only for them: checkpatch.pl and sparse."""

from pathlib import Path

from lightsleep import cache
from lightsleep.lab import host
from lightsleep.lab.kernels.source import kernel_source

STYLE_TOOLS = ("checkpatch.pl", "spelling.txt", "const_structs.checkpatch")

CHECK_TOOLS = ("sparse",)
"""Packages: what a build of modules runs with C=1 on top of what it always runs."""


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
