# SPDX-License-Identifier: GPL-2.0-only
"""Reading a trace.dat with trace-cmd's library: several times as fast as its report.

read_trace_dat.c reads, and builder.c makes the rows. Both are compiled into one program at the
first use, where there are a C compiler and the headers of the library. The program is a process of
its own, so that a damaged file cannot do harm here. It writes blocks of rows, and then a document.
"""

from __future__ import annotations

import contextlib
import functools
import json
import platform
import shutil
import subprocess
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lightsleep import cache
from lightsleep.compiled import compile_to, compiler
from lightsleep.errors import LightsleepError
from lightsleep.periods.columns import COLUMNS
from lightsleep.periods.model import CAUSES, MET, Metadata
from lightsleep.periods.programs import output_of, printed_by

HERE = Path(__file__).parent
SOURCES = (HERE / "read_trace_dat.c", HERE / "builder.c")
FLAGS = ("-std=gnu11", "-O2", "-w")
LIBRARY = "libtracecmd"
PACKAGES = "gcc, pkgconf, libtracecmd-dev, libtracefs-dev and libtraceevent-dev"

COMM = 16
ROW = np.dtype(
    [
        ("entered_ns", np.int64),
        ("length_ns", np.int64),
        ("sleep_length_ns", np.int64),
        ("next_event_ns", np.int64),
        ("waking_to_running_ns", np.int64),
        ("cpu", np.int32),
        ("waker_pid", np.int32),
        ("wakee_pid", np.int32),
        ("waker_cpu", np.int32),
        ("state", np.int16),
        ("cause", np.uint8),
        ("miss", np.uint8),
        ("has", np.uint32),
        ("waker_comm", f"S{COMM}"),
        ("wakee_comm", f"S{COMM}"),
    ],
    align=True,
)
"""``struct row`` of builder.h."""

HAS = {
    "sleep_length_ns": 1,
    "next_event_ns": 2,
    "waker_comm": 4,
    "waker_pid": 4,
    "waker_cpu": 4,
    "waking_to_running_ns": 4,
    "wakee_comm": 8,
    "wakee_pid": 8,
}
"""The bit of ``has`` that says that a column has a value."""

MISSES = ("above", "below")

COUNT = np.dtype(np.uint64)
ALIVE = (1 << 64) - 1
"""In place of the rows of a block: none are known yet, but the program reads on."""

BATCH_ROWS = 1 << 16

MANY_EVENTS = 1_000_000
"""More than that take a while to read as text."""

Rows = npt.NDArray[np.void]


@functools.cache
def program() -> Path | str:
    """Return the program that reads a trace.dat, or why there is none."""
    if not shutil.which("pkg-config"):
        return "there is no pkg-config"
    found = subprocess.run(
        ["pkg-config", "--cflags", "--libs", LIBRARY], capture_output=True, text=True
    )
    if found.returncode != 0:
        return f"pkg-config knows no {LIBRARY}"
    name = "read-trace-dat"

    def build(scratch: Path) -> None:
        compile_to(scratch / name, name, [*FLAGS, *SOURCES, *found.stdout.split()])

    try:
        parts = [x.read_bytes() for x in (*SOURCES, HERE / "builder.h")]
        key = cache.digest(*compiler(), platform.machine(), found.stdout, *FLAGS, *parts)
        return cache.code(f"program-{name}-{key}", build, needs_mb=10) / name
    except (LightsleepError, OSError) as error:
        return str(error)


def rows(path: Path, metadata: Metadata) -> Iterator[pa.RecordBatch] | None:
    """Return the rows of a trace.dat; None where there is no program that reads it."""
    found = program()
    return _rows(found, path, metadata) if isinstance(found, Path) else None


def _rows(program: Path, path: Path, metadata: Metadata) -> Iterator[pa.RecordBatch]:
    with output_of([str(program), str(path)], path, metadata) as chunks:
        whole = yield from batches(chunks, metadata)
    if not whole:
        raise LightsleepError(f"{path}: cannot be read: {program} said nothing of its end")


