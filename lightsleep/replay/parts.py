# SPDX-License-Identifier: GPL-2.0-only
"""Replaying tables of idle periods on several cores.

A large table is read twice, for what wakeups cost and for what each policy does, and both times by
several processes, each of which has some of the CPUs. CPUs do not know of each other in a replay,
and all sums are integers: it makes no difference to any figure which process has which CPU. Up to
eight processes read the rows of their own CPUs only (table.py); of tables that somebody wrote
again, each reads all.

Many small tables are replayed side by side, each by one process. Their results are handed on in the
order of the files, and no process is far ahead of that, so memory does not grow with their number.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lightsleep import cache
from lightsleep.errors import LightsleepError
from lightsleep.periods.model import Metadata
from lightsleep.periods.source import open_recording, watched
from lightsleep.periods.table import (
    ALL,
    CLASSES_OF,
    METADATA,
    Share,
    cpus_of_groups,
    open_table,
    opened,
)
from lightsleep.replay.account import Replay, replay
from lightsleep.replay.costs import Costs
from lightsleep.replay.evidence import Evidence
from lightsleep.replay.given import Given
from lightsleep.replay.policies import parse
from lightsleep.replay.rows import NEEDED

WORTH = 4_000_000
"""Rows that keep one more process busy for longer than it takes to start."""

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


@dataclass(frozen=True)
class Part:
    """The CPUs of a table that one process replays."""

    table: Path
    share: Share
    costs: Costs
    policies: str
    weight: int


def require_costs(
    path: Path, costs: Costs | None, given: Given | None, metadata: Metadata
) -> Costs:
    """Return the costs of a recording. Raises LightsleepError where no wakeup tells them."""
    if costs is not None:
        return costs
    if metadata.lacking:
        raise LightsleepError(f"{path}: {metadata.lacking}")
    if given is None:
        raise LightsleepError(
            f"{path}: no task was woken out of a halt by another CPU, so nothing tells what a halt "
            "costs: if timers or devices woke tasks, give --halt-cost or --measured"
        )
    raise LightsleepError(
        f"{path}: no task was woken out of an idle state that halts: there is nothing to replay"
    )


def evidence_of(table: Path, share: Share = ALL, shown: bool = False) -> Evidence:
    """Read some CPUs of a table, and return what they say of the costs; ``shown`` as it goes on.

    Raises LightsleepError where the table is damaged.
    """
    recording = open_recording(table, NEEDED, share)
    evidence = Evidence(recording.metadata)
    if not shown:
        for batch in recording.batches:
            evidence.add(batch)
        return evidence
    with contextlib.closing(watched(recording.metadata, recording.batches)) as read:
        for batch in read:
            evidence.add(batch)
    return evidence


def together(table: Path, evidence: Iterable[Evidence], given: Given | None) -> Costs:
    """Return the costs that follow from what all CPUs of a table say.

    Raises LightsleepError where no wakeup tells them.
    """
    first, *others = evidence
    for other in others:
        first.merge(other)
    return require_costs(table, first.costs(given), given, first.metadata)


def shares_of(table: Path, cores: int) -> list[Share]:
    """Return the shares that keep so many cores busy; one, where the table is small.

    Raises LightsleepError where there is no such file, or it is no table.
    """
    try:
        open_table(table)
        kept: pq.FileMetaData = pq.read_metadata(opened(table))
        most = _most_cpus(kept)
    except (pa.ArrowException, OSError, LightsleepError) as error:
        raise LightsleepError(
            f"{table}: no table of idle periods: lightsleep report --parquet saves one ({error})"
        ) from error
    of = max(1, min(cores, kept.num_rows // WORTH, most))
    # Of eight classes of CPUs, 2, 4 or 8 processes read their own rows only.
    return _shares(1 << of.bit_length() - 1)


def digest_of(table: Path) -> str:
    """Return a digest of what the footer of a table says: copies have the same, others do not.

    "" where there is no file. Raises LightsleepError where it cannot be read.
    """
    try:
        kept: pq.FileMetaData = pq.read_metadata(opened(table))
    except FileNotFoundError:
        return ""
    except (pa.ArrowException, OSError) as error:
        raise LightsleepError(f"{table}: damaged or no Parquet file of ours: {error}") from error
    groups = [kept.row_group(group) for group in range(kept.num_row_groups)]
    sizes = [(group.num_rows, group.total_byte_size) for group in groups]
    known = kept.metadata or {}
    return cache.digest(str(sizes), known.get(METADATA, b""), known.get(CLASSES_OF, b""))


def _shares(of: int) -> list[Share]:
    return [(index, of) for index in range(of)]


def _most_cpus(kept: pq.FileMetaData) -> int:
    """Return how many CPUs a table has at most, by the statistics that Parquet keeps."""
    return 1 + max((high for _, high in cpus_of_groups(kept)), default=0)


def replay_table(
    table: Path,
    policies: str,
    weight: int,
    given: Given | None = None,
    costs: Costs | None = None,
    jobs: int = 0,
) -> tuple[Costs, Replay]:
    """Replay a Parquet file of ours by the policies named; on ``jobs`` cores, 0 for all.

    Returns what wakeups cost, too; ``costs`` says it where it is known already. Raises
    LightsleepError where the file is damaged, where no wakeup tells the costs, and where a process
    of the replay is killed.
    """
    jobs = jobs or len(shares_of(table, len(os.sched_getaffinity(0))))
    if jobs == 1:
        costs = costs or together(table, [evidence_of(table, shown=True)], given)
        return costs, _replayed(Part(table, ALL, costs, policies, weight))
    shares = _shares(jobs)
    with _processes(jobs, table) as pool:
        if costs is None:
            found = pool.map(_evidence, [(table, share) for share in shares])
            costs = together(table, found, given)
        parts = [Part(table, share, costs, policies, weight) for share in shares]
        first, *others = pool.map(_replayed, parts)
    for other in others:
        first.join(other)
    return costs, first


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
            rows = pq.read_metadata(opened(path)).num_rows
            if rows < 2 * WORTH:
                found[path] = rows
    return found


def _replayed_small(
    table: Path, policies: str, given: Given | None, weight: int
) -> tuple[Costs, Replay]:
    costs = together(table, [evidence_of(table)], given)
    return costs, replay_part(Part(table, ALL, costs, policies, weight))


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
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def replay_part(part: Part, shown: bool = False) -> Replay:
    """Replay some CPUs of a table; ``shown`` on a terminal as it goes on."""
    recording = open_recording(part.table, NEEDED, part.share)
    metadata, rows = recording.metadata, recording.batches
    if not shown:
        return replay(metadata, part.costs, rows, parse(part.policies), part.weight)
    with contextlib.closing(watched(metadata, rows)) as read:
        return replay(metadata, part.costs, read, parse(part.policies), part.weight)


def _replayed(part: Part) -> Replay:
    return replay_part(part, shown=part.share[0] == 0)


def _evidence(of: tuple[Path, Share]) -> Evidence:
    table, share = of
    return evidence_of(table, share, shown=share[0] == 0)
