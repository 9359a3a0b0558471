# SPDX-License-Identifier: GPL-2.0-only
"""Where the host's CPU time goes: to which vCPU, and to work that is not ours.

A vCPU that halts is a host thread that sleeps, under KVM and under TCG alike, so the time in
which its thread used no CPU is the time the guest slept. That is measured from outside, the
same way for every arm, and nothing in the guest has to count it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class ThreadTime:
    """What threads got from the host's scheduler, summed up, in ns."""

    ran_ns: int
    waited_ns: int
    """Ready to run, but the host ran something else."""

    def awake_since(self, before: ThreadTime) -> int:
        """Return the ns since ``before`` in which the threads did not sleep."""
        return self.ran_ns - before.ran_ns + self.waited_ns - before.waited_ns


def thread_time(pid: int, threads: Sequence[int]) -> ThreadTime:
    """Return the time of some threads of a process so far."""
    rows = [Path(f"/proc/{pid}/task/{tid}/schedstat").read_text().split() for tid in threads]
    return ThreadTime(sum(int(row[0]) for row in rows), sum(int(row[1]) for row in rows))


def be_idle_class(threads: Iterable[int]) -> None:
    """Let threads run only where nobody else wants to (SCHED_IDLE).

    There is no way back for a user without privileges.
    """
    for tid in threads:
        os.sched_setscheduler(tid, os.SCHED_IDLE, os.sched_param(0))


def pin(threads: Sequence[int]) -> None:
    """Keep each thread on one of the CPUs that we may use, in turn."""
    cpus = sorted(os.sched_getaffinity(0))
    for number, tid in enumerate(threads):
        os.sched_setaffinity(tid, {cpus[number % len(cpus)]})


def own_rows() -> frozenset[str]:
    """Return the names that the CPUs we may use have in /proc/stat.

    In a container, lxcfs shows only its CPUs there, and numbers them anew. Where ours are not all
    there by their numbers, they are those that are shown.
    """
    ours = frozenset(f"cpu{number}" for number in os.sched_getaffinity(0))
    shown = frozenset(_ticks()) - {"cpu"}
    return ours if ours <= shown or not shown else shown


def busy_s(rows: Set[str]) -> float:
    """Return the CPU seconds that CPUs, rows of /proc/stat, have spent on anything so far.

    Of those we may use: what happens on others does not disturb guests, and would hide what does.
    """
    total = 0
    for name, ticks in _ticks().items():
        if name in rows:
            # user nice system idle iowait irq softirq steal
            total += sum(ticks[:8]) - ticks[3] - ticks[4]
    return total / os.sysconf("SC_CLK_TCK")


def _ticks() -> dict[str, list[int]]:
    """Return the rows of /proc/stat that are of CPUs, and that of all of them, cpu."""
    rows = (line.split() for line in Path("/proc/stat").read_text().splitlines())
    return {row[0]: [int(x) for x in row[1:]] for row in rows if row[0].startswith("cpu")}


def process_s(pids: Iterable[int]) -> float:
    """Return the CPU seconds some processes have spent so far."""
    total = 0
    for pid in pids:
        # The name, in parentheses, may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


IDLE_PCT = 1.0
"""More than what an idle host does on each of its CPUs: timers, kernel threads, agents."""


@dataclass
class Load:
    """How busy the host is with other work than the guests: it costs samples their meaning."""

    pids: Sequence[int]
    cpus: int | None = None
    """Of at most so many CPUs: as many as the guests can use. A share of all CPUs of a large host
    would hide what disturbs them."""
    rows: frozenset[str] = field(init=False)
    """Of the CPUs we may use: those of the start, also where they become others meanwhile."""
    start_s: float = field(init=False)
    other_s: float = field(init=False)

    def __post_init__(self) -> None:
        """Start counting."""
        self.rows = own_rows()
        self.start_s, self.other_s = time.monotonic(), self._other_s()

    def _other_s(self) -> float:
        ours = os.times()  # what we ran on the host belongs to the experiment, too
        ours_s = ours.user + ours.system + ours.children_user + ours.children_system
        return busy_s(self.rows) - process_s(self.pids) - ours_s

    def percent(self) -> float:
        """Return the share of the time of the CPUs we may use since the start, in %; see cpus.

        It is 0 where all of it is no more than IDLE_PCT of each CPU that the guests cannot use:
        what many idle CPUs do, each a little, is much for a few, but leaves the guests alone.
        """
        cpus = min(len(self.rows), self.cpus or len(self.rows))
        wall_s, other_s = time.monotonic() - self.start_s, self._other_s() - self.other_s
        if 100 * other_s <= IDLE_PCT * wall_s * (len(self.rows) - cpus):
            return 0.0
        return min(100.0, max(0.0, 100 * other_s / (wall_s * cpus)))


class Loads:
    """The load of a boot, all of it and turn by turn."""

    def __init__(self, pids: Sequence[int], cpus: int | None = None) -> None:
        """Start counting; ``pids`` are the guests, and ``cpus`` are as in Load."""
        self._pids, self._cpus = pids, cpus
        self.all = Load(pids, cpus)
        self.of_turns: dict[str, list[float]] = defaultdict(list)

    @contextlib.contextmanager
    def turn(self, arm: str) -> Iterator[None]:
        """Note what the load is meanwhile, in %, as one more of ``arm``."""
        load = Load(self._pids, self._cpus)
        yield
        self.of_turns[arm].append(load.percent())
