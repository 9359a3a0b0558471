# SPDX-License-Identifier: GPL-2.0-only
"""What happened between two snapshots: rates and shares. No side effects.

- ``busy`` follows from the kernel's idle time, which counts a sleep that still lasts. It is in
  ticks, so over a second it is good to a percent or so.
- A state's share counts when the CPU leaves the state. A sleep longer than the span counts in the
  span in which it ends. So shares are scaled down to what the CPU was idle; and idle time that no
  state has counted yet is ``asleep``: in a sleep that has not ended.
- ``wakes`` are entries into idle states. Interrupts are those that the CPU received, idle or not.
- ``store`` is a lower bound of wakeups without an interrupt: polls that saw a wakeup, less all
  interrupts of the CPU.
- ``lost`` is time that wakers and woken waited for halts to end: halts x what a halt costs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from lightsleep.scan.model import PollStats
from lightsleep.watch.model import CpuCount, Snapshot


@dataclass(frozen=True, slots=True)
class CpuRates:
    """One CPU, or all in sum: shares of its time (0 to 1), events a second, times in us.

    In a sum, shares are the mean over CPUs, and limit and cost are None.
    """

    cpu: int | None
    busy: float | None = None
    asleep: float | None = None
    stolen: float | None = None
    wakes: float | None = None
    ipi: float | None = None
    timer: float | None = None
    device: float | None = None
    store: float | None = None
    polls: float | None = None
    hits: float | None = None
    halts: float | None = None
    polled: float | None = None
    wasted: float | None = None
    limit_us: float | None = None
    cost_us: float | None = None
    lost: float | None = None
    stuck: float | None = None
    states: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def hit_rate(self) -> float | None:
        """The share of polls that saw a wakeup."""
        return min(self.hits / self.polls, 1.0) if self.polls and self.hits is not None else None


SHARES = ("busy", "asleep", "stolen", "polled", "wasted", "lost", "stuck")
EVENTS = ("wakes", "ipi", "timer", "device", "store", "polls", "hits", "halts")


def rates(before: Snapshot, after: Snapshot) -> list[CpuRates]:
    """Return the rates of every CPU that both snapshots have."""
    span_s = after.time_s - before.time_s
    if span_s <= 0:
        return []
    return [
        _of_cpu(cpu, before.cpus[cpu], now, span_s)
        for cpu, now in after.cpus.items()
        if cpu in before.cpus
    ]


def total(found: Sequence[CpuRates]) -> CpuRates:
    """Return all CPUs in sum; what no CPU knows stays None."""
    sums: dict[str, float | None] = {}
    for name in (*SHARES, *EVENTS):
        known = [value for x in found if (value := getattr(x, name)) is not None]
        share = len(known) if name in SHARES else 1
        sums[name] = sum(known) / share if known else None
    states: dict[str, float] = {}
    for x in found:
        for name, value in x.states.items():
            states[name] = states.get(name, 0.0) + value / len(found)
    return CpuRates(cpu=None, states=states, **sums)


def _of_cpu(cpu: int, before: CpuCount, now: CpuCount, span_s: float) -> CpuRates:
    found: dict[str, float | None] = {}
    idle = _share(before.idle_s, now.idle_s, span_s)
    found["busy"] = None if idle is None else 1 - idle
    found["stolen"] = _share(before.stolen_s, now.stolen_s, span_s)
    irqs = 0.0
    if before.interrupts and now.interrupts:
        for kind, count in now.interrupts.items():
            rate = _rose(before.interrupts.get(kind, 0), count) / span_s
            found[kind] = rate
            irqs += rate
    states = _states(before, now, span_s, idle, found)
    if before.own and now.own:
        _own(before.own, now.own, span_s, found)
        hits = found.get("hits")
        if hits is not None and before.interrupts and now.interrupts:
            found["store"] = max(hits - irqs, 0.0)
    return CpuRates(cpu=cpu, states=states, **found)


def _states(
    before: CpuCount,
    now: CpuCount,
    span_s: float,
    idle: float | None,
    found: dict[str, float | None],
) -> dict[str, float]:
    if not before.states or not now.states or before.names != now.names:
        return {}
    there = zip(now.names, before.states.time_us, now.states.time_us, strict=True)
    shares = {name: _rose(old, new) / 1e6 / span_s for name, old, new in there}
    entries = zip(before.states.usage, now.states.usage, strict=True)
    found["wakes"] = sum(_rose(old, new) for old, new in entries) / span_s
    most = 1.0 if idle is None else idle
    counted = sum(shares.values())
    if counted > most:
        shares = {name: share * most / counted for name, share in shares.items()}
    if idle is not None:
        found["asleep"] = max(idle - counted, 0.0)
    if before.states.stuck_us is not None and now.states.stuck_us is not None:
        found["stuck"] = min(_rose(before.states.stuck_us, now.states.stuck_us) / 1e6 / span_s, 1)
    return shares


def _own(before: PollStats, now: PollStats, span_s: float, found: dict[str, float | None]) -> None:
    for name in ("polls", "hits", "halts"):
        old, new = getattr(before, name), getattr(now, name)
        found[name] = None if old is None or new is None else _rose(old, new) / span_s
    for name, old, new in (
        ("polled", before.polled_ns, now.polled_ns),
        ("wasted", before.wasted_ns, now.wasted_ns),
    ):
        known = old is not None and new is not None
        found[name] = min(_rose(old or 0, new or 0) / 1e9 / span_s, 1.0) if known else None
    found["limit_us"] = None if now.limit_ns is None else now.limit_ns / 1e3
    found["cost_us"] = None if now.halt_cost_ns is None else now.halt_cost_ns / 1e3
    if found["halts"] is not None and now.halt_cost_ns is not None:
        found["lost"] = found["halts"] * now.halt_cost_ns / 1e9


def _rose(before: int, now: int) -> int:
    """Return how far a counter rose; one that starts again, as of a module, rose from 0."""
    return now - before if now >= before else now


def _share(before_s: float | None, now_s: float | None, span_s: float) -> float | None:
    if before_s is None or now_s is None:
        return None
    return min(max(now_s - before_s, 0.0) / span_s, 1.0)
