# SPDX-License-Identifier: GPL-2.0-only
"""What is read from a recording before a replay: idle intervals, and what wakeups cost."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replays import (
    DEEP,
    ENGINES,
    HALT,
    NO_COSTS,
    POLL,
    US,
    judged,
    metadata,
    needs_compiler,
    period,
    timed,
)

from lightsleep.errors import LightsleepError
from lightsleep.periods.build import Row
from lightsleep.periods.model import AWAKE, Metadata
from lightsleep.periods.source import as_batch
from lightsleep.replay import words
from lightsleep.replay.account import replay
from lightsleep.replay.costs import Costs
from lightsleep.replay.engine import CompiledEngine, Engine, PythonEngine
from lightsleep.replay.evidence import costs_of
from lightsleep.replay.given import Given
from lightsleep.replay.intervals import Reader, RecordedIntervals
from lightsleep.replay.policies import STOCK


def intervals(*rows: Row, costs: Costs = NO_COSTS) -> RecordedIntervals:
    ((_, found),) = Reader(metadata(), costs).intervals(as_batch("host", rows))
    return found  # what may go on in the next batch is kept back


def test_the_exit_latency_is_no_part_of_the_wait_for_an_event() -> None:
    rows = period(0, 100), period(200, 10), period(300, 70, POLL), period(400, 100, wait_us=75)
    interval = intervals(*rows, period(600, 100, wait_us=None, cause="tick"))
    # What a task's own wakeup took says it best; else the state's typical cost, 40 us, does.
    assert (interval.arrival_ns // US).tolist() == [60, 0, 70, 25, 60]
    assert interval.halted.tolist() == [True, True, False, True, True]
    assert (interval.polled_ns // US).tolist() == [0, 0, 70, 0, 0]


@pytest.mark.parametrize("cause", ["timer", "tick", "device"])
def test_an_interrupt_of_the_cpu_s_own_wakes_a_task_after_the_exit(cause: str) -> None:
    rows = period(0, 100, wait_us=5, cause=cause), period(200, 100, wait_us=90, cause=cause)
    interval = intervals(*rows)
    # From waking to running is no part of the exit, which takes the typical 40 us before it.
    assert (interval.arrival_ns // US).tolist() == [60, 60]
    assert (interval.cost_ns // US).tolist() == [40, 40]


@pytest.mark.parametrize(
    ("timer_us", "wait_us", "left_us"),
    [(90, 5, 10), (50, 5, 40), (100, 5, 0), (101, 5, 40), (None, 5, 40), (90, None, 10)],
)
@pytest.mark.parametrize("make_engine", ENGINES)
def test_a_timer_ends_no_period_before_it_is_due(
    timer_us: int | None, wait_us: int | None, left_us: int, make_engine: Callable[[], Engine]
) -> None:
    """One that comes later than expected was another one."""
    row = timed(period(0, 100, wait_us=wait_us, cause="timer"), timer_us)
    reader = make_engine().reader(metadata(), NO_COSTS)
    ((_, interval),) = reader.intervals(as_batch("host", [row]))
    assert (interval.arrival_ns // US).tolist() == [100 - left_us]
    assert (interval.cost_ns // US).tolist() == [left_us if wait_us else 0]
    given = dataclasses.replace(NO_COSTS, given=True)
    ((_, interval),) = make_engine().reader(metadata(), given).intervals(as_batch("host", [row]))
    assert (interval.arrival_ns // US).tolist() == [60]


def test_a_turn_through_the_idle_loop_is_known_from_periods_that_no_task_ended() -> None:
    rows = []
    for n in range(60):
        rows.append(period(1000 * n, 100, wait_us=None if n % 2 else 40, cause="tick"))
        rows.append(period(1000 * n + 112, 100))
    parts = ([as_batch("host", rows)], [as_batch("host", [row]) for row in rows])
    for batches in parts:
        costs = costs_of(metadata(), batches)
        assert costs
        assert costs.turn_ns == pytest.approx(12 * US, rel=0.02)
    few = costs_of(metadata(), [as_batch("host", []), as_batch("host", rows[:100])])
    assert few
    assert few.turn_ns == 0


@pytest.mark.parametrize(("polls", "turn_us"), [(29, 12), (30, 3)])
def test_polls_that_reached_their_limit_tell_best_how_long_a_turn_takes(
    polls: int, turn_us: int
) -> None:
    rows = []
    for n in range(60):  # the handler of the tick takes some of the time
        rows.append(period(1000 * n, 100, wait_us=None, cause="tick"))
        rows.append(period(1000 * n + 112, 100))
    for n in range(60, 60 + polls):
        rows.append(period(1000 * n, 100, POLL, wait_us=None, cause="unknown"))
        rows.append(period(1000 * n + 103, 100))
    parts = ([as_batch("host", rows)], [as_batch("host", [row]) for row in rows])
    for batches in parts:
        costs = costs_of(metadata(), batches)
        assert costs
        assert costs.turn_ns == pytest.approx(turn_us * US, rel=0.03)


def test_a_poll_and_the_halt_that_follows_are_one_stay() -> None:
    polled = period(0, 100, POLL, None, cause="unknown")
    assert len(intervals(polled, period(101, 60))) == 1
    interval = intervals(polled, period(101, 60))
    assert (int(interval.polled_ns[0]), int(interval.arrival_ns[0])) == (100 * US, 121 * US)
    # Woken, or followed by something else first, it is an interval of its own.
    assert len(intervals(period(0, 100, POLL), period(101, 60))) == 2
    assert len(intervals(polled, period(131, 60))) == 2
    assert len(intervals(period(0, 100, HALT, None, cause="unknown"), period(101, 60))) == 2


def columns_of(
    make_engine: Callable[[], Engine], rows: Sequence[Row], size: int
) -> dict[str, list[int]]:
    """Return the intervals of CPU 0, from rows that are read so many at a time."""
    reader = make_engine().reader(judged(), NO_COSTS)
    batches = [as_batch("host", rows[at : at + size]) for at in range(0, len(rows), size)]
    found = [x for batch in batches for x in reader.intervals(batch)] + list(reader.rest())
    names = [x.name for x in dataclasses.fields(RecordedIntervals)]
    return {name: [y for _, x in found for y in getattr(x, name).tolist()] for name in names}


@pytest.mark.parametrize("make_engine", ENGINES)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_a_task_between_a_poll_and_a_halt_ends_the_poll(
    make_engine: Callable[[], Engine], size: int
) -> None:
    rows = [
        period(0, 100, wait_us=None, cause="tick"),
        period(101, 50, POLL, wait_us=None, cause="unknown"),
        period(152, 0, AWAKE, 5),
        period(170, 100),
        period(300, 50, POLL, wait_us=None, cause="unknown"),
        period(352, 0, AWAKE, 5),
    ]
    found = columns_of(make_engine, rows, size)
    assert [x // US for x in found["entered_ns"]] == [0, 101, 170, 300]
    assert [x // US for x in found["arrival_ns"]] == [60, 50, 60, 50]
    assert [x // US for x in found["polled_ns"]] == [0, 50, 0, 50]
    assert found["nobody"] == [True, True, False, True]
    assert found["resumes"] == [False, True, False, False]


@needs_compiler
def test_times_that_no_machine_has_wrap_in_both_engines() -> None:
    rows = [period(0, 100), (0, 1 << 62, 1 << 62, *period(0, 0)[3:]), period(0, (1 << 62) // US)]
    compiled, python = (columns_of(x, rows, 30) for x in (CompiledEngine, PythonEngine))
    assert compiled == python


awake_or_idle = st.tuples(
    st.integers(0, 35),  # gap
    st.integers(1, 200),  # length
    st.sampled_from([POLL, POLL, HALT, AWAKE, AWAKE]),
    st.sampled_from([None, None, None, 5]),
    st.sampled_from(["unknown", "unknown", "tick"]),
    st.sampled_from([None, 0, 100]),  # until the next timer
)


@needs_compiler
@given(st.lists(awake_or_idle, min_size=1, max_size=30), st.integers(1, 30))
def test_engines_agree_where_tasks_come_to_awake_cpus(
    drawn: list[tuple[int, int, int, int | None, str, int | None]], size: int
) -> None:
    now_us, rows = 0, []
    for gap, length, state, wait, cause, timer_us in drawn:
        begin, now_us = now_us + gap, now_us + gap + (length if state != AWAKE else 0)
        rows.append(timed(period(begin, now_us - begin, state, wait, cause=cause), timer_us))
    compiled, *others = (
        columns_of(engine, rows, at_once)
        for engine in (CompiledEngine, PythonEngine)
        for at_once in (30, size)
    )
    assert all(other == compiled for other in others)


@pytest.mark.parametrize(
    ("words", "said"),
    [(["sleep", "ipi"], "no idle period ends by 'sleep'"), (["ipi", "ipi"], "two codes say the")],
)
def test_a_table_that_ends_periods_in_odd_ways_is_an_error(words: list[str], said: str) -> None:
    batch = as_batch("host", [period(0, 100)])
    at = batch.schema.get_field_index("ended_by")
    odd = pa.DictionaryArray.from_arrays(pa.array([1], pa.int8()), words)
    batch = batch.set_column(at, "ended_by", odd)
    with pytest.raises(LightsleepError, match=said):
        list(Reader(metadata(), NO_COSTS).intervals(batch))


def test_nobody_waits_for_a_cpu_that_no_task_needs() -> None:
    interval = intervals(period(0, 100, wait_us=None, cause="tick"))
    assert interval.cost_ns.tolist() == [0]
    assert interval.woken.tolist() == [False]


def test_costs_are_what_wakeups_took_above_the_reference() -> None:
    rows = [period(1000 * n, 100, wait_us=50) for n in range(40)]
    costs = costs_of(metadata(), [as_batch("host", rows)])
    assert costs
    assert costs.reference_ns is None
    assert costs.halt_ns == pytest.approx(50_000, rel=0.03)
    rows += [period(50_000 + n, 0, AWAKE, 10) for n in range(40)]
    costs = costs_of(metadata(), [as_batch("host", rows)])
    assert costs
    assert costs.halt_ns == pytest.approx(40_000, rel=0.05)
    given = costs_of(metadata(), [as_batch("host", rows)], Given(7_000))
    assert given
    assert given.halt_ns == 7_000
    # Then a wakeup costs as much, whatever this one took.
    assert intervals(period(0, 100, wait_us=50), costs=given).cost_ns.tolist() == [7_000]
    assert intervals(period(0, 100, wait_us=50), costs=given).arrival_ns.tolist() == [93_000]
    assert intervals(period(0, 100, wait_us=50), costs=costs).cost_ns.tolist() != [7_000]
    assert costs_of(metadata(), [as_batch("host", rows[40:])]) is None


def hybrid() -> Metadata:
    """Return metadata of CPUs whose state 1 is another one on CPU 1, and of which 2 is unknown."""
    made = Metadata("host", "made up", first_ns=0, last_ns=1_000_000_000)
    for cpu, name, latency_us in ((0, "big", 200), (1, "little", 10), (3, "big", 200)):
        for state, polls in ((POLL, True), (HALT, False)):
            row = {"cpu": cpu, "state": state, "name": "POLL" if polls else name, "polls": polls}
            row |= {"advertised_us": 0 if polls else latency_us, "residency_us": None}
            made.add_state(row | {"disabled": False})
    return made


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=needs_compiler)])
def test_cpus_with_other_tables_of_states_have_other_costs(compiled: bool) -> None:
    waits_us = {0: 200, 1: 20, 2: 90, 3: 200}
    rows = [
        period(1000 * n, 500, wait_us=wait_us, cpu=cpu)
        for n in range(40)
        for cpu, wait_us in waits_us.items()
    ]
    costs = costs_of(hybrid(), [as_batch("host", rows)])
    assert costs
    assert {x: round(y / US) for x, y in costs.states.items()} == {
        (0, HALT): pytest.approx(200, rel=0.04),
        (1, HALT): pytest.approx(20, rel=0.04),
        (2, HALT): pytest.approx(90, rel=0.04),
    }
    engine: Engine = CompiledEngine() if compiled else PythonEngine()
    # A timer's wakeup costs what the state does; and so does the halt that replaces a poll.
    rows = [
        row
        for cpu in range(4)
        for row in (
            period(0, 500, cpu=cpu, wait_us=5, cause="timer"),
            period(1000, 500, POLL if cpu != 2 else HALT, cpu=cpu, wait_us=5, cause="timer"),
        )
    ]
    found = dict(engine.reader(hybrid(), costs).intervals(as_batch("host", rows)))
    for cpu, wait_us in waits_us.items():
        assert found[cpu].cost_ns.tolist() == pytest.approx([wait_us * US] * 2, rel=0.04), cpu
        assert found[cpu].state.tolist() == [HALT, HALT]


def wakeups(cpu: int, awake_us: int, halted_us: int, awake: int) -> list[Row]:
    """Return wakeups of a CPU: some found it awake, ten times as many had it leave a halt."""
    rows = [period(1000 * n, 500, wait_us=halted_us, cpu=cpu) for n in range(10 * awake)]
    return rows + [period(10**6 * n, 0, AWAKE, awake_us, cpu=cpu) for n in range(awake)]


@pytest.mark.parametrize("make_engine", ENGINES)
def test_cores_that_differ_have_references_that_differ(make_engine: Callable[[], Engine]) -> None:
    """What a wakeup of a slow core takes is no measure for what a fast one loses in a halt."""
    rows = [*wakeups(1, 14, 30, 1000), *wakeups(0, 4, 12, 30)]
    costs = costs_of(hybrid(), [as_batch("host", rows)])
    assert costs
    assert costs.states[0, HALT] == pytest.approx(8 * US, rel=0.06)
    assert costs.states[1, HALT] == pytest.approx(16 * US, rel=0.06)
    assert costs.reference_ns == pytest.approx(14 * US, rel=0.03)
    assert not costs.warnings
    # Of a state that no wakeup came out of before, the same is subtracted.
    rare = [period(0, 500, DEEP, 100, cpu=cpu) for cpu in (0, 1)]
    found = dict(make_engine().reader(hybrid(), costs).intervals(as_batch("host", rare)))
    waited_us = [found[cpu].cost_ns.tolist()[0] / US for cpu in (0, 1)]
    assert waited_us == pytest.approx([96, 86], rel=0.03)


def test_cores_that_are_hardly_found_awake_share_what_that_takes() -> None:
    rows = [*wakeups(1, 14, 30, 1000), *wakeups(0, 4, 12, 29)]
    costs = costs_of(hybrid(), [as_batch("host", rows)])
    assert costs
    assert costs.states[0, HALT] == 0
    assert costs.states[1, HALT] == pytest.approx(16 * US, rel=0.06)
    assert list(costs.warnings) == [
        "fewer than 30 wakeups of CPU 0 and those with the same states found the CPU polling or "
        "awake, so that what one takes there without a halt counts as what it takes on all CPUs"
    ]


def test_under_a_driver_that_hides_its_polls_no_state_polls() -> None:
    hidden = metadata()
    hidden.environment["cpuidle_driver"] = "lightsleep"
    rows = [period(1000 * n, 100, POLL, 50) for n in range(40)]
    assert costs_of(metadata(), [as_batch("host", rows)]) is None
    costs = costs_of(hidden, [as_batch("host", rows)])
    assert costs
    assert costs.halt_ns == pytest.approx(50_000, rel=0.03)
    for engine in (CompiledEngine(), PythonEngine()) if shutil.which("cc") else (PythonEngine(),):
        made = replay(hidden, costs, [as_batch("host", rows)], {STOCK: None}, engine=engine)
        assert made.outcomes[STOCK].recorded.polled_ns == 0
        (note,) = [x for x in words.notes(made, [("x.dat", costs)]) if "in no event" in x]
        # Without a driver, gains are smaller than shown: that is no advice.
        assert note.endswith("record again under lightsleep enable lightsleep:off")


def test_a_recording_without_an_idle_driver_is_told_apart() -> None:
    rows = [period(1000 * n, 100, wait_us=50) for n in range(40)]
    for environment, told in (
        ({"cpuidle_driver": None}, True),
        ({"cpuidle_driver": "intel_idle"}, False),
        ({}, False),  # nobody looked
    ):
        recorded = metadata()
        recorded.environment = environment
        costs = costs_of(recorded, [as_batch("host", rows)])
        assert costs
        made = replay(recorded, costs, [as_batch("host", rows)], {STOCK: None})
        said = words.notes(made, [("x.dat", costs)])
        assert any("record again under lightsleep enable" in note for note in said) == told


def test_tasks_that_wake_each_other_in_turn_are_a_closed_loop() -> None:
    there = [period(1000 * n, 100, pair=(7, 8)) for n in range(40)]
    back = [period(1000 * n + 500, 100, pair=(8, 7)) for n in range(35)]
    costs = costs_of(metadata(), [as_batch("host", there + back)])
    assert costs
    assert costs.loop_wakes == costs.task_wakes == 75
    interval = intervals(period(0, 100, wait_us=40), costs=costs)
    assert int(interval.earliest_ns[0]) == max(0, int(interval.arrival_ns[0]) - costs.halt_ns)
    for few in (back[:20], []):
        costs = costs_of(metadata(), [as_batch("host", there + few)])
        assert costs
        assert costs.loop_wakes == 0


@pytest.mark.parametrize(
    ("pairs", "told"),
    [
        (((7, 8), (8, 7)), False),
        (((7, 8), (8, 7), (17, 18), (18, 17)), False),
        (((7, 8), (8, 7), (8, 9), (9, 8)), True),  # a server that asks another one
    ],
)
def test_what_the_range_of_a_loop_leaves_out_is_said(
    pairs: Sequence[tuple[int, int]], told: bool
) -> None:
    rows = [period(1000 * n, 100, pair=pair) for n in range(40) for pair in pairs]
    costs = costs_of(metadata(), [as_batch("host", rows)])
    assert costs
    made = replay(metadata(), costs, [as_batch("host", rows)], {STOCK: None})
    assert made.loop_share == 1
    notes = words.notes(made, [("x.dat", costs)])
    assert any("their peers' own peers" in note for note in notes) == told


@pytest.mark.parametrize("make_engine", ENGINES)
def test_a_closed_loop_is_shorter_by_what_the_wakeup_of_the_peer_costs(
    make_engine: Callable[[], Engine],
) -> None:
    """One of the CPUs sleeps deeper than the other, or is slower to wake."""
    rows = []
    for n in range(40):
        rows.append(period(1000 * n, 400, HALT, 25, pair=(7, 8)))
        rows.append(period(1000 * n, 400, DEEP, 150, pair=(8, 7), cpu=1))
    batch = as_batch("host", rows)
    costs = costs_of(judged(), [batch])
    assert costs
    found = dict(make_engine().reader(judged(), costs).intervals(batch))
    for cpu, peer_us in ((0, 150), (1, 25)):
        shorter_ns = found[cpu].arrival_ns - found[cpu].earliest_ns
        assert shorter_ns.tolist() == pytest.approx([peer_us * US] * 40, rel=0.03)


@pytest.mark.parametrize("make_engine", ENGINES)
@pytest.mark.parametrize(
    ("peer", "most_us"),
    [
        # A mean would leave the truth of those where it slept out of the range.
        (((POLL, 5), (AWAKE, 5), (HALT, 25), (DEEP, 150)), 145),
        (((POLL, 5), (AWAKE, 5), (POLL, 5), (HALT, 25)), 20),
        (((POLL, 5), (AWAKE, 5)), 0),
    ],
)
def test_a_closed_loop_is_shorter_by_the_most_that_the_peer_s_wakeup_costs(
    peer: Sequence[tuple[int, int]], most_us: int, make_engine: Callable[[], Engine]
) -> None:
    rows = []
    for n in range(160):
        rows.append(period(1000 * n, 400, HALT, 25, pair=(7, 8)))
        state, wait_us = peer[n % len(peer)]
        length_us = 0 if state == AWAKE else 400
        rows.append(period(1000 * n, length_us, state, wait_us, pair=(8, 7), cpu=1))
    batch = as_batch("host", rows)
    costs = costs_of(judged(), [batch])
    assert costs
    assert costs.loops == pytest.approx({7 << 32 | 8: most_us * US, 8 << 32 | 7: 20 * US}, rel=0.05)
    ((_, found),) = make_engine().reader(judged(), costs).intervals(as_batch("host", rows[::2]))
    shorter_ns = found.arrival_ns - found.earliest_ns
    assert shorter_ns.tolist() == [costs.loops[7 << 32 | 8]] * 160
