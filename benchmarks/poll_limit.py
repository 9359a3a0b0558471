# SPDX-License-Identifier: GPL-2.0-only
"""What poll_limit.c costs beside other rules for how long to poll, over many idle patterns.

Writes the raw numbers as JSON and prints, for every halt cost, a table of the cost relative to
the offline optimum with the share of idle time polled. Seeded, so that every run gives the same
numbers; docs/polling-policy-figures.md has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import click
import numpy as np
from policy.binding import PollLimit
from policy.cost import Ns, best_fixed_ns, optimum_ns, paid_ns
from policy.patterns import PATTERNS, trace

from lightsleep.files import write_json, write_text
from lightsleep.markdown import table

PERIODS = 20_000
ROUNDS = 5_000
US = 1_000
FOREVER_NS = 10**15
HALT_COSTS_NS = (5 * US, 50 * US, 500 * US)
DEFAULT_CEILING_NS = 200 * US
WORKS = (0.1, 0.5, 0.7, 0.9, 2.0)  # halt costs


class Strategy(Protocol):
    """What decides how long one CPU polls in its next idle period."""

    @property
    def limit_ns(self) -> int:
        """How long to poll in the next idle period."""

    def update(self, idle_ns: int) -> object:
        """Learn from one idle period."""


@dataclass
class Fixed:
    """The same limit always."""

    limit_ns: int

    def update(self, idle_ns: int) -> None:
        """Learn nothing."""


@dataclass
class Haltpoll:
    """The haltpoll governor's rule with its defaults, as Documentation/virt has it.

    The documentation speaks of when the wake event occurs, and so does this. The governor itself
    takes the residency of the halt, which lacks the time polled before and includes the wake.
    """

    limit_ns: int = 0
    most_ns: int = 200 * US
    start_ns: int = 50 * US

    def update(self, idle_ns: int) -> None:
        """Grow where polling longer would have caught the wake, shrink where nothing would."""
        if self.limit_ns < idle_ns <= self.most_ns:
            self.limit_ns = min(max(2 * self.limit_ns, self.start_ns), self.most_ns)
        elif idle_ns > self.most_ns:
            half_ns = self.limit_ns // 2
            self.limit_ns = half_ns if half_ns >= self.start_ns else 0


STRATEGIES: Mapping[str, Callable[[int], Strategy]] = {
    "halt": lambda halt_cost_ns: Fixed(0),
    "poll": lambda halt_cost_ns: Fixed(FOREVER_NS),
    "100 us": lambda halt_cost_ns: Fixed(100 * US),
    "haltpoll": lambda halt_cost_ns: Haltpoll(),
    "lightsleep": lambda halt_cost_ns: PollLimit(halt_cost_ns, FOREVER_NS),
    "lightsleep, 200 us": lambda halt_cost_ns: PollLimit(halt_cost_ns, DEFAULT_CEILING_NS),
}
BEST_FIXED = "best fixed"


@dataclass(frozen=True)
class Outcome:
    """What a strategy cost over one trace. Sums over all periods, in ns."""

    pattern: str
    halt_cost_ns: int
    strategy: str
    cost_ns: int
    optimum_ns: int
    idle_ns: int
    polled_ns: int
    halts: int


@dataclass(frozen=True)
class PingPong:
    """Two CPUs that wait for each other: what it came to in the second half of all rounds."""

    work_ns: int
    halt_cost_ns: int
    strategy: str
    wakes: int
    wakes_from_halt: int


def replay(strategy: Strategy, idle_ns: Ns) -> Ns:
    """Return the limit that each of n periods was given, in ns."""
    if isinstance(strategy, PollLimit):
        return strategy.replay(idle_ns)
    limits = np.empty_like(idle_ns)
    for i, idle in enumerate(idle_ns.tolist()):
        limits[i] = strategy.limit_ns
        strategy.update(idle)
    return limits


def outcomes(pattern: str, halt_cost_ns: int) -> list[Outcome]:
    """Run every strategy over one pattern."""
    idle = trace(pattern, PERIODS)
    limits = {name: replay(make(halt_cost_ns), idle) for name, make in STRATEGIES.items()}
    limits[BEST_FIXED] = np.full_like(idle, best_fixed_ns(idle, halt_cost_ns))
    return [
        Outcome(
            pattern=pattern,
            halt_cost_ns=halt_cost_ns,
            strategy=name,
            cost_ns=int(paid_ns(idle, limit, halt_cost_ns).sum()),
            optimum_ns=int(optimum_ns(idle, halt_cost_ns).sum()),
            idle_ns=int(idle.sum()),
            polled_ns=int(np.minimum(idle, limit).sum()),
            halts=int(np.count_nonzero(idle > limit)),
        )
        for name, limit in limits.items()
    ]


def ping_pong(name: str, work_ns: int, halt_cost_ns: int) -> PingPong:
    """Let two CPUs wake each other, each after some work; both begin in halt."""
    cpus = [STRATEGIES[name](halt_cost_ns) for _ in range(2)]
    for cpu in cpus:
        replay(cpu, np.full(200, work_ns + halt_cost_ns))
    latency_ns, from_halt = halt_cost_ns, 0
    for turn in range(2 * ROUNDS):
        cpu, idle_ns = cpus[turn % 2], work_ns + latency_ns
        latency_ns = 0 if idle_ns <= cpu.limit_ns else halt_cost_ns
        from_halt += turn >= ROUNDS and latency_ns > 0
        cpu.update(idle_ns)
    return PingPong(work_ns, halt_cost_ns, name, ROUNDS, from_halt)


def outcomes_tables(results: list[Outcome]) -> list[str]:
    """Return one table per halt cost: a line per pattern, a column per strategy."""
    tables = []
    for halt_cost_ns in HALT_COSTS_NS:
        chosen = [r for r in results if r.halt_cost_ns == halt_cost_ns]
        heading = f"C = {halt_cost_ns // US} us: cost / optimum (share of idle time polled)"
        rows = []
        for pattern in PATTERNS:
            line = [r for r in chosen if r.pattern == pattern]
            cells = (
                f"{r.cost_ns / r.optimum_ns:.2f} ({r.polled_ns / r.idle_ns:.0%})" for r in line
            )
            rows.append((pattern, *cells))
        tables.append(table((heading, *dict.fromkeys(r.strategy for r in chosen)), rows))
    return tables


def ping_pong_table(results: list[PingPong]) -> str:
    """Return the share of wakes that had to end a halt: a line per amount of work."""
    rows = []
    for work_ns, cost_ns in dict.fromkeys((r.work_ns, r.halt_cost_ns) for r in results):
        line = [r for r in results if (r.work_ns, r.halt_cost_ns) == (work_ns, cost_ns)]
        name = f"C = {cost_ns / US:g} us, {work_ns / US:g} us of work"
        rows.append((name, *(f"{r.wakes_from_halt / r.wakes:.0%}" for r in line)))
    return table(("two CPUs that wait for each other: wakes from halt", *STRATEGIES), rows)


PAGE = f"""\
<!-- SPDX-License-Identifier: GPL-2.0-only -->
<!-- Written by benchmarks/poll_limit.py --page; do not edit. -->
# The polling policy beside other rules

    make bench-policy

