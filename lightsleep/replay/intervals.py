# SPDX-License-Identifier: GPL-2.0-only
"""The idle intervals of a recording: what policies are replayed on.

An *idle interval* of a CPU begins when it has nothing to run, and ends when something arrives. It
does not depend on how the CPU spent the time. A policy decides how much of it the CPU polls. Four
things are derived from the rows of the recording, and from what wakeups cost there (costs.py):

1. *One interval, several periods.* A CPU that polls to its limit and then halts has two rows. A
   polling row without evidence and without a wakee is joined with the row that follows at once,
   unless a task came to the CPU in between.
2. *When something arrived.* The length of a period includes the exit latency of its state. The
   arrival is the length less what leaving the state took: where another CPU woke a task, what that
   very wakeup cost, and else what the state typically costs. What a user says
   that a halt costs replaces both. (The CPU's own timer or device wakes a task once the CPU has
   left its state. The time from waking to running contains nothing of that exit. Yet the task has
   waited for it.) A timer ends no period before it is due. Where the governor knew when that was,
   leaving the state took no longer than from then on.
3. *Closed loops.* Where two tasks wake each other in turn, a faster wakeup of one makes the other's
   next one come earlier, which a recording cannot show. Intervals in such loops have a second,
   earlier arrival: what it would be if the peer's wakeup had cost nothing. The truth is expected
   between the two. The peer may have slept in another state, or have polled: its wakeup counts as
   what leaving the costliest state costs that this task woke it out of.
4. *A cost that is only supposed.* Where only the module's cost tells what a wakeup of an awake CPU
   takes, that may be nothing. At the second end, all of a wakeup is what leaving the state took. So
   something arrived earlier by as much. In a loop, the peer's wakeup from a halt was that much
   longer, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lightsleep.periods.lost import bucket
from lightsleep.periods.model import AWAKE, Metadata
from lightsleep.replay.costs import Costs, Tables
from lightsleep.replay.rows import JOINED_NS, Flags, Ns, Rows, places
from lightsleep.replay.stays import NEVER_NS, NO_STATE

FAR_NS = 1_000_000_000
"""Until the next timer, where nobody knows: it is not what ended the interval."""

BLOCKS = 20
"""Parts of the recording's time that are added up apart."""


@dataclass
class RecordedIntervals:
    """Some intervals of one CPU. Arrays have an element per interval.

    ``arrival_ns`` and ``earliest_ns`` are the two ends of when something arrived. ``cost_ns`` is
    what a wakeup costs if the CPU has halted, 0 where no task waited; ``more_ns`` what it costs
    beyond that at the earlier end; ``typical_ns`` what leaving that state costs typically.
    ``timer_ns`` is the time until the next timer. ``polled_ns`` is how long the CPU polled in the
    recording, ``halted`` whether it left its poll. ``state`` is the state that a CPU halts in
    unless it polls until something arrives, NO_STATE where nobody knows, and ``exit_ns`` how long
    leaving it takes; stays.py says more of both. ``block`` is the part of the recording that an
    interval begins in, ``bucket`` where a wait of ``cost_ns`` is in a histogram. ``resumes`` says
    that it begins at once after an interval that ended without a task: an interrupt came, and does
    not end the poll of a CPU. ``nobody`` says that it ended without a task, ``tick`` by the tick.
    """

    entered_ns: Ns
    arrival_ns: Ns
    earliest_ns: Ns
    cost_ns: Ns
    more_ns: Ns
    typical_ns: Ns
    timer_ns: Ns
    polled_ns: Ns
    exit_ns: Ns
    state: npt.NDArray[np.uint8]
    halted: Flags
    woken: Flags
    block: npt.NDArray[np.uint8]
    bucket: npt.NDArray[np.uint16]
    resumes: Flags
    nobody: Flags
    tick: Flags

    def __len__(self) -> int:
        """Return the number of intervals."""
        return len(self.entered_ns)


