# SPDX-License-Identifier: GPL-2.0-only
"""Replaying tables of idle periods on several cores.

A large table is split in parts, each with some of the CPUs. CPUs do not know of each other in a
replay, and all sums are integers: it makes no difference to any figure which process has which CPU.

Many small tables are replayed side by side, each by one process. Their results are handed on in the
order of the files, and no process is far ahead of that, so memory does not grow with their number.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lightsleep.errors import LightsleepError
from lightsleep.measure.sleeper import die_with
from lightsleep.periods.source import open_recording, watched
from lightsleep.replay.account import Replay, replay
from lightsleep.replay.given import Given
from lightsleep.replay.intervals import NEEDED, Costs, costs_of
from lightsleep.replay.policies import parse

WORTH = 4_000_000
"""Rows that keep one more process busy for longer than it takes to start."""


@dataclass(frozen=True)
class Part:
    """The CPUs of a table that one process replays: those whose number leaves ``index``."""

    table: Path
    index: int
    of: int
    costs: Costs
    policies: str
    weight: int


def require_costs(path: Path, costs: Costs | None) -> Costs:
    """Return the costs of a recording. Raises LightsleepError where no wakeup tells them."""
    if costs is None:
        raise LightsleepError(
            f"{path}: no task was woken out of an idle state that halts: there is nothing to replay"
        )
    return costs


def costs_of_table(table: Path, given: Given | None) -> Costs:
    """Read a Parquet file of ours and return its costs; see costs_of().

    Raises LightsleepError where it is damaged, or no wakeup tells them.
    """
    recording = open_recording(table, NEEDED)
    return require_costs(table, costs_of(recording.metadata, recording.batches, given))


def parts_of(table: Path, cores: int) -> list[tuple[int, int]]:
    """Return which parts of how many keep so many cores busy; one, where the table is small.

    Raises LightsleepError where there is no such file, or it is no table.
    """
    try:
        kept: pq.FileMetaData = pq.ParquetFile(table).metadata
    except (pa.ArrowException, OSError) as error:
        raise LightsleepError(
            f"{table}: no table of idle periods: lightsleep report --parquet saves one ({error})"
        ) from error
    of = max(1, min(cores, kept.num_rows // WORTH, _most_cpus(kept)))
    return [(index, of) for index in range(of)]


def _most_cpus(kept: pq.FileMetaData) -> int:
    """Return how many CPUs a table has at most, by the statistics that Parquet keeps."""
    highest = 0
    for group in range(kept.num_row_groups):
        columns = (kept.row_group(group).column(x) for x in range(kept.num_columns))
        known = next((x.statistics for x in columns if x.path_in_schema == "cpu"), None)
        if known is None or not known.has_min_max:
            return sys.maxsize
        highest = max(highest, known.max)
    return highest + 1


def replay_table(table: Path, costs: Costs, policies: str, weight: int, jobs: int = 0) -> Replay:
    """Replay a Parquet file of ours by the policies named; on ``jobs`` cores, 0 for all.

    Raises LightsleepError where the file is damaged, and where a process of the replay is killed.
    """
    jobs = jobs or len(parts_of(table, len(os.sched_getaffinity(0))))
    parts = [Part(table, index, jobs, costs, policies, weight) for index in range(jobs)]
    if jobs == 1:
        return _replayed(parts[0])
    with _processes(jobs, table) as pool:
        first, *others = pool.map(_replayed, parts)
    for other in others:
        first.join(other)
    return first


def replay_files(
    files: Sequence[Path],
    policies: str,
    given: Given | None,
    weight: int,
    alone: Callable[[Path], tuple[Costs, Replay]],
) -> Generator[tuple[Costs, Replay], None, None]:
    """Replay recordings; yield the costs and the replay of each, in their order.

    Small tables are replayed side by side, on all cores. ``alone`` replays any other recording when
    its turn comes. Raises LightsleepError as replay_table() does.
    """
    rows = _rows_of_small_tables(files)
    jobs = min(len(os.sched_getaffinity(0)), len(rows), sum(rows.values()) // WORTH)
    if jobs < 2:
        yield from map(alone, files)
        return
    ahead = (path for path in files if path in rows)
    begun: deque[Future[tuple[Costs, Replay]]] = deque()
    with _processes(jobs, f"{len(rows)} tables") as pool:
        for path in files:
            for table in islice(ahead, 2 * jobs - len(begun)):
                begun.append(pool.submit(_replayed_small, table, policies, given, weight))
            yield begun.popleft().result() if path in rows else alone(path)


def _rows_of_small_tables(files: Sequence[Path]) -> dict[Path, int]:
    """Return how many rows each table has that is too small to be split."""
    found = {}
    for path in files if len(files) > 1 else ():
        with contextlib.suppress(pa.ArrowException, OSError):  # whoever reads it says so
            rows = pq.read_metadata(path).num_rows
            if rows < 2 * WORTH:
                found[path] = rows
    return found


def _replayed_small(
    table: Path, policies: str, given: Given | None, weight: int
) -> tuple[Costs, Replay]:
    costs = costs_of_table(table, given)
    return costs, replay_part(Part(table, 0, 1, costs, policies, weight))


@contextlib.contextmanager
def _processes(jobs: int, what: object) -> Iterator[ProcessPoolExecutor]:
    """Lend processes that end with this one, and at once if anything fails.

    Raises LightsleepError that begins with ``what`` where one of them is killed.
    """
    # A fork would inherit the threads of pyarrow.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        jobs, context, initializer=_leave_it_to_the_parent, initargs=(os.getpid(),)
    ) as pool:
        try:
            yield pool
        except BrokenProcessPool as error:
            raise LightsleepError(
                f"{what}: a process of the replay was killed, by the kernel if memory ran out "
                "(dmesg tells): start it again, or on one core: taskset -c 0 lightsleep replay"
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.kill()  # what it has replayed so far is of no use
            raise


def _leave_it_to_the_parent(parent: int) -> None:
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def replay_part(part: Part, shown: bool = False) -> Replay:
    """Replay some CPUs of a table; ``shown`` on a terminal as it goes on."""
    recording = open_recording(part.table, NEEDED)
    metadata, rows = recording.metadata, recording.batches
    rows = _chosen(rows, part) if part.of > 1 else rows
    if not shown:
        return replay(metadata, part.costs, rows, parse(part.policies), part.weight)
    with contextlib.closing(watched(metadata, rows)) as read:
        return replay(metadata, part.costs, read, parse(part.policies), part.weight)


def _replayed(part: Part) -> Replay:
    return replay_part(part, shown=part.index == 0)


def _chosen(batches: Iterator[pa.RecordBatch], part: Part) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        cpus = np.asarray(batch.column("cpu"))
        yield batch.filter(pa.array(cpus % part.of == part.index))
