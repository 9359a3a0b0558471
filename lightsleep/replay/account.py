# SPDX-License-Identifier: GPL-2.0-only
"""What a policy costs over a recording, beside what it would cost somebody who knows the future.

An idle interval that ends within the poll limit is a hit: the CPU polled until then, and nobody
waited. Any other interval is polled up to the limit, and its task waits for the CPU to wake. A
policy pays

    time polled + weight x time waited

in ns of CPU time: the weight says what one ns of waiting is worth, as wait_weight of the module
does. The *offline optimum* knows each interval beforehand: it polls where a task will come before
the price of a wakeup is reached, and halts at once otherwise. What a policy pays above the optimum
is its *regret*.

A policy that learns has run for long on a real machine. So on each CPU it first learns from the
first periods of the recording (LEARNED), which count for nothing, and then begins anew with what it
knows by then. Otherwise a recording of some seconds would count above all what it does at its
start. (Kernel governors learn within some ten periods.)

Sums are kept for BLOCKS parts of the recording's time. How much they differ says how far a gain
can be trusted to come again on this machine. A load drifts, so a part is like the one before it,
and 20 of them tell less than 20 that are independent. Longer parts are more independent: the widest
of the intervals by 20, 10 and 5 parts counts. None of them covers slower drifts.

Of several recordings, how much the machines differ says how far a gain can be trusted on others:
what each gains, less what it would by its length if all were alike. The wider of the two intervals
counts. Recordings of one machine, or of machines without a name, are taken for as many machines.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from lightsleep.compare.boots import t_quantile
from lightsleep.order import CONFIDENCE
from lightsleep.periods.lost import Wakes, bucket
from lightsleep.periods.model import Metadata
from lightsleep.replay.costs import Costs, Tables
from lightsleep.replay.engine import Engine, Runner
from lightsleep.replay.engine import engine as fastest
from lightsleep.replay.governed import Governor
from lightsleep.replay.intervals import BLOCKS, RecordedIntervals
from lightsleep.replay.policies import STOCK, Make
from lightsleep.replay.rows import Ns
from lightsleep.replay.stays import Limits
from lightsleep.replay.tally import Intervals, Tally

TAIL = (1 - CONFIDENCE) / 2
"""What an interval leaves out at each end."""

CUTS = (BLOCKS, BLOCKS // 2, BLOCKS // 4)
"""Into how many parts of equal length a recording is cut, to see how much they differ."""


@dataclass
class Account:
    """What one policy did with all intervals; 1 ns of waiting counts ``weight`` ns."""

    weight: int = 1
    tally: Tally = field(default_factory=Tally)

    @property
    def paid_ns(self) -> int:
        """All time polled, and waited by its weight."""
        return int(self.tally.paid_ns.sum())

    @property
    def polled_ns(self) -> int:
        """All time polled."""
        return self.tally["polled_ns"]

    @property
    def waits(self) -> Wakes:
        """The wakeups, and how long they took."""
        return self.tally.waits

    def wait_ns(self, share: float) -> float:
        """Return within which time ``share`` of the woken tasks ran; 0 where they did not wait."""
        time_ns = self.waits.within_ns(share)
        return time_ns if time_ns >= 2 else 0.0  # first buckets hold those who did not wait

    def to_json(self) -> dict[str, Any]:
        """Return all figures."""
        waits = self.waits
        return {
            "intervals": self.tally["intervals"],
            "hits": self.tally["hits"],
            "polled_in_vain": self.tally["in_vain"],
            "polled_ns": self.polled_ns,
            "waited_ns": waits.total_ns,
            "paid_ns": self.paid_ns,
            "wakes": waits.count,
            "halt_wakes": self.tally["halts"],
            "too_shallow_ns": self.tally["too_shallow_ns"],
            "too_deep_ns": self.tally["too_deep_ns"],
            "wait_p50_ns": self.wait_ns(0.5),
            "wait_p99_ns": self.wait_ns(0.99),
        }


@dataclass
class Outcome:
    """A policy on the recording as it is, and with the earliest arrivals in closed loops."""

    name: str
    recorded: Account = field(default_factory=Account)
    earliest: Account = field(default_factory=Account)

    def ends(self) -> tuple[Account, Account]:
        """Return both ends of the bracket."""
        return self.recorded, self.earliest

    def merge(self, other: Outcome) -> None:
        """Add the outcome of another recording."""
        self.recorded.tally.merge(other.recorded.tally)
        self.earliest.tally.merge(other.earliest.tally)


UNNAMED = ("", "unknown", "(none)")
"""Names of machines that have none."""


@dataclass(frozen=True)
class Machine:
    """What each policy paid on one machine in ``span_ns``, at both ends of the bracket."""

    host: str
    span_ns: int
    paid_ns: dict[str, tuple[int, int]]

    def with_(self, other: Machine) -> Machine:
        """Return this machine with what was paid in another of its recordings."""
        paid_ns = {
            name: (mine[0] + other.paid_ns[name][0], mine[1] + other.paid_ns[name][1])
            for name, mine in self.paid_ns.items()
        }
        return Machine(self.host, self.span_ns + other.span_ns, paid_ns)


@dataclass
class Replay:
    """The outcomes of all policies, the optimum's last, over ``span_ns`` of recording.

    ``wakes`` are those that intervals end by. ``loop_wakes`` and ``task_wakes`` are those of Costs.
    ``recordings`` is empty unless several were merged. ``slow`` says why policies did not run in
    the fastest engine, if so.
    """

    outcomes: dict[str, Outcome]
    span_ns: int
    idle_ns: int
    wakes: int
    loop_wakes: int = 0
    task_wakes: int = 0
    weight: int = 1
    host: str = ""
    recordings: list[Machine] = field(default_factory=list)
    slow: str | None = None

    @property
    def loop_share(self) -> float:
        """The share of the wakeups by tasks that are in closed loops."""
        return self.loop_wakes / max(1, self.task_wakes)

    def merge(self, other: Replay) -> None:
        """Add the replay of another recording by the same policies."""
        self.recordings = [*self._recordings(), *other._recordings()]
        self.span_ns += other.span_ns
        self.loop_wakes += other.loop_wakes
        self.task_wakes += other.task_wakes
        self.join(other)

    def machines(self) -> list[Machine]:
        """Return the machines of several recordings; of one machine, its recordings."""
        by_host: dict[str, Machine] = {}
        for number, each in enumerate(self.recordings):
            host = each.host if each.host not in UNNAMED else f"{each.host} {number}"
            same = by_host.get(host)
            by_host[host] = same.with_(each) if same else each
        return list(by_host.values()) if len(by_host) > 1 else self.recordings

    def _recordings(self) -> list[Machine]:
        paid_ns = {
            name: (outcome.recorded.paid_ns, outcome.earliest.paid_ns)
            for name, outcome in self.outcomes.items()
        }
        return self.recordings or [Machine(self.host, self.span_ns, paid_ns)]

    def join(self, other: Replay) -> None:
        """Add the replay of other CPUs of the same recording."""
        self.wakes += other.wakes
        self.idle_ns += other.idle_ns
        self.slow = self.slow or other.slow
        for name, outcome in self.outcomes.items():
            outcome.merge(other.outcomes[name])


OPTIMUM = "optimum"

LEARNED = 8192
"""Periods from which a policy learns beforehand: with as many in vain, lightsleep's rare trials are
as rare as they become (POLL_LIMIT_WAIT_MAX of poll_limit.c)."""


def replay(
    metadata: Metadata,
    costs: Costs,
    batches: Iterable[pa.RecordBatch],
    policies: Mapping[str, Make | Governor | None],
    weight: int = 1,
    engine: Engine | None = None,
) -> Replay:
    """Replay a recording by each of the policies; 1 ns of waiting counts ``weight`` ns.

    ``engine`` runs them; without it, the fastest one does.
    """
    slow = None
    if engine is None:
        engine, slow = fastest()
    reader = engine.reader(metadata, costs)
    ends = [_End(engine, metadata, costs, policies, weight)]
    if costs.loops or costs.supposed_ns:  # else, both ends of the bracket are the same
        ends.append(_End(engine, metadata, costs, policies, weight))
    idle_ns = wakes = 0
    limits: dict[int, Limits] = {}
    for part in chain((reader.intervals(batch) for batch in batches), [reader.rest()]):
        for cpu, found in part:
            if cpu not in limits:
                limits[cpu] = Limits.of(metadata, cpu)
            both = _both_ends(found, limits[cpu], costs)
            idle_ns += int(found.arrival_ns.sum())
            wakes += int(found.woken.sum())
            for end, intervals in zip(ends, both, strict=False):
                end.take(cpu, intervals)
                if STOCK in policies:  # it polled as long as it did: only the prices differ
                    cost_ns, buckets = intervals.cost_ns, intervals.bucket
                    priced = dataclasses.replace(both[0], cost_ns=cost_ns, bucket=buckets)
                    tally = end.accounts[STOCK].tally
                    engine.given(priced, found.polled_ns, found.halted, weight, tally)
    for end in ends:
        end.finish()
    outcomes = {name: Outcome(name, x, Account(weight)) for name, x in ends[0].accounts.items()}
    for name, outcome in outcomes.items():
        outcome.earliest.tally.merge(ends[-1].accounts[name].tally)
    return Replay(
        outcomes=outcomes,
        span_ns=metadata.span_ns,
        idle_ns=idle_ns,
        wakes=wakes,
        loop_wakes=costs.loop_wakes,
        task_wakes=costs.task_wakes,
        weight=weight,
        host=metadata.host,
        slow=slow,
    )


def _both_ends(
    found: RecordedIntervals, limits: Limits, costs: Costs
) -> tuple[Intervals, Intervals]:
    """Return intervals as they were recorded, and as they are where peers answer earliest."""
    recorded = Intervals(
        idle_ns=found.arrival_ns,
        cost_ns=found.cost_ns,
        bucket=found.bucket,
        woken=found.woken,
        block=found.block,
        state=found.state,
        exit_ns=found.exit_ns,
        resumes=found.resumes,
        nobody=found.nobody,
        tick=found.tick,
        limits=limits,
        turn_ns=costs.turn_ns,
        entered_ns=found.entered_ns,
        typical_ns=found.typical_ns,
        timer_ns=found.timer_ns,
        arrival_ns=found.arrival_ns,
    )
    earliest = dataclasses.replace(recorded, idle_ns=found.earliest_ns)
    if costs.supposed_ns:  # at this end, all of each wakeup is what leaving the state took
        most_ns = found.cost_ns + found.more_ns  # too much for those few that took even less
        more_ns = np.where(found.halted, np.minimum(found.more_ns, found.arrival_ns), found.more_ns)
        earliest = dataclasses.replace(
            earliest,
            cost_ns=most_ns,
            bucket=bucket(most_ns).astype(np.uint16),
            exit_ns=found.exit_ns + more_ns,
            typical_ns=found.typical_ns + round(costs.supposed_ns),
            supposed_ns=round(costs.supposed_ns),
        )
    return recorded, earliest


class _End:
    """What all policies, and the optimum, do at one end of the bracket."""

    def __init__(
        self,
        engine: Engine,
        metadata: Metadata,
        costs: Costs,
        policies: Mapping[str, Make | Governor | None],
        weight: int,
    ) -> None:
        self._engine = engine
        self.accounts = {name: Account(weight) for name in (*policies, OPTIMUM)}
        self._runs = [
            _Run(engine, metadata, costs, self.accounts[name], make)
            for name, make in policies.items()
            if make
        ]
        # Of each CPU, its first intervals until there are LEARNED of them: then None.
        self._first: dict[int, list[Intervals] | None] = {}

    def take(self, cpu: int, intervals: Intervals) -> None:
        """Replay the next intervals of a CPU."""
        optimum = self.accounts[OPTIMUM]
        self._engine.optimum(intervals, optimum.weight, optimum.tally)
        first = self._first.setdefault(cpu, [])
        if first is None:
            for run in self._runs:
                run.add(cpu, intervals)
            return
        first.append(intervals.first(len(intervals)))
        if sum(len(x) for x in first) >= LEARNED:
            self._replay_first(cpu, first)
            self._first[cpu] = None

    def finish(self) -> None:
        """Replay what is left: all of CPUs that have fewer intervals than LEARNED."""
        for cpu, first in self._first.items():
            self._replay_first(cpu, first or [])

    def _replay_first(self, cpu: int, first: Iterable[Intervals]) -> None:
        """Have all policies learn from a CPU's first intervals, and then count what they do."""
        for run in self._runs:
            left = LEARNED
            for intervals in first:
                run.learn(cpu, intervals.first(left))
                left -= min(left, len(intervals))
            for intervals in first:
                run.add(cpu, intervals)


