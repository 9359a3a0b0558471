# SPDX-License-Identifier: GPL-2.0-only
"""How long a CPU stays in a shallow idle state by mistake, with and without promotion.

A burst of short sleeps teaches the governor that sleeps are short; then nothing comes
(loads/silence.py). menu and teo keep the tick in that case, which ends the mistake after some
milliseconds at the earliest; ladder stops it. A timer that ends the sleep, for the governor to
choose again, is what was proposed before: promote_by_timer.c.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from lightsleep.compare.result import Claim
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.loads.promotions import (
    KERNEL,
    Counts,
    counts,
    need_states,
    shallow_us,
    silences,
)
from lightsleep.lab.loads.silence import Silence
from lightsleep.lab.run.experiment import Arm, Experiment, Metric

CPU = 1
SILENCES = 10
FOOLED_POINTS = 10
"""By how much less an arm may be misled than the one that it is compared with."""
COMPARED = (("lightsleep", "tick"), ("lightsleep", "seed"), ("lightsleep-ladder", "off"))

EXIT_SHALLOW_US = Metric(
    "exit_shallow_us",
    "us",
    "lower",
    "Time in a shallow idle state by mistake",
    "From the begin of the silence until a deep state is entered, or until it ends: one beyond "
    "all that the driver asks to leave, or the deepest; "
    f"median over {SILENCES} silences of those that began in another state; 0 if none did",
    amount=True,
)

PROMOTIONS = Metric(
    "promotions",
    "",
    "none",
    "Promotions per silence",
    "States ended by the timer, bursts included",
)


def figures(found: Sequence[Silence], counted: Counts) -> dict[str, float]:
    """Return the metrics of one run.

    Where no silence began shallow, the times are 0. That is no gain: a claim on fooled_pct tells
    whether the arms that are compared were misled alike, and 0 as a reference decides nothing.
    """
    fooled = shallow_us(found)
    length_us = sum(x.length_us for x in found)
    return {
        "exit_shallow_us": statistics.median(fooled or [0]),
        "longest_us": max(fooled, default=0),
        "fooled_pct": 100 * len(fooled) / len(found),
        "deep_pct": 100 * sum(x.deep_us for x in found) / length_us,
        "wakes": sum(x.wakes for x in found) / len(found),
        "promotions": counted.promoted / len(found),
    }


def measure(guest: Guest) -> dict[str, float]:
    """Go through bursts and silences on one CPU."""
    need_states(guest)
    before = counts(guest, CPU)
    found = silences(guest, CPU, SILENCES)
    return figures(found, counts(guest, CPU) - before)


EXPERIMENT = Experiment(
    title="Promotion out of a shallow idle state",
    hypothesis=(
        "A CPU whose governor was misled leaves the states that the driver asks to leave one "
        "timer period per state after the silence begins: (residency + 2 x latency) of the next "
        "state, at least "
        "50 times sooner than with the tick that menu keeps, 4 times sooner than where a timer "
        "only ends the sleep, and however long the silence lasts where ladder has stopped the "
        "tick. With promotion, governors are misled as often as in the arm compared with it, to "
        f"{FOOLED_POINTS} points of all silences."
    ),
    arms=(
        Arm(
            "tick",
            "baseline",
            "menu, which keeps the tick where it expects a short sleep; no promotion",
            append="cpuidle.promote=0 cpuidle.governor=menu",
            kernel=KERNEL,
        ),
        Arm(
            "off",
            "treatment",
            "ladder, which lets the tick be stopped; no promotion",
            append="cpuidle.promote=0 cpuidle.governor=ladder",
            kernel=KERNEL,
        ),
        Arm(
            "seed",
            "treatment",
            "menu, and a timer that ends the sleep: the governor learns from it, and decides",
            append="cpuidle.promote=0 cpuidle.governor=menu",
            modules=("promote_by_timer",),
            kernel=KERNEL,
        ),
        Arm(
            "lightsleep",
            "treatment",
            "menu, with promotion",
            append="cpuidle.promote=1 cpuidle.governor=menu",
            kernel=KERNEL,
        ),
        Arm(
            "lightsleep-ladder",
            "treatment",
            "ladder, with promotion",
            append="cpuidle.promote=1 cpuidle.governor=ladder",
            kernel=KERNEL,
        ),
        Arm(
            "tick-again",
            "control",
            "booted as tick is",
            append="cpuidle.promote=0 cpuidle.governor=menu",
            kernel=KERNEL,
        ),
    ),
    metrics=(
        EXIT_SHALLOW_US,
        Metric(
            "longest_us",
            "us",
            "lower",
            "Longest of these",
            "The longest of the same times",
            amount=True,
        ),
        Metric(
            "fooled_pct",
            "%",
            "none",
            "Silences that began in a shallow idle state",
            "Share of the silences that began in another state than a deep one",
        ),
        Metric(
            "deep_pct",
            "%",
            "higher",
            "Silence in a deep state",
            "Share of the time of all silences, in any deep state",
        ),
        Metric(
            "wakes",
            "",
            "lower",
            "Wakes per silence",
            "How often the CPU left an idle state during a silence, promotions and ticks included",
        ),
        PROMOTIONS,
    ),
    measure=measure,
    claims=(
        Claim("lightsleep", "tick", (EXIT_SHALLOW_US.name,), at_most=1 / 50),
        Claim("lightsleep", "seed", (EXIT_SHALLOW_US.name,), at_most=1 / 4),
        Claim("lightsleep-ladder", "off", (EXIT_SHALLOW_US.name,), at_most=1 / 50),
        *(Claim(*arms, ("fooled_pct",), at_least=-FOOLED_POINTS) for arms in COMPARED),
    ),
    least_vcpus=CPU + 1,
    warmup=0,
    accel="tcg-icount",
)
