# SPDX-License-Identifier: GPL-2.0-only
"""Replaying one table of idle periods on several cores, each with some of the CPUs.

CPUs do not know of each other in a replay, and all sums are integers: it makes no difference to any
figure which process has which CPU.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lightsleep.errors import LightsleepError
from lightsleep.periods.source import open_recording, watched
from lightsleep.replay.account import Replay, replay
from lightsleep.replay.demand import NEEDED, Costs
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


def replay_table(table: Path, costs: Costs, policies: str, weight: int, jobs: int = 0) -> Replay:
    """Replay a Parquet file of ours by the policies named; on ``jobs`` cores, 0 for all.

    Raises LightsleepError where the file is damaged, and where a process of the replay is killed.
    """
    jobs = jobs or _jobs(table)
    parts = [Part(table, index, jobs, costs, policies, weight) for index in range(jobs)]
    if jobs == 1:
        return _replayed(parts[0])
    # A fork would inherit the threads of pyarrow.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=_leave_it_to_the_parent) as pool:
        try:
            first, *others = pool.map(_replayed, parts)
        except BrokenProcessPool as error:
            raise LightsleepError(
                f"{table}: a process of the replay was killed, by the kernel if memory ran out "
                "(dmesg tells): start it again, or on one core: taskset -c 0 lightsleep replay"
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    for other in others:
        first.join(other)
    return first


def _jobs(table: Path) -> int:
    rows: int = pq.ParquetFile(table).metadata.num_rows
    return max(1, min(len(os.sched_getaffinity(0)), rows // WORTH))


def _leave_it_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _replayed(part: Part) -> Replay:
    recording = open_recording(part.table, NEEDED)
    known, rows = recording.known, recording.batches
    rows = _chosen(rows, part) if part.of > 1 else rows
    if part.index:
        return replay(known, part.costs, rows, parse(part.policies), part.weight)
    with contextlib.closing(watched(known, rows)) as shown:
        return replay(known, part.costs, shown, parse(part.policies), part.weight)


def _chosen(batches: Iterator[pa.RecordBatch], part: Part) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        cpus = np.asarray(batch.column("cpu"))
        yield batch.filter(pa.array(cpus % part.of == part.index))
