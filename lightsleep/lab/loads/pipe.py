# SPDX-License-Identifier: GPL-2.0-only
"""The workload every idle experiment shares: a pipe ping-pong, timed, its interrupts counted."""

from __future__ import annotations

from lightsleep.lab.boot.guest import Guest
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
CALLS = "Function call interrupts"
BETWEEN_CPUS = ("Rescheduling interrupts", CALLS)
"""What their rows of /proc/interrupts end in; what they begin with depends on the architecture."""


def interrupts(table: str, *rows: str) -> int:
    """Return the sum over all CPUs of the rows of /proc/interrupts that end in one of ``rows``."""
    return sum(
        int(word)
        for row in table.splitlines()
        if row.endswith(rows)
        for word in row.split()[1:]
        if word.isdigit()
    )


def measure_pipe(guest: Guest) -> dict[str, float]:
    """Run the ping-pong once; return its time in seconds and the interrupts between CPUs."""
    before = guest.read_text("/proc/interrupts")
    seconds = float(guest.run(PIPE).stdout)
    after = guest.read_text("/proc/interrupts")
    sent = interrupts(after, *BETWEEN_CPUS) - interrupts(before, *BETWEEN_CPUS)
    return {SCHED_PIPE_S.name: seconds, IPIS.name: sent}
