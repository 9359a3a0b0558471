# SPDX-License-Identifier: GPL-2.0-only
"""Settings that alternate in time, for a service that runs on: a switchback experiment.

There is no command to repeat. So every setting holds for a period, in rounds of random order, and
what the machine and the service did in that period is a sample. A round is a block: its periods lie
side by side, so what the load does over the day hits all settings alike.

The first part of a period is dropped: CARRY_OVER of it. In it, the queues of the previous setting
drain, and lightsleep's driver, loaded a moment ago, learns. The module is not kept loaded
with mode=off between its periods: as-is would then be another idle loop than the one that was
found, and the comparison with it would be with something nobody runs.
"""

import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lightsleep.errors import LightsleepError, WrongUsage
from lightsleep.options import check_program
from lightsleep.trial import metrics, process, reading, run

CARRY_OVER = 0.25
"""The share of each period that does not count."""

LEAST_S = 1.0
"""The shortest period: ticks, by which the kernel counts idle time, are 1 % of a CPU then."""

ASK_S = 60.0
"""How long the metric command may run."""

LATE = 1.25
"""The trial ends after the warm-up if, at its pace, a verdict would take longer than this many
times --for."""


@dataclass(frozen=True)
class Plan:
    """How long each setting holds, in how many rounds, and what prints numbers of the service.

    ``units`` are those of the numbers, as in metrics.find().
    """

    period_s: float
    rounds: int
    argv: list[str]
    printed: list[metrics.Printed]
    total_s: float
    least: int
    units: dict[str, str] = field(default_factory=dict)

    @property
    def carry_over_s(self) -> float:
        """The part of a period that does not count, in seconds."""
        return CARRY_OVER * self.period_s

    def goes_on(self, rounds: int, elapsed_s: float) -> bool:
        """Return whether another round begins, after so many with the warm-up.

        Periods take longer than was planned where settings change slowly, or where the command does
        that prints the numbers. Raises LightsleepError where the warm-up tells that there will be
        no verdict in time. Later slow rounds make the trial longer; they do not end it.
        """
        least = self.least + run.WARMUP
        needed_s = elapsed_s / rounds * least
        if rounds == run.WARMUP and needed_s > LATE * self.total_s:
            raise LightsleepError(
                f"a round takes {elapsed_s / rounds:.3g} s, with the changes of settings and the "
                f"metric command: for a verdict, --for must be {math.ceil(needed_s)}s or longer"
            )
        return rounds < least or elapsed_s < self.total_s


def plan(
    period_s: float,
    total_s: float,
    arms: int,
    command: str,
    printed: list[metrics.Printed],
    least: int,
) -> Plan:
    """Return as many rounds as fit into ``total_s``, the warm-up included.

    Raises WrongUsage, also where they are less than ``least``, and LightsleepError where there is
    no such program as ``command`` names.
    """
    try:
        argv = shlex.split(command)
    except ValueError as error:
        raise WrongUsage(f"--metric-command {command!r}: {error}") from error
    if bool(argv) != bool(printed):
        raise WrongUsage("--metric-command prints the numbers that --metric names: give both")
    if period_s < LEAST_S:
        raise WrongUsage(f"--switchback is too short: a period is {LEAST_S:g} s or longer")
    rounds = int(total_s / (period_s * arms) + 1e-9) - run.WARMUP
    if rounds < least:
        least_s = period_s * arms * (least + run.WARMUP)
        raise WrongUsage(
            f"--for is too short: {arms} settings (with the control) of {period_s:g} s each need "
            f"{least_s:g} s for a verdict"
        )
    if rounds > run.MOST_ROUNDS:
        raise WrongUsage(
            f"--for is too long: it has {rounds} rounds of {arms} settings (with the control), and "
            f"{run.MOST_ROUNDS} is the maximum; choose a longer --switchback"
        )
    if argv:
        check_program(argv[0], "--metric-command: cannot run")
    return Plan(period_s, rounds, argv, printed, total_s, least)


def period(plan: Plan, root: Path) -> dict[str, float]:
    """Measure one period under the setting of the moment. Raises LightsleepError."""
    time.sleep(plan.carry_over_s)
    counts = any(x.rate for x in plan.printed)
    start, first = time.monotonic(), _ask(plan.argv) if counts else ""
    before = reading.read(root)
    time.sleep(plan.period_s - plan.carry_over_s)
    after = reading.read(root)
    end, last = time.monotonic(), _ask(plan.argv)
    found = {x.name: _figure(plan, x, first, last, end - start) for x in plan.printed}
    return found | metrics.of_period(before, after)


def _ask(argv: Sequence[str]) -> str:
    """Return what the metric command prints; nothing without one. Raises LightsleepError."""
    return process.execute(argv, ASK_S, "--metric-command")[2] if argv else ""


def _figure(plan: Plan, printed: metrics.Printed, first: str, last: str, span_s: float) -> float:
    value = metrics.find(printed, last, plan.units)
    if not printed.rate:
        return value
    rose = value - metrics.find(printed, first, plan.units)
    if rose < 0:
        raise LightsleepError(
            f"metric {printed.name}: the counter fell by {-rose:g} in a period: was the service "
            "restarted?"
        )
    return rose / span_s
