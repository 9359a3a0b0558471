# SPDX-License-Identifier: GPL-2.0-only
"""What the learned limit gives up, in the driver's own modes, against a limit that is just long.

Where the distance between lightsleep and idle=poll goes: what is left with a fixed limit of 200 us
is the way through cpuidle; the rest is waits for which the learned limit was too short.
"""

from lightsleep.compare.result import Claim
from lightsleep.lab.experiment import Arm, Experiment
from lightsleep.lab.pipe import IPIS, SCHED_PIPE_S, measure_pipe

MODULE = "cpuidle_lightsleep"

EXPERIMENT = Experiment(
    title="The modes of cpuidle-lightsleep",
    hypothesis=(
        "A learned limit is about as fast as a fixed one of 200 us, and both are about as fast as "
        "idle=poll; without polling the driver is as slow as a stock kernel. Adaptive is at most "
        "a tenth slower than fixed, and at least three times faster than off."
    ),
    arms=(
        Arm("off", "baseline", "the driver, halting at once", modules=(f"{MODULE} mode=off",)),
        Arm("adaptive", "treatment", "the limit is learned", modules=(MODULE,)),
        Arm("fixed", "treatment", "always polls 200 us first", modules=(f"{MODULE} mode=fixed",)),
        Arm("idle=poll", "limit", "never halts, without the driver", append="idle=poll"),
        Arm("off-again", "control", "booted as off is", modules=(f"{MODULE} mode=off",)),
    ),
    metrics=(SCHED_PIPE_S, IPIS),
    measure=measure_pipe,
    claims=(
        Claim("adaptive", "off", (SCHED_PIPE_S.name,), at_most=1 / 3),
        Claim("adaptive", "fixed", (SCHED_PIPE_S.name,), at_most=1.1),
    ),
)
