# SPDX-License-Identifier: GPL-2.0-only
"""Opening a recording of any kind: as its metadata, and a stream of its rows.

formats.py recognises a file by its first bytes. A trace.dat is read by trace-cmd's library
(trace_dat.py) or, without a compiler, by trace-cmd report, a perf.data by perf script, and a folder
in the Common Trace Format by babeltrace2, which know every version of their format. What they print
is text, and so is the kernel's own trace file, also inside a page of systrace; lines.py reads them
all. A trace of Perfetto becomes such lines, too (perfetto.py). A Parquet file holds rows already
(table.py). All are read in constant memory.
"""

from __future__ import annotations

import contextlib
import gzip
import sys
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from lightsleep import cpulist
from lightsleep.errors import LightsleepError
from lightsleep.periods import (
    architecture,
    ctf,
    description,
    expected,
    perfetto,
    systrace,
    trace_dat,
)
from lightsleep.periods.build import Builder, Row
from lightsleep.periods.columns import COLUMNS
from lightsleep.periods.formats import (
    GZIP,
    PARQUET,
    PERF_DATA,
    TRACE_DAT,
    head_of,
    is_perfetto,
)
from lightsleep.periods.lines import CHUNK, feed, split
from lightsleep.periods.model import CAUSES, Metadata
from lightsleep.periods.programs import output_of, printed_by
from lightsleep.periods.table import ALL, ROWS, Recording, Share, open_table
from lightsleep.terminal import progress

BINARY = (TRACE_DAT, PERF_DATA, PARQUET)
"""How a file begins that is no text."""

NOTHING = (
    "no recording, or a damaged one: none of the events that lightsleep record records can be "
    "read from it"
)

MANY_EVENTS = 1_000_000
"""More than that take a while to read as text."""

SLACK_NS = 1_000_000_000
"""So long before the end of a recording its last event may be, on an idle machine; and so long
before its begin, or after its end, its first one."""


def open_recording(
    path: Path, columns: Sequence[str] | None = None, share: Share = ALL
) -> Recording:
    """Open a recording of any kind. Of a table, only ``columns`` of some CPUs are read.

    Raises LightsleepError where it is none, at once or while its batches are read.
    """
    head = b"" if ctf.is_trace(path) else head_of(path, CHUNK)
    if head.startswith(PARQUET):
        return Recording(*open_table(path, columns, share), is_table=True)
    metadata = description.read(path, head)
    if metadata.expected_ns is None and sys.stderr.isatty():  # only a bar needs it
        metadata.expected_ns = _expected_ns(path, head)
    return Recording(metadata, _batches(path, head, metadata))


def _expected_ns(path: Path, head: bytes) -> int | None:
    """Return about how long a recording is that nobody described; None where nothing tells."""
    if path.is_dir():
        return expected.of_ctf(path)
    if head.startswith(PERF_DATA):
        return expected.of_perf(path)
    if head.startswith((TRACE_DAT, GZIP)) or is_perfetto(head):
        return None
    return expected.of_text(path)


def watched(
    metadata: Metadata, batches: Iterator[pa.RecordBatch]
) -> Generator[pa.RecordBatch, None, None]:
    """Pass the rows of a recording on, and show on a terminal how far they are."""
    with progress() as tell:
        begin: int | None = None
        done_ns = 0
        for batch in batches:
            if len(batch):
                entered = batch.column("entered_ns")[len(batch) - 1].as_py()
                begin = metadata.first_ns if begin is None else begin
                done_ns = max(0, entered - (begin or entered))
            tell(f"reading {metadata.source}", done_ns, metadata.expected_ns)
            yield batch


def _batches(path: Path, head: bytes, metadata: Metadata) -> Iterator[pa.RecordBatch]:
    checked = False
    for batch in _rows(path, head, metadata):
        if not checked and len(batch):  # before anybody reads by what names the states have
            first = batch.column("entered_ns")[0].as_py()
            _check_window(path, metadata, first if metadata.first_ns is None else metadata.first_ns)
            checked = True
        yield batch
    if metadata.first_ns is not None:
        _check_window(path, metadata, metadata.first_ns)
    architecture.keep_seen(metadata)
    if not metadata.events:
        raise LightsleepError(
            f"{path}: {NOTHING}"
            + "".join(f"; {note}" for note in metadata.notes if " says: " in note)
        )
    if silent := metadata.cpus - metadata.seen - metadata.lost.keys():
        metadata.notes.append(
            f"no event is recorded of CPU {cpulist.format(silent)}, which slept or ran a single "
            "task all the time"
        )
    if (
        metadata.window_ns is not None
        and (early_ns := metadata.window_ns[1] - (metadata.last_ns or 0)) > SLACK_NS
    ):
        metadata.notes.append(
            f"the last event is {early_ns / 1e9:.1f} s before the end of the recording: the file "
            "may be damaged"
        )


