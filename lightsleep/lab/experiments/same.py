# SPDX-License-Identifier: GPL-2.0-only
"""Two guests that differ in nothing: how often does a comparison show a difference all the same?

``scripts/false_alarms.py`` runs this many times and counts.
"""

from __future__ import annotations

from lightsleep.lab.loads.pipe import IPIS, SCHED_PIPE_S, measure_pipe
from lightsleep.lab.run.experiment import Arm, Experiment

EXPERIMENT = Experiment(
    title="The same kernel twice",
    hypothesis=(
        "Two guests booted alike differ in nothing, so the control fails in at most 1 of 20 "
        "comparisons."
    ),
    arms=(
        Arm("stock", "baseline", "the kernel as it is"),
        Arm("stock-again", "control", "a second guest booted exactly as stock"),
    ),
    metrics=(SCHED_PIPE_S, IPIS),
    measure=measure_pipe,
)
