# SPDX-License-Identifier: GPL-2.0-only
"""poll_limit.c, the kernel's own file, as a Python object.

The file is compiled by the host's C compiler against the few kernel headers in shim/, and its
structures are read from its own header, so nothing here repeats what it says.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cffi
import numpy as np
import numpy.typing as npt

from lightsleep import cache, sources
from lightsleep.errors import LightsleepError

HERE = Path(__file__).parent
KERNEL = sources.KERNEL / "drivers" / "cpuidle"
INCLUDE = sources.KERNEL / "include"
HEADERS = INCLUDE / "linux" / "idle_poll"
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-sign-compare")  # as the kernel has it
SHARED = ("-O3", "-w", "-shared", "-fPIC")
"""What users compile: no warning of a compiler that nobody here has tried is an error."""

# A program that reads PERIODs and writes the struct poll_limit after each.
TRACE = HERE / "trace.c"
PERIOD = np.dtype([("halt_cost_ns", "u8"), ("ceiling_ns", "u8"), ("idle_ns", "u8")])

Ns = npt.NDArray[np.int64]


def compile_policy(source: Path, target: Path, flags: Sequence[str]) -> None:
    """Compile ``source`` together with poll_limit.c into ``target``. Raises LightsleepError."""
    compile_kernel_files([source, KERNEL / "poll_limit.c"], target, flags)


def compile_kernel_files(files: Sequence[Path], target: Path, flags: Sequence[str]) -> None:
    """Compile files, some of the kernel's among them, into ``target``.

    Uses ``$CC``, or cc. Raises LightsleepError without a compiler, without the kernel sources, or
    with what the compiler had to say.
    """
    sources.kernel_sources()
    shims = (f"-I{HERE / 'shim'}", f"-I{KERNEL}", f"-I{INCLUDE}")
    compile_to(target, files[-1].name, ["-std=gnu11", *WARNINGS, *shims, *flags, *files])


def compiler() -> list[str]:
    """Return the words of ``$CC``, which may have several (``ccache gcc``), or cc.

    Raises LightsleepError where they cannot be told apart.
    """
    named = os.environ.get("CC", "")
    try:
        return shlex.split(named) or ["cc"]
    except ValueError as error:
        raise LightsleepError(f"CC is {named!r}: {error}; set it to a compiler's name") from error


def compile_to(target: Path, what: str, words: Sequence[str | Path]) -> None:
    """Run the compiler with ``words``, so that it writes ``target``; ``what`` is in errors.

    Raises LightsleepError without a compiler, and with what the compiler had to say.
    """
    first, *others = compiler()
    try:
        subprocess.run(
            [first, *others, *words, "-o", target], check=True, capture_output=True, text=True
        )
    except OSError as error:
        raise LightsleepError(
            f"no C compiler named {first}: install one or set CC ({error.strerror})"
        ) from error
    except subprocess.CalledProcessError as error:
        raise LightsleepError(f"cannot compile {what}:\n{error.stderr}") from error


def shared_library(name: str, sources: Sequence[Path], flags: Sequence[str] = ()) -> Path:
    """Return a library that is compiled from these files at its first use, and kept in the cache.

    It is compiled anew when a file of theirs, or a header beside them or beside poll_limit.h,
    changes. Raises LightsleepError as compile_kernel_files() does, and where the cache cannot be
    written.
    """
    folders = {HEADERS, *(x.parent for x in sources)}
    headers = (x for folder in folders for x in folder.glob("*.h"))
    missing = [x for x in sources if not x.exists()]
    parts = [] if missing else [x.read_bytes() for x in (*sources, *sorted(headers))]
    target = f"{name}.so"

    def build(scratch: Path) -> None:
        compile_kernel_files(sources, scratch / target, (*SHARED, *flags))

    key = cache.digest(*compiler(), platform.machine(), *SHARED, *flags, *parts)
    return cache.code(f"library-{name}-{key}", build, needs_mb=10) / target


def opened(ffi: Any, path: Path, kept: Path | None = None) -> Any:
    """Load a library. Raises LightsleepError where the loader refuses it.

    ``kept`` is the folder of the cache that it comes from, where that is not its own.
    """
    try:
        return ffi.dlopen(str(path))
    except OSError as error:
        raise LightsleepError(
            f"cannot load what was compiled: {error}; if the file is damaged, remove the folder "
            f"{kept or path.parent}; if its file system is mounted noexec, set LIGHTSLEEP_CACHE "
            "and TMPDIR to folders on another one"
        ) from error


def declarations(header: Path) -> str:
    """Return what a header declares, as cffi reads it."""
    lines = header.read_text(encoding="utf-8").splitlines()
    return "\n".join(x for x in lines if not x.startswith("#") or re.search(r"S\t\d+$", x))


@functools.cache
def library() -> tuple[Any, Any]:
    """Return cffi's view of poll_limit.h and the loaded library. Raises LightsleepError."""
    ffi = cffi.FFI()
    ffi.cdef("typedef uint32_t u32; typedef uint64_t u64;")
    ffi.cdef(
        declarations(HEADERS / "poll_limit.h")
        + """
        void poll_limit_replay(struct poll_limit *pl, const struct poll_limit_params *params,
                               const u64 *idle_ns, u64 *limit_ns, size_t periods);
        """
    )
    return ffi, opened(
        ffi, shared_library("poll-limit", [HERE / "replay.c", KERNEL / "poll_limit.c"])
    )


class PollLimit:
    """What one CPU has learned: struct poll_limit, with its functions as methods."""

    def __init__(self, halt_cost_ns: int, ceiling_ns: int) -> None:
        """Start with nothing learned. Raises LightsleepError where there is no compiler."""
        self._ffi, self._lib = library()
        self.state = self._ffi.new("struct poll_limit *")
        self.params = self._ffi.new("struct poll_limit_params *", [halt_cost_ns, ceiling_ns])
        self._lib.poll_limit_init(self.state, self.params)

    @property
    def limit_ns(self) -> int:
        """How long to poll in the next idle period."""
        return int(self.state.limit_ns)

    def update(self, idle_ns: int) -> int:
        """Learn from one idle period; return the limit of the next one, in ns."""
        return int(self._lib.poll_limit_update(self.state, self.params, idle_ns))

    def replay(self, idle_ns: Ns) -> Ns:
        """Learn from a trace of n periods; return the n limits that they were given, in ns."""
        idle = np.ascontiguousarray(idle_ns, np.uint64)
        limits = np.empty_like(idle)
        self._lib.poll_limit_replay(
            self.state,
            self.params,
            self._ffi.from_buffer("u64[]", idle),
            self._ffi.from_buffer("u64[]", limits, require_writable=True),
            len(idle),
        )
        return limits.astype(np.int64)
