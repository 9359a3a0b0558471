# SPDX-License-Identifier: GPL-2.0-only
"""The workload every idle experiment shares: a pipe ping-pong, timed, its interrupts counted."""

from __future__ import annotations

from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.loads.interrupts import BETWEEN_CPUS, received
from lightsleep.lab.run.experiment import Metric

TURNS = 3000


def ping_pong(turns: int) -> tuple[str, ...]:
    """Return the command that passes a byte back and forth ``turns`` times."""
    return ("perf", "bench", "-f", "simple", "sched", "pipe", "-l", str(turns))


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


def measure_pipe(guest: Guest, turns: int = TURNS) -> dict[str, float]:
    """Run the ping-pong once; return its time in seconds and the interrupts between CPUs."""
    before = received(guest, *BETWEEN_CPUS)
    seconds = float(guest.run(ping_pong(turns)).stdout)
    return {SCHED_PIPE_S.name: seconds, IPIS.name: received(guest, *BETWEEN_CPUS) - before}
