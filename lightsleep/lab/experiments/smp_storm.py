# SPDX-License-Identifier: GPL-2.0-only
"""What sparing polling CPUs an interrupt costs CPUs that never poll: all are busy.

They interrupt one another as fast as they can (loads/storm.py), so each call asks of each CPU
whether it polls, and none does.
"""

from __future__ import annotations

from lightsleep.compare.result import Claim
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.loads.interrupts import CALLS, received
from lightsleep.lab.run.experiment import Arm, Experiment, Metric

SECONDS = 3
KINDS = ("calls", "unmap")


def rate(guest: Guest, kind: str) -> tuple[float, float]:
    """Return how often per second that was done, and the interrupts of calls per second."""
    rows = (CALLS, "TLB shootdowns")
    before = received(guest, *rows)
    argv = ("python3", "-m", "lightsleep.lab.loads.storm", kind, "--seconds", str(SECONDS))
    per_s = float(guest.run(argv, timeout_s=60).stdout)
    return per_s, (received(guest, *rows) - before) / SECONDS


def measure(guest: Guest) -> dict[str, float]:
    """Run both kinds once."""
    values: dict[str, float] = {}
    for kind in KINDS:
        values[f"{kind}_per_s"], values[f"{kind}_ipis_per_s"] = rate(guest, kind)
    return values


EXPERIMENT = Experiment(
    title="CPUs that are all busy and call one another",
    hypothesis=(
        "With the series, CPUs that are busy call one another as often per second as without, and "
        "unmap memory as often: both together at least 0.9 times. Each raises 0.9 to 1.1 times as "
        "many interrupts per second."
    ),
    arms=(
        Arm("stock", "baseline", "without the series", kernel="6.12-plain"),
        Arm("series", "treatment", "with the series", kernel="6.12-series"),
        Arm("stock-again", "control", "booted as stock is", kernel="6.12-plain"),
    ),
    metrics=(
        Metric(
            "calls_per_s",
            "1/s",
            "higher",
            "Calls between busy CPUs",
            f"membarrier(2), GLOBAL_EXPEDITED, by a process on each CPU, for {SECONDS} s",
        ),
        Metric(
            "calls_ipis_per_s", "1/s", "none", "Interrupts of these calls", "From /proc/interrupts"
        ),
        Metric(
            "unmap_per_s",
            "1/s",
            "higher",
            "Unmapping by all CPUs",
            "256 KiB mapped, touched and unmapped by a thread on each CPU, all of one process, "
            f"for {SECONDS} s",
        ),
        Metric(
            "unmap_ipis_per_s", "1/s", "none", "Interrupts of unmapping", "From /proc/interrupts"
        ),
    ),
    measure=measure,
    claims=(
        Claim("series", "stock", ("calls_per_s", "unmap_per_s"), at_least=0.9),
        *(
            Claim("series", "stock", (f"{kind}_ipis_per_s",), at_least=0.9, at_most=1.1)
            for kind in KINDS
        ),
    ),
    least_vcpus=2,
)
