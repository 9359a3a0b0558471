# SPDX-License-Identifier: GPL-2.0-only
"""What a policy costs over a recording, beside what it would cost somebody who knows the future.

A stay that ends within the poll limit is a hit: the CPU polled until then, and nobody waited. Any
other stay is polled up to the limit, and its task waits for the CPU to wake. A policy pays

    time polled + weight x time waited

in ns of CPU time: the weight says what one ns of waiting is worth, as wait_weight of the module
does. The *offline optimum* knows each stay beforehand: it polls where a task will come before the
price of a wakeup is reached, and halts at once otherwise. What a policy pays above the optimum is
its *regret*.

Sums are kept for BLOCKS parts of the recording's time. How much they differ says how far a gain
can be trusted to come again.
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

from lightsleep.periods.lost import Wakes
from lightsleep.periods.model import Known
from lightsleep.replay.demand import BLOCKS, Costs
from lightsleep.replay.engine import Engine, Runner
from lightsleep.replay.engine import engine as fastest
from lightsleep.replay.governed import Governor
from lightsleep.replay.policies import STOCK, Make
from lightsleep.replay.tally import Stays, Tally

T_19 = 2.093
"""The 97.5 % quantile of Student's t with BLOCKS - 1 degrees of freedom."""


@dataclass
class Account:
    """What one policy did with all stays; 1 ns of waiting counts ``weight`` ns."""

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

    def to_json(self) -> dict[str, Any]:
        """Return all figures."""
        waits = self.waits
        return {
            "stays": self.tally["stays"],
            "hits": self.tally["hits"],
            "polled_in_vain": self.tally["in_vain"],
            "polled_ns": self.polled_ns,
            "waited_ns": waits.total_ns,
            "paid_ns": self.paid_ns,
            "wakes": waits.count,
            "wait_p50_ns": waits.percentile_ns(0.5),
            "wait_p99_ns": waits.percentile_ns(0.99),
        }


@dataclass
class Outcome:
    """A policy on the recording as it is, and with the earliest arrivals in closed loops."""

    name: str
    recorded: Account = field(default_factory=Account)
    earliest: Account = field(default_factory=Account)

    @classmethod
    def weighed(cls, name: str, weight: int) -> Outcome:
        """Return an outcome without any stays, in which waiting counts ``weight`` times."""
        return cls(name, Account(weight), Account(weight))

    def ends(self) -> tuple[Account, Account]:
        """Return both ends of the bracket."""
        return self.recorded, self.earliest

    def merge(self, other: Outcome) -> None:
        """Add the outcome of another recording."""
        self.recorded.tally.merge(other.recorded.tally)
        self.earliest.tally.merge(other.earliest.tally)


@dataclass
class Replay:
    """The outcomes of all policies, the optimum's last, over ``span_ns`` of recording."""

    outcomes: dict[str, Outcome]
    span_ns: int
    idle_ns: int
    loop_share: float
    wakes: int
    weight: int = 1

    def merge(self, other: Replay) -> None:
        """Add the replay of another recording by the same policies."""
        self.span_ns += other.span_ns
        self.join(other)

    def join(self, other: Replay) -> None:
        """Add the replay of other CPUs of the same recording."""
        wakes = self.wakes + other.wakes
        both = self.loop_share * self.wakes + other.loop_share * other.wakes
        self.loop_share, self.wakes = both / max(1, wakes), wakes
        self.idle_ns += other.idle_ns
        for name, outcome in self.outcomes.items():
            outcome.merge(other.outcomes[name])


OPTIMUM = "optimum"


