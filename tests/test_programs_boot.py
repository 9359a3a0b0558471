# SPDX-License-Identifier: GPL-2.0-only
"""The servers of the experiment ``programs``, really started and loaded."""

from __future__ import annotations

import pytest

from lightsleep.lab.experiment import IDLE_RESIDENCY
from lightsleep.lab.experiments.programs import EXPERIMENT
from lightsleep.lab.guest import Machine, boot

pytestmark = [pytest.mark.boot, pytest.mark.more]


def test_every_server_starts_and_every_load_yields_all_its_figures() -> None:
    assert isinstance(EXPERIMENT.metrics, tuple)
    promised = {metric.name for metric in EXPERIMENT.metrics} - {IDLE_RESIDENCY.name}
    with boot(Machine(accel="tcg", root=EXPERIMENT.root), "programs", timeout_s=300) as guest:
        EXPERIMENT.start(guest)
        figures = EXPERIMENT.measure(guest)
    assert figures.keys() == promised
    assert min(figures.values()) > 0
