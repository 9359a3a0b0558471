# SPDX-License-Identifier: GPL-2.0-only
"""The idle intervals of a recording: what policies are replayed on.

An *idle interval* of a CPU begins when it has nothing to run, and ends when something arrives. It
does not depend on how the CPU spent the time. A policy decides how much of it the CPU polls. Four
things are derived from the rows of the recording:

1. *One interval, several periods.* A CPU that polls to its limit and then halts has two rows. A
   polling row without evidence and without a wakee is joined with the row that follows at once.
2. *When something arrived.* The length of a period includes the exit latency of its state. The
   arrival is the length less what leaving the state took: where another CPU woke a task, what that
   very wakeup took above the reference, and else what the state typically costs. What a user says
   that a halt costs replaces both. (The CPU's own timer or device wakes a task once the CPU has
   left its state. The time from waking to running contains nothing of that exit. Yet the task has
   waited for it.)
3. *What a state costs*: the median time from waking to running, for wakeups by tasks, less the same
   median for CPUs found polling or awake (the reference of lost.py). Where there is no reference,
   nothing is subtracted and the cost is an upper bound. The states of a big and of a little CPU are
   different ones: only CPUs whose tables of states are the same share a median.
4. *Closed loops.* Two tasks that wake each other in turn form a conversation. A faster wakeup of
   one makes the other's next one come earlier, which a recording cannot show. Intervals in such
   loops have a second, earlier arrival: what it would be if the peer's wakeup had cost nothing. The
   truth is expected between the two.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lightsleep.document import shortened
from lightsleep.errors import LightsleepError
from lightsleep.periods.lost import ENOUGH, Wakes, bucket, integers
from lightsleep.periods.model import AWAKE, CAUSES, Metadata
from lightsleep.replay.given import Given
from lightsleep.replay.stays import NO_STATE

Ns = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

JOINED_NS = 10_000
"""A row that begins so soon after the last one belongs to the same interval."""

LOOP_WAKES = 30
LOOP_BALANCE = 0.5
"""Two tasks are in a loop if each wakes the other so often, and neither much less often."""

ITSELF = ("timer", "tick", "device")
"""What ends a period by an interrupt of the CPU's own."""

MAX_PAIRS = 1 << 20

FAR_NS = 1_000_000_000
"""Until the next timer, where nobody knows: it is not what ended the interval."""

BLOCKS = 20
"""Parts of the recording's time that are added up apart."""

NEEDED = (
    *("cpu", "entered_ns", "length_ns", "state", "ended_by", "sleep_length_ns"),
    *("waker_pid", "wakee_pid", "waking_to_running_ns"),
)
"""The columns that intervals are made of."""


class Tables:
    """Which CPUs have the same table of states: a number for each CPU.

    CPUs of which nobody described any state share the last number. ``first`` has a CPU of each
    other table.
    """

    def __init__(self, metadata: Metadata) -> None:
        """Compare what the states of CPUs are called and advertise."""
        numbers: dict[tuple[object, ...], int] = {}
        self.of_cpu: dict[int, int] = {}
        for cpu, states in sorted(metadata.states.items()):
            table = tuple(
                (
                    *(state, name, (cpu, state) in metadata.polling),
                    metadata.advertised_us.get((cpu, state)),
                    metadata.residency_us.get((cpu, state)),
                )
                for state, name in sorted(states.items())
            )
            self.of_cpu[cpu] = numbers.setdefault(table, len(numbers))
        self.count = len(numbers) + 1
        self.first = {table: cpu for cpu, table in sorted(self.of_cpu.items(), reverse=True)}

    def __getitem__(self, cpu: int) -> int:
        """Return the number of a CPU's table."""
        return self.of_cpu.get(cpu, self.count - 1)

    def of(self, cpus: Ns) -> Ns:
        """Return the number of each CPU's table."""
        known, at = np.unique(cpus, return_inverse=True)
        return np.array([self[cpu] for cpu in known.tolist()], np.int64)[at]


