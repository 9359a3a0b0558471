# SPDX-License-Identifier: GPL-2.0-only
"""C files, compiled by the host's C compiler at their first use, and loaded.

The kernel's own files are among them: they are compiled against the few kernel headers in shim/,
and their structures are read from their own headers, so nothing here repeats what those say.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightsleep import cache, sources
from lightsleep.errors import LightsleepError

SHIM = Path(__file__).parent / "shim"
"""The kernel headers that the kernel's files need, as far as they need them."""
KERNEL = sources.KERNEL / "drivers" / "cpuidle"
INCLUDE = sources.KERNEL / "include"
HEADERS = INCLUDE / "linux" / "idle_poll"
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-sign-compare")  # as the kernel has it
SHARED = ("-O3", "-w", "-shared", "-fPIC")
"""What users compile: no warning of a compiler that nobody here has tried is an error."""


def compile_kernel_files(files: Sequence[Path], target: Path, flags: Sequence[str]) -> None:
    """Compile files, some of the kernel's among them, into ``target``.

    Uses ``$CC``, or cc. Raises LightsleepError without a compiler, without the kernel sources, or
    with what the compiler had to say.
    """
    sources.kernel_sources()
    shims = (f"-I{SHIM}", f"-I{KERNEL}", f"-I{INCLUDE}")
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

    It is compiled anew when a file of theirs, or a header beside them, beside poll_limit.h or of
    SHIM, changes. Raises LightsleepError as compile_kernel_files() does, and where the cache cannot
    be written.
    """
    folders = {HEADERS, SHIM / "linux", *(x.parent for x in sources)}
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


def bound(headers: Sequence[Path], library: Path) -> tuple[Any, Any]:
    """Return cffi's view of what headers declare, and the library, loaded.

    Raises LightsleepError as opened() does, and ImportError without cffi.
    """
    import cffi

    ffi = cffi.FFI()
    ffi.cdef("typedef uint32_t u32; typedef uint64_t u64; typedef int64_t s64;")
    ffi.cdef("".join(declarations(header) for header in headers))
    return ffi, opened(ffi, library)


def declarations(header: Path) -> str:
    """Return what a header declares, as cffi reads it, without its inline functions."""
    text = header.read_text(encoding="utf-8")
    text = re.sub(r"^static inline [^{;]*\{.*?^\}", "", text, flags=re.M | re.S)
    return re.sub(r"^#(?!define\s+\w+\s+\d+\b).*$", "", text, flags=re.M)
