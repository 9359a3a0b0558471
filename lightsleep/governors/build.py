# SPDX-License-Identifier: GPL-2.0-only
"""From the distribution's kernel source to a library with its governors, compiled unchanged.

menu, teo and ladder of one kernel, our promote.c, and machine.c, the CPU that they run on, become
one library. It is kept in the cache, and so are the governors' sources. A kernel is named by its
version, as in ``6.12``: its source is Debian's package linux-source-6.12. That package changes with
each point release, so the sources are those of the newest archive: the installed package's, or what
the lab has fetched. Without any, they are the newest that the cache has.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cffi

from lightsleep import cache, sources
from lightsleep.compiled import KERNEL, compile_to, compiler, opened
from lightsleep.errors import LightsleepError

HERE = Path(__file__).parent
CPU = HERE / "machine.c"
GOVERNORS = ("menu", "teo", "ladder")
HEADER = "gov.h"
INSTALLED = Path("/usr/src")
"""Where Debian's packages have kernels' sources, as archives."""
INCLUDE = re.compile(r"^#include [<\"]([\w/.-]+)[>\"]", re.MULTILINE)

MACHINE = """
struct cpuidle_state { uint64_t exit_latency_ns, target_residency_ns; unsigned int flags; };
struct period { uint64_t idle_ns, busy_ns, timer_ns, nobody, tick, resumes; };
struct choice { uint64_t polled_ns; int32_t first, last; };
struct totals { uint64_t time_ns[10], wakes, promotions, empty, forbidden, untrue,
                halts, too_shallow_ns, too_deep_ns; };
void machine_start(const char *name, const struct cpuidle_state *states, int count);
void machine_promote(bool on);
void machine_allow(const bool *states, uint64_t latency_ns);
void machine_run(const struct period *periods, struct choice *choices, size_t count,
                 struct totals *totals);
"""

STATES_MAX = 10
"""CPUIDLE_STATE_MAX of kernel.h."""


def governor_sources(version: str) -> Path:
    """Return a folder with the governors of a kernel's source, from the cache or from a package.

    Raises LightsleepError that says which package has them.
    """
    archive = _archive(version)
    if archive is None:
        name = _newest(version)
    else:
        status = archive.stat()  # its content takes a second to read
        name = f"{_kept(version)}{cache.digest(str(status.st_size), str(status.st_mtime_ns))}"

    def build(scratch: Path) -> None:
        if archive is None:
            raise _not_here(version)
        sources = [f"{name}.c" for name in GOVERNORS]
        _unpack(archive, sources, version, scratch)
        if any(f'"{HEADER}"' in (scratch / x).read_text() for x in sources):  # not in old kernels
            _unpack(archive, [HEADER], version, scratch)

    return cache.code(name, build, needs_mb=10)


def sources_digest(version: str) -> str:
    """Return a digest of what a kernel's governors are compiled from.

    Raises LightsleepError as governor_sources() does.
    """
    return cache.digest(*(x.read_bytes() for x in _theirs(version)))


def _theirs(version: str) -> list[Path]:
    """Return the governors' sources, and the header that they share, if there is one."""
    folder = governor_sources(version)
    header = folder / HEADER
    return [*(folder / f"{name}.c" for name in GOVERNORS), *([header] if header.exists() else [])]


def _kept(version: str) -> str:
    return f"linux-governors-{version}-"


def _newest(version: str) -> str:
    """Return the name of the newest sources in the cache, by the date of a file of the archive.

    Raises LightsleepError where there are none.
    """
    kept = list(cache.folder().glob(f"{_kept(version)}*/{GOVERNORS[0]}.c"))
    if not kept:
        raise _not_here(version)
    return max(kept, key=lambda x: x.stat().st_mtime).parent.name


def _unpack(archive: Path, names: Sequence[str], version: str, to: Path) -> None:
    command: list[str | Path] = ["tar", "-xf", archive, "-C", to, "--strip-components=4"]
    patterns = [f"*/drivers/cpuidle/governors/{name}" for name in names]
    done = subprocess.run(
        [*command, "--wildcards", "--occurrence=1", *patterns], capture_output=True, text=True
    )
    if done.returncode:
        raise LightsleepError(f"unpacking the governors of {version}: {done.stderr.strip()}")


def _archive(version: str) -> Path | None:
    """Return the archive with a kernel's source, the newest; None where it is not here.

    The lab may have fetched one of each suite long ago (lab/kernels/source.py), and Debian's
    package may be a later release.
    """
    package = f"linux-source-{version}"
    fetched = cache.folder().glob(f"{package}-*/source.tar.xz")
    installed = INSTALLED / f"{package}.tar.xz"
    found = [x for x in (*fetched, installed) if x.exists() and cache.trusted(x)]
    return max(found, key=lambda x: x.stat().st_mtime, default=None)


def _not_here(version: str) -> LightsleepError:
    return LightsleepError(
        f"the governors of Linux {version} are compiled from its source, which is not here: "
        f"install the package linux-source-{version}"
    )


def library_file(version: str, flags: Sequence[str] = (), machine: Path = CPU) -> Path:
    """Return the library of a kernel's governors. Raises LightsleepError with what is missing.

    ``machine`` is the file with the CPU that they run on: machine.c, or one that includes it.
    """
    sources.kernel_sources()
    ours = [KERNEL / "promote.c", KERNEL / "promote_policy.c"]
    theirs = _theirs(version)
    own = [*dict.fromkeys((machine, CPU)), HERE / "kernel.h"]
    headers = [KERNEL / "promote.h", KERNEL / "promote_policy.h"]
    parts = [x.read_bytes() for x in (*ours, *theirs, *own, *headers)]

    def build(scratch: Path) -> None:
        folder = scratch / "include"
        for source in (*theirs, *ours, *headers):
            for header in INCLUDE.findall(source.read_text()):
                if not (KERNEL / header).exists() or header == "cpuidle.h":
                    (folder / header).parent.mkdir(parents=True, exist_ok=True)
                    (folder / header).write_text("")  # kernel.h has it all
        words: list[str | Path] = [
            # What kernel.h lacks is an error of the linker, and no library that cannot be loaded.
            *("-std=gnu11", "-O2", "-w", "-shared", "-fPIC", "-Wl,-z,defs"),
            *("-DCONFIG_CPU_IDLE_PROMOTE", *flags, f"-I{HERE}", f"-I{folder}", f"-I{KERNEL}"),
            *("-include", str(HERE / "kernel.h")),
            *(machine, *(x for x in theirs if x.suffix == ".c"), *ours),
        ]
        compile_to(scratch / "machine.so", f"the governors of Linux {version}", words)

    key = cache.digest(*compiler(), platform.machine(), *map(str, flags), *parts)
    return cache.code(f"library-governors-{version}-{key}", build, needs_mb=10) / "machine.so"


def load(path: Path) -> tuple[Any, Any]:
    """Return cffi's view of machine.c, and a library of its own.

    One library simulates one CPU, and the loader loads a file once. Each has a view of its own, as
    threads may load some at a time. Raises LightsleepError where the loader refuses it.
    """
    ffi = cffi.FFI()
    ffi.cdef(MACHINE)
    with tempfile.TemporaryDirectory(prefix="lightsleep-") as folder:  # may go once it is loaded
        copy = Path(shutil.copy(path, folder))
        return ffi, opened(ffi, copy, path.parent)
