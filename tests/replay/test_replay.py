# SPDX-License-Identifier: GPL-2.0-only
"""Replaying: figures add up, and no cut of the data changes them."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import PIPE
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
    run,
)

from lightsleep.errors import LightsleepError
from lightsleep.periods.build import Row
from lightsleep.periods.model import AWAKE, Metadata
from lightsleep.periods.source import as_batch, open_recording
from lightsleep.periods.table import write_parquet
from lightsleep.record import sidecar
from lightsleep.replay import cli, words
from lightsleep.replay.account import OPTIMUM, Replay, gain, replay
from lightsleep.replay.cli import replay_command
from lightsleep.replay.costs import Costs, Ranks, costs_of
from lightsleep.replay.engine import CompiledEngine, Engine, PythonEngine
from lightsleep.replay.given import Given
from lightsleep.replay.intervals import Reader, RecordedIntervals
from lightsleep.replay.policies import STOCK, Fixed, parse


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
            made.add_state(row | {"advertised_us": 0 if polls else latency_us})
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
        assert any("in no event" in note for note in words.notes(made, [("x.dat", costs)]))


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
        assert any("mode=off, and record again" in note for note in said) == told


def test_tasks_that_wake_each_other_in_turn_are_a_closed_loop() -> None:
    there = [period(1000 * n, 100, pair=(7, 8)) for n in range(40)]
    back = [period(1000 * n + 500, 100, pair=(8, 7)) for n in range(35)]
    costs = costs_of(metadata(), [as_batch("host", there + back)])
    assert costs
    assert costs.loop_share == 1
    interval = intervals(period(0, 100, wait_us=40), costs=costs)
    assert int(interval.earliest_ns[0]) == max(0, int(interval.arrival_ns[0]) - costs.halt_ns)
    for few in (back[:20], []):
        costs = costs_of(metadata(), [as_batch("host", there + few)])
        assert costs
        assert costs.loop_share == 0


POLICIES = {STOCK: None} | {name: parse(name)[name] for name in ("haltpoll", "fixed:50us")}

rows_of_cpus = st.lists(
    st.tuples(
        st.integers(0, 2),  # CPU
        st.integers(0, 30),  # gap
        st.integers(0, 400),  # length
        st.sampled_from([POLL, HALT, HALT, DEEP, AWAKE, 300]),
        st.one_of(st.none(), st.integers(1, 90)),
        st.sampled_from(["unknown", "ipi", "timer", "tick", "device"]),
        st.sampled_from([(7, 8), (8, 7), (0, 9)]),
        st.one_of(st.none(), st.integers(0, 300)),  # until the next timer
    ),
    min_size=1,
    max_size=80,
)


Drawn = list[tuple[int, int, int, int, int | None, str, tuple[int, int], int | None]]


def made(drawn: Drawn) -> list[Row]:
    """Return rows in which each CPU's time goes on."""
    now, rows = [0, 0, 0], []
    for cpu, gap, length, state, wait, cause, pair, timer_us in drawn:
        begin = now[cpu] + gap
        length = 0 if state == AWAKE else length
        now[cpu] = begin + length
        rows.append(timed(period(begin, length, state, wait, pair, cpu, cause), timer_us))
    return rows


def timed(row: Row, timer_us: int | None) -> Row:
    """Return a row before which the governor was told how long it is until the next timer."""
    return (*row[:4], None if timer_us is None else timer_us * US, *row[5:])


def replayed(
    batches: list[pa.RecordBatch], engine: Engine | None = None, supposed_ns: float | None = None
) -> Replay:
    loops = np.array([7 << 32 | 8, 8 << 32 | 7])
    ranks = {(0, HALT): Ranks((0, 10_000, 60_000), (3_000, 5_000, 30_000))}
    costs = Costs(5_000.0, {(0, HALT): 40_000.0}, 40_000, loops, 0.5, ranks=ranks, halts={0: HALT})
    costs.turn_ns, costs.supposed_ns = 7_000, supposed_ns
    return replay(judged(), costs, batches, POLICIES, engine=engine)


@needs_compiler
@settings(max_examples=60, deadline=None)
@given(rows_of_cpus, st.sampled_from([None, 20_000.0]))
def test_compiled_and_python_make_the_same_intervals(
    drawn: Drawn, supposed_ns: float | None
) -> None:
    batches = [as_batch("host", made(drawn)), as_batch("host", [period(10**6, 50, cpu=0)])]
    engines = CompiledEngine(), PythonEngine()
    compiled, python = (replayed(batches, x, supposed_ns) for x in engines)
    assert (compiled.idle_ns, compiled.wakes) == (python.idle_ns, python.wakes)
    for name, outcome in compiled.outcomes.items():
        other = python.outcomes[name]
        assert (outcome.recorded.tally.data == other.recorded.tally.data).all()
        assert (outcome.earliest.tally.data == other.earliest.tally.data).all()