def _check_window(path: Path, metadata: Metadata, first_ns: int) -> None:
    """Raise LightsleepError where a recording began outside of what its description tells."""
    if metadata.window_ns is None:
        return
    begin_ns, end_ns = metadata.window_ns
    if begin_ns - SLACK_NS <= first_ns <= end_ns + SLACK_NS:
        return
    begin_s, end_s, first_s = (x // 10**9 for x in (begin_ns, end_ns, first_ns))
    raise LightsleepError(
        f"{description.of(path)} describes another recording, from {begin_s} s to {end_s} s: "
        f"{path.name} begins at {first_s} s. Remove that description, or put the right one there"
    )


def _rows(path: Path, head: bytes, metadata: Metadata) -> Iterator[pa.RecordBatch]:
    program = trace_dat.program() if head.startswith(TRACE_DAT) else ""
    if isinstance(program, Path):
        with output_of([str(program), str(path)], path, metadata) as chunks:
            whole = yield from trace_dat.batches(chunks, metadata)
        if not whole:
            raise LightsleepError(f"{path}: cannot be read: {program} said nothing of its end")
        return
    yield from _batches_of_text(path, head, metadata)
    if program and metadata.events > MANY_EVENTS:
        metadata.notes.append(f"reading was slow, as {program}; install {trace_dat.PACKAGES}")


def _batches_of_text(path: Path, head: bytes, metadata: Metadata) -> Iterator[pa.RecordBatch]:
    builder = Builder(metadata)
    with _text(path, head, metadata) as lines:
        for _ in feed(builder, lines, str(path)):
            if len(builder.rows) >= ROWS:
                yield as_batch(metadata.host, builder.rows)
                builder.rows.clear()
    builder.finish()
    yield as_batch(metadata.host, builder.rows)


def as_batch(host: str, rows: Sequence[Row]) -> pa.RecordBatch:
    """Return rows as they stand in a table."""
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) or [() for _ in COLUMNS.names[1:]]
    arrays = [pa.DictionaryArray.from_arrays(pa.array([0] * len(rows), pa.int32()), [host])]
    for field, column in zip(list(COLUMNS)[1:], columns, strict=True):
        if field.name == "ended_by":
            codes = pa.array([CAUSES.index(cause) for cause in column], pa.int8())
            arrays.append(pa.DictionaryArray.from_arrays(codes, list(CAUSES)))
        elif pa.types.is_dictionary(field.type):
            arrays.append(pa.array(column, pa.string()).dictionary_encode().cast(field.type))
        else:
            arrays.append(pa.array(column, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=COLUMNS)


@contextlib.contextmanager
def _text(path: Path, head: bytes, metadata: Metadata) -> Iterator[Iterable[str]]:
    """Lend the lines of a trace in any format but Parquet."""
    if path.is_dir():
        losses = ctf.Losses()
        command = [*ctf.COMMAND, str(path)]
        with printed_by(command, path, metadata, losses.hear) as lines:
            yield ctf.lines(lines, losses)
        return
    if head.startswith(TRACE_DAT):
        with printed_by(
            ["trace-cmd", "report", "-N", "-t", "-i", str(path)], path, metadata
        ) as lines:
            yield lines
        return
    if head.startswith(PERF_DATA):
        # Of a thread, pid would be its process: who wakes whom goes by threads.
        fields = ["-F", "comm,tid,cpu,time,event,trace", "--ns", "--show-lost-events"]
        with printed_by(["perf", "script", *fields, "-i", str(path)], path, metadata) as lines:
            yield lines
        return
    if is_perfetto(head):
        with perfetto.opened(path) as trace:
            if not trace.has_events:
                raise LightsleepError(
                    f"{path}: {NOTHING}: this trace of Perfetto holds no events of the kernel; its "
                    "data source linux.ftrace records them"
                )
            metadata.expected_ns = metadata.expected_ns or trace.span_ns
            metadata.notes += trace.notes
            yield trace
        return
    with path.open("rb") as raw:  # it could be read a moment ago
        file = gzip.GzipFile(fileobj=raw) if head.startswith(GZIP) else raw
        chunks: Iterable[bytes] = iter(lambda: file.read(CHUNK), b"")
        if systrace.is_page(head):
            chunks = systrace.traces(chunks)
        try:
            inside = file.peek(CHUNK) if isinstance(file, gzip.GzipFile) else b""
            if inside.startswith(BINARY) or is_perfetto(inside):
                raise LightsleepError(
                    f"{path}: only text is read compressed: unpack it first, with gunzip"
                )
            yield split(chunks, path)
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise LightsleepError(f"{path}: damaged before byte {raw.tell()}: {reason}") from error
