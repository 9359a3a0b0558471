# SPDX-License-Identifier: GPL-2.0-only
"""What tests ask of other processes, which may end while they are asked."""

import time
from collections.abc import Callable
from pathlib import Path


def runs(pid: int) -> bool:
    """Return whether a process runs; one that ended and was not reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what must happen; a machine may be slow."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