class _Run:
    """One policy at one end of the bracket, with a state for each CPU."""

    def __init__(
        self,
        engine: Engine,
        metadata: Metadata,
        costs: Costs,
        account: Account,
        make: Make | Governor,
    ) -> None:
        self._engine, self._metadata, self._costs = engine, metadata, costs
        self._account, self._make = account, make
        self._runners: dict[int, Runner] = {}

    def add(self, cpu: int, intervals: Intervals) -> None:
        """Replay some intervals of a CPU."""
        self._runner(cpu).run(intervals, self._account.weight, self._account.tally)

    def learn(self, cpu: int, intervals: Intervals) -> None:
        """Do the same, and count nothing."""
        if not isinstance(self._make, Governor):
            self._runner(cpu).run(intervals, self._account.weight, Tally())

    def _runner(self, cpu: int) -> Runner:
        if cpu not in self._runners:
            self._runners[cpu] = self._made(cpu)
        return self._runners[cpu]

    def _made(self, cpu: int) -> Runner:
        if isinstance(self._make, Governor):
            return self._make.runner(self._metadata, self._costs, cpu)
        _, usual_ns = self._costs.halt_of(Tables(self._metadata)[cpu])
        decides_ns = self._costs.driver_ns.get(cpu, usual_ns)
        return self._engine.runner(self._make(decides_ns, self._account.weight))


