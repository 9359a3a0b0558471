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
from operator import attrgetter

from lightsleep.scan.model import PollStats
from lightsleep.watch.model import CpuCount, Snapshot, States


@dataclass(slots=True)
class CpuRates:
    """One CPU, or all in sum: shares of its time (0 to 1), events a second, times in us.

    In a sum, shares are the mean over CPUs, and limit and cost are None. Not frozen, which would
    take three times as long to make.
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
    whole = CpuRates(None)
    for name in (*SHARES, *EVENTS):
        known = [value for value in map(attrgetter(name), found) if value is not None]
        if known:
            setattr(whole, name, sum(known) / (len(known) if name in SHARES else 1))
    for x in found:
        for name, value in x.states.items():
            whole.states[name] = whole.states.get(name, 0.0) + value / len(found)
    return whole


def _of_cpu(cpu: int, before: CpuCount, now: CpuCount, span_s: float) -> CpuRates:
    found = CpuRates(cpu)
    idle = _share(before.idle_s, now.idle_s, span_s)
    found.busy = None if idle is None else 1 - idle
    found.stolen = _share(before.stolen_s, now.stolen_s, span_s)
    if before.interrupts and now.interrupts:
        found.ipi, found.timer, found.device = [
            (count - old if count >= old else count) / span_s
            for old, count in zip(before.interrupts, now.interrupts, strict=True)
        ]
    if before.states and now.states and before.names == now.names:
        _states(found, now.names, before.states, now.states, span_s, idle)
    if before.own and now.own:
        _own(found, before.own, now.own, span_s)
        if found.hits is not None and found.ipi is not None:
            irqs = found.ipi + (found.timer or 0.0) + (found.device or 0.0)
            found.store = max(found.hits - irqs, 0.0)
    return found


def _states(
    found: CpuRates,
    names: tuple[str, ...],
    before: States,
    now: States,
    span_s: float,
    idle: float | None,
) -> None:
    if now is before:  # the CPU has not left a state
        found.states = dict.fromkeys(names, 0.0)
        found.wakes, found.asleep = 0.0, idle
        found.stuck = None if now.stuck_us is None else 0.0
        return
    rises = list(map(_rose, before.time_us, now.time_us))
    counted = sum(rises) / 1e6 / span_s
    most = 1.0 if idle is None else idle
    scale = (most / counted if counted > most else 1.0) / 1e6 / span_s
    found.states = {name: rise * scale for name, rise in zip(names, rises, strict=True)}
    found.wakes = sum(map(_rose, before.usage, now.usage)) / span_s
    if idle is not None:
        found.asleep = max(idle - counted, 0.0)
    if before.stuck_us is not None and now.stuck_us is not None:
        found.stuck = min(_rose(before.stuck_us, now.stuck_us) / 1e6 / span_s, 1)


def _own(found: CpuRates, before: PollStats, now: PollStats, span_s: float) -> None:
    found.polls = _rate(before.polls, now.polls, span_s)
    found.hits = _rate(before.hits, now.hits, span_s)
    found.halts = _rate(before.halts, now.halts, span_s)
    found.polled = _part(before.polled_ns, now.polled_ns, span_s)
    found.wasted = _part(before.wasted_ns, now.wasted_ns, span_s)
    found.limit_us = None if now.limit_ns is None else now.limit_ns / 1e3
    found.cost_us = None if now.halt_cost_ns is None else now.halt_cost_ns / 1e3
    if found.halts is not None and now.halt_cost_ns is not None:
        found.lost = found.halts * now.halt_cost_ns / 1e9


def _rate(before: int | None, now: int | None, span_s: float) -> float | None:
    return None if before is None or now is None else _rose(before, now) / span_s


def _part(before_ns: int | None, now_ns: int | None, span_s: float) -> float | None:
    if before_ns is None or now_ns is None:
        return None
    return min(_rose(before_ns, now_ns) / 1e9 / span_s, 1.0)


def _rose(before: int, now: int) -> int:
    """Return how far a counter rose; one that starts again, as of a module, rose from 0."""
    return now - before if now >= before else now


def _share(before_s: float | None, now_s: float | None, span_s: float) -> float | None:
    if before_s is None or now_s is None:
        return None
    return min(max(now_s - before_s, 0.0) / span_s, 1.0)
