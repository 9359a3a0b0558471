# SPDX-License-Identifier: GPL-2.0-only
"""What happened between two snapshots: rates and shares. No side effects.

- ``busy_share`` follows from the kernel's idle time, which counts a sleep that still lasts. It is
  in ticks, so over a second it is good to a percent or so.
- A state's share counts when the CPU leaves the state. A sleep longer than the span counts in the
  span in which it ends. So shares are scaled down to what the CPU was idle; and idle time that no
  state has counted yet is ``asleep_share``: in a sleep that has not ended. Where idle CPUs spin,
  none is asleep.
- Time polled in the idle loop is idle time of no state, so it is taken off first. But interrupts on
  top of such a poll are busy time, which that poll counts, too. How much is not known, at most all
  busy time. So states lose to the polls only what cannot have been busy.
- ``wakes_per_s`` are entries into states that do not poll, each of which ends in a wakeup, and
  polls that saw one. Of an entry into a polling state, nobody knows: many polls end by time. So
  where another driver polls, or the idle loop, wakeups that ended a poll are not counted.
- Interrupts are those that the CPU received, idle or not.
- ``stores_per_s`` is a lower bound of wakeups without an interrupt: polls that saw a wakeup, less
  all interrupts of the CPU.
- ``paused_share`` is time in which the CPU found its host short of cores, in any mode.
- ``lost_share`` is time that wakers and woken waited for halts to end: halts x what a halt costs.
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
    """One CPU, or all in sum: shares of its time (0 to 1), events per second.

    In a sum, shares are the mean over CPUs, and limit, cost, and what is left of a pause are None.
    Not frozen, which would take three times as long to make.
    """

    cpu: int | None
    busy_share: float | None = None
    asleep_share: float | None = None
    stolen_share: float | None = None
    wakes_per_s: float | None = None
    ipi_per_s: float | None = None
    timer_per_s: float | None = None
    device_per_s: float | None = None
    stores_per_s: float | None = None
    polls_per_s: float | None = None
    hits_per_s: float | None = None
    halts_per_s: float | None = None
    polled_share: float | None = None
    wasted_share: float | None = None
    paused_share: float | None = None
    limit_ns: int | None = None
    pause_left_ms: int | None = None
    halt_cost_ns: int | None = None
    lost_share: float | None = None
    state_shares: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def hit_rate(self) -> float | None:
        """The share of polls that saw a wakeup."""
        return hit_rate(self.polls_per_s, self.hits_per_s)


def hit_rate(polls: float | None, hits: float | None) -> float | None:
    """Return the share of polls that saw a wakeup, None where nothing was polled.

    Both are not counted at the same moment, so hits may be ahead.
    """
    return min(hits / polls, 1.0) if polls and hits is not None else None


NAMES = tuple(x.name for x in dataclasses.fields(CpuRates))
SHARES = tuple(name for name in NAMES if name.endswith("_share"))
EVENTS = tuple(name for name in NAMES if name.endswith("_per_s"))


def rates(before: Snapshot, after: Snapshot) -> list[CpuRates]:
    """Return the rates of every CPU that both snapshots have."""
    span_s = after.time_s - before.time_s
    if span_s <= 0:
        return []
    found = [
        _of_cpu(cpu, before.cpus[cpu], now, span_s)
        for cpu, now in after.cpus.items()
        if cpu in before.cpus
    ]
    if after.spins:
        for x in found:
            x.asleep_share = None
    return found


def total(found: Sequence[CpuRates]) -> CpuRates:
    """Return all CPUs in sum; what no CPU knows stays None."""
    whole = CpuRates(None)
    for name in (*SHARES, *EVENTS):
        known = [value for value in map(attrgetter(name), found) if value is not None]
        if known:
            setattr(whole, name, sum(known) / (len(known) if name in SHARES else 1))
    for x in found:
        for name, value in x.state_shares.items():
            whole.state_shares[name] = whole.state_shares.get(name, 0.0) + value / len(found)
    return whole


def _of_cpu(cpu: int, before: CpuCount, now: CpuCount, span_s: float) -> CpuRates:
    found = CpuRates(cpu)
    idle = _share(before.idle_s, now.idle_s, span_s)
    found.busy_share = None if idle is None else 1 - idle
    found.stolen_share = _share(before.stolen_s, now.stolen_s, span_s)
    if before.interrupts and now.interrupts:
        found.ipi_per_s, found.timer_per_s, found.device_per_s = [
            _rate(old, count, span_s)
            for old, count in zip(before.interrupts, now.interrupts, strict=True)
        ]
    found.polled_share = _part(before.loop_polled_ns, now.loop_polled_ns, span_s)
    surely_polled = 0.0
    if idle is not None and found.polled_share is not None:
        surely_polled = max(found.polled_share - (1 - idle), 0.0)
        found.polled_share = min(found.polled_share, idle)
    if before.states and now.states and before.names == now.names:
        most = 1.0 if idle is None else max(idle - surely_polled, 0.0)
        rest = None if idle is None else idle - (found.polled_share or 0.0)
        _states(found, now, before.states, now.states, span_s, most, rest)
    if before.own and now.own:
        _own(found, before.own, now.own, span_s)
        if found.wakes_per_s is not None:
            found.wakes_per_s += found.hits_per_s or 0.0
        if found.hits_per_s is not None and found.ipi_per_s is not None:
            irqs = found.ipi_per_s + (found.timer_per_s or 0.0) + (found.device_per_s or 0.0)
            found.stores_per_s = max(found.hits_per_s - irqs, 0.0)
    return found


def _states(
    found: CpuRates,
    cpu: CpuCount,
    before: States,
    now: States,
    span_s: float,
    most: float,
    rest: float | None,
) -> None:
    """Fill in what states tell; they have ``most`` of the time, and what sleeps on has ``rest``.

    Wakeups are those that ended no poll.
    """
    if now is before:  # the CPU has not left a state
        found.state_shares = dict.fromkeys(cpu.names, 0.0)
        found.wakes_per_s, found.asleep_share = 0.0, rest
        return
    rises = list(map(_rose, before.time_us, now.time_us))
    counted = sum(rises) / 1e6 / span_s
    scale = (most / counted if counted > most else 1.0) / 1e6 / span_s
    found.state_shares = {name: rise * scale for name, rise in zip(cpu.names, rises, strict=True)}
    entered = zip(cpu.names, map(_rose, before.usage, now.usage), strict=True)
    found.wakes_per_s = sum(rise for name, rise in entered if name not in cpu.polling) / span_s
    if rest is not None:
        found.asleep_share = max(rest - counted, 0.0)


def _own(found: CpuRates, before: PollStats, now: PollStats, span_s: float) -> None:
    found.polls_per_s = _rate(before.polls, now.polls, span_s)
    found.hits_per_s = _rate(before.hits, now.hits, span_s)
    found.halts_per_s = _rate(before.halts, now.halts, span_s)
    polled = _part(before.polled_ns, now.polled_ns, span_s)
    if polled is not None:
        found.polled_share = min(polled + (found.polled_share or 0.0), 1.0)
    found.wasted_share = _part(before.wasted_ns, now.wasted_ns, span_s)
    found.paused_share = _paused(before, now, span_s)
    found.limit_ns, found.halt_cost_ns = now.limit_ns, now.halt_cost_ns
    found.pause_left_ms = now.pause_left_ms
    if found.halts_per_s is not None and now.halt_cost_ns is not None:
        # The cost may have risen since these halts.
        found.lost_share = min(found.halts_per_s * now.halt_cost_ns / 1e9, 1.0)


def _paused(before: PollStats, now: PollStats, span_s: float) -> float | None:
    """Return the share of time in pauses.

    The driver's two figures are not of the same moment: where a pause begins in between, less has
    passed than before.
    """
    passed_ns, earlier_ns = now.passed_in_pauses_ns, before.passed_in_pauses_ns
    if passed_ns is None or earlier_ns is None:
        return None
    if (now.paused_ns or 0) < (before.paused_ns or 0):  # the CPU came online again
        earlier_ns = 0
    return min(max(passed_ns - earlier_ns, 0) / 1e9 / span_s, 1.0)


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
