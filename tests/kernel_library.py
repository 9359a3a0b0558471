# SPDX-License-Identifier: GPL-2.0-only
"""A policy file of the kernel, compiled for user space and loaded, its header read by cffi."""

import tempfile
from pathlib import Path
from typing import Any

from lightsleep.compiled import HEADERS, KERNEL, bound, compile_kernel_files


def load(name: str, loop: str = "") -> tuple[Any, Any]:
    """Return cffi's view of NAME.h, without its inline functions, and the loaded NAME.c.

    ``loop`` is one function in C that calls the others many times; C runs it 50 times as fast.
    """
    beside, shared = KERNEL / f"{name}.h", HEADERS / f"{name}.h"
    with tempfile.TemporaryDirectory(prefix="lightsleep-") as folder:  # may go once it is loaded
        header = shared if shared.exists() else beside
        target, file = Path(folder) / f"{name}.so", Path(folder) / "loop.c"
        file.write_text(f'#include "{header}"\n{loop}')
        files = [KERNEL / f"{name}.c", *([file] if loop else [])]
        compile_kernel_files(files, target, ("-O2", "-shared", "-fPIC"))
        ffi, library = bound([header], target)
    if loop:
        ffi.cdef(f"{loop.partition('{')[0]};")
    return ffi, library
