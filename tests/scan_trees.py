# SPDX-License-Identifier: GPL-2.0-only
"""Machines for the scan tests: one text file each, a line ``path: content`` per file of /sys.

``{0-3}`` in a path stands for each of these CPUs; several lines of one path are lines of one
file; ``#`` starts a comment. /dev/cpu_dma_latency, which is binary, is written as a number.
"""

import functools
import re
import struct
from pathlib import Path

from paths import FIXTURES

from lightsleep import cpulist
from lightsleep.scan.loading import SECURE_BOOT

MACHINES = FIXTURES / "scan"
NAMES = sorted(path.stem for path in MACHINES.glob("*.txt"))


def unfold(name: str, root: Path) -> Path:
    """Create the tree of a recorded or made-up machine below ``root``; return ``root``."""
    return plant(root, (MACHINES / f"{name}.txt").read_text())


def plant(root: Path, text: str) -> Path:
    """Create, or replace, the files that ``text`` describes below ``root``; return ``root``."""
    files = {root / path: content for path, content in _files(text).items()}
    for folder in {file.parent for file in files}:
        folder.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        if file.name == "cpu_dma_latency":
            file.write_bytes(struct.pack("=i", int(content)))
        else:
            file.write_text(content)
    return root


def set_secure_boot(root: Path, on: bool) -> Path:
    """Make ``root`` a machine with EFI; return it."""
    file = root / SECURE_BOOT
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(bytes([6, 0, 0, 0, on]))
    return root


@functools.cache
def _files(text: str) -> dict[str, str]:
    files: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        pattern, _, content = line.strip().partition(": ")
        for path in _expand(pattern.rstrip(":")):
            files[path] = files.get(path, "") + content + "\n"
    return files


def _expand(pattern: str) -> list[str]:
    braces = re.search(r"\{([^}]*)\}", pattern)
    if not braces:
        return [pattern]
    return [pattern.replace(braces[0], str(cpu)) for cpu in cpulist.parse(braces[1])]
