# SPDX-License-Identifier: GPL-2.0-only
"""What waking costs on each architecture: every idle state it has, by IPI and by timer.

The table that a latency test for POWER once printed, on any machine: a busy CPU's baseline, then
each state. Its states depend on the machine, so they are asked of the guest: powernv9 has four,
guests without an idle driver only the architecture's own way to halt.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from lightsleep.compare.result import Claim
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.loads.waking import DEST_CPU, MODULE, Row, measure_in, median_us, sources
from lightsleep.lab.run.experiment import Arm, Experiment, Metric

SOURCES = ("ipi", "timer")
FASTER = Metric(
    "faster_than_busy",
    "",
    "lower",
    "States faster than busy",
    "States whose interval of the median (95 %) ends below that of the busy CPU by both sources",
)


def name_of(row: Row) -> str:
    """Return the name of a row's metric."""
    state = re.sub(r"[^a-z0-9]+", "_", row["name"].lower()).strip("_")
    return f"{row['source']}_{state}_us"


def rows_in(guest: Guest, samples: int) -> list[Row]:
    """Measure the guest's CPU; return a row per source, baseline and state."""
    document = measure_in(guest, "-c", str(DEST_CPU), *sources(*SOURCES), "-n", str(samples))
    order = {source: place for place, source in enumerate(SOURCES)}
    return sorted(
        document["rows"],
        key=lambda row: (order[row["source"]], -1 if row["state"] is None else row["state"]),
    )


def metrics(guest: Guest) -> tuple[Metric, ...]:
    """Return a metric per row of a first, short measurement, and how many states are too fast."""
    rows = rows_in(guest, samples=20)
    return (
        *(
            Metric(
                name_of(row),
                "us",
                "none",
                f"{row['name']}, woken by {row['source']}",
                "Median wake latency, raw"
                + (
                    ""
                    if row["advertised_us"] is None
                    else f"; advertises {row['advertised_us']} us"
                ),
            )
            for row in rows
        ),
        FASTER,
    )


def measure(guest: Guest) -> dict[str, float]:
    """Return the raw median of every row, and how many states are faster than a busy CPU."""
    return figures(rows_in(guest, samples=200))


def figures(rows: Sequence[Row]) -> dict[str, float]:
    """Return the metrics of one measurement."""
    intervals = [(row, row["raw"]["ci_ns"]) for row in rows if row["raw"] and row["raw"]["ci_ns"]]
    busy = {row["source"]: ci_ns for row, ci_ns in intervals if row["kind"] == "busy"}
    faster = Counter(
        row["state"]
        for row, ci_ns in intervals
        if row["kind"] == "state" and row["source"] in busy and ci_ns[1] < busy[row["source"]][0]
    )
    by_both = sum(count == len(SOURCES) for count in faster.values())
    return {name_of(row): median_us(row) for row in rows} | {FASTER.name: by_both}


EXPERIMENT = Experiment(
    title="What waking costs, by state and source",
    hypothesis=(
        "On every architecture, no idle state that the machine has is faster than a busy CPU. "
        "Falsified by one state that is faster beyond the intervals in a round, by IPI and by "
        "timer: a disturbance rarely slows the busy CPU by both. A state that cannot be measured "
        "ends the comparison."
    ),
    arms=(
        Arm(
            "stock",
            "baseline",
            "the kernel as it is",
            modules=(MODULE,),
        ),
        Arm(
            "stock-again",
            "control",
            "a second guest booted exactly as stock",
            modules=(MODULE,),
        ),
    ),
    metrics=metrics,
    measure=measure,
    least_vcpus=DEST_CPU + 1,
    claims=(Claim("stock", None, (FASTER.name,), at_most=0),),
)
