# SPDX-License-Identifier: GPL-2.0-only
"""An idle governor of the kernel, unchanged, as a policy: which states it would have chosen.

``menu@6.12`` is menu as Debian's source of Linux 6.12 has it; ``+promote`` adds promotion out of
shallow states (kernel/drivers/cpuidle/promote.c). lightsleep/governors simulates the CPU: its idle
loop, its tick of 250 Hz, and what latencies and residencies its driver advertises.

- A state that was disabled when the recording began is disabled here, too: neither the governor nor
  promotion may choose it.
- The next timer is the one that the recorded governor was told of. Where it did not ask, it is the
  timer that ended the interval, else 1 s away.
- After an interrupt without a task, the CPU stays in its idle loop: a stopped tick stays stopped,
  and a poll goes on. Where the recorded tick ended a period, the governor is told so.
- A task that finds the CPU polling does not wait. Any other waits for as long as it did, plus what
  leaving the chosen state typically costs more than leaving the recorded one. A state that
  no task was woken out of costs what its driver advertises.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lightsleep.errors import LightsleepError
from lightsleep.governors import build
from lightsleep.periods.lost import bucket
from lightsleep.periods.model import Metadata
from lightsleep.replay.costs import Costs, Tables
from lightsleep.replay.rows import Ns
from lightsleep.replay.stays import Stays
from lightsleep.replay.tally import Intervals, Tally

NAME = re.compile(r"(menu|teo|ladder)@(\d{1,2}\.\d{1,3})(\+promote)?", re.ASCII)

POLLS = 1
"""CPUIDLE_FLAG_POLLING of kernel.h."""

NO_LIMIT_NS = (1 << 63) - 1
"""KTIME_MAX of kernel.h: no program limits the latency."""

CHOICE = np.dtype([("polled_ns", "u8"), ("first", "i4"), ("last", "i4")])


@dataclass(frozen=True)
class Advertised:
    """The idle states of one CPU: of each, latency and residency in ns, and whether it polls.

    ``disabled`` holds the indexes of those that no governor may choose.
    """

    latency_ns: tuple[int, ...]
    residency_ns: tuple[int, ...]
    polls: tuple[bool, ...]
    disabled: frozenset[int] = frozenset()

    @classmethod
    def of(cls, metadata: Metadata, cpu: int) -> Advertised:
        """Return what a recording says. Raises LightsleepError where that is not enough."""
        states = sorted(metadata.states.get(cpu, {}))
        keys = [(cpu, state) for state in states]
        wanted = [x for x in keys if x in metadata.advertised_us and x in metadata.residency_us]
        if not states or states != list(range(len(states))) or wanted != keys:
            raise LightsleepError(
                f"{metadata.source}: latencies and residencies of CPU {cpu}'s idle states are not "
                "known, and a governor needs them: record with lightsleep record, under a driver"
            )
        if len(states) > build.STATES_MAX:
            raise LightsleepError(f"{metadata.source}: CPU {cpu} has {len(states)} idle states")
        return cls(
            tuple(1000 * metadata.advertised_us[key] for key in keys),
            tuple(1000 * metadata.residency_us[key] for key in keys),
            tuple(key in metadata.polling for key in keys),
            frozenset(state for at, state in metadata.disabled if at == cpu),
        )


def require_advertised(metadata: Metadata) -> None:
    """Raise LightsleepError where a recording does not say enough of the CPUs described in it.

    Nobody knows yet which of the ``supposed`` ones are in the recording.
    """
    for cpu in sorted(metadata.states.keys() - metadata.supposed) or [0]:
        Advertised.of(metadata, cpu)


class Cpu:
    """One simulated CPU with its governor."""

    def __init__(self, library: Path, governor: str, states: Advertised) -> None:
        """Start it, with nothing learned."""
        self.ffi, self.lib = build.load(library)
        rows = zip(states.latency_ns, states.residency_ns, states.polls, strict=True)
        made = [(latency, residency, POLLS if polls else 0) for latency, residency, polls in rows]
        given = self.ffi.new("struct cpuidle_state[]", made)
        self.lib.machine_start(governor.encode(), given, len(made))
        allowed = [state not in states.disabled for state in range(len(made))]
        self.lib.machine_allow(self.ffi.new("bool[]", allowed), NO_LIMIT_NS)


@dataclass(frozen=True)
class Governor:
    """A governor by its name, the kernel that it is from, and whether promotion is added."""

    name: str
    version: str
    promote: bool

    @classmethod
    def named(cls, text: str) -> Governor | None:
        """Return the governor that ``text`` names; None where it names none."""
        match = NAME.fullmatch(text)
        return cls(match[1], match[2], bool(match[3])) if match else None

    def cpu(self, states: Advertised) -> Cpu:
        """Return a CPU that it governs. Raises LightsleepError where it cannot be compiled."""
        made = Cpu(build.library_file(self.version), self.name, states)
        made.lib.machine_promote(self.promote)
        return made

    def runner(self, metadata: Metadata, costs: Costs, cpu: int) -> GovernorRunner:
        """Return what replays intervals of a CPU of that recording. Raises LightsleepError."""
        states = Advertised.of(metadata, cpu)
        table = Tables(metadata)[cpu]
        cost_ns = [
            0 if polls else round(costs.states.get((table, state), states.latency_ns[state]))
            for state, polls in enumerate(states.polls)
        ]
        return GovernorRunner(self.cpu(states), np.array([*cost_ns, 0]), states)


ENTERED_NS = 301
"""The shortest idle time that is simulated, in ns. A CPU entered a state in each recorded
period. In one of SELECT_NS of machine.c, or less, the simulated CPU would enter none."""


class GovernorRunner:
    """A governor with what it has learned."""

    def __init__(self, cpu: Cpu, cost_ns: Ns, states: Advertised) -> None:
        """Run on ``cpu``; ``cost_ns`` is by state, and 0 for none, the last."""
        self._cpu, self._cost_ns = cpu, cost_ns
        self._awake = np.array([*states.polls, True])
        self._busy_since_ns: int | None = None

    def run(self, intervals: Intervals, weight: int, tally: Tally) -> None:
        """Replay intervals that follow those of the last call."""
        if not len(intervals):
            return
        made, stays = self._choices(intervals)
        last = made["last"]
        awake = self._awake[last]
        left_ns = self._cost_ns[last] + intervals.supposed_ns
        waited_ns = np.maximum(intervals.cost_ns + left_ns - intervals.typical_ns, 0)
        cost_ns = np.where(intervals.woken & ~awake, waited_ns, 0)
        priced = replace(intervals, cost_ns=cost_ns, bucket=bucket(cost_ns).astype(np.uint16))
        tally.add(priced, made["polled_ns"].astype(np.int64), ~awake, weight, stays)

    def _choices(self, intervals: Intervals) -> tuple[Any, Stays]:
        # A governor learns from how long the CPU slept: what a late wakeup took is part of that.
        late_ns = np.where(intervals.woken, intervals.cost_ns - intervals.typical_ns, 0)
        # What came once a timer was due did not come before it, however short its wakeup was.
        due_ns = np.where(intervals.arrival_ns >= intervals.timer_ns, intervals.timer_ns, 0)
        ends_ns = intervals.entered_ns + np.maximum(intervals.arrival_ns + late_ns, due_ns)
        first_ns = self._busy_since_ns
        first_ns = int(intervals.entered_ns[0]) if first_ns is None else first_ns
        since_ns = np.concatenate([[first_ns], ends_ns[:-1]])
        self._busy_since_ns = int(ends_ns[-1])
        periods = np.empty((len(intervals), 6), np.uint64)
        periods[:, 0] = np.maximum(intervals.idle_ns + late_ns, np.maximum(due_ns, ENTERED_NS))
        periods[:, 1] = np.maximum(intervals.entered_ns - since_ns, 0)
        periods[:, 2] = intervals.timer_ns
        periods[:, 3] = intervals.nobody
        periods[:, 4] = intervals.nobody & intervals.tick
        periods[:, 5] = intervals.resumes
        choices = np.zeros(len(intervals), CHOICE)
        ffi = self._cpu.ffi
        totals = ffi.new("struct totals *")
        self._cpu.lib.machine_run(
            ffi.from_buffer("struct period[]", periods),
            ffi.from_buffer("struct choice[]", choices, require_writable=True),
            len(intervals),
            totals,
        )
        return choices, Stays(totals.halts, totals.too_shallow_ns, totals.too_deep_ns)