@dataclass
class Costs:
    """What leaving idle states costs here, and who converses with whom.

    ``reference_ns`` is None where too few wakeups found a CPU polling or awake. ``given`` says that
    a user knows what a wakeup from each halt costs, ``measured`` in which file. ``hides_polls`` and
    ``lacks_driver`` are those of Metadata. ``states`` has what leaving a state costs, by table of
    states (see Tables) and index; ``halts`` the state of each table that most wakeups by tasks came
    out of. ``halt_ns`` is the cost of the state that most wakeups of all CPUs came out of.
    """

    reference_ns: float | None
    states: dict[tuple[int, int], float]
    halt_ns: int
    loops: Ns
    loop_share: float
    hides_polls: bool = False
    lacks_driver: bool = False
    given: bool = False
    measured: str = ""
    halts: dict[int, int] = field(default_factory=dict)

    def halt_of(self, table: int) -> tuple[int, int]:
        """Return the state that CPUs with a table usually halt in, and what leaving it costs."""
        state = self.halts.get(table, NO_STATE)
        cost_ns = round(self.states.get((table, state), self.halt_ns))
        return (state if 0 <= state < NO_STATE else NO_STATE), cost_ns

    def of(self, tables: Ns, states: Ns, polls: Flags) -> Ns:
        """Return what leaving the state of each row costs; a halt's cost where it polls."""
        wanted = np.full(len(states), self.halt_ns, np.int64)
        for table in self.halts:
            wanted[tables == table] = self.halt_of(table)[1]
        for (table, state), cost_ns in self.states.items():
            wanted[(tables == table) & (states == state) & ~polls] = round(cost_ns)
        return wanted

    def halt_states(self, tables: Ns) -> Ns:
        """Return the state that the CPU of each row usually halts in."""
        wanted = np.full(len(tables), NO_STATE, np.int64)
        for table in self.halts:
            wanted[tables == table] = self.halt_of(table)[0]
        return wanted


def costs_of(
    metadata: Metadata, batches: Iterable[pa.RecordBatch], given: Given | None = None
) -> Costs | None:
    """Read a recording and return its costs; None where no wakeup tells them.

    ``given`` has the cost of each state that halts, where somebody knows better. Raises
    LightsleepError where it lacks one that tasks were woken out of.
    """
    tables = Tables(metadata)
    by_state: defaultdict[tuple[int, int], Wakes] = defaultdict(Wakes)
    reference, pairs = Wakes(), Counter[int]()
    for batch in batches:
        rows = _Rows(metadata, batch)
        by_task = rows.woken & (rows.waker != 0)
        reference.add(rows.wait_ns[by_task & ((rows.state == AWAKE) | rows.polls)])
        halted = by_task & (rows.state != AWAKE) & ~rows.polls
        table_of = tables.of(rows.cpu)
        for table in np.unique(table_of[halted]).tolist():
            of_table = halted & (table_of == table)
            for state in np.unique(rows.state[of_table]).tolist():
                by_state[table, state].add(rows.wait_ns[of_table & (rows.state == state)])
        keys, counts = np.unique(rows.pair[by_task], return_counts=True)
        if len(pairs) < MAX_PAIRS:
            pairs.update(dict(zip(keys.tolist(), counts.tolist(), strict=True)))
    if not by_state:
        return None
    usual = reference.percentile_ns(0.5) if reference.count >= ENOUGH else None
    states = {
        key: max(0.0, wakes.percentile_ns(0.5) - (usual or 0.0)) for key, wakes in by_state.items()
    }
    if given is not None:
        states = _given(metadata, tables, given, states)
    often = sorted(by_state, key=lambda key: by_state[key].count)
    halts = dict(often)  # of each table, the last one stays
    most = max(by_state, key=lambda key: by_state[key].count)
    loops = _loops(pairs)
    share = sum(pairs[int(key)] for key in loops) / max(1, sum(pairs.values()))
    about = (metadata.hides_polls, metadata.lacks_driver, given is not None)
    file = given.file if given else ""
    return Costs(usual, states, round(states[most]), loops, share, *about, file, halts)


def _given(
    metadata: Metadata, tables: Tables, given: Given, seen: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], float]:
    """Return what leaving each state costs by what a user says; of those ``seen``, at least."""
    known = {
        (table, state): given.cost_ns(metadata, cpu, state)
        for table, cpu in tables.first.items()
        for state in metadata.states[cpu]
        if not metadata.polls(cpu, state)
    }
    states = {key: cost_ns for key, cost_ns in known.items() if cost_ns is not None}
    for table, state in seen:
        cpu = tables.first.get(table, 0)
        states[table, state] = given.required_ns(metadata, cpu, state)
    return states


def _loops(pairs: Counter[int]) -> Ns:
    """Return the pairs whose tasks wake each other about equally often."""
    found = []
    for key, count in pairs.items():
        back = pairs.get((key & 0xFFFFFFFF) << 32 | key >> 32, 0)
        low, high = sorted((count, back))
        if low >= LOOP_WAKES and low >= LOOP_BALANCE * high:
            found.append(key)
    return np.array(sorted(found), np.int64)


