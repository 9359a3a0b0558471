# SPDX-License-Identifier: GPL-2.0-only
"""Polls that go on over several rows: what ends one, and what policies learn from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from replays import ENGINES, NO_COSTS, US, metadata, period

from lightsleep.periods.build import Row
from lightsleep.periods.model import AWAKE
from lightsleep.periods.source import as_batch
from lightsleep.replay.engine import Engine, PythonEngine
from lightsleep.replay.intervals import RecordedIntervals
from lightsleep.replay.policies import Lightsleep, parse
from lightsleep.replay.stays import Limits
from lightsleep.replay.tally import Intervals, Tally


def intervals_of(found: RecordedIntervals, turn_ns: int = 0) -> Intervals:
    """Return intervals as they were recorded."""
    columns = {x: getattr(found, x) for x in ("cost_ns", "bucket", "woken", "block")}
    columns |= {x: getattr(found, x) for x in ("state", "exit_ns", "resumes", "entered_ns")}
    columns |= {x: getattr(found, x) for x in ("typical_ns", "timer_ns", "arrival_ns")}
    columns |= {x: getattr(found, x) for x in ("nobody", "tick")}
    limits_of = Limits.of(metadata(), 0)
    return Intervals(idle_ns=found.arrival_ns, limits=limits_of, turn_ns=turn_ns, **columns)


def tallied(make_engine: Callable[[], Engine], policy: str, *rows: Row, turn_ns: int = 0) -> Tally:
    """Return what a policy does in intervals of one CPU, which are read one row at a time."""
    engine = make_engine()
    reader = engine.reader(metadata(), NO_COSTS)
    make = parse(policy)[policy]
    assert callable(make)
    runner, tally = engine.runner(make(40_000, 4)), Tally()
    batches = [as_batch("host", [row]) for row in rows]
    for part in (*(reader.intervals(x) for x in batches), reader.rest()):
        for _, found in part:
            runner.run(intervals_of(found, turn_ns), 4, tally)
    return tally


def ticked(at_us: int, length_us: int, cause: str = "tick") -> Row:
    """A period that an interrupt ended, and no task; leaving it took 40 us."""
    return period(at_us, length_us, wait_us=None, cause=cause)


@pytest.mark.parametrize("make_engine", ENGINES)
@pytest.mark.parametrize("cause", ["tick", "timer", "device", "ipi", "unknown"])
def test_an_interrupt_without_a_task_ends_no_poll(
    make_engine: Callable[[], Engine], cause: str
) -> None:
    rows = [ticked(0, 190, cause), period(192, 190)]
    found = tallied(make_engine, "fixed:200us", *rows)
    assert (found["polled_ns"], found["halts"], found["in_vain"]) == (200 * US, 1, 1)
    assert found["waited_ns"] == 40 * US
    # Nor does one at the very end of the limit leave the CPU polling.
    found = tallied(make_engine, "fixed:150us", *rows)
    assert (found["polled_ns"], found["halts"], found["in_vain"]) == (150 * US, 1, 1)


@pytest.mark.parametrize("make_engine", ENGINES)
@pytest.mark.parametrize(
    "rows",
    [
        [period(0, 190), period(192, 190)],  # a task
        [ticked(0, 190), period(250, 190)],  # later
        [ticked(0, 190), (0, 191 * US, 0, AWAKE, *period(0, 0)[4:]), period(192, 190)],  # awake
    ],
)
def test_all_else_begins_a_poll_anew(
    make_engine: Callable[[], Engine], rows: Sequence[Row]
) -> None:
    found = tallied(make_engine, "fixed:200us", *rows)
    assert found["polled_ns"] == (150 + 150) * US
    assert found["in_vain"] == 0


@pytest.mark.parametrize("make_engine", ENGINES)
def test_under_lightsleep_a_period_goes_on_after_a_halt_without_a_task(
    make_engine: Callable[[], Engine],
) -> None:
    """account_residency() of cpuidle-lightsleep.c: a period lasts until a task ran."""
    rows = [ticked(0, 300), ticked(302, 190), period(494, 190), period(1000, 190)]
    found = tallied(make_engine, "fixed:200us", *rows)
    # It polls once for all three rows, and halts for the rest of each.
    assert (found["polled_ns"], found["halts"], found["in_vain"]) == ((200 + 150) * US, 3, 1)
    assert found["waited_ns"] == 40 * US
    found = tallied(make_engine, "lightsleep", *rows)
    assert (found["polled_ns"], found["halts"]) == ((160 + 150) * US, 3)


@pytest.mark.parametrize("make_engine", ENGINES)
def test_haltpoll_polls_anew_after_a_halt(make_engine: Callable[[], Engine]) -> None:
    """haltpoll_select() asks whether the last state was a halt, and not what ended it."""
    rows = [period(0, 70), ticked(1000, 110), period(1112, 300), period(2000, 130)]
    found = tallied(make_engine, "haltpoll", *rows)
    # Its limits are 0, 50, 100 and 200: halts of 70, 60 and 200 us are longer than the one before.
    assert found["polled_ns"] == (0 + 50 + 100 + 90) * US
    assert found["in_vain"] == 2


class Remembers:
    """Polls for 100 us; remembers what it is to learn."""

    limit_ns, whole = 100 * US, True

    def __init__(self) -> None:
        self.learned_us: list[tuple[int, int | None, int]] = []

    def learn(self, polled_ns: int, halted_ns: int | None = None, earlier_ns: int = 0) -> None:
        halted_us = None if halted_ns is None else halted_ns // US
        self.learned_us.append((polled_ns // US, halted_us, earlier_ns // US))


def test_a_whole_period_is_learned_from_once() -> None:
    """engine.c does the same: test_compiled_and_python_give_the_same_to_the_last_digit()."""
    rows = [ticked(0, 190), ticked(192, 90), period(284, 140), period(1000, 80), period(2000, 90)]
    policy = Remembers()
    ((_, found),) = PythonEngine().reader(metadata(), NO_COSTS).intervals(as_batch("host", rows))
    PythonEngine().runner(policy).run(intervals_of(found), 4, Tally())
    # Of 100 + 50 us idle, of 50 and of 100. Leaving each halt takes 40 more.
    assert policy.learned_us == [(100, 140, 90 + 90), (40, None, 0)]
    model = Lightsleep(40 * US, 4)
    model.learn(100 * US, 140 * US, 180 * US)
    other = Lightsleep(40 * US, 4)
    other.learn(380 * US)
    assert model._model == other._model


@pytest.mark.parametrize("make_engine", ENGINES)
def test_policies_learn_from_whole_periods(make_engine: Callable[[], Engine]) -> None:
    """haltpoll begins with 50 us after a halt of 70 us; two pieces of 45 us are one of 90 us."""
    begin = period(0, 70)
    pieces = [ticked(1000, 85), period(1087, 85)]
    found = tallied(make_engine, "haltpoll", begin, *pieces, period(2000, 130))
    # 0, then 45 of 50 and 5 of the rest, which is missed by 40. To leave that halt took 40 more: as
    # 50 < 80, the limit doubles, and the last one is caught.
    assert found["polled_ns"] == (0 + 45 + 5 + 90) * US
    assert found["in_vain"] == 1


@pytest.mark.parametrize("make_engine", ENGINES)
def test_what_comes_on_the_way_from_a_poll_to_a_halt_keeps_the_cpu_from_it(
    make_engine: Callable[[], Engine],
) -> None:
    """Arrivals after 50, 60 and 61 us, where the CPU polls for 50 us and then takes 10."""
    rows = [period(0, 90), period(1000, 100), period(2000, 101)]
    found = tallied(make_engine, "fixed:50us", *rows, turn_ns=10 * US)
    assert (found["hits"], found["halts"], found["in_vain"]) == (2, 1, 1)
    assert found["polled_ns"] == (50 + 60 + 50) * US
    assert found["waited_ns"] == 40 * US


@pytest.mark.parametrize("make_engine", ENGINES)
def test_the_way_from_a_poll_is_no_part_of_a_halt(make_engine: Callable[[], Engine]) -> None:
    """haltpoll polls for 50 us, and 260 us later the halt is left: 200, if the way took 60."""
    rows = [period(0, 70), period(1000, 310), period(2000, 130)]
    for turn_us, last_us in ((0, 0), (60, 90)):
        found = tallied(make_engine, "haltpoll", *rows, turn_ns=turn_us * US)
        assert found["polled_ns"] == (0 + 50 + last_us) * US
