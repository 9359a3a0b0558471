# SPDX-License-Identifier: GPL-2.0-only
"""A policy file of the kernel, compiled for user space and loaded, its header read by cffi."""

import tempfile
from pathlib import Path
from typing import Any

from lightsleep.compiled import HEADERS, KERNEL, bound, compile_kernel_files


def load(name: str) -> tuple[Any, Any]:
    """Return cffi's view of NAME.h, without its inline functions, and the loaded NAME.c."""
    beside, shared = KERNEL / f"{name}.h", HEADERS / f"{name}.h"
    with tempfile.TemporaryDirectory(prefix="lightsleep-") as folder:  # may go once it is loaded
        target = Path(folder) / f"{name}.so"
        compile_kernel_files([KERNEL / f"{name}.c"], target, ("-O2", "-shared", "-fPIC"))
        return bound([shared if shared.exists() else beside], target)
