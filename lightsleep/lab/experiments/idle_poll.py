# SPDX-License-Identifier: GPL-2.0-only
"""A poll in the idle loop of our kernel series, against the driver that polls and the limits.

For x86_64 and arm64. All arms boot the same kernel, so that they differ in what polls and nothing
else.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from lightsleep.compare.result import Claim
from lightsleep.errors import LightsleepError
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.experiments import idle
from lightsleep.lab.loads.pipe import IPIS
from lightsleep.lab.run.arms import FIXED_100US, HALTPOLL, NEVER_HALT
from lightsleep.lab.run.experiment import IDLE_RESIDENCY, Arm, Experiment

SERIES = "6.12-series"
SWITCH = "/sys/module/idle_poll/parameters/enabled"
HALT_COST = "/sys/module/idle_poll/parameters/halt_cost_ns"
TURNS, CALLS = 15_000, 12_000
"""About a second each, where CPUs halt. Half of a second is over before a CPU has asked the
programs what a halt costs them. What such a start costs is not asked here."""
TRIES = 10
MEASURED_S = 3
"""By then a measurement is over; each pair of CPUs has 2 s."""


def start(guest: Guest) -> None:
    """Have the halt cost measured anew where idle CPUs poll: during boot the guest was busy.

    Turning the switch starts a measurement, which goes on behind it.
    """
    if guest.read_text(SWITCH).strip() == "0":
        return
    for _ in range(TRIES):
        # Each turn is to be followed: one that is undone at once starts nothing.
        for on in "01":
            guest.write_text(SWITCH, on)
            guest.run(["sleep", str(MEASURED_S)])
        if int(guest.read_text(HALT_COST)):
            return
    raise LightsleepError(f"{HALT_COST} is 0 after {TRIES} measurements: the host is too busy")


EXPERIMENT: Experiment = replace(
    idle.EXPERIMENT,
    title="Polling in the idle loop",
    hypothesis=(
        "A poll in the idle loop, before the tick is prepared and the governor is asked, makes "
        "tasks that wait for one another (pipe, seccomp notify) faster. They take at most 10 % "
        "longer than where CPUs never halt, and than with a driver that polls. At most 1 % of the "
        "interrupts between CPUs are left. A busy guest (messaging) takes at most 10 % longer than "
        "before, and a guest left alone sleeps at most 0.01 points less."
    ),
    arms=(
        Arm("stock", "baseline", "the kernel of the series, polling off", kernel=SERIES),
        Arm(
            "module",
            "treatment",
            "the same kernel with cpuidle-lightsleep: a driver polls, then halts",
            modules=("cpuidle_lightsleep",),
            kernel=SERIES,
        ),
        *(replace(peer, kernel=SERIES) for peer in (FIXED_100US, HALTPOLL)),
        Arm(
            "idle-poll",
            "treatment",
            "the same kernel with idle_poll.enabled=1: the idle loop polls, then halts",
            append="idle_poll.enabled=1",
            kernel=SERIES,
        ),
        Arm(
            "limit",
            "limit",
            "the same kernel booted so that idle CPUs never halt (idle=poll, on arm64 nohlt)",
            append=NEVER_HALT,
            spins=True,
            kernel=SERIES,
        ),
        Arm("stock-again", "control", "a second guest booted exactly as stock", kernel=SERIES),
    ),
    claims=(
        Claim("idle-poll", "stock", idle.WAKE_BOUND),
        Claim("idle-poll", "limit", idle.WAKE_BOUND, at_most=1.1),
        *(
            Claim("idle-poll", peer, idle.WAKE_BOUND, at_most=idle.NO_SLOWER)
            for peer in ("module", "fixed-100us", "haltpoll")
        ),
        Claim("idle-poll", "stock", (IPIS.name,), at_most=0.01),
        Claim("idle-poll", "stock", ("sched_messaging_s",), at_most=1.1),
        Claim("idle-poll", "stock", (IDLE_RESIDENCY.name,), at_least=-0.01),
    ),
    metrics=idle.metrics(TURNS, CALLS),
    measure=partial(idle.measure, turns=TURNS, calls=CALLS),
    start=start,
    least_vcpus=2,  # the kernel measures pairs of CPUs
)
