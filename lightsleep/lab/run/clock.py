# SPDX-License-Identifier: GPL-2.0-only
"""True time: what a guest measures by its own clock, in the host's seconds.

A kernel calibrates its time stamp counter as it boots. Where the host holds it up meanwhile, its
clock is wrong by some per cent until the next boot, and so is every time that the guest measures.
The clock's rate is constant from then on. It is measured in every turn, from outside: the guest is
asked for its clock before and after, which is exact to a few milliseconds, and all turns of a boot
together say how fast the clock is. Times are then divided by that rate, and frequencies multiplied.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lightsleep import units
from lightsleep.errors import LightsleepError
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.run.experiment import Metric

TOLERANCE = 0.2
"""How far a guest's clock may be off: beyond, its timers are too wrong for what is measured."""
EXACT = 0.01
"""How far off a measured rate may be."""
SPAN_S = 1.0
"""How long a clock is watched where the turns were too short to know its rate; then twice as long,
and so on."""
WATCHES = 5
"""How often a clock is watched at most: for 31 s together."""


class ClockOff(LightsleepError):
    """A guest's clock is too far off. Its rate is another one in the next boot."""


@dataclass
class Clock:
    """How far a guest's clock went while the host's did, in ns, over all spans so far.

    ``unsure_ns`` bounds the error: a guest reads its clock at some time between the question and
    the answer.
    """

    guest_ns: int = 0
    host_ns: int = 0
    unsure_ns: float = 0

    @contextlib.contextmanager
    def span(self, guest: Guest) -> Iterator[None]:
        """Add a span in which ``guest`` runs."""
        before, start_ns, start_unsure_ns = _read(guest)
        yield
        after, end_ns, end_unsure_ns = _read(guest)
        self.guest_ns += after - before
        self.host_ns += end_ns - start_ns
        self.unsure_ns += start_unsure_ns + end_unsure_ns

    @property
    def rate(self) -> float:
        """How fast the clock is: 1.1 where it says 11 s after 10 s."""
        return self.guest_ns / self.host_ns

    @property
    def error(self) -> float:
        """How far off the rate may be: 0.01 for 1 %."""
        return self.unsure_ns / self.host_ns if self.host_ns else math.inf

    @property
    def is_exact(self) -> bool:
        """Whether the rate is known well enough."""
        return self.error <= EXACT

    def check(self, guest: Guest) -> None:
        """Watch the clock of a running guest until its rate is exact.

        Raises LightsleepError where it does not become exact, ClockOff where it is too far off.
        """
        for watch in range(WATCHES):
            if self.is_exact:
                break
            with self.span(guest):
                time.sleep(SPAN_S * 2**watch)
        if not self.is_exact:
            raise LightsleepError(
                f"{guest.name}: after {self.host_ns / 1e9:.0f} s, the rate of its clock is known "
                f"only to within {100 * self.error:.2g} %, because the busy host delays its "
                f"answers; to correct its times, {100 * EXACT:g} % is needed: end other work on "
                "the host, and run it again"
            )
        if abs(self.rate - 1) > TOLERANCE:
            failure = guest.failure(
                f"its clock is {self.rate:.2f} times as fast as the host's, because the host was "
                "busy while its kernel booted"
            )
            raise ClockOff(failure.message)


def _read(guest: Guest) -> tuple[int, int, float]:
    """Return a guest's clock, the host's at that time, and how far apart they may be, in ns."""
    asked_ns = time.monotonic_ns()
    guest_ns = guest.clock_ns()
    answered_ns = time.monotonic_ns()
    return guest_ns, (asked_ns + answered_ns) // 2, (answered_ns - asked_ns) / 2


def corrected(
    metrics: Sequence[Metric],
    samples: Mapping[str, Mapping[str, Sequence[float]]],
    rates: Mapping[str, float],
) -> dict[str, dict[str, list[float]]]:
    """Return samples, by metric and arm, as the host's clock would have them."""
    return {
        metric.name: {
            arm: [value * _factor(metric, rates[arm]) for value in values]
            for arm, values in samples[metric.name].items()
        }
        for metric in metrics
    }


def _factor(metric: Metric, rate: float) -> float:
    if metric.clock == "host":
        return 1.0
    if metric.unit in units.TIMES:
        return 1 / rate
    return rate if metric.unit.endswith("/s") else 1.0
