# SPDX-License-Identifier: GPL-2.0-only
"""What a wake costs that needs no interrupt: a store to a CPU that polls, against an IPI to HALT.

Both wakes have ends of their own: that by store ends where the CPU leaves its state, that by IPI
where the called function runs.

The ledger of paths is checked against the kernel's own: wakes of this CPU without an IPI, counted
by the tracepoint sched_wake_idle_without_ipi over the very same measurement.
"""

from __future__ import annotations

import json

from lightsleep.compare.result import Claim
from lightsleep.errors import LightsleepError
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.loads.waking import DEST_CPU, MODULE, Row, median_us, rows_of
from lightsleep.lab.run.experiment import Arm, Experiment, Metric

SAMPLES = 1000
TRACEPOINT = "sched:sched_wake_idle_without_ipi"
COUNTED = "/run/count"
COUNT = ("perf", "stat", "-a", "-x,", "-o", COUNTED, "-e", TRACEPOINT)


def measure(guest: Guest) -> dict[str, float]:
    """Measure by store where the CPU polls, by IPI where it does not."""
    polls = guest.read_text("/sys/devices/system/cpu/cpuidle/current_driver").strip() != "none"
    source, states = ("store", ["--state", "POLL"]) if polls else ("ipi", [])
    done = guest.run(
        [
            *(*COUNT, "--filter", f"cpu == {DEST_CPU}"),
            *("python3", "-m", "lightsleep", "measure", "--mode", "module", "--json"),
            *("-c", str(DEST_CPU), "--source", source, *states, "-n", str(SAMPLES)),
        ],
        timeout_s=300,
    )
    count = guest.read_text(COUNTED).splitlines()[-1].split(",")[0]
    row = rows_of(json.loads(done.stdout), source)[0]
    if not row["latencies_ns"] or row["path"] == "mixed":
        found = "some without an interrupt" if row["latencies_ns"] else "none valid"
        raise LightsleepError(f"{guest.name}: of the samples by {source}, {found}: measure again")
    return figures(row, int(count))


def figures(row: Row, tracepoint: int) -> dict[str, float]:
    """Return the figures of a row of measure, and of the free wakes that the kernel counted.

    A sample by store is valid only if it took no interrupt, so the share is of all samples: those
    that were rejected count as wakes with an interrupt.
    """
    valid = len(row["latencies_ns"])
    without = valid if row["path"] == "none" else 0
    return {
        "wake_us": median_us(row),
        "without_ipi_pct": 100 * without / (valid + sum(row["invalid"].values())),
        "tracepoint": tracepoint,
        "uncounted": max(0, without - tracepoint),
    }


EXPERIMENT = Experiment(
    title="A wake by store against a wake by IPI",
    hypothesis=(
        "A CPU that polls in cpuidle-lightsleep is woken by a store, without an interrupt, in a "
        "fraction of the time that an IPI needs to wake one that halts; the kernel's tracepoint "
        "counts at least every wake that the samples call free of interrupts. Falsified if the "
        "store is not faster, or if the tracepoint counts fewer."
    ),
    arms=(
        Arm(
            "ipi-halt",
            "baseline",
            "a stock kernel's HALT, woken by IPI",
            modules=(MODULE,),
        ),
        Arm(
            "store-poll",
            "treatment",
            "POLL of cpuidle-lightsleep, woken by store",
            modules=("cpuidle_lightsleep", MODULE),
        ),
        Arm("ipi-halt-again", "control", "booted as ipi-halt is", modules=(MODULE,)),
    ),
    metrics=(
        Metric(
            "wake_us",
            "us",
            "lower",
            "Wake latency",
            "Median, raw: from the launch until the CPU leaves its state (store), or until the "
            "called function runs on it (IPI)",
        ),
        Metric(
            "without_ipi_pct",
            "%",
            "none",
            "Wakes without interrupt",
            "Share of all samples, rejected ones included, that are valid and whose path was a "
            "store alone",
        ),
        Metric(
            "tracepoint",
            "",
            "none",
            "Free wakes by the kernel",
            f"{TRACEPOINT} for this CPU meanwhile (rejected samples and others' wakes included)",
        ),
        Metric(
            "uncounted",
            "",
            "lower",
            "Free wakes that the kernel missed",
            f"Valid samples whose path was a store alone, less what {TRACEPOINT} counted; 0 if it "
            "counted as many or more",
        ),
    ),
    measure=measure,
    claims=(
        Claim("store-poll", "ipi-halt", ("wake_us",)),
        Claim("store-poll", None, ("uncounted",), at_most=0),
    ),
    least_vcpus=DEST_CPU + 1,
)