def block_width_ns(metadata: Metadata) -> int:
    """Return how long each of the BLOCKS parts of a recording is."""
    return max(1, -(-metadata.span_ns // BLOCKS))


@dataclass
class _Part:
    """Rows of one CPU, with what an interval needs of each. An element may be several rows.

    ``nobody`` says that a row ended without a task, ``goes_on`` that none came until the next row
    either: then an interval that follows at once resumes this one.
    """

    entered_ns: Ns
    end_ns: Ns
    polled_ns: Ns
    polls: Flags
    continued: Flags
    woken: Flags
    nobody: Flags
    goes_on: Flags
    tick: Flags
    pair: Ns
    state: Ns
    cost_ns: Ns
    paid_ns: Ns
    more_ns: Ns
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
    _ended: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """Of each CPU, when its last interval ended, and whether it may go on."""

    def __post_init__(self) -> None:
        """Compare the CPUs once."""
        self._tables = Tables(self.metadata)
        self._loops, self._peers_ns = self.costs.peers()

    def intervals(self, batch: pa.RecordBatch) -> Iterator[tuple[int, RecordedIntervals]]:
        """Yield each CPU of a batch with its intervals, in order."""
        rows = Rows(self.metadata, batch)
        all_rows = _part_of(rows, self._tables.of(rows.cpu), self.costs)
        for cpu in np.unique(rows.cpu).tolist():
            here = np.flatnonzero(rows.cpu == cpu)
            # A task came to a CPU that was awake: what was before is over.
            awake = rows.state[here] == AWAKE
            all_rows.goes_on[here[:-1]] &= ~awake[1:]
            all_rows.continued[here[:-1]] &= ~awake[1:]
            if awake[0]:
                if kept := self._kept.pop(cpu, None):
                    yield cpu, self._intervals(cpu, kept)
                self._ended[cpu] = (0, False)
            part = all_rows.taken(here[~awake])
            if not len(part.entered_ns):
                continue
            if kept := self._kept.pop(cpu, None):
                part = part.after(kept)
            joined = _joined(part)
            if joined.continued[-1]:
                self._kept[cpu] = joined.taken(slice(-1, None))
                joined = joined.taken(slice(None, -1))
            if len(joined.entered_ns):
                yield cpu, self._intervals(cpu, joined)

    def rest(self) -> Iterator[tuple[int, RecordedIntervals]]:
        """Yield what was kept back, after the last batch."""
        for cpu, part in self._kept.items():
            yield cpu, self._intervals(cpu, part)
        self._kept.clear()

    def _intervals(self, cpu: int, part: _Part) -> RecordedIntervals:
        ended_ns, goes_on = self._ended.get(cpu, (0, False))
        before_ns = np.concatenate([[ended_ns], part.end_ns[:-1]])
        resumes = np.concatenate([[goes_on], part.goes_on[:-1]])
        resumes &= part.entered_ns - before_ns <= JOINED_NS
        self._ended[cpu] = (int(part.end_ns[-1]), bool(part.goes_on[-1]))
        halted = ~part.polls
        exit_ns = np.where(halted, part.paid_ns, 0)
        arrival = np.maximum(part.end_ns - part.entered_ns - exit_ns, 0)
        # What ``arrival`` left of its own wakeup, and all of the peer's.
        peer_ns = np.where(part.woken, self._peer_ns(part.pair), 0)
        earlier = np.where(halted, part.more_ns, 0) + peer_ns
        cost_ns = np.where(part.woken, part.paid_ns, 0)
        since_ns = np.maximum(part.entered_ns - (self.metadata.first_ns or 0), 0)
        return RecordedIntervals(
            entered_ns=part.entered_ns,
            arrival_ns=arrival,
            earliest_ns=arrival - np.minimum(arrival, earlier),
            cost_ns=cost_ns,
            more_ns=part.more_ns,
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
            resumes=resumes,
            nobody=part.nobody,
            tick=part.tick,
        )

    def _peer_ns(self, pairs: Ns) -> Ns:
        """Return what the peer's wakeup costs where pairs are in closed loops, and else 0."""
        at, there = places(pairs, self._loops)
        costs_ns = np.zeros(len(pairs), np.int64)
        costs_ns[there] = self._peers_ns[at[there]]
        return costs_ns


def _part_of(rows: Rows, tables: Ns, costs: Costs) -> _Part:
    """Return what intervals need of rows whose CPUs have these tables of states."""
    cost_ns = costs.of(tables, rows.state, rows.polls)
    own_ns = costs.own(tables, rows.state, rows.wait_ns)
    end_ns = rows.entered_ns + rows.length_ns
    late_ns = rows.length_ns - rows.sleep_ns
    timed = rows.by_timer & ~rows.by_other & (rows.sleep_ns >= 0) & (late_ns >= 0) & ~rows.polls
    most_ns = np.where(timed & (not costs.given), late_ns, NEVER_NS)
    typical = rows.polls | costs.given | ~rows.by_other
    known = np.where((rows.state >= 0) & (rows.state < NO_STATE), rows.state, NO_STATE)
    timer_at_ns = np.where(
        rows.sleep_ns >= 0,
        rows.entered_ns + rows.sleep_ns,
        np.where(rows.by_timer, end_ns - np.where(rows.polls, 0, cost_ns), 0),
    )
    paid_ns = np.where(typical, np.minimum(cost_ns, most_ns), own_ns)
    more_ns = np.minimum(round(costs.supposed_ns or 0), most_ns - paid_ns)
    nobody = rows.nobody & ~rows.woken
    return _Part(
        entered_ns=rows.entered_ns,
        end_ns=end_ns,
        polled_ns=np.where(rows.polls, rows.length_ns, 0),
        polls=rows.polls,
        continued=rows.continued,
        woken=rows.woken,
        nobody=nobody,
        goes_on=nobody.copy(),
        tick=rows.by_tick,
        pair=rows.pair,
        state=np.where(rows.polls, costs.halt_states(tables), known),
        cost_ns=cost_ns,
        paid_ns=paid_ns,
        more_ns=np.where(rows.woken, more_ns, 0),
        timer_at_ns=timer_at_ns,
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
