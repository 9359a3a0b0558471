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

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lightsleep.periods.lost import Wakes
from lightsleep.periods.model import Known
from lightsleep.replay.demand import Costs, Demands, Reader
from lightsleep.replay.policies import STOCK, Make, Ns, Policy

BLOCKS = 20
T_19 = 2.093
"""The 97.5 % quantile of Student's t with BLOCKS - 1 degrees of freedom."""


@dataclass
class Account:
    """What one policy did with all stays; times in ns, ``paid`` by block."""

    weight: int = 1
    stays: int = 0
    hits: int = 0
    in_vain: int = 0
    polled_ns: int = 0
    waits: Wakes = field(default_factory=Wakes)
    paid: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(BLOCKS, np.int64))

    @property
    def paid_ns(self) -> int:
        """All time polled, and waited by its weight."""
        return int(self.paid.sum())

    def add(
        self, demands: Demands, polled_ns: Ns, halted: npt.NDArray[np.bool_], block: Ns
    ) -> None:
        """Account stays of which so much was polled, and which ended in a halt or not."""
        waited_ns = np.where(halted, demands.cost_ns, 0)
        self.stays += len(demands)
        self.hits += int((~halted).sum())
        self.in_vain += int((halted & (polled_ns > 0)).sum())
        self.polled_ns += int(polled_ns.sum())
        self.waits.add(waited_ns[demands.woken])
        np.add.at(self.paid, block, polled_ns + self.weight * waited_ns)

    def merge(self, other: Account) -> None:
        """Add what the policy did with another recording."""
        for name in ("stays", "hits", "in_vain", "polled_ns"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.paid += other.paid
        self.waits.merge(other.waits)

    def to_json(self) -> dict[str, Any]:
        """Return all figures."""
        return {
            "stays": self.stays,
            "hits": self.hits,
            "polled_in_vain": self.in_vain,
            "polled_ns": self.polled_ns,
            "waited_ns": self.waits.total_ns,
            "paid_ns": self.paid_ns,
            "wakes": self.waits.count,
            "wait_p50_ns": self.waits.percentile_ns(0.5),
            "wait_p99_ns": self.waits.percentile_ns(0.99),
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

    def merge(self, other: Outcome) -> None:
        """Add the outcome of another recording."""
        self.recorded.merge(other.recorded)
        self.earliest.merge(other.earliest)


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
        wakes = self.wakes + other.wakes
        both = self.loop_share * self.wakes + other.loop_share * other.wakes
        self.loop_share, self.wakes = both / max(1, wakes), wakes
        self.span_ns += other.span_ns
        self.idle_ns += other.idle_ns
        for name, outcome in self.outcomes.items():
            outcome.merge(other.outcomes[name])


OPTIMUM = "optimum"


def replay(
    known: Known,
    costs: Costs,
    batches: Iterable[pa.RecordBatch],
    policies: dict[str, Make | None],
    weight: int = 1,
) -> Replay:
    """Replay a recording by each of the policies; 1 ns of waiting counts ``weight`` ns."""
    reader = Reader(known, costs)
    outcomes = {name: Outcome.weighed(name, weight) for name in (*policies, OPTIMUM)}
    price_ns = weight * costs.halt_ns
    runs = [_Run(outcomes[name], make, price_ns) for name, make in policies.items() if make]
    width_ns = max(1, -(-known.span_ns // BLOCKS))
    idle_ns = wakes = 0
    for part in chain((reader.demands(batch) for batch in batches), [reader.rest()]):
        for cpu, demands in part:
            since_ns = demands.entered_ns - (known.first_ns or 0)
            block = np.clip(since_ns // width_ns, 0, BLOCKS - 1)
            idle_ns += int(demands.arrival_ns.sum())
            wakes += int(demands.woken.sum())
            for run in runs:
                run.add(cpu, demands, block)
            if STOCK in outcomes:
                for account in (outcomes[STOCK].recorded, outcomes[STOCK].earliest):
                    account.add(demands, demands.polled_ns, demands.halted, block)
            for account, arrival_ns in _ends(outcomes[OPTIMUM], demands):
                halts = weight * demands.cost_ns < arrival_ns
                # Nobody comes: it halts. Nothing is lost by that.
                halts |= ~demands.woken
                account.add(demands, np.where(halts, 0, arrival_ns), halts, block)
    return Replay(outcomes, known.span_ns, idle_ns, costs.loop_share, wakes, weight)


def _ends(outcome: Outcome, demands: Demands) -> Iterator[tuple[Account, Ns]]:
    yield outcome.recorded, demands.arrival_ns
    yield outcome.earliest, demands.earliest_ns


class _Run:
    """One policy, with a state for each CPU and each end of the bracket."""

    def __init__(self, outcome: Outcome, make: Make, price_ns: int) -> None:
        self._outcome, self._make, self._price_ns = outcome, make, price_ns
        self._policies: dict[tuple[int, int], Policy] = {}

    def add(self, cpu: int, demands: Demands, block: Ns) -> None:
        """Replay some stays of a CPU."""
        for end, (account, arrival_ns) in enumerate(_ends(self._outcome, demands)):
            policy = self._policies.get((cpu, end))
            if policy is None:
                policy = self._policies[cpu, end] = self._make(self._price_ns)
            limit_ns = policy.limits(arrival_ns)
            account.add(demands, np.minimum(arrival_ns, limit_ns), arrival_ns > limit_ns, block)


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
        parts = over.recorded.paid - mine.paid
        reach = T_19 * math.sqrt(BLOCKS * float(np.var(parts, ddof=1)))
        ends.append((float(parts.sum()), reach))
    low = min(total - reach for total, reach in ends)
    high = max(total + reach for total, reach in ends)
    return Gain(ends[0][0], low, high)
