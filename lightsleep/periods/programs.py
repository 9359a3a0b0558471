# SPDX-License-Identifier: GPL-2.0-only
"""Running the programs that read a format: trace-cmd, perf, babeltrace2, and our own.

A damaged file may make a program ask for any amount of memory, fall silent, or fail. So each is a
process of its own, whose memory and silence are limited. What it complains about becomes a note.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import resource
import select
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

from lightsleep.document import UNPRINTABLE
from lightsleep.errors import LightsleepError
from lightsleep.periods import ctf
from lightsleep.periods.lines import CHUNK, Unreadable, split
from lightsleep.periods.model import Metadata

EXPECTED = (re.compile(r"'trace' not valid for .* events\. Ignoring\."), ctf.LOST)
"""What needs no note: perf says it of the fields of tracepoints, babeltrace2 of lost events."""

SILENT_S = 60.0
"""How long a program may print nothing."""

READER_BYTES = 4 << 30
"""Memory that it may take: a damaged file may ask for any amount."""

MOST_SAID = 4096
"""Characters that are kept of what it complains about."""


@contextlib.contextmanager
def printed_by(
    command: list[str],
    path: Path,
    metadata: Metadata,
    hear: Callable[[bytes], None] | None = None,
) -> Iterator[Iterable[str]]:
    """Lend the lines that a program prints; ``hear`` and errors are those of output_of()."""
    if not shutil.which(command[0]):
        package = {"perf": "linux-perf"}.get(command[0], command[0])
        raise LightsleepError(
            f"reading {path} needs the program {command[0]}: install the package {package}"
        )
    printed = _Counted()
    with output_of(command, path, metadata, printed, hear) as chunks:
        printed.lines = split(chunks, path)
        yield printed


@contextlib.contextmanager
def output_of(
    command: list[str],
    path: Path,
    metadata: Metadata,
    printed: _Counted | None = None,
    hear: Callable[[bytes], None] | None = None,
) -> Iterator[Iterable[bytes]]:
    """Lend what a program writes. What it complains about becomes a note.

    ``hear`` is given all complaints, each before what the program writes after it.
    Raises LightsleepError where it fails, or falls silent.
    """
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
        ) as process,
    ):
        assert process.stdout
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(process.pid, resource.RLIMIT_DATA, (READER_BYTES, READER_BYTES))
        try:
            chunks = _from_pipe(process.stdout.fileno(), path)
            yield chunks if hear is None else _heard(chunks, log.fileno(), hear)
            status = process.wait(SILENT_S)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise LightsleepError(
                f"{path}: {command[0]} has closed its output and does not end"
            ) from error
        except BaseException:
            process.kill()
            raise
        said = _complaints(log)
    name = Path(command[0]).name
    if status != 0:
        ended = f"ended with status {status}" if status > 0 else f"was ended by signal {-status}"
        where = f" after line {printed.number} of what it prints" if printed else ""
        raise LightsleepError(
            f"{path}: cannot be read: {name} {ended}{where}: {said or 'no error message'}"
        )
    if said:
        metadata.notes.append(f"{name} says: {said}")


def _complaints(log: IO[bytes]) -> str:
    """Return the end of what a program has complained about, but for what is EXPECTED.

    Why it failed stands there.
    """
    log.seek(0)
    odd = ""
    for part in iter(lambda: log.readline(CHUNK), b""):
        for line in part.decode(errors="replace").splitlines():
            if not any(known.fullmatch(line) for known in EXPECTED):
                odd = f"{odd}\n{line}"
                if len(odd) > MOST_SAID:
                    end = odd[-MOST_SAID:]
                    odd = end.partition("\n")[2] or end  # whole lines, if there are any
    return UNPRINTABLE.sub("?", odd.strip())


class _Counted:
    """Lines, and how many of them have passed."""

    def __init__(self) -> None:
        self.lines: Iterator[str] = iter(())
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self.lines)
        self.number += 1
        return line


def _from_pipe(descriptor: int, path: Path) -> Iterator[bytes]:
    """Yield what a program prints. Raises Unreadable where it falls silent."""
    while True:
        if not select.select([descriptor], [], [], SILENT_S)[0]:
            raise Unreadable(
                f"{path}: damaged: the program that reads it has printed nothing for {SILENT_S:g} s"
            )
        if not (data := os.read(descriptor, CHUNK)):
            return
        yield data


def _heard(
    chunks: Iterable[bytes], complaints: int, hear: Callable[[bytes], None]
) -> Iterator[bytes]:
    """Pass on what a program prints; first give ``hear`` what it has complained about."""
    position = 0
    for chunk in itertools.chain(chunks, (b"",)):
        while more := os.pread(complaints, CHUNK, position):
            position += len(more)
            hear(more)
        yield chunk
