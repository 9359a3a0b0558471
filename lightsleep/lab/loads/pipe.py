# SPDX-License-Identifier: GPL-2.0-only
"""The workload every idle experiment shares: a pipe ping-pong, timed, its interrupts counted."""

from __future__ import annotations

from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.loads.interrupts import BETWEEN_CPUS, received
from lightsleep.lab.run.experiment import Metric

TURNS = 3000
PIPE = ("perf", "bench", "-f", "simple", "sched", "pipe", "-l", str(TURNS))
PIPE_WAKES = 2 * TURNS
"""Each turn wakes one task, then the other."""

SCHED_PIPE_S = Metric(
    "sched_pipe_s",
    "s",
    "lower",
    "Pipe ping-pong",
    f"Two tasks pass a byte back and forth: {' '.join(PIPE)}",
)
IPIS = Metric(
    "ipis",
    "",
    "lower",
    "Interrupts between CPUs",
    "Rescheduling and function call interrupts during the pipe run",
)


def measure_pipe(guest: Guest) -> dict[str, float]:
    """Run the ping-pong once; return its time in seconds and the interrupts between CPUs."""
    before = received(guest, *BETWEEN_CPUS)
    seconds = float(guest.run(PIPE).stdout)
    return {SCHED_PIPE_S.name: seconds, IPIS.name: received(guest, *BETWEEN_CPUS) - before}
