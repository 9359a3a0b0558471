# SPDX-License-Identifier: GPL-2.0-only
"""A policy file of the kernel, compiled for user space and loaded, its header read by cffi."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightsleep.compiled import HEADERS, KERNEL, bound, compile_kernel_files


def load(
    name: str, loop: str = "", others: Sequence[str] = (), needs: Sequence[str] = ()
) -> tuple[Any, Any]:
    """Return cffi's view of NAME.h, without its inline functions, and the loaded NAME.c.

    They are as the module has them. ``loop`` is one function in C that calls the others many times;
    C runs it 50 times as fast. ``others`` names the headers that NAME.h includes, in their order,
    and ``needs`` the files whose functions are called.
    """
    beside, shared = KERNEL / f"{name}.h", HEADERS / f"{name}.h"
    with tempfile.TemporaryDirectory(prefix="lightsleep-") as folder:  # may go once it is loaded
        header = shared if shared.exists() else beside
        target, file = Path(folder) / f"{name}.so", Path(folder) / "loop.c"
        file.write_text(f'#include "{header}"\n{loop}')
        files = [*(KERNEL / f"{x}.c" for x in (*needs, name)), *([file] if loop else [])]
        compile_kernel_files(files, target, ("-O2", "-shared", "-fPIC", "-DLIGHTSLEEP_MODULE"))
        ffi, library = bound([*(HEADERS / f"{x}.h" for x in others), header], target)
    if loop:
        ffi.cdef(f"{loop.partition('{')[0]};")
    return ffi, library
