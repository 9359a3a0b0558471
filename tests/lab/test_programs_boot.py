# SPDX-License-Identifier: GPL-2.0-only
"""Servers of the experiments, really started and loaded, in one guest for all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lightsleep.lab.boot.guest import Guest, boot
from lightsleep.lab.boot.machine import Machine
from lightsleep.lab.experiments import halt_cost, overcommit, programs
from lightsleep.lab.run.experiment import BY_PROTOCOL, Metric

pytestmark = [pytest.mark.boot, pytest.mark.more]


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    machine = Machine(
        accel="tcg", root=programs.EXPERIMENT.root, modules=(halt_cost.MODULE,), vcpus=2
    )
    with boot(machine, "programs", timeout_s=300) as booted:
        programs.EXPERIMENT.start(booted)
        yield booted


def promised(metrics: object) -> set[str]:
    assert isinstance(metrics, tuple)
    assert all(isinstance(metric, Metric) for metric in metrics)
    return {metric.name for metric in metrics} - BY_PROTOCOL


def test_every_load_of_every_server_yields_all_its_figures(guest: Guest) -> None:
    figures = programs.EXPERIMENT.measure(guest)
    assert figures.keys() == promised(programs.EXPERIMENT.metrics)
    assert min(figures.values()) > 0


def test_the_drivers_cost_stands_beside_what_programs_lose(
    guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whether polling is faster is a timing, which decides no test. So is what the driver finds: on
    # a busy host, it cannot tell the cost of a halt from 0.
    taken: list[float] = []

    def figures(
        machine_us: float,
        learned: dict[str, float],
        halting: dict[str, float],
        polling: dict[str, float],
    ) -> dict[str, float]:
        assert halting.keys() == polling.keys() == learned.keys() == set(halt_cost.LOADED)
        taken.extend([*halting.values(), *polling.values()])
        return {}

    monkeypatch.setattr(halt_cost, "figures", figures)
    halt_cost.measure(guest)
    assert min(taken) > 0
    assert guest.read_text(f"{halt_cost.PARAMETERS}/mode") == "adaptive\n"


def test_loads_of_an_overcommitted_host(guest: Guest) -> None:
    figures = overcommit.measure(guest)
    assert figures.keys() == promised(overcommit.METRICS)
    assert figures.pop("steal_s") == 0  # TCG has no clock of stolen time
    assert min(figures.values()) > 0