def replay(
    known: Known,
    costs: Costs,
    batches: Iterable[pa.RecordBatch],
    policies: Mapping[str, Make | Governor | None],
    weight: int = 1,
    engine: Engine | None = None,
) -> Replay:
    """Replay a recording by each of the policies; 1 ns of waiting counts ``weight`` ns.

    ``engine`` runs them; without it, the fastest one does.
    """
    engine = engine or fastest()[0]
    reader = engine.reader(known, costs)
    outcomes = {name: Outcome.weighed(name, weight) for name in (*policies, OPTIMUM)}
    runs = [
        _Run(engine, known, costs, outcomes[name], make) for name, make in policies.items() if make
    ]
    # Without closed loops, both ends of the bracket are the same.
    ends = 2 if len(costs.loops) else 1
    idle_ns = wakes = 0
    for part in chain((reader.demands(batch) for batch in batches), [reader.rest()]):
        for cpu, demands in part:
            recorded = Stays(
                idle_ns=demands.arrival_ns,
                cost_ns=demands.cost_ns,
                bucket=demands.bucket,
                woken=demands.woken,
                block=demands.block,
                entered_ns=demands.entered_ns,
                typical_ns=demands.typical_ns,
                timer_ns=demands.timer_ns,
                arrival_ns=demands.arrival_ns,
            )
            earliest = dataclasses.replace(recorded, idle_ns=demands.earliest_ns)
            idle_ns += int(demands.arrival_ns.sum())
            wakes += int(demands.woken.sum())
            for run in runs:
                run.add(cpu, recorded, earliest, ends)
            if STOCK in outcomes:
                stock = outcomes[STOCK]
                for account in (stock.recorded, stock.earliest)[:ends]:
                    engine.given(recorded, demands.polled_ns, demands.halted, weight, account.tally)
            for account, stays in _ends(outcomes[OPTIMUM], recorded, earliest)[:ends]:
                engine.optimum(stays, weight, account.tally)
    if ends == 1:
        for outcome in outcomes.values():
            outcome.earliest.tally.merge(outcome.recorded.tally)
    return Replay(outcomes, known.span_ns, idle_ns, costs.loop_share, wakes, weight)


def _ends(outcome: Outcome, recorded: Stays, earliest: Stays) -> list[tuple[Account, Stays]]:
    return [(outcome.recorded, recorded), (outcome.earliest, earliest)]


class _Run:
    """One policy, with a state for each CPU and each end of the bracket."""

    def __init__(
        self, engine: Engine, known: Known, costs: Costs, outcome: Outcome, make: Make | Governor
    ) -> None:
        self._engine, self._known, self._costs = engine, known, costs
        self._outcome, self._make = outcome, make
        self._runners: dict[tuple[int, int], Runner] = {}

    def add(self, cpu: int, recorded: Stays, earliest: Stays, ends: int) -> None:
        """Replay some stays of a CPU, by one end of the bracket or by both."""
        for end, (account, stays) in enumerate(_ends(self._outcome, recorded, earliest)[:ends]):
            runner = self._runners.get((cpu, end))
            if runner is None:
                runner = self._runners[cpu, end] = self._runner(cpu)
            runner.run(stays, account.weight, account.tally)

    def _runner(self, cpu: int) -> Runner:
        if isinstance(self._make, Governor):
            return self._make.runner(self._known, self._costs, cpu)
        price_ns = self._outcome.recorded.weight * self._costs.halt_ns
        return self._engine.runner(self._make(price_ns))


@dataclass(frozen=True)
class Gain:
    """What a policy pays less than another: the estimate, and a 95 % interval around it."""

    ns: float
    low_ns: float
    high_ns: float


def gain(of: Outcome, over: Outcome) -> Gain:
    """Return what ``of`` would have paid less than ``over`` did.

    The interval covers both how much parts of the recording differ, and both ends of the bracket.
    """
    ends = []
    for mine in (of.recorded, of.earliest):
        parts = over.recorded.tally.paid_ns - mine.tally.paid_ns
        reach = T_19 * math.sqrt(BLOCKS * float(np.var(parts, ddof=1)))
        ends.append((float(parts.sum()), reach))
    low = min(total - reach for total, reach in ends)
    high = max(total + reach for total, reach in ends)
    return Gain(ends[0][0], low, high)
