# SPDX-License-Identifier: GPL-2.0-only
"""Which files the paths on a command line stand for."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from lightsleep.errors import LightsleepError
from lightsleep.periods.formats import is_folder, is_recording

TABLES = "*.parquet"
"""Files in a folder of recordings, which is one data set."""


def expanded(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield files and traces, and in place of any other folder all tables below it.

    Raises LightsleepError where there is none, and where a path is no file: before any is read.
    """
    paths = list(paths)
    for path in paths:
        _require_file(path)
    for path in paths:
        if not is_folder(path) or is_recording(path):
            yield path
            continue
        tables = sorted(file for file in path.rglob(TABLES) if file.is_file())
        if not tables:
            raise LightsleepError(
                f"{path}: no tables of idle periods below: lightsleep report --parquet saves them"
            )
        yield from tables


def _require_file(path: Path) -> None:
    """Raise LightsleepError where a path is a pipe or the like: each look would eat some of it."""
    try:
        mode = path.stat().st_mode
    except OSError:  # whoever reads it says so
        return
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return
    what = "pipe" if stat.S_ISFIFO(mode) else "socket" if stat.S_ISSOCK(mode) else "device"
    raise LightsleepError(
        f"{path} is a {what}, and this command reads a file more than once: save it to a file first"
    )
