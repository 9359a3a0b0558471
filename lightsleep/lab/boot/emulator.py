# SPDX-License-Identifier: GPL-2.0-only
"""Which QEMU emulates a guest: the host's own, or a newer one where that one is too old.

QEMU 7.2, which is Debian 12's, may run code that the kernel patches meanwhile: a guest of x86_64
then dies, for example while probes are attached to functions that run. With QEMU 10 this is rare,
but not gone. On arm64, neither does it: docs/emulators-figures.md has what benchmarks/emulators.py
counted. See splat.emulator_raced(), too.
QEMU 7.2 also computes flags wrongly behind CMPXCHG16B, ends powernv9 at once where it is to count
instructions ("Bad icount read", in the firmware), and hangs there with two threads per core.
Versions between the two were not tried. The QEMU of SUITE is unpacked into the cache and started by
its own dynamic loader, with its own libraries, so nothing of it is installed.
"""

from __future__ import annotations

import platform
import re
import shlex
from dataclasses import replace
from pathlib import Path

from lightsleep import cache
from lightsleep.errors import LightsleepError
from lightsleep.lab import host
from lightsleep.lab.kernels import roots
from lightsleep.lab.kernels.config import ARCHES, Arch, lookup

SUITE = "trixie"
LEAST_MAJOR = 10
"""The version of SUITE."""


def version(arch: Arch) -> str:
    """Return the first line of ``qemu --version``. Raises LightsleepError where QEMU is missing."""
    host.need(arch.qemu, packages={arch.qemu: arch.qemu_package})
    return host.run([arch.qemu, "--version"], "asking QEMU for its version").splitlines()[0]


def major(line: str) -> int:
    """Return the number before the first point. Raises LightsleepError where there is none."""
    found = re.search(r"version (\d+)\.", line)
    if not found:
        raise LightsleepError(f"QEMU's version has no number: {line!r}")
    return int(found[1])


def recent(arch: Arch) -> Arch:
    """Return ``arch`` with a QEMU of LEAST_MAJOR or later.

    Takes some 20 s and 400 MB the first time, where that is not the host's.
    Raises LightsleepError where packages cannot be fetched or the disk is full.
    """
    if major(version(arch)) >= LEAST_MAJOR:
        return arch
    return replace(arch, qemu=str(_newer(arch)))


def _newer(arch: Arch) -> Path:
    own = lookup("QEMU for a host", ARCHES, platform.machine())
    name = Path(arch.qemu).name
    # An entry is built in one place and kept in another, so the script finds out where it is.
    script = f"""\
#!/bin/sh
root=$(dirname "$(readlink -f "$0")")/tree
libraries=$root/usr/lib/{own.triplet}
export QEMU_MODULE_DIR=$libraries/qemu
set -- {shlex.quote(name)} --library-path "$libraries" "$root/usr/bin/{name}" \\
    -L "$root/usr/share/qemu" -L "$root/usr/share/seabios" "$@"
exec "$root"/lib*/ld-linux*.so.* --argv0 "$@"
"""

    def build(scratch: Path) -> None:
        roots.unpack(own, SUITE, SUITE, [arch.qemu_package, "base-files"], scratch / "tree")
        (scratch / name).write_text(script)
        (scratch / name).chmod(0o755)

    key = cache.digest(SUITE, arch.qemu_package, script)
    return cache.entry(f"{name}-{SUITE}-{key}", build, needs_mb=800) / name
