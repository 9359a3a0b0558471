# SPDX-License-Identifier: GPL-2.0-only
"""What a policy of a replay has learned before it is counted, and from what it learns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from replays import NO_COSTS, US, metadata, needs_compiler, period

from lightsleep.periods.source import as_batch
from lightsleep.replay import account
from lightsleep.replay.account import replay
from lightsleep.replay.engine import CompiledEngine, Engine, PythonEngine
from lightsleep.replay.policies import Fixed, parse
from lightsleep.replay.stays import Limits
from lightsleep.replay.tally import Intervals, Tally

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


class Notes(Fixed):
    """Polls for 30 us, believes that leaving a halt takes 25 us, and notes what it sees."""

    def __init__(self) -> None:
        super().__init__(30 * US, 25 * US)

    def learn(self, idle_ns: int) -> None:
        SEEN.append(idle_ns)


SEEN: list[int] = []


def test_a_policy_sees_a_halt_end_when_the_cpu_has_left_its_state() -> None:
    SEEN.clear()
    runner = PythonEngine().runner(Notes())
    idle_ns = np.array([10, 30, 100, 31, 50], np.int64) * US
    exit_ns = np.array([40, 40, 40, 0, 40], np.int64) * US
    zeros = np.zeros(5, np.int64)
    runner.run(
        Intervals(
            idle_ns=idle_ns,
            exit_ns=exit_ns,
            bucket=zeros.astype(np.uint16),
            woken=zeros.astype(np.bool_),
            resumes=zeros.astype(np.bool_),
            block=zeros.astype(np.uint8),
            state=zeros.astype(np.uint8),
            limits=Limits.of(metadata(), 0),
            **dict.fromkeys(("cost_ns", "entered_ns", "typical_ns", "timer_ns"), zeros),
            arrival_ns=idle_ns,
        ),
        4,
        Tally(),
    )
    # Two that the poll caught; one that was 100 - 30 + 40 - 25 long behind it; and one that would
    # be shorter than nothing.
    assert SEEN == [10 * US, 30 * US, (30 + 85) * US, 30 * US]
