# SPDX-License-Identifier: GPL-2.0-only
"""The time that tasks lost while they waited for a CPU to wake.

A wakeup takes from the sched_waking event, where the waker asks for it, to the sched_switch event,
where the woken task runs. Wakeups that found the CPU in an idle state are counted by state, by what
ended the period, by woken task, by waker and by CPU.

Not all of that time is the idle state's: the scheduler takes some of it, too. Wakeups by another
CPU that found the CPU polling or awake are the *reference*: what a wakeup takes where no idle state
has to be left. A wakeup is *above the reference* by what it took more than the reference's median,
but it counts at most as long as the median of its group: a task that waits longer has mostly waited
for something else. What a group took above the reference is the sum of that. The median of wakeups
out of several states is that of one of them, so a group is judged by state, and the parts are
added.

The reference may be a small selection. Without a state that polls, a CPU is found awake only on its
way to an idle state, which takes microseconds, and what it then takes depends on how far it had
come. So a difference counts only where the 95 % interval of the difference of both medians is above
0. A histogram does not keep the order of wakeups, so they count as independent ones.

Percentiles come from histograms whose buckets are 2.2 % wide. The first 16,384 names of woken tasks
have a group each, and as many of wakers. So memory stays constant however long the recording is.
Sums are exact.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lightsleep.document import headed
from lightsleep.order import binned_interval, binned_quantile, difference
from lightsleep.periods.model import AWAKE, Metadata
from lightsleep.periods.timeline import Timeline

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = "lightsleep.lost"
VERSION = 1
BUCKETS_PER_OCTAVE = 32
ENOUGH = 30
"""Wakeups that make a reference."""
FEWEST = 6
"""Of fewer, the median has no 95 % interval: it is outside of all of five in 6 % of cases."""

Ns = npt.NDArray[np.int64]

Coded = tuple[Ns, list[str]]
"""A text for each row, as the index of one of a few."""


@dataclass
class Wakes:
    """Wakeups of one kind: how many, how long in all, and how they are distributed.

    ``parts`` are the same by idle state, where there were several.
    """

    count: int = 0
    total_ns: int = 0
    longest_ns: int = 0
    histogram: Counter[int] = field(default_factory=Counter)
    parts: tuple[Wakes, ...] = ()

    @classmethod
    def of_states(cls, by_state: Iterable[Wakes]) -> Wakes:
        """Return wakeups out of several states together."""
        parts = tuple(by_state)
        if len(parts) == 1:
            return parts[0]
        found = cls(parts=parts)
        for part in parts:
            found.merge(part)
        return found

    def add(self, waits_ns: Ns) -> None:
        """Count wakeups that took so long."""
        self.count += len(waits_ns)
        self.total_ns += int(waits_ns.sum())
        self.longest_ns = max(self.longest_ns, int(waits_ns.max(initial=0)))
        counts = np.bincount(bucket(waits_ns))
        for index in np.flatnonzero(counts).tolist():
            self.histogram[index] += int(counts[index])

    def merge(self, other: Wakes) -> None:
        """Count the wakeups of somebody else, too."""
        self.count += other.count
        self.total_ns += other.total_ns
        self.longest_ns = max(self.longest_ns, other.longest_ns)
        self.histogram.update(other.histogram)

    def within_ns(self, share: float) -> float:
        """Return the time within which ``share`` of the wakeups were done; 0 where none was."""
        return self._time_ns(binned_quantile(self.histogram, share)) if self.count else 0.0

    def _time_ns(self, index: int) -> float:
        """Return the time that stands for a bucket: no longer than the longest one."""
        return min(middle_ns(index), float(self.longest_ns))

    def above_ns(self, least_ns: float, most_ns: float) -> float:
        """Return what the wakeups took above ``least_ns``, none counted longer than ``most_ns``."""
        above = sum(
            number * max(0.0, min(middle_ns(index), most_ns) - least_ns)
            for index, number in self.histogram.items()
        )
        return min(above, float(self.total_ns))  # the middle of a bucket may be above its times

    def median_interval_ns(self) -> tuple[float, float]:
        """Return the 95 % interval of the median, of FEWEST wakeups at least."""
        low, high = binned_interval(self.histogram, 50)
        assert low is not None
        assert high is not None
        return self._time_ns(low), self._time_ns(high)

    def is_slower_than(self, other: Wakes) -> bool:
        """Return whether the median is shown to be higher, by the interval of the difference."""
        if min(self.count, other.count) < FEWEST:
            return False
        medians = self.within_ns(0.5), other.within_ns(0.5)
        of_self, of_other = self.median_interval_ns(), other.median_interval_ns()
        return difference(medians[0], of_self, medians[1], of_other)[0] > 0

    def to_json(self) -> dict[str, Any]:
        """Return the figures of these wakeups."""
        return {
            "wakes": self.count,
            "total_ns": self.total_ns,
            "p50_ns": self.within_ns(0.5),
            "p99_ns": self.within_ns(0.99),
            "longest_ns": self.longest_ns,
        }


def bucket(waits_ns: Ns) -> Ns:
    """Return the bucket of each time."""
    logs = np.log2(np.maximum(waits_ns, 1).astype(np.float64))
    found: Ns = np.floor(logs * BUCKETS_PER_OCTAVE).astype(np.int64)
    return found


def least_ns(index: int) -> int:
    """Return the shortest time in a bucket."""
    return math.ceil(2 ** (index / BUCKETS_PER_OCTAVE))


def middle_ns(index: int) -> float:
    """Return the time in the middle of a bucket."""
    return float(2 ** ((index + 0.5) / BUCKETS_PER_OCTAVE))


@dataclass
class State:
    """All periods in one idle state: how many, and for how long in all."""

    periods: int = 0
    total_ns: int = 0


ByState = defaultdict[str, Wakes]


def by_state() -> ByState:
    """Return no wakeups out of any state."""
    return defaultdict(Wakes)


KINDS = ("state", "cause", "task", "waker", "cpu")
NAMELESS = ""
"""The group of rows whose column is empty, as where a recording has no names of tasks."""

NAMED_BY_TASKS = ("task", "waker")
MOST_NAMES = 1 << 14
"""Groups of one of these kinds: a program may give each of its threads a name of its own. A group
of one wakeup takes 0.8 KB of memory, one of a hundred 6 KB, and 12 KB if they are out of four idle
states: this many take 13 MB, 96 MB and 195 MB. A lower limit could meet the kernel's own threads:
about ten for each CPU have their number in their names."""

OTHERS = "others, together"
"""The group of names that come after MOST_NAMES others: longer than any name of a task."""


@dataclass
class TimeLost:
    """What a recording says.

    ``groups`` maps each of KINDS to its groups by name, ``parts`` to these by idle state.
    """

    metadata: Metadata
    parts: dict[str, defaultdict[str, ByState]] = field(
        default_factory=lambda: {kind: defaultdict(by_state) for kind in KINDS}
    )
    groups: dict[str, dict[str, Wakes]] = field(
        default_factory=lambda: {kind: {} for kind in KINDS}
    )
    states: defaultdict[str, State] = field(default_factory=lambda: defaultdict(State))
    reference: Wakes = field(default_factory=Wakes)
    all: Wakes = field(default_factory=Wakes)
    timeline: Timeline = field(default_factory=Timeline)

    @property
    def reference_ns(self) -> float | None:
        """The median of the reference; None where it has too few wakeups."""
        enough = self.reference.count >= ENOUGH
        return self.reference.within_ns(0.5) if enough else None

    def above_reference_ns(self, wakes: Wakes) -> float | None:
        """Return what wakeups typically took above the reference; None where that is not shown."""
        parts = [self._above_ns(part) for part in wakes.parts or (wakes,)]
        known = [part for part in parts if part is not None]
        return sum(known) if known else None

    def _above_ns(self, wakes: Wakes) -> float | None:
        if self.reference_ns is None or not wakes.is_slower_than(self.reference):
            return None
        return wakes.above_ns(self.reference_ns, wakes.within_ns(0.5))

    def add_up(self) -> None:
        """Have the groups, and all wakeups, follow from their parts."""
        for kind, names in self.parts.items():
            self.groups[kind] = {name: Wakes.of_states(x.values()) for name, x in names.items()}
        self.all = Wakes.of_states(self.groups["state"].values())

    def top(self, kind: str) -> list[tuple[str, Wakes]]:
        """Return the groups of a kind, those with most time first."""
        return sorted(self.groups[kind].items(), key=lambda x: (-x[1].total_ns, x[0]))

    def share(self, wakes: Wakes) -> float:
        """Return how much of ``metadata.span_ns`` a group took; over 1 where CPUs overlap."""
        return wakes.total_ns / self.metadata.span_ns if self.metadata.span_ns else 0.0

    def document(self) -> dict[str, Any]:
        """Return the JSON document of all figures, as lost.schema.json describes it."""
        described = self.metadata.to_json()
        rest = {
            "recording": {key: described[key] for key in described if key != "schema"},
            "span_ns": self.metadata.span_ns,
            "idle": {
                name: {"periods": state.periods, "total_ns": state.total_ns}
                for name, state in self.states.items()
            },
            "reference": self.reference.to_json(),
            "all": self._figures(self.all),
            **{
                f"by_{kind}": [
                    {kind: name or None, **self._figures(x)} for name, x in self.top(kind)
                ]
                for kind in KINDS
            },
        }
        return headed(SCHEMA, VERSION, rest)

    def _figures(self, wakes: Wakes) -> dict[str, Any]:
        return wakes.to_json() | {
            "above_reference_ns": self.above_reference_ns(wakes),
            "share": self.share(wakes),
        }


def time_lost(metadata: Metadata, batches: Iterable[pa.RecordBatch]) -> TimeLost:
    """Read a recording and return what it says."""
    lost = TimeLost(metadata)
    for batch in batches:
        _add(lost, batch)
    lost.add_up()
    if any(OTHERS in lost.groups[kind] for kind in NAMED_BY_TASKS):
        metadata.notes.append(
            f"more than {MOST_NAMES:,} names of tasks: names after the first {MOST_NAMES:,} are "
            f'counted together, as "{OTHERS}"'
        )
    return lost


def _add(lost: TimeLost, batch: pa.RecordBatch) -> None:
    cpus, states = integers(batch, "cpu"), integers(batch, "state")
    names = _names(lost.metadata, cpus, states)
    entered, lengths = integers(batch, "entered_ns"), integers(batch, "length_ns")
    asleep = states != AWAKE
    if lost.timeline.start_ns is None:  # rows of some CPUs may come before earlier ones of others
        lost.timeline.start_ns = lost.metadata.first_ns
    _add_states(lost, names, lengths, asleep)
    lost.timeline.add(cpus[asleep], names.taken(asleep), entered[asleep], lengths[asleep])

    waits = batch.column("waking_to_running_ns")
    woken = np.asarray(waits.is_valid())
    taken = integers(batch, "waking_to_running_ns")
    polls = np.array([lost.metadata.polls(*pair) for pair in names.pairs], np.bool_)[names.codes]
    # The CPU's own interrupts wake tasks in another way: on the CPU itself, which is awake by then.
    by_others = integers(batch, "waker_cpu") != cpus
    lost.reference.add(taken[woken & by_others & (~asleep | polls)])
    counted = woken & asleep & ~polls
    if not counted.any():
        return
    rows = batch.filter(counted)
    texts, codes = np.unique(names.names, return_inverse=True)
    by_name: Coded = codes[names.codes[counted]], texts.tolist()
    causes = _encoded(rows.column("ended_by"))
    numbers, cpu_codes = np.unique(cpus[counted], return_inverse=True)
    keys: dict[str, Coded] = {
        "state": by_name,
        "cause": _both(by_name, causes),
        "task": _encoded(rows.column("wakee_comm")),
        "waker": _encoded(rows.column("waker_comm")),
        "cpu": (cpu_codes, [str(number) for number in numbers.tolist()]),
    }
    for kind, key in keys.items():
        most = MOST_NAMES if kind in NAMED_BY_TASKS else None
        _add_groups(lost.parts[kind], key, by_name, taken[counted], most)


def _encoded(column: pa.Array) -> Coded:
    if not hasattr(column, "dictionary"):
        column = column.dictionary_encode()
    texts = [NAMELESS if text is None else str(text) for text in column.dictionary.to_pylist()]
    codes = np.asarray(column.indices.cast("int64").fill_null(len(texts)))
    return codes, [*texts, NAMELESS]


def _both(first: Coded, second: Coded) -> Coded:
    """Return texts of both for each row."""
    joined, codes = np.unique(first[0] * len(second[1]) + second[0], return_inverse=True)
    pairs = [divmod(int(code), len(second[1])) for code in joined]
    return codes, [f"{first[1][a]}, {second[1][b] or '-'}" for a, b in pairs]


def _add_groups(
    groups: defaultdict[str, ByState], keys: Coded, states: Coded, waits_ns: Ns, most: int | None
) -> None:
    joined = keys[0] * len(states[1]) + states[0]
    order = np.argsort(joined, kind="stable")
    counts = np.bincount(joined)
    ends = np.cumsum(counts)
    others: defaultdict[str, list[Ns]] = defaultdict(list)
    for code in np.flatnonzero(counts).tolist():
        end = int(ends[code])
        key, state = divmod(code, len(states[1]))
        name = keys[1][key]
        waits = waits_ns[order[end - int(counts[code]) : end]]
        if most is not None and name not in groups and len(groups) >= most:
            others[states[1][state]].append(waits)
        else:
            groups[name][states[1][state]].add(waits)
    for name, parts in others.items():
        # At once: one by one, rows with a name each take ten times as long.
        groups[OTHERS][name].add(np.concatenate(parts))


def _add_states(lost: TimeLost, names: Names, lengths: Ns, asleep: npt.NDArray[np.bool_]) -> None:
    counts = np.bincount(names.codes[asleep], minlength=len(names.pairs))
    sums = np.zeros(len(names.pairs), np.int64)
    np.add.at(sums, names.codes[asleep], lengths[asleep])
    for name, count, total in zip(names.names, counts.tolist(), sums.tolist(), strict=True):
        if count:
            lost.states[name].periods += count
            lost.states[name].total_ns += total


@dataclass(frozen=True)
class Names:
    """The states of some rows: ``codes`` index ``pairs`` of CPU and state, and their ``names``."""

    codes: npt.NDArray[np.int64]
    pairs: list[tuple[int, int]]
    names: list[str]

    def taken(self, rows: npt.NDArray[np.bool_]) -> Names:
        """Return the states of some of the rows."""
        return Names(self.codes[rows], self.pairs, self.names)


def _names(metadata: Metadata, cpus: Ns, states: Ns) -> Names:
    joined, codes = np.unique((cpus << 16) + (states + 1), return_inverse=True)
    pairs = [(int(x) >> 16, (int(x) & 0xFFFF) - 1) for x in joined]
    return Names(codes, pairs, [metadata.name(*pair) for pair in pairs])


def integers(batch: pa.RecordBatch, name: str) -> Ns:
    """Return a column of integers; 0 where a row has none."""
    return np.asarray(batch.column(name).fill_null(0)).astype(np.int64)
