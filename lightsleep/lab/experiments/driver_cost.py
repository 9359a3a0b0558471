# SPDX-License-Identifier: GPL-2.0-only
"""What a cpuidle driver costs that never polls.

A stock guest has no cpuidle driver: an idle CPU halts at once. With any driver, the kernel asks a
governor for a state before each halt, and books the halt afterwards. This experiment tells that
price from the price of cpuidle-lightsleep: beside the driver in mode off it has drivers that do
nothing but halt (cpuidle-synthetic, whose states take no time here). With a single state the
governor has nothing to choose. With two states, as lightsleep has, it predicts how long the CPU
will be idle.

The guests' clock counts instructions, so differences that a host's noise would hide are seen.
"""

from lightsleep.compare.result import Claim
from lightsleep.lab.loads.pipe import IPIS, SCHED_PIPE_S, measure_pipe
from lightsleep.lab.run.experiment import Arm, Experiment

EXPERIMENT = Experiment(
    title="A driver that never polls",
    hypothesis=(
        "Where it does not poll, cpuidle-lightsleep costs at most 2 % more than a cpuidle driver "
        "with as many states that only halts. What both cost over a guest without a driver is the "
        "price of cpuidle and its governor."
    ),
    arms=(
        Arm("stock", "baseline", "the kernel as it is, without a cpuidle driver"),
        Arm(
            "one-state",
            "treatment",
            "a cpuidle driver with a single state, which halts",
            modules=("cpuidle_synthetic states=HALT:1:1:0",),
        ),
        Arm(
            "two-states",
            "treatment",
            "a cpuidle driver with two states, which both halt",
            modules=("cpuidle_synthetic states=HALT1:1:1:0,HALT2:2:2:0",),
        ),
        Arm(
            "mode-off",
            "treatment",
            "cpuidle-lightsleep, halting at once",
            modules=("cpuidle_lightsleep mode=off",),
        ),
        Arm("stock-again", "control", "booted as stock is"),
    ),
    metrics=(SCHED_PIPE_S, IPIS),
    measure=measure_pipe,
    claims=(Claim("mode-off", "two-states", (SCHED_PIPE_S.name,), at_most=1.02),),
    accel="tcg-icount",
)
