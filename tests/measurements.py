# SPDX-License-Identifier: GPL-2.0-only
"""Made-up measurements: states that tell the truth, that lie, that are never entered."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from lightsleep.measure.result import MeasureResult, Mode, Row, Verdict, VerdictKind
from lightsleep.measure.summary import subtract, summarise


class State(NamedTuple):
    """What is advertised, what a wake really takes (None: never entered), and the verdict on it."""

    name: str
    advertised_us: float | None
    residency_us: float | None
    true_us: float | None
    kind: VerdictKind


STATES = [
    State("POLL", None, None, 0.3, "nothing-advertised"),
    State("C1", 2, 2, 2.1, "agrees"),
    State("C1E", 10, 20, 21, "optimistic"),
    State("C6", 133, 400, 60, "pessimistic"),
    State("C10", 890, 5000, None, "not-entered"),
]

# How long it takes to wake a busy CPU, in us.
COSTS = {"timer": 0.9, "ipi": 1.6, "store": 0.25, "device": 6.0}
TEXTS: dict[VerdictKind, str] = {
    "not-entered": "never entered: the CPU was in C6 instead",
    "nothing-advertised": "nothing advertised to compare with",
}


def made_up(
    cpus: Sequence[int] = (1, 2),
    sources: Sequence[str] = ("timer", "ipi"),
    states: Sequence[State] = STATES,
    samples: int = 60,
    mode: Mode = "module",
    seed: int = 1,
) -> MeasureResult:
    """Return a measurement of these CPUs, each row with so many samples."""
    rng = random.Random(seed)
    rows = [
        row
        for cpu in cpus
        for source in sources
        for row in _rows_of(rng, cpu, source, states, samples)
    ]
    return MeasureResult(
        created="2026-11-20T08:30:00+00:00",
        mode=mode,
        environment={
            "kernel": "6.12.41",
            "arch": "x86_64",
            "cmdline": "root=/dev/vda quiet",
            "cpu_model": "Example CPU 9000",
            "hypervisor": None,
            "cpuidle_driver": "intel_idle",
            "governor": "menu",
            "clocksource": "tsc",
            "cpus": max(cpus, default=0) + 2,
        },
        settings={
            "cpus": list(cpus),
            "sources": list(sources),
            "samples": samples,
            "seed": seed,
        },
        notes=["CPU 3 is set apart (isolated): only with -c", "Other load: 3 % of the time"],
        rows=rows,
    )


def without_samples(row: Row) -> Row:
    """Return the row as it is when no sample was valid."""
    return replace(row, latencies_ns=[], raw=None, subtracted=None, path=None)


def _rows_of(
    rng: random.Random, cpu: int, source: str, states: Sequence[State], samples: int
) -> list[Row]:
    def latencies(true_us: float | None) -> list[int]:
        wakes = 0 if true_us is None else samples
        # A tail as real ones have: most wakes are alike, some are much slower.
        return [
            round(
                1000
                * (
                    COSTS[source] * rng.lognormvariate(0, 0.08)
                    + true_us * rng.lognormvariate(0, 0.03)
                )
                + (1000 * rng.expovariate(0.1) if rng.random() < 0.03 else 0)
            )
            for _ in range(wakes)
            if true_us is not None
        ]

    busy = latencies(0)
    baseline = summarise(busy)
    rows = []
    for index, state in [(None, State("busy", None, None, 0, "baseline")), *enumerate(states)]:
        taken = busy if index is None else latencies(state.true_us)
        raw = summarise(taken)
        subtracted = subtract(raw, baseline) if raw and baseline and index is not None else None
        ratio = None
        if subtracted and state.advertised_us:
            ratio = subtracted.p50_ns / 1000 / state.advertised_us
        rows.append(
            Row(
                cpu=cpu,
                source_cpu=None if source == "timer" else 0,
                source=source,
                kind="busy" if index is None else "state",
                state=index,
                name=state.name,
                advertised_us=state.advertised_us,
                residency_us=state.residency_us,
                path=None if not taken else "timer" if source == "timer" else "ipi",
                latencies_ns=taken,
                invalid={} if taken else {"wrong-state": samples},
                usage=None if index is None else len(taken),
                elapsed_s=len(taken) / 1000,
                raw=raw,
                subtracted=subtracted,
                verdict=Verdict(state.kind, ratio, None, TEXTS.get(state.kind, state.kind)),
            )
        )
    return rows
