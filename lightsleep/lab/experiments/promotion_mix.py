# SPDX-License-Identifier: GPL-2.0-only
"""What promotion is worth where a CPU sleeps for all kinds of times (loads/mix.py)."""

from __future__ import annotations

from lightsleep.compare.result import Claim
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.experiments.promotion_cost import arms
from lightsleep.lab.loads.promotions import KNOBS, counts, need_states
from lightsleep.lab.run.experiment import Experiment, Metric

CPU = 1
SLEEPS = 2000
STATES = "c1:2:2,c1e:10:20,c6:133:600"
"""As of a server: those that promotion.py uses are too shallow for sleeps that Python makes."""


def times_us(guest: Guest) -> list[int]:
    """Return the time that CPU has spent in each of its idle states, by depth."""
    done = guest.run(["sh", "-c", f"cat {KNOBS.format(cpu=CPU)}/time"])
    return [int(word) for word in done.stdout.split()]


def measure(guest: Guest) -> dict[str, float]:
    """Go through the sleeps once."""
    need_states(guest, STATES)
    before, spent_us = counts(guest, CPU), times_us(guest)
    guest.run(
        ["python3", "-m", "lightsleep.lab.loads.mix", "--cpu", str(CPU), "--count", str(SLEEPS)],
        timeout_s=300,
    )
    counted = counts(guest, CPU) - before
    slept_us = [now - then for now, then in zip(times_us(guest), spent_us, strict=True)]
    return {
        "deep_pct": 100 * slept_us[-1] / sum(slept_us),
        "wakes": counted.entered / SLEEPS,
        "promotions": counted.promoted / SLEEPS,
    }


EXPERIMENT = Experiment(
    title="Promotion over a mix of sleeps",
    hypothesis=(
        "With promotion a CPU spends more of its idle time in the deepest state, under menu and "
        "under teo; under menu also more than with a timer that only ends the sleep."
    ),
    arms=arms(),
    metrics=(
        Metric(
            "deep_pct",
            "%",
            "higher",
            "Idle time in the deepest state",
            f"Share of the idle time of one CPU, over the same {SLEEPS} sleeps in every arm and "
            "round: bursts, timers, single wakes and pauses, from 5 us to 50 ms",
        ),
        Metric("wakes", "", "lower", "Wakes per sleep", "Idle states left, promotions included"),
        Metric("promotions", "", "none", "Promotions per sleep", "States ended by the timer"),
    ),
    measure=measure,
    claims=(
        Claim("menu-promotion", "menu", ("deep_pct",)),
        Claim("teo-promotion", "teo", ("deep_pct",)),
        Claim("menu-promotion", "menu-timer", ("deep_pct",)),
    ),
    least_vcpus=CPU + 1,
    warmup=0,
    accel="tcg-icount",
)
