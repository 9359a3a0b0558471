# SPDX-License-Identifier: GPL-2.0-only
"""What promotion is to the other thread of a core: ``promotion`` under menu, on cores with two.

Of a core of two threads, one is misled, as in ``promotion``. Its sibling sleeps, and is to go on
sleeping. What it is worth to a sibling at work that the other thread leaves a state which keeps a
share of the core, no emulation shows: its threads share nothing. (Nor is a governor misled beside
a sibling at work where instructions are counted: next to no silence began in a shallow state.)

For ``--arch ppc64le``, where that state is the firmware's stop0_lite; elsewhere states are
cpuidle_synthetic's.
"""

from __future__ import annotations

import statistics
from dataclasses import replace

from lightsleep.compare.result import Claim
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.experiments import promotion
from lightsleep.lab.loads.promotions import counts, need_states, shallow_us, silences
from lightsleep.lab.run.experiment import Experiment, Metric

SIBLING, CPU = 2, 3
"""A core without the CPU that has the guest's other work."""
ARMS = ("tick", "lightsleep", "tick-again")
SIBLINGS = f"/sys/devices/system/cpu/cpu{CPU}/topology/thread_siblings_list"


def measure(guest: Guest) -> dict[str, float]:
    """Go through silences beside a sibling that sleeps."""
    need_states(guest)
    siblings = guest.read_text(SIBLINGS).strip()
    assert siblings == f"{SIBLING}-{CPU}", siblings
    before = counts(guest, CPU)
    found = silences(guest, CPU, promotion.SILENCES, SIBLING)
    counted = counts(guest, CPU) - before
    return {
        "sibling_wakes": sum(x.sibling_wakes for x in found) / len(found),
        "exit_shallow_us": statistics.median(shallow_us(found) or [0]),
        "promotions": counted.promoted / len(found),
    }


EXPERIMENT: Experiment = replace(
    promotion.EXPERIMENT,
    title="Promotion and the sibling thread",
    hypothesis=(
        "A promotion wakes no sibling: one that sleeps is woken at most 1.2 times as often as "
        "without, although the CPU is promoted once a silence or more."
    ),
    arms=tuple(arm for arm in promotion.EXPERIMENT.arms if arm.name in ARMS),
    metrics=(
        Metric(
            "sibling_wakes",
            "",
            "lower",
            "Wakes of a sleeping sibling thread",
            "How often the other thread of the core left an idle state, per silence",
        ),
        promotion.EXIT_SHALLOW_US,
        promotion.PROMOTIONS,
    ),
    measure=measure,
    claims=(
        Claim("lightsleep", "tick", ("sibling_wakes",), at_most=1.2),
        Claim("lightsleep", None, (promotion.PROMOTIONS.name,), at_least=1),
    ),
    vcpus=4,
    least_vcpus=CPU + 1,
    threads=2,
)
