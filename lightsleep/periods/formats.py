# SPDX-License-Identifier: GPL-2.0-only
"""By what a recording is recognised: the first bytes of a file, or what a folder holds."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from lightsleep.errors import LightsleepError
from lightsleep.periods import ctf, perfetto, systrace
from lightsleep.periods.lines import CHUNK, LINE

TRACE_DAT = b"\x17\x08\x44tracing"
PERF_DATA = b"PERFILE2"
PARQUET = b"PAR1"
GZIP = b"\x1f\x8b"

TABLES = "*.parquet"
"""Files in a folder of recordings, which is one data set."""


def is_recording(path: Path) -> bool:
    """Whether a file looks like a recording, and not like a result, which is a JSON document.

    Raises LightsleepError where it cannot be read.
    """
    if _is_folder(path):
        return ctf.is_trace(path)
    head = head_of(path, CHUNK)
    if head.startswith((TRACE_DAT, PERF_DATA, PARQUET, GZIP)) or systrace.is_page(head):
        return True
    return _has_events(head) or perfetto.is_trace(head)


def is_perfetto(head: bytes) -> bool:
    """Whether a file that begins so is a trace of Perfetto. Text may begin with an empty line."""
    return perfetto.is_trace(head) and not _has_events(head)


def _has_events(head: bytes) -> bool:
    lines = head.decode(errors="replace").splitlines()
    return any(LINE.match(line) or line.startswith("# tracer:") for line in lines)


def expanded(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield files and traces, and in place of any other folder all tables below it.

    Raises LightsleepError where there is none, and where a path is no file: before any is read.
    """
    paths = list(paths)
    for path in paths:
        _require_file(path)
    for path in paths:
        if not _is_folder(path) or is_recording(path):
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


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:
        raise LightsleepError(f"cannot read {path}: {error.strerror}") from error


def head_of(path: Path, size: int = 64) -> bytes:
    """Return the first ``size`` bytes of a file; raises LightsleepError where they are not read."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise LightsleepError(f"cannot read {path}: {error.strerror}") from error
