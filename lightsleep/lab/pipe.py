# SPDX-License-Identifier: GPL-2.0-only
"""The workload every idle experiment shares: a pipe ping-pong, timed, its interrupts counted."""

from __future__ import annotations

from lightsleep.lab.experiment import Metric
from lightsleep.lab.guest import Guest

PIPE = ("perf", "bench", "-f", "simple", "sched", "pipe", "-l", "8000")

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
    "Rescheduling and function call interrupts (RES, CAL) during the pipe run",
)


def interrupts(table: str, *labels: str) -> int:
    """Return the sum over all CPUs of the rows ``labels`` of /proc/interrupts."""
    return sum(
        int(word)
        for row in table.splitlines()
        if row.split(":")[0].strip() in labels
        for word in row.split()[1:]
        if word.isdigit()
    )


def measure_pipe(guest: Guest) -> dict[str, float]:
    """Run the ping-pong once; return its time in seconds and the interrupts between CPUs."""
    before = guest.read_text("/proc/interrupts")
    seconds = float(guest.run(PIPE).stdout)
    after = guest.read_text("/proc/interrupts")
    sent = interrupts(after, "RES", "CAL") - interrupts(before, "RES", "CAL")
    return {SCHED_PIPE_S.name: seconds, IPIS.name: sent}
