# SPDX-License-Identifier: GPL-2.0-only
"""What a policy did in all intervals, added up.

Every sum is an integer, and none depends on the order in which CPUs are added. A tally is one
array, laid out as ``struct tally`` of engine.h, so that engine.c adds to it in place.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lightsleep.periods.lost import Wakes
from lightsleep.replay.intervals import BLOCKS
from lightsleep.replay.rows import Flags, Ns
from lightsleep.replay.stays import Limits, Stays, stays_of

BUCKETS = 2048
"""Of the histogram of waits; the last has room for every int64."""

SUMS = (
    *("intervals", "hits", "in_vain", "polled_ns", "wakes", "waited_ns"),
    *("halts", "too_shallow_ns", "too_deep_ns", "longest_ns"),
)


@dataclass(frozen=True)
class Intervals:
    """Some intervals of one CPU, in order: a column each, the first as in ``struct intervals``.

    RecordedIntervals says what each is; ``idle_ns`` is one end of when something arrived.
    ``limits`` are those of the CPU, ``turn_ns`` is what its way from a poll to a halt takes.
    ``supposed_ns`` is what leaving each state costs beyond what Costs says, at this end.
    """

    idle_ns: Ns
    cost_ns: Ns
    bucket: npt.NDArray[np.uint16]
    woken: Flags
    block: npt.NDArray[np.uint8]
    state: npt.NDArray[np.uint8]
    exit_ns: Ns
    resumes: Flags
    nobody: Flags
    tick: Flags
    limits: Limits
    turn_ns: int
    entered_ns: Ns
    typical_ns: Ns
    timer_ns: Ns
    arrival_ns: Ns
    supposed_ns: int = 0

    def __len__(self) -> int:
        """Return the number of intervals."""
        return len(self.idle_ns)

    def first(self, count: int) -> Intervals:
        """Return a copy of the first ``count`` intervals, or of all where there are fewer."""
        columns = {
            field.name: getattr(self, field.name)[:count].copy()
            for field in dataclasses.fields(self)
            if field.name not in ("limits", "turn_ns", "supposed_ns")
        }
        return dataclasses.replace(self, **columns)


class Tally:
    """The sums of one policy; ``data`` is their ``struct tally``."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.data: Ns = np.zeros(len(SUMS) + BLOCKS + BUCKETS, np.int64)

    def __getitem__(self, name: str) -> int:
        """Return one of SUMS."""
        return int(self.data[SUMS.index(name)])

    @property
    def paid_ns(self) -> Ns:
        """Time polled and waited, weighed, by block."""
        return self.data[len(SUMS) : len(SUMS) + BLOCKS]

    @property
    def histogram(self) -> Ns:
        """How many tasks waited how long, by bucket."""
        return self.data[len(SUMS) + BLOCKS :]

    @property
    def waits(self) -> Wakes:
        """The wakeups, as a recording's own are counted."""
        found = np.flatnonzero(self.histogram)
        counts = dict(zip(found.tolist(), self.histogram[found].tolist(), strict=True))
        return Wakes(self["wakes"], self["waited_ns"], self["longest_ns"], Counter(counts))

    def merge(self, other: Tally) -> None:
        """Add what was done in other intervals."""
        longest = SUMS.index("longest_ns")
        most = max(self.data[longest], other.data[longest])
        self.data += other.data
        self.data[longest] = most

    def add(
        self,
        intervals: Intervals,
        polled_ns: Ns,
        halted: Flags,
        weight: int,
        stays: Stays | None = None,
        before_ns: Ns | None = None,
    ) -> None:
        """Add intervals of which so much was polled, and which ended in a halt or not.

        ``stays`` is what they add up to, where that does not follow, ``before_ns`` how long the
        CPU had polled already where an interval goes on with a poll that has not ended.
        """
        earlier_ns = np.zeros_like(polled_ns) if before_ns is None else before_ns
        in_vain = halted & (polled_ns + earlier_ns > 0)
        stays = stays or stays_of(intervals, polled_ns, halted, earlier_ns)
        waited_ns = np.where(halted, intervals.cost_ns, 0)
        sums = (
            len(intervals),
            int((~halted).sum()),
            int(in_vain.sum()),
            int(polled_ns.sum()),
            int(intervals.woken.sum()),
            int(waited_ns.sum()),
            stays.halts,
            stays.too_shallow_ns,
            stays.too_deep_ns,
        )
        self.data[: len(sums)] += sums
        longest = SUMS.index("longest_ns")
        self.data[longest] = max(self.data[longest], waited_ns.max(initial=0))
        np.add.at(self.paid_ns, intervals.block, polled_ns + weight * waited_ns)
        buckets = np.where(halted, intervals.bucket, 0)[intervals.woken]
        self.histogram[:] += np.bincount(buckets, minlength=BUCKETS)