@dataclass(frozen=True)
class Gain:
    """What a policy pays less than another: the estimate, and a 95 % interval around it."""

    ns: float
    low_ns: float
    high_ns: float


def gain(within: Replay, name: str, over: str = STOCK) -> Gain:
    """Return what the policy ``name`` would have paid less than ``over`` did.

    The interval covers how much parts of the recording and machines differ, and both ends of the
    bracket.
    """
    of, stock = within.outcomes[name], within.outcomes[over]
    ends = []
    # Both at the same end: what a wakeup is supposed to cost differs from one to the other.
    for end, (other, mine) in enumerate(zip(stock.ends(), of.ends(), strict=True)):
        parts = other.tally.paid_ns - mine.tally.paid_ns
        reach = max(within_ns(parts), _between(within.machines(), name, over, end))
        ends.append((float(parts.sum()), reach))
    low = min(total - reach for total, reach in ends)
    high = max(total + reach for total, reach in ends)
    return Gain(ends[0][0], low, high)


def within_ns(parts_ns: Ns) -> float:
    """Return half of the 95 % interval of the sum of BLOCKS parts, by how much these differ."""

    def reach(count: int) -> float:
        sums_ns = parts_ns.reshape(count, -1).sum(axis=1)
        return t_quantile(count - 1, TAIL) * math.sqrt(count * float(np.var(sums_ns, ddof=1)))

    return max(map(reach, CUTS))


def _between(machines: list[Machine], name: str, over: str, end: int) -> float:
    """Return half of the 95 % interval of what all machines gain, by how much they differ.

    It is that of a ratio: of what is gained, to the length of the recordings.
    """
    count = len(machines)
    if count < 2:
        return 0.0
    gained = np.array([x.paid_ns[over][end] - x.paid_ns[name][end] for x in machines], np.float64)
    spans_ns = np.array([x.span_ns for x in machines], np.float64)
    differ = gained - spans_ns * (gained.sum() / max(1.0, float(spans_ns.sum())))
    spread = math.sqrt(count / (count - 1) * float((differ**2).sum()))
    return t_quantile(count - 1, TAIL) * spread
