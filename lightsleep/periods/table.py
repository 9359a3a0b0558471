# SPDX-License-Identifier: GPL-2.0-only
"""Tables of idle periods on the disk: Parquet files with the columns of columns.py.

A row group holds the CPUs of one class: those whose number divided by CLASSES leaves the same. Rows
of a CPU are in the order of time. Whoever wants some of the CPUs reads the groups of their classes
only, so that several processes share the work of reading. Groups are cut from WINDOW rows at a
time, in the order in which they begin: a table from front to back is a recording in the order of
time, but for the rows within a window. Smaller groups, as of single CPUs of a large machine, would
be too many: each costs memory wherever the table is opened.

Pages have checksums: without them, a flipped bit in a page becomes another figure.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lightsleep.errors import LightsleepError
from lightsleep.files import streamed
from lightsleep.periods.columns import COLUMNS
from lightsleep.periods.model import SCHEMA, VERSION, Metadata

ROWS = 1 << 16
"""Rows of a batch."""

CLASSES = 8
WINDOW = CLASSES * ROWS
"""Rows that are kept in memory until they are written."""

METADATA = SCHEMA.encode()

WAKER_CPU = "waker_cpu"
WITHOUT_WAKER_CPU = 2
"""The version of tables that lack this column; older ones are not read."""
UNKNOWN_CPU = -1
"""What stands there where another CPU woke the task, and nothing says which."""

CLASSES_OF = b"lightsleep.classes"
"""Under this key, the metadata of a file says how many classes it has, and how many rows each group
has, as a proof: whoever writes the rows again may keep the metadata."""

BUFFER_BYTES = 1 << 20
"""Of each column of a table; without it, pyarrow keeps all that it has read of a file."""

Share = tuple[int, int]
"""Of a table, the CPUs whose number divided by the second leaves the first."""

ALL: Share = (0, 1)


@dataclass
class Recording:
    """A recording that is being read. ``metadata`` is complete when ``batches`` has ended.

    ``is_table`` says that it is a table already: ``batches`` may lack columns.
    """

    metadata: Metadata
    batches: Iterator[pa.RecordBatch]
    is_table: bool = False


def write_parquet(recording: Recording, target: Path) -> Iterator[pa.RecordBatch]:
    """Write the rows of a recording to ``target`` while they pass by; the file is whole at the end.

    Raises LightsleepError where it cannot be written.
    """
    with streamed(target) as file:
        yield from write_rows(recording, file)


def write_rows(recording: Recording, file: BinaryIO) -> Iterator[pa.RecordBatch]:
    """Write the rows of a recording to a file as write_parquet(). Raises OSError."""
    with pq.ParquetWriter(file, COLUMNS, compression="zstd", write_page_checksum=True) as writer:
        waiting: list[pa.RecordBatch] = []
        lengths: list[int] = []
        for batch in recording.batches:
            waiting.append(batch)
            if sum(map(len, waiting)) >= WINDOW:
                lengths += _write(writer, waiting)
                waiting.clear()
            yield batch
        lengths += _write(writer, waiting)
        document = json.dumps(recording.metadata.to_json())
        known = {METADATA: document.encode(), CLASSES_OF: _proof(lengths)}
        writer.add_key_value_metadata(known)


def _proof(lengths: Iterable[int]) -> bytes:
    return " ".join(map(str, (CLASSES, *lengths))).encode()


def _write(writer: pq.ParquetWriter, batches: list[pa.RecordBatch]) -> list[int]:
    """Write rows as a group for each class of CPUs; return how many rows each has."""
    table = pa.Table.from_batches(batches, COLUMNS).unify_dictionaries()
    classes = np.asarray(table.column("cpu")) % CLASSES
    order = np.argsort(classes, kind="stable")
    begins = np.flatnonzero(np.diff(classes[order], prepend=-1))
    lengths = np.diff(begins, append=len(order))
    written = []
    # A stable sort keeps the order of time, so the first row of a class has the smallest index.
    for place in np.argsort(order[begins]).tolist():
        begin, length = int(begins[place]), int(lengths[place])
        group = table.take(order[begin : begin + length])
        writer.write_table(group, row_group_size=length)
        written.append(length)
    return written


def opened(path: Path) -> pa.NativeFile:
    """Open a file for pyarrow, which takes a name like run:1 for a URI, and text for UTF-8.

    Raises OSError.
    """
    return pa.OSFile(os.fsencode(path))


def open_table(
    path: Path, columns: Sequence[str] | None = None, share: Share = ALL
) -> tuple[Metadata, Iterator[pa.RecordBatch]]:
    """Open a table; of its rows, only the ``columns`` of some CPUs are read.

    Raises LightsleepError where it is damaged or none of ours, at once or while it is read.
    """
    try:
        file = pq.ParquetFile(
            opened(path),
            pre_buffer=False,
            buffer_size=BUFFER_BYTES,
            page_checksum_verification=True,  # of tables of other writers, where there are any
        )
        found = file.schema_arrow
        document = (file.metadata.metadata or {}).get(METADATA)
        known = None if document is None else json.loads(document)
        _refuse_other_versions(path, known)
        lacks_cpu = isinstance(known, dict) and known.get("version") == WITHOUT_WAKER_CPU
        expected = COLUMNS.remove(len(COLUMNS) - 1) if lacks_cpu else COLUMNS
        if known is None or not found.equals(expected, check_metadata=False):
            raise ValueError(
                "not a table of idle periods of lightsleep: its columns or its metadata differ"
            )
        metadata = _described(path, known)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise LightsleepError(f"{path}: damaged or no Parquet file of ours: {error}") from error
    if not lacks_cpu:
        return metadata, _rows(path, file, columns, share)
    there = None if columns is None else [x for x in columns if x != WAKER_CPU]
    batches = _rows(path, file, there, share)
    if columns is not None and WAKER_CPU not in columns:
        return metadata, batches
    return metadata, map(_with_waker_cpu, batches)


def _with_waker_cpu(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Add the last column to rows of a table that lacks it, by what such tables meant.

    A task woke from another CPU, which one is not known; no task, the CPU woke one itself.
    """
    waker, cpu = batch.column("waker_pid"), batch.column("cpu")
    unknown = pa.scalar(UNKNOWN_CPU, pa.int32())
    woken_on = pc.if_else(pc.equal(waker, 0), cpu, unknown)  # null where the waker is
    fields = [*batch.schema, COLUMNS.field(WAKER_CPU)]
    return pa.RecordBatch.from_arrays([*batch.columns, woken_on], schema=pa.schema(fields))


