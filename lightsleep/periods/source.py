# SPDX-License-Identifier: GPL-2.0-only
"""Opening a recording of any kind: as its metadata, and a stream of its rows."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from lightsleep import cpulist
from lightsleep.errors import LightsleepError
from lightsleep.periods import architecture, description, formats
from lightsleep.periods.build import Builder, Row
from lightsleep.periods.columns import COLUMNS
from lightsleep.periods.lines import feed
from lightsleep.periods.model import CAUSES, LACKS, NAMED, NAMELESS, NEEDED, Metadata
from lightsleep.periods.table import ALL, ROWS, Recording, Share, open_table
from lightsleep.terminal import progress

NO_TICKS = "a tick that ends an idle period counts as a timer"
TICKS = f"nothing names the functions of timers: {NO_TICKS}"

SLACK_NS = 1_000_000_000
"""So long before the end of a recording its last event may be, on an idle machine; and so long
before its begin, or after its end, its first one."""


def open_recording(
    path: Path, columns: Sequence[str] | None = None, share: Share = ALL
) -> Recording:
    """Open a recording of any kind. Of a table, only ``columns`` of some CPUs are read.

    Raises LightsleepError where it is none, at once or while its batches are read.
    """
    form = formats.of(path)
    if form is formats.TABLE:
        return Recording(*open_table(path, columns, share), is_table=True)
    metadata = description.read(path, form.architecture)
    if metadata.expected_ns is None and sys.stderr.isatty():  # only a bar needs it
        metadata.expected_ns = form.expected_ns(path)
    return Recording(metadata, _batches(path, form, metadata))


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


def _batches(path: Path, form: formats.Format, metadata: Metadata) -> Iterator[pa.RecordBatch]:
    checked = False
    for batch in _rows(path, form, metadata):
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
            f"{path}: {formats.NOTHING}"
            + "".join(f"; {note}" for note in metadata.notes if " says: " in note)
        )
    metadata.notes += _lacking(metadata)
    if NAMELESS in metadata.met and NAMED not in metadata.met:
        # Recordings of lightsleep may say so, and why.
        metadata.notes += [] if any(NO_TICKS in x for x in metadata.notes) else [TICKS]
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


def _lacking(metadata: Metadata) -> list[str]:
    """Return a note where an event of NEEDED is missing, and may not have been recorded."""
    missing = [event for event in NEEDED if event not in metadata.met]
    if not missing or metadata.cpus:  # lightsleep recorded it: there was none
        return []
    return [
        f"{LACKS}{' and no '.join(missing)}, so it cannot tell which tasks waited for a CPU in an "
        "idle state; unless that was recorded and none occurred, record again with it"
    ]


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


def _rows(path: Path, form: formats.Format, metadata: Metadata) -> Iterator[pa.RecordBatch]:
    rows = form.rows(path, metadata)
    if rows is not None:
        yield from rows
        return
    assert form.lines  # only a table has none
    builder = Builder(metadata)
    with form.lines(path, metadata) as lines:
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
