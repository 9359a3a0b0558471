# SPDX-License-Identifier: GPL-2.0-only
"""Polling idle on arm64, which mainline does not have: what our kernel series makes of it.

For ``--arch aarch64``. All arms but stock have the series; what is compared is what polls, for how
long, and what it costs who does not wait. The POLL state of cpuidle is run under three governors by
the driver that has it on arm64, haltpoll; its HALT state has a residency of 1 us, so menu and teo
poll only where they expect less.
"""

from __future__ import annotations

from dataclasses import replace

from lightsleep.compare.result import Claim
from lightsleep.lab.experiment import IDLE_RESIDENCY, Arm, Experiment
from lightsleep.lab.experiments import idle
from lightsleep.lab.pipe import IPIS, SCHED_PIPE_S

PLAIN = "6.12-plain"
SERIES = "6.12-series"
HALTPOLL = "cpuidle_haltpoll.force=1"

EXPERIMENT: Experiment = replace(
    idle.EXPERIMENT,
    title="Polling idle on arm64",
    hypothesis=(
        "With the series, an arm64 CPU that polls is woken without an interrupt: lightsleep is at "
        "least 4 times faster than stock where tasks wait for one another (pipe) and at most 1.15 "
        "times slower than nohlt, which never halts, sends at most 1 % of stock's interrupts, is "
        "at most 1.2 times slower where all CPUs are busy (messaging), and when left alone sleeps "
        "as much, within 0.02 points."
    ),
    arms=(
        Arm("stock", "baseline", "the same source without the series: WFI", kernel=PLAIN),
        Arm(
            "lightsleep",
            "treatment",
            "cpuidle-lightsleep: polls for as long as it pays, then WFI",
            modules=("cpuidle_lightsleep",),
            kernel=SERIES,
        ),
        Arm(
            "haltpoll",
            "treatment",
            "cpuidle-haltpoll and its own governor",
            append=HALTPOLL,
            kernel=SERIES,
        ),
        Arm(
            "poll-menu",
            "treatment",
            "cpuidle-haltpoll's two states under menu",
            append=f"{HALTPOLL} cpuidle.governor=menu",
            kernel=SERIES,
        ),
        Arm(
            "poll-teo",
            "treatment",
            "cpuidle-haltpoll's two states under teo",
            append=f"{HALTPOLL} cpuidle.governor=teo",
            kernel=SERIES,
        ),
        Arm(
            "nohlt",
            "limit",
            "booted with nohlt: idle CPUs never halt",
            append="nohlt",
            spins=True,
            kernel=SERIES,
        ),
        Arm("stock-again", "control", "a second guest booted exactly as stock", kernel=PLAIN),
    ),
    claims=(
        Claim("lightsleep", "stock", (SCHED_PIPE_S.name,), at_most=0.25),
        Claim("lightsleep", "nohlt", (SCHED_PIPE_S.name,), at_most=1.15),
        Claim("lightsleep", "stock", (IPIS.name,), at_most=0.01),
        Claim("lightsleep", "stock", ("sched_messaging_s",), at_most=1.2),
        Claim("lightsleep", "stock", (IDLE_RESIDENCY.name,), at_least=-0.02),
    ),
    rest_s=4,
)