def _refuse_other_versions(path: Path, document: Any) -> None:
    """Raise LightsleepError where the metadata of a table is of a version that is not read."""
    version = document.get("version") if isinstance(document, dict) else None
    if not isinstance(version, int) or document.get("schema") != SCHEMA:
        return
    if version < WITHOUT_WAKER_CPU:
        raise LightsleepError(
            f"{path}: a table of an older lightsleep (version {version}): make it again from the "
            "trace, with report --parquet"
        )
    if version > VERSION:
        raise LightsleepError(
            f"{path}: made by a newer lightsleep (version {version}): upgrade lightsleep"
        )


def _described(path: Path, document: Any) -> Metadata:
    """Return the metadata of a table.

    Raises LightsleepError where it lacks something: not all that was added made a new version.
    """
    try:
        return Metadata.from_json(document)
    except KeyError as error:
        raise LightsleepError(
            f"{path}: its metadata lacks {error}: a table of an older lightsleep, or a damaged "
            "one: make it again from the trace, with report --parquet"
        ) from error


def _rows(
    path: Path, file: pq.ParquetFile, columns: Sequence[str] | None, share: Share
) -> Iterator[pa.RecordBatch]:
    group = 0
    index, of = share
    try:
        groups, mixed = _groups(file.metadata, share)
        for group in groups:
            for batch in file.iter_batches(batch_size=ROWS, row_groups=[group], columns=columns):
                batch.validate(full=True)  # a flipped bit may point beyond a dictionary
                if mixed:
                    mine = np.asarray(batch.column("cpu")) % of == index
                    batch = batch.filter(pa.array(mine))
                yield batch
    except (pa.ArrowException, OSError) as error:
        raise LightsleepError(f"{path}: damaged in row group {group}: {error}") from error


def _groups(kept: pq.FileMetaData, share: Share) -> tuple[list[int], bool]:
    """Return the groups that have rows of some CPUs, and whether they have rows of others, too."""
    index, of = share
    lengths = (kept.row_group(group).num_rows for group in range(kept.num_row_groups))
    told = (kept.metadata or {}).get(CLASSES_OF)
    classes = CLASSES if told == _proof(lengths) else 1
    # Numbers that leave one thing by CLASSES and another by ``of`` exist if both agree in this.
    both = math.gcd(classes, of)
    chosen, mixed = [], False
    for group, (low, high) in enumerate(cpus_of_groups(kept)):
        if low == high:
            wanted = low % of == index
        else:
            wanted = low % both == index % both
            mixed = mixed or (wanted and both != of)
        if wanted:
            chosen.append(group)
    return chosen, mixed


def cpus_of_groups(kept: pq.FileMetaData) -> Iterator[tuple[int, int]]:
    """Yield the lowest and the highest CPU of each row group, by the statistics of the file.

    Of a group without any, as tables of other writers may have, these are 0 and the highest int32.
    """
    place = next((x for x in range(kept.num_columns) if kept.schema.column(x).path == "cpu"), None)
    for group in range(kept.num_row_groups):
        known = None if place is None else kept.row_group(group).column(place).statistics
        yield (known.min, known.max) if known and known.has_min_max else (0, (1 << 31) - 1)