@contextlib.contextmanager
def lines(path: Path, metadata: Metadata) -> Iterator[Iterable[str]]:
    """Lend the lines that trace-cmd prints of a trace.dat, which is slower."""
    command = ["trace-cmd", "report", "-N", "-t", "-i", str(path)]
    with printed_by(command, path, metadata) as printed:
        yield printed
    if metadata.events > MANY_EVENTS:
        metadata.notes.append(f"reading was slow, as {program()}; install {PACKAGES}")


def batches(chunks: Iterable[bytes], metadata: Metadata) -> Generator[pa.RecordBatch, None, bool]:
    """Yield the rows that the program writes, and complete ``metadata`` at their end.

    Returns whether there is an end: the program writes none where the file is damaged.
    """
    stream = _Stream(chunks)
    waiting: list[Rows] = []
    while (head := stream.take(COUNT.itemsize)) and (count := int(np.frombuffer(head, COUNT)[0])):
        if count == ALIVE:
            continue
        waiting.append(np.frombuffer(stream.take(count * ROW.itemsize), ROW))
        if sum(len(x) for x in waiting) >= BATCH_ROWS:
            yield _batch(metadata.host, np.concatenate(waiting))
            waiting.clear()
    if waiting:
        yield _batch(metadata.host, np.concatenate(waiting))
    if not (rest := stream.rest()):
        return False
    document = json.loads(rest)
    metadata.events, metadata.incomplete = document["events"], document["incomplete"]
    if metadata.events:
        metadata.first_ns, metadata.last_ns = document["first_ns"], document["last_ns"]
    metadata.seen = set(document["seen"])
    metadata.lost = {int(cpu): lost for cpu, lost in document["lost"].items()}
    metadata.met = {what for bit, what in enumerate(MET) if document["met"] >> bit & 1}
    return True


class _Stream:
    """What a program writes, which comes in pieces of any size."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks, self._left = iter(chunks), bytearray()

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes; nothing where fewer follow."""
        while len(self._left) < size and (chunk := next(self._chunks, b"")):
            self._left += chunk
        if len(self._left) < size:
            self._left.clear()
            return b""
        found = bytes(self._left[:size])
        del self._left[:size]
        return found

    def rest(self) -> bytes:
        """Return what is left."""
        return bytes(self._left) + b"".join(self._chunks)


def _batch(host: str, rows: Rows) -> pa.RecordBatch:
    arrays = [pa.DictionaryArray.from_arrays(pa.array([0] * len(rows), pa.int32()), [host])]
    for field in list(COLUMNS)[1:]:
        bit = HAS.get(field.name)
        mask = (rows["has"] & bit) == 0 if bit else None
        if field.name == "ended_by":
            codes = pa.array(rows["cause"].astype(np.int8))
            arrays.append(pa.DictionaryArray.from_arrays(codes, list(CAUSES)))
        elif field.name == "miss":
            which = pa.array(rows["miss"].astype(np.int8) - 1, mask=rows["miss"] == 0)
            arrays.append(pa.DictionaryArray.from_arrays(which, list(MISSES)))
        elif field.name.endswith("_comm"):
            arrays.append(_strings(rows[field.name], mask))
        else:
            arrays.append(pa.array(rows[field.name], field.type, mask=mask))
    return pa.RecordBatch.from_arrays(arrays, schema=COLUMNS)


def _strings(values: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None) -> pa.Array:
    """Return names of tasks, of which there are few, as strings."""
    few, which = np.unique(values, return_inverse=True)
    names = [x.partition(b"\0")[0].decode(errors="replace") for x in few.tolist()]
    codes = pa.array(which.astype(np.int32), mask=mask)
    return pa.DictionaryArray.from_arrays(codes, pa.array(names, pa.string())).cast(pa.string())