{PERIODS:,} idle periods of each pattern, seeded, so that every run gives the same figures. Each
figure is the cost over the optimum of a rule that knows the future. In parentheses is the share of
idle time that was polled. C is what a missed wakeup costs; [the policy](polling-policy.md) explains
the cost.

- `halt` and `poll` always do so, and `100 us` polls up to this limit.
- `haltpoll` is our implementation of the rule in Documentation/virt/guest-halt-polling.rst with its
  defaults.
- `lightsleep` has no ceiling, `lightsleep, 200 us` has one of 200 us.
- `best fixed` is the best single limit for the pattern, which nobody knows beforehand.
"""


@click.command()
@click.argument("output", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--page", type=click.Path(path_type=Path, dir_okay=False), help="Also write the tables here."
)
def main(output: Path, page: Path | None) -> None:
    """Compare rules for how long to poll; write the raw numbers to OUTPUT (JSON)."""
    results = [o for cost in HALT_COSTS_NS for name in PATTERNS for o in outcomes(name, cost)]
    pairs = [
        ping_pong(name, round(work * cost), cost)
        for cost in HALT_COSTS_NS
        for work in WORKS
        for name in STRATEGIES
    ]
    document = {
        "periods": PERIODS,
        "outcomes": [asdict(result) for result in results],
        "ping_pong": [asdict(pair) for pair in pairs],
    }
    write_json(output, document)
    tables = "\n\n".join([*outcomes_tables(results), ping_pong_table(pairs)])
    if page:
        write_text(page, f"{PAGE}\n{tables}\n")
    click.echo(tables)


if __name__ == "__main__":
    main()