@needs_compiler
@settings(max_examples=60, deadline=None)
@given(rows_of_cpus)
def test_compiled_and_python_say_the_same_of_each_interval(drawn: Drawn) -> None:
    batch = as_batch("host", made(drawn))
    read = []
    for engine in (CompiledEngine(), PythonEngine()):
        reader = engine.reader(judged(), NO_COSTS)
        parts = [*reader.intervals(batch), *reader.rest()]
        names = [x.name for x in dataclasses.fields(RecordedIntervals)]
        read.append([(cpu, {x: getattr(part, x).tolist() for x in names}) for cpu, part in parts])
    assert sorted(read[0], key=str) == sorted(read[1], key=str)


@settings(max_examples=60)
@given(rows_of_cpus, st.integers(1, 40))
def test_no_cut_of_the_data_changes_a_figure(drawn: Drawn, size: int) -> None:
    batch = as_batch("host", [*made(drawn), period(10**6, 50, cpu=0)])
    parts = [batch.slice(start, size) for start in range(0, len(batch), size)]
    whole, cut = replayed([batch]), replayed(parts)
    for name, outcome in whole.outcomes.items():
        for a, b in (
            (outcome.recorded, cut.outcomes[name].recorded),
            (outcome.earliest, cut.outcomes[name].earliest),
        ):
            assert (a.tally.data == b.tally.data).all()


@settings(max_examples=60)
@given(rows_of_cpus)
def test_nobody_is_better_than_the_optimum(
    drawn: Drawn,
) -> None:
    outcomes = replayed([as_batch("host", made(drawn))]).outcomes
    best = outcomes[OPTIMUM]
    for name, outcome in outcomes.items():
        assert outcome.recorded.paid_ns >= best.recorded.paid_ns, name
        if name != STOCK:
            assert outcome.earliest.paid_ns >= best.earliest.paid_ns, name


def test_a_fixed_limit_by_hand() -> None:
    # Arrivals after 60, 0 and 260 us; the last is nobody's.
    rows = [period(0, 100), period(200, 10), period(300, 300, wait_us=None, cause="tick")]
    outcome = replay(
        metadata(),
        NO_COSTS,
        [as_batch("host", rows)],
        {STOCK: None, "f": lambda *_: Fixed(50 * US)},
    ).outcomes["f"]
    account = outcome.recorded
    assert [account.tally[x] for x in ("hits", "in_vain", "intervals")] == [1, 2, 3]
    assert account.polled_ns == (50 + 0 + 50) * US
    assert account.waits.total_ns == 40 * US
    assert account.paid_ns == 140 * US


def test_two_recordings_add_up() -> None:
    batch = as_batch("host", [period(1000 * n, 100 + n) for n in range(50)])
    one, two = replayed([batch]), replayed([batch])
    alone = one.outcomes["fixed:50us"].recorded.to_json()
    one.merge(two)
    both = one.outcomes["fixed:50us"].recorded
    assert both.paid_ns == 2 * int(alone["paid_ns"])
    assert both.waits.count == 100
    assert one.span_ns == 2 * two.span_ns


def on_host(host: str, gain_us: int) -> Replay:
    """A second of recording in which polling for 100 us gains so much in each ms."""
    rows = [period(1000 * n, 40 + (40 - gain_us), pair=(7, 8)) for n in range(1000)]
    of = dataclasses.replace(metadata(), host=host)
    return replay(of, NO_COSTS, [as_batch("host", rows)], parse("stock,fixed:100us"))


