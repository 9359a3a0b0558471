# SPDX-License-Identifier: GPL-2.0-only
"""Files by a pattern, where folders may go meanwhile: of CPUs, processes, tracing instances.

Path.glob() of Python 3.11 asks whether a folder is there, and then reads it. Where it is gone by
then, all of it fails. The standard library is enough here: what runs on its own imports this.
"""

import contextlib
from pathlib import Path

TRIES = 10


def matches(folder: Path, pattern: str) -> list[Path]:
    """Return what matches ``pattern`` below a folder; nothing of folders that are gone.

    Raises OSError where folders go each time that they are read.
    """
    for _ in range(TRIES - 1):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            return list(folder.glob(pattern))
    return list(folder.glob(pattern))