def codes_of(batch: pa.RecordBatch) -> npt.NDArray[np.int8]:
    """Return the code of what ended each period. Raises LightsleepError for one that is none."""
    known = batch.column("ended_by").dictionary.to_pylist()
    if strange := [x for x in known if x not in CAUSES]:
        raise LightsleepError(f"no idle period ends by {shortened(repr(strange[0]))}")
    if len(set(known)) < len(known):
        raise LightsleepError("two codes say the same of how an idle period ended")
    return np.asarray(batch.column("ended_by").indices).astype(np.int8, copy=False)


def code(batch: pa.RecordBatch, cause: str) -> int:
    """Return the code of periods that ended in that way; -1 where there is none."""
    known: list[str] = batch.column("ended_by").dictionary.to_pylist()
    return known.index(cause) if cause in known else -1


def sleep_lengths(batch: pa.RecordBatch) -> Ns:
    """Return what governors were told of the next timer; -1 where nobody knows."""
    return np.asarray(batch.column("sleep_length_ns").fill_null(-1)).astype(np.int64, copy=False)


@dataclass
class RecordedIntervals:
    """Some intervals of one CPU. Arrays have an element per interval.

    ``arrival_ns`` and ``earliest_ns`` are the two ends of when something arrived. ``cost_ns`` is
    what a wakeup costs if the CPU has halted, 0 where no task waited; ``typical_ns`` what leaving
    that state costs typically. ``timer_ns`` is the time until the next timer. ``polled_ns`` is how
    long the CPU polled in the recording, ``halted`` whether it left its poll. ``state`` is the
    state that a CPU halts in unless it polls until something arrives, NO_STATE where nobody knows,
    and ``exit_ns`` how long leaving it takes; stays.py says more of both. ``block`` is the part
    of the recording that an interval begins in, ``bucket`` where a wait of ``cost_ns`` is in a
    histogram.
    """

    entered_ns: Ns
    arrival_ns: Ns
    earliest_ns: Ns
    cost_ns: Ns
    typical_ns: Ns
    timer_ns: Ns
    polled_ns: Ns
    exit_ns: Ns
    state: npt.NDArray[np.uint8]
    halted: Flags
    woken: Flags
    block: npt.NDArray[np.uint8]
    bucket: npt.NDArray[np.uint16]

    def __len__(self) -> int:
        """Return the number of intervals."""
        return len(self.entered_ns)


class _Rows:
    """The columns of a batch that intervals are made of."""

    def __init__(self, metadata: Metadata, batch: pa.RecordBatch) -> None:
        self.cpu, self.state = integers(batch, "cpu"), integers(batch, "state")
        self.entered_ns, self.length_ns = (
            integers(batch, "entered_ns"),
            integers(batch, "length_ns"),
        )
        self.wait_ns = integers(batch, "waking_to_running_ns")
        self.woken = np.asarray(batch.column("waking_to_running_ns").is_valid())
        self.waker, wakee = integers(batch, "waker_pid"), integers(batch, "wakee_pid")
        self.pair = self.waker << 32 | wakee
        ended_by = codes_of(batch)
        unknown = ended_by == code(batch, "unknown")
        self.by_timer = ended_by == code(batch, "timer")
        self.by_itself = np.isin(ended_by, [code(batch, cause) for cause in ITSELF])
        self.sleep_ns = sleep_lengths(batch)
        nobody = np.asarray(batch.column("wakee_pid").is_null())
        polling = np.array(sorted(cpu << 16 | state for cpu, state in metadata.polled), np.int64)
        self.polls = np.isin(self.cpu << 16 | self.state, polling)
        self.continued = self.polls & unknown & nobody & ~self.woken