def test_machines_that_differ_widen_the_interval() -> None:
    # Each machine gains the same in every part of its time: only machines differ.
    alike, differ = on_host("a", 20), on_host("a", 10)
    alone = gain(alike, "fixed:100us")
    assert alone.low_ns == alone.high_ns == alone.ns == 1000 * 20 * US
    for host in "bcd":
        alike.merge(on_host(host, 20))
    differ.merge(on_host("b", 30))
    same, wide = gain(alike, "fixed:100us"), gain(differ, "fixed:100us")
    assert (same.ns, same.low_ns) == (4 * alone.ns, 4 * alone.ns)
    # By hand: two machines, 10 and 30 ms, each 10 ms from their mean, and t of 1 degree of freedom.
    assert wide.ns == 2 * alone.ns
    assert wide.ns - wide.low_ns == pytest.approx(12.7062 * 2**0.5 * (2 * 10_000_000**2) ** 0.5)
    assert any("2 machines differ" in note for note in words.notes(differ, []))
    # Two recordings of one machine count as one, beside another machine.
    differ.merge(on_host("b", 30))
    assert [(x.host, x.span_ns) for x in differ.machines()] == [("a", 10**9), ("b", 2 * 10**9)]
    # Machines without a name are as many as recordings.
    for _ in range(2):
        differ.merge(on_host("unknown", 30))
    assert [x.host for x in differ.machines()] == ["a", "b", "unknown", "unknown"]


def test_recordings_of_one_machine_say_nothing_of_others() -> None:
    one = on_host("a", 20)
    one.merge(on_host("a", 20))
    assert len(one.machines()) == 2
    assert any("2 recordings differ; it says nothing" in note for note in words.notes(one, []))


def test_a_recommendation_has_an_interval_that_bears_it() -> None:
    # Every 1 ms a task comes after 20 us of idleness, and would have been caught.
    rows = [period(1000 * n, 60, pair=(7, 8)) for n in range(999)]
    outcome = replay(metadata(), NO_COSTS, [as_batch("host", rows)], parse("stock,fixed:30us"))
    saved = gain(outcome, "fixed:30us")
    assert saved.ns == 999 * (40 - 20) * US
    assert saved.low_ns > 0
    assert words.recommendation(outcome, []).startswith("Try fixed:30us.")
    # Nobody comes within any limit.
    rows = [period(1000 * n, 900, wait_us=None, cause="timer") for n in range(999)]
    outcome = replay(metadata(), NO_COSTS, [as_batch("host", rows)], parse("stock,fixed:30us"))
    assert words.recommendation(outcome, []).startswith("Keep what was recorded")


def test_waiting_counts_as_often_as_its_weight_says() -> None:
    # Tasks come after 100 us, and a wakeup costs 40 us: worth a poll only if waiting is dear.
    rows = [period(1000 * n, 140, pair=(7, 8)) for n in range(999)]
    for weight, worth in ((1, False), (4, True)):
        outcome = replay(
            metadata(), NO_COSTS, [as_batch("host", rows)], parse("stock,fixed:100us"), weight
        )
        saved = gain(outcome, "fixed:100us")
        assert saved.ns == 999 * (weight * 40 - 100) * US
        assert words.recommendation(outcome, []).startswith("Try") == worth
        assert (outcome.outcomes[OPTIMUM].recorded.tally["hits"] > 0) == worth


def test_a_real_recording(tmp_path: Path) -> None:
    table = tmp_path / "pipe.parquet"
    for _ in write_parquet(open_recording(PIPE), table):
        pass
    policies = "stock,haltpoll,fixed:100us"
    from_text, from_parquet = (
        json.loads(run(path, "--policies", policies, "--json").stdout) for path in (PIPE, table)
    )
    assert from_text["policies"] == from_parquet["policies"]
    assert from_text["closed_loop_share"] > 0.8
    assert [x["policy"] for x in from_text["policies"]] == [*policies.split(","), OPTIMUM]
    stock, _, fixed, optimum = from_text["policies"]
    assert stock["as_recorded"]["polled_ns"] == 0
    assert fixed["as_recorded"]["hits"] > 0
    assert fixed["as_recorded"]["waited_ns"] < stock["as_recorded"]["waited_ns"]
    assert optimum["regret_ns"] == 0
    shown = run(table, "--policies", policies, "--halt-cost", "50us").stdout
    assert "haltpoll" in shown
    assert "closed loops" in shown


def test_the_weight_of_waiting_decides_what_polling_is_worth() -> None:
    regrets = {}
    for weight in (1, 100):
        words = (
            "--policies",
            "fixed:1ms",
            "--wait-weight",
            weight,
            "--halt-cost",
            "50us",
            "--json",
        )
        document = json.loads(run(PIPE, *words).stdout)
        assert document["wait_weight"] == weight
        stock, polls, _ = (x["as_recorded"] for x in document["policies"])
        assert polls["polled_ns"] > 0
        regrets[weight] = weight * (polls["waited_ns"] - stock["waited_ns"]) + polls["polled_ns"]
    assert regrets[100] < regrets[1]
    assert run(PIPE, "--wait-weight", 0).exit_code == 2


