# SPDX-License-Identifier: GPL-2.0-only
"""The workload every idle experiment shares: a pipe ping-pong, timed, its interrupts counted."""

from __future__ import annotations

import re

from lightsleep.errors import LightsleepError
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.loads.interrupts import BETWEEN_CPUS, received
from lightsleep.lab.run.experiment import Metric

TURNS = 3000
US_PER_OPERATION = re.compile(r"^ *(\d+\.\d+) usecs/op$", re.MULTILINE)


def ping_pong(turns: int) -> tuple[str, ...]:
    """Return the command that passes a byte back and forth ``turns`` times."""
    return ("perf", "bench", "sched", "pipe", "-l", str(turns))


def ping_pong_s(turns: int) -> Metric:
    """Return the metric that is this command's time."""
    return Metric(
        "sched_pipe_s",
        "s",
        "lower",
        "Pipe ping-pong",
        f"Two tasks pass a byte back and forth: {' '.join(ping_pong(turns))}",
    )


PIPE = ping_pong(TURNS)
PIPE_WAKES = 2 * TURNS
"""Each turn wakes one task, then the other."""

SCHED_PIPE_S = ping_pong_s(TURNS)
IPIS = Metric(
    "ipis",
    "",
    "lower",
    "Interrupts between CPUs",
    "Rescheduling and function call interrupts during the pipe run",
)


def bench_s(text: str, operations: int) -> float:
    """Return how many seconds perf bench took, from what it printed for so many ``operations``.

    The total time, which is all that ``-f simple`` prints, is in steps of 1 ms: several percent of
    such a run. What it prints for each operation is exact to the microsecond in total.
    """
    found = US_PER_OPERATION.findall(text)
    if len(found) != 1:
        raise LightsleepError(
            "perf bench: its output has another form than expected, without one time in usecs/op "
            f"(is it another version?):\n{text.strip()[-2000:] or '(no output)'}"
        )
    return float(found[0]) * operations / 1e6


def measure_pipe(guest: Guest, turns: int = TURNS) -> dict[str, float]:
    """Run the ping-pong once; return its time in seconds and the interrupts between CPUs."""
    before = received(guest, *BETWEEN_CPUS)
    seconds = bench_s(guest.run(ping_pong(turns)).stdout, turns)
    return {SCHED_PIPE_S.name: seconds, IPIS.name: received(guest, *BETWEEN_CPUS) - before}