def block_width_ns(metadata: Metadata) -> int:
    """Return how long each of the BLOCKS parts of a recording is."""
    return max(1, -(-metadata.span_ns // BLOCKS))


@dataclass
class _Part:
    """Rows of one CPU, with what an interval needs of each. An element may be several rows."""

    entered_ns: Ns
    end_ns: Ns
    polled_ns: Ns
    polls: Flags
    continued: Flags
    woken: Flags
    pair: Ns
    state: Ns
    cost_ns: Ns
    paid_ns: Ns
    timer_at_ns: Ns

    def taken(self, chosen: Ns | slice) -> _Part:
        """Return some of the rows."""
        return _Part(*(getattr(self, x.name)[chosen] for x in dataclasses.fields(self)))

    def after(self, earlier: _Part) -> _Part:
        """Return these rows behind others."""
        names = [x.name for x in dataclasses.fields(self)]
        return _Part(*(np.concatenate([getattr(earlier, x), getattr(self, x)]) for x in names))


@dataclass
class Reader:
    """Turns the batches of a recording into intervals, CPU by CPU.

    What a CPU polled last without result is kept back: the next batch may go on with it.
    """

    metadata: Metadata
    costs: Costs
    _kept: dict[int, _Part] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Compare the CPUs once."""
        self._tables = Tables(self.metadata)

    def intervals(self, batch: pa.RecordBatch) -> Iterator[tuple[int, RecordedIntervals]]:
        """Yield each CPU of a batch with its intervals, in order."""
        rows = _Rows(self.metadata, batch)
        asleep = rows.state != AWAKE
        tables = self._tables.of(rows.cpu)
        cost_ns = self.costs.of(tables, rows.state, rows.polls)
        reference_ns = round(self.costs.reference_ns or 0)
        own_ns = np.maximum(rows.wait_ns - reference_ns, 0)
        end_ns = rows.entered_ns + rows.length_ns
        known = np.where((rows.state >= 0) & (rows.state < NO_STATE), rows.state, NO_STATE)
        timer_at_ns = np.where(
            rows.sleep_ns >= 0,
            rows.entered_ns + rows.sleep_ns,
            np.where(rows.by_timer, end_ns - np.where(rows.polls, 0, cost_ns), 0),
        )
        all_rows = _Part(
            entered_ns=rows.entered_ns,
            end_ns=end_ns,
            polled_ns=np.where(rows.polls, rows.length_ns, 0),
            polls=rows.polls,
            continued=rows.continued,
            woken=rows.woken,
            pair=rows.pair,
            state=np.where(rows.polls, self.costs.halt_states(tables), known),
            cost_ns=cost_ns,
            paid_ns=np.where(rows.polls | rows.by_itself | self.costs.given, cost_ns, own_ns),
            timer_at_ns=timer_at_ns,
        )
        for cpu in np.unique(rows.cpu[asleep]).tolist():
            part = all_rows.taken(np.flatnonzero(asleep & (rows.cpu == cpu)))
            if kept := self._kept.pop(cpu, None):
                part = part.after(kept)
            joined = _joined(part)
            if joined.continued[-1]:
                self._kept[cpu] = joined.taken(slice(-1, None))
                joined = joined.taken(slice(None, -1))
            if len(joined.entered_ns):
                yield cpu, self._intervals(joined)

    def rest(self) -> Iterator[tuple[int, RecordedIntervals]]:
        """Yield what was kept back, after the last batch."""
        for cpu, part in self._kept.items():
            yield cpu, self._intervals(part)
        self._kept.clear()

    def _intervals(self, part: _Part) -> RecordedIntervals:
        halted = ~part.polls
        exit_ns = np.where(halted, np.where(part.woken, part.paid_ns, part.cost_ns), 0)
        arrival = np.maximum(part.end_ns - part.entered_ns - exit_ns, 0)
        loop = part.woken & np.isin(part.pair, self.costs.loops)
        earlier = np.where(loop, np.minimum(arrival, part.cost_ns), 0)
        cost_ns = np.where(part.woken, part.paid_ns, 0)
        since_ns = np.maximum(part.entered_ns - (self.metadata.first_ns or 0), 0)
        return RecordedIntervals(
            entered_ns=part.entered_ns,
            arrival_ns=arrival,
            earliest_ns=arrival - earlier,
            cost_ns=cost_ns,
            typical_ns=part.cost_ns,
            timer_ns=np.where(
                part.timer_at_ns != 0, np.maximum(part.timer_at_ns - part.entered_ns, 0), FAR_NS
            ),
            polled_ns=part.polled_ns,
            exit_ns=np.where(halted, part.end_ns - part.entered_ns - arrival, part.cost_ns),
            state=part.state.astype(np.uint8),
            halted=halted,
            woken=part.woken,
            block=np.minimum(since_ns // block_width_ns(self.metadata), BLOCKS - 1).astype(
                np.uint8
            ),
            bucket=bucket(cost_ns).astype(np.uint16),
        )


def _joined(part: _Part) -> _Part:
    """Join rows that poll without result with those that follow at once."""
    continues = part.continued[:-1] & (part.entered_ns[1:] - part.end_ns[:-1] <= JOINED_NS)
    first = np.concatenate([[True], ~continues])
    last = np.concatenate([~continues, [True]])
    begin, end = np.flatnonzero(first), np.flatnonzero(last)
    joined = part.taken(end)
    sums = np.concatenate([[0], np.cumsum(part.polled_ns)])
    joined.entered_ns = part.entered_ns[begin]
    joined.polled_ns = sums[end + 1] - sums[begin]
    return joined
