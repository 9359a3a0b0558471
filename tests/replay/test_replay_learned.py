# SPDX-License-Identifier: GPL-2.0-only
"""What a policy of a replay has learned before it is counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from replays import HALT, NO_COSTS, US, metadata, needs_compiler, period

from lightsleep.periods.source import as_batch
from lightsleep.replay import account
from lightsleep.replay.account import replay
from lightsleep.replay.engine import CompiledEngine, Engine, PythonEngine
from lightsleep.replay.policies import parse

ENGINES = [PythonEngine, pytest.param(CompiledEngine, marks=needs_compiler)]


def test_a_policy_has_learned_before_it_is_counted() -> None:
    # A CPU that is woken after 20 ms each time: who knows that, does not poll.
    rows = [period(25_000 * n, 20_000) for n in range(300)]
    batches = [as_batch("host", rows[start : start + 7]) for start in range(0, len(rows), 7)]
    found = replay(metadata(), NO_COSTS, batches, parse("lightsleep,haltpoll,fixed:100us"))
    polled = {name: x.recorded.polled_ns for name, x in found.outcomes.items()}
    assert polled["lightsleep"] == polled["haltpoll"] == 0
    assert polled["fixed:100us"] == 300 * 100 * US
    assert found.outcomes["lightsleep"].recorded.tally["intervals"] == 300


@pytest.mark.parametrize("make_engine", ENGINES)
def test_what_follows_the_beginning_is_counted_once(
    make_engine: Callable[[], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account, "LEARNED", 10)
    rows = [period(500 * n, 300 + n, cpu=n % 2) for n in range(100)]
    whole, *cut = (
        replay(metadata(), NO_COSTS, batches, parse("lightsleep"), engine=make_engine())
        for batches in (
            [as_batch("host", rows)],
            [as_batch("host", rows[start : start + 3]) for start in range(0, 100, 3)],
            [as_batch("host", [row]) for row in rows],
        )
    )
    found = whole.outcomes["lightsleep"].recorded.tally
    assert found["intervals"] == 100
    for other in cut:
        assert (other.outcomes["lightsleep"].recorded.tally.data == found.data).all()


@pytest.mark.parametrize("make_engine", ENGINES)
def test_a_cpu_of_another_kind_decides_by_what_its_own_states_cost(
    make_engine: Callable[[], Engine],
) -> None:
    """300 us of polling are too much for a halt of 10 us, and little for one of 200 us."""
    little, big = 0, 2
    described = metadata()
    described.add_state(
        {"cpu": big, "state": HALT + 1, "name": "DEEP", "polls": False}
        | {"advertised_us": None, "residency_us": None, "disabled": False}
    )
    costs = dataclasses.replace(
        NO_COSTS,
        states={(0, HALT): 10_000.0, (1, HALT): 200_000.0},
        halts={0: HALT, 1: HALT},
        halt_ns=200_000,
    )
    polled = {}
    for cpu, wait_us in ((little, 10), (big, 200)):
        rows = [period(1000 * n, 300 + wait_us, wait_us=wait_us, cpu=cpu) for n in range(300)]
        batches = [as_batch("host", rows)]
        found = replay(described, costs, batches, parse("lightsleep"), engine=make_engine())
        polled[cpu] = found.outcomes["lightsleep"].recorded.polled_ns
    assert polled[little] == 0
    assert polled[big] > 0
