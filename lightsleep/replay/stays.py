# SPDX-License-Identifier: GPL-2.0-only
"""Stays in idle states that were too shallow or too deep, as the kernel counts them, but in time.

A *stay* begins when a CPU enters an idle state and ends when it has left the state, so its length
contains the exit latency. The kernel (cpuidle_enter_state() of drivers/cpuidle/cpuidle.c) compares
the length of each stay with what the driver advertises. It looks at enabled states only:

- The stay was *too deep* (the counter ``above`` of sysfs) where it was shorter than the target
  residency of its state, and a shallower state is enabled.
- The stay was *too shallow* (the counter ``below``) where it was no shorter than the target
  residency of its own state, and its length, less the exit latency of its own state, reaches the
  target residency of the next deeper state that is enabled.

The kernel counts such stays. ``too_deep_ns`` and ``too_shallow_ns`` add up their lengths instead.

An idle interval has at most two stays: a poll, and then a halt.

- A poll is as long as the CPU polls, up to its limit. (What of the way to a halt is over when a
  task comes counts as polled, but is no part of the stay.) It is a stay in a state without any
  latency or residency, so it can be too shallow only. The next deeper state is the shallowest
  enabled one that halts. An interrupt without a task ends an interval, but no poll: a poll of
  several intervals is one stay. (Polls of the recording are as long as its intervals say. Such as
  followed each other at once are one there, though the kernel compares each.)
- A halt begins where the poll ends, after another turn through the idle loop (``Costs.turn_ns``),
  and lasts until the CPU has left its state. The state is the recorded one, whatever the policy.
  Where the CPU only polled in the recording, it is the state that most wakeups by other CPUs came
  out of (``Costs.halts``).

A stay in a state of which the recording does not know latency and residency counts for neither.
The simulated CPU of a governor (machine.c) counts each of its stays by the same rule: a tick ends
one stay, and the next one begins. The number of *halts* is the number of stays in states that do
not poll. Each of them ends with a wakeup, by a task or by an interrupt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lightsleep.periods.model import Metadata

if TYPE_CHECKING:
    from lightsleep.replay.tally import Intervals

Ns = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

STATES = 256
"""Indexes of states that the C code knows; more have no names, either."""

NO_STATE = STATES - 1
"""The index of a state that nobody knows."""

NEVER_NS = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Stays:
    """What some stays add up to."""

    halts: int
    too_shallow_ns: int
    too_deep_ns: int


class Limits:
    """From which lengths on stays of one CPU were too shallow, and below which too deep.

    ``data`` is the ``struct stay_limits`` of engine.h.
    """

    def __init__(self) -> None:
        """Know no state: no stay was too shallow or too deep."""
        self.data: Ns = np.zeros(1 + 2 * STATES, np.int64)
        self.deep_ns, self.shallow_ns = self.data[1 : 1 + STATES], self.data[1 + STATES :]
        self.data[0] = NEVER_NS
        self.shallow_ns[:] = NEVER_NS

    @property
    def poll_shallow_ns(self) -> int:
        """A poll that is as long as this was too shallow."""
        return int(self.data[0])

    @classmethod
    def of(cls, metadata: Metadata, cpu: int) -> Limits:
        """Return the limits of a CPU, by what its driver advertises and which states are enabled.

        Next to a state whose residency nobody knows, nobody knows what was too shallow.
        """
        made = cls()
        states = sorted(x for x in metadata.states.get(cpu, {}) if 0 <= x < NO_STATE)
        enabled = [x for x in states if (cpu, x) not in metadata.disabled]
        residency_ns = {x: 1000 * metadata.residency_us.get((cpu, x), -1) for x in states}
        halting = [x for x in enabled if not metadata.polls(cpu, x)]
        if halting and residency_ns[halting[0]] >= 0:
            made.data[0] = max(1, residency_ns[halting[0]])
        for state in states:
            latency_us = metadata.advertised_us.get((cpu, state))
            own_ns = residency_ns[state]
            if latency_us is None or own_ns < 0:
                continue
            made.deep_ns[state] = own_ns if enabled and enabled[0] < state else 0
            deeper = next((residency_ns[x] for x in enabled if x > state), -1)
            if deeper >= 0:
                made.shallow_ns[state] = max(own_ns, 1000 * latency_us + max(1, deeper))
        return made


def stays_of(intervals: Intervals, polled_ns: Ns, halted: Flags, before_ns: Ns | int = 0) -> Stays:
    """Return what intervals add up to whose polls lasted so long, and which ended in a halt.

    ``before_ns`` is how much of the same poll was in earlier intervals.
    """
    limits, state = intervals.limits, intervals.state
    turn_ns = np.where(polled_ns > 0, intervals.turn_ns, 0)
    halt_ns = np.maximum(intervals.idle_ns - polled_ns - turn_ns + intervals.exit_ns, 0)
    deep = halted & (halt_ns < limits.deep_ns[state])
    shallow = halted & (halt_ns >= limits.shallow_ns[state])
    # All of a poll counts, once it is too long.
    is_long = before_ns + polled_ns >= limits.poll_shallow_ns
    new_ns = polled_ns + np.where(before_ns < limits.poll_shallow_ns, before_ns, 0)
    return Stays(
        int(halted.sum()),
        int(halt_ns[shallow].sum()) + int(new_ns[is_long].sum()),
        int(halt_ns[deep].sum()),
    )
