# SPDX-License-Identifier: GPL-2.0-only
"""Files of the kernel, compiled for user space and loaded: a policy alone, or code around it."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cffi

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


QUIET = (
    *("-Wno-all", "-Wno-extra", "-Wno-error"),
    *(f"-Werror={x}" for x in ("implicit-function-declaration", "implicit-int", "int-conversion")),
    "-Werror=incompatible-pointer-types",
)
"""No warnings, but errors where gcc 14 and later have them, with -w as well."""


def simulated(
    ffi: cffi.FFI,
    source: str,
    headers: Mapping[str, str],
    needs: Sequence[str] = (),
    flags: Sequence[str] = (),
) -> Any:
    """Return ``source``, C that includes files of the kernel, compiled and loaded.

    ``headers`` are what stands in for the kernel's own: their text, by path. ``needs`` names the
    files whose functions are called. The kernel's build warns of what there is to warn of.
    """
    with tempfile.TemporaryDirectory(prefix="lightsleep-") as name:  # may go once it is loaded
        folder = Path(name)
        for path, text in headers.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        file, target = folder / "simulated.c", folder / "simulated.so"
        file.write_text(source)
        compile_kernel_files(
            [*(KERNEL / f"{x}.c" for x in needs), file],
            target,
            (f"-I{folder}", *flags, "-O1", "-shared", "-fPIC", *QUIET),
        )
        return ffi.dlopen(str(target))


def all_of(text: str, stubs: str) -> dict[str, str]:
    """Return headers for simulated(): ``text``, which each of the ``stubs`` is, by path."""
    of_stubs = {f"{stub}.h": "#include <kernel.h>\n" for stub in stubs.split()}
    return {"kernel.h": text, **of_stubs}
