# SPDX-License-Identifier: GPL-2.0-only
"""Made-up results to test with: four arms, six metrics, figures like those of a real run."""

from __future__ import annotations

import random
from collections.abc import Sequence

from lightsleep.compare.result import Better, Claim, CompareResult, MetricResult, Role

ROLES: dict[str, Role] = {
    "stock": "baseline",
    "control": "control",
    "idle=poll": "limit",
    "lightsleep": "treatment",
}

# name, unit, better, title, centre of each arm's samples, largest distance from it
METRICS: list[tuple[str, str, Better, str, tuple[float, ...], float]] = [
    ("sched_pipe_s", "s", "lower", "sched pipe", (2.2, 2.2, 0.32, 0.368), 0.01),
    ("sched_messaging_s", "s", "lower", "messaging", (1.1, 1.1, 1.1, 1.1), 0.05),
    ("sched_seccomp_notify_s", "s", "lower", "seccomp notify", (1.4, 1.4, 0.25, 0.27), 0.01),
    ("ipis", "", "lower", "Interrupts between CPUs", (39_700, 39_700, 60, 200), 9),
    ("wakes_without_ipi", "", "none", "Wakes without interrupt", (0, 0, 39_800, 39_700), 0),
    ("idle_residency_pct", "%", "higher", "idle residency", (99.93, 99.93, 0.1, 99.92), 0.002),
]

CLAIMS = [
    Claim("lightsleep", "stock", ("sched_pipe_s", "sched_seccomp_notify_s")),
    Claim("lightsleep", "idle=poll", ("sched_pipe_s",), at_most=1.25),
    Claim("lightsleep", "stock", ("ipis",), at_most=0.001),
    Claim("lightsleep", "stock", ("idle_residency_pct",), at_least=-0.0105),
]


def made_up(
    n: int = 10, seed: int = 1, metrics: int = len(METRICS), boots: int = 1
) -> CompareResult:
    """Return ``n`` samples per arm of the first ``metrics``; the control equals the baseline."""
    rng = random.Random(seed)

    def samples(centres: Sequence[float], reach: float, unit: str) -> dict[str, list[float]]:
        # Symmetric steps, in every other arm negated, so that no verdict depends on luck.
        steps = [reach * (2 * (i + 0.5) / n - 1) for i in range(n)]
        rng.shuffle(steps)
        places = 0 if unit == "" else 6
        return {
            arm: [round(centre + (-1) ** number * step, places) for step in steps]
            for number, (arm, centre) in enumerate(zip(ROLES, centres, strict=True))
        }

    return CompareResult(
        experiment="idle",
        title="Polling idle against halting idle",
        hypothesis="Polling wakes at least 5 times faster.\nFalsified by less than that.",
        created="2026-11-20T08:30:00+00:00",
        environment={
            "accelerator": {"name": "tcg", "reason": "a probe boot under KVM hung"},
            "host": {"cpu_model": "Example CPU 9000", "kernel": "6.1.0-38", "qemu": "7.2.22"},
            "guests": {arm: {"description": f"what {arm} is", "governor": "menu"} for arm in ROLES},
        },
        protocol={
            "runs": n,
            "warmup": 1,
            "seed": seed,
            "order": [rng.sample(list(ROLES), len(ROLES)) for _ in range(n + boots)],
            "rest_s": 20,
            **({"boots": boots, "clock_rates": {"stock": [0.98] * boots}} if boots > 1 else {}),
        },
        claims=[claim for claim in CLAIMS if {*claim.metrics} <= {m[0] for m in METRICS[:metrics]}],
        arms=list(ROLES),
        roles=dict(ROLES),
        metrics={
            name: MetricResult(
                unit,
                better,
                title,
                f"how {title} was measured",
                samples(centres, reach, unit),
            )
            for name, unit, better, title, centres, reach in METRICS[:metrics]
        },
    )