def test_a_table_that_counts_no_events(tmp_path: Path) -> None:
    recording, table = open_recording(PIPE), tmp_path / "pipe.parquet"
    recording.batches = iter(list(recording.batches))
    recording.metadata.events = 0
    list(write_parquet(recording, table))
    done = run(table, "--policies", "haltpoll", "--json")
    assert done.exit_code == 0, done.output


def test_the_page_shows_time_polled_against_time_waited(tmp_path: Path) -> None:
    page = tmp_path / "replay.html"
    policies = "stock,haltpoll,fixed:100us,fixed:1ms"
    found = json.loads(run(PIPE, "--policies", policies, "-o", page, "--json").stdout)
    points = {
        x["policy"]: (x["as_recorded"]["polled_ns"], x["as_recorded"]["waited_ns"])
        for x in found["policies"]
    }
    front = {x["policy"] for x in found["policies"] if x["on_pareto_front"]}
    assert STOCK in front  # nobody polls less
    assert OPTIMUM not in front
    for name in set(points) - front - {OPTIMUM}:
        assert any(
            points[x][0] <= points[name][0] and points[x][1] <= points[name][1] for x in front
        )
    html = page.read_text()
    assert found["recommendation"] in html
    assert html.count("<svg") == 1
    for name in points:
        assert f'<th scope="row">{name}</th>' in html
        assert f">{name}</text>" in html
    assert run(PIPE, "-o", PIPE).exit_code == 1


def test_a_recording_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    table = tmp_path / "a.parquet"
    for _ in write_parquet(open_recording(PIPE), table):
        pass
    link = tmp_path / "b.parquet"
    link.symlink_to(table)
    said = [
        CliRunner().invoke(replay_command, ["--json", *map(str, words)]).stdout
        for words in ([table], [table, tmp_path, link])
    ]
    assert json.loads(said[0])["policies"] == json.loads(said[1])["policies"]


def test_the_page_overwrites_no_table_of_a_folder(tmp_path: Path) -> None:
    table = tmp_path / "a.parquet"
    for _ in write_parquet(open_recording(PIPE), table):
        pass
    before = table.read_bytes()
    done = CliRunner().invoke(replay_command, [str(tmp_path), "-o", str(table)])
    assert done.exit_code == 1
    assert "is read: name another file" in done.output
    assert table.read_bytes() == before


def test_the_page_overwrites_nothing_that_is_read(tmp_path: Path) -> None:
    trace, measured = tmp_path / "pipe.txt.gz", tmp_path / "measured.json"
    shutil.copy(PIPE, trace)
    described = Path(shutil.copy(sidecar.beside(PIPE), sidecar.beside(trace)))
    measured.write_text("{}")
    for output in (described, measured):
        before = output.read_bytes()
        done = run(trace, "--measured", measured, "-o", output)
        assert done.exit_code == 1
        assert "name another file to write to" in done.output
        assert output.read_bytes() == before


def test_figures_are_shown_where_the_page_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _text: str) -> None:
        raise LightsleepError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr(cli, "write_text", full)
    done = run(PIPE, "--policies", "haltpoll", "-o", tmp_path / "page.html", "--json")
    assert done.exit_code == 1
    assert "No space left" in done.stderr
    assert json.loads(done.stdout)["policies"]


@pytest.mark.parametrize("name", [b"run:1.parquet", b"s3:x.parquet", b"\xff.parquet"])
def test_a_table_may_have_any_name(
    name: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in write_parquet(open_recording(PIPE), tmp_path / os.fsdecode(name)):
        pass
    done = run(os.fsdecode(name), "--policies", "haltpoll", "-o", "page.html")
    assert done.exit_code == 0, done.output
    assert name.decode(errors="replace") in Path("page.html").read_text()


def test_an_error_in_the_scratch_table_names_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(table: Path, *_: object, **__: object) -> None:
        raise LightsleepError(f"{table}: damaged")

    monkeypatch.setattr(cli, "replay_table", damaged)
    done = run(PIPE, "--policies", "haltpoll")
    assert (done.exit_code, done.output) == (1, f"Error: {PIPE}: damaged\n")


def test_links_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    done = run(tmp_path / "loop")
    assert done.exit_code == 1
    assert "Too many levels of symbolic links" in done.output


def test_what_cannot_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    done = run(path)
    assert done.exit_code == 1
    assert "no recording: lightsleep record makes one" in done.output
    assert run(path, "--halt-cost", "5").exit_code == 2
    path.write_text('{"schema": "lightsleep.histogram", "version": 1}')
    assert "has no idle periods to replay: record without --histogram" in run(path).output
