# SPDX-License-Identifier: GPL-2.0-only
"""Where only the module's cost tells what a halt costs: the end at which a wakeup is all halt."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from replays import ENGINES, HALT, NO_COSTS, POLL, US, judged, period

from lightsleep.periods.build import Row
from lightsleep.periods.source import as_batch
from lightsleep.replay.account import _both_ends, replay
from lightsleep.replay.costs import Costs
from lightsleep.replay.engine import Engine
from lightsleep.replay.policies import parse
from lightsleep.replay.stays import Limits

SUPPOSED_US = 60

COSTS = Costs(
    reference_ns=None,
    states={(0, HALT): 40_000.0},
    halt_ns=40_000,
    loops=NO_COSTS.loops,
    halts={0: HALT},
    supposed_ns=1000.0 * SUPPOSED_US,
)


def timed(row: Row, timer_us: int) -> Row:
    return (*row[:4], timer_us * US, *row[5:])


@pytest.mark.parametrize("make_engine", ENGINES)
@pytest.mark.parametrize(
    ("row", "idle_us", "waited_us"),
    [
        # (recorded, and where all of the wakeup is the halt's)
        (period(0, 300, wait_us=100), (260, 200), (40, 100)),
        (period(0, 50, wait_us=100), (10, 0), (40, 100)),
        (period(0, 300, wait_us=None, cause="tick"), (260, 260), (0, 0)),
        (period(0, 300, wait_us=5, cause="device"), (260, 200), (40, 100)),
        # A timer ends nothing before it is due, so no more of it can be the halt's.
        (timed(period(0, 300, wait_us=5, cause="timer"), 290), (290, 290), (10, 10)),
        (timed(period(0, 300, wait_us=5, cause="timer"), 230), (260, 230), (40, 70)),
        # Who polled came to no halt: it has arrived when the poll ended.
        (period(0, 300, POLL, wait_us=5), (300, 300), (40, 100)),
    ],
)
def test_a_wakeup_that_is_all_halt_came_as_much_earlier(
    row: Row,
    idle_us: tuple[int, int],
    waited_us: tuple[int, int],
    make_engine: Callable[[], Engine],
) -> None:
    made = make_engine().reader(judged(), COSTS)
    ((_, found),) = made.intervals(as_batch("host", [row]))
    ends = _both_ends(found, Limits(), COSTS)
    assert tuple(int(x.idle_ns[0]) // US for x in ends) == idle_us
    assert tuple(int(x.cost_ns[0]) // US for x in ends) == waited_us
    if found.halted[0]:  # no time counts twice: what is not idle is the exit
        assert [int(x.idle_ns[0] + x.exit_ns[0]) // US for x in ends] == [row[2] // US] * 2


@pytest.mark.parametrize("make_engine", ENGINES)
def test_figures_are_ranges_where_there_is_no_closed_loop(
    make_engine: Callable[[], Engine],
) -> None:
    rows = [period(1000 * n, 300, wait_us=100) for n in range(50)]
    policies = parse("stock,fixed:0ns,fixed:210us")
    made = replay(judged(), COSTS, [as_batch("host", rows)], policies, engine=make_engine())
    for name, (low_us, high_us) in {
        "stock": (50 * 40, 50 * 100),
        "fixed:0ns": (50 * 40, 50 * 100),
        # Tasks come after 260 us, or after 200: then the poll catches them.
        "fixed:210us": (50 * 40, 0),
    }.items():
        waited_us = [x.waits.total_ns // US for x in made.outcomes[name].ends()]
        assert waited_us == [low_us, high_us], name
