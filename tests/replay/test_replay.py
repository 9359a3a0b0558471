# SPDX-License-Identifier: GPL-2.0-only
"""Replaying: figures add up, and no cut of the data changes them."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
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
    HALT,
    MENU,
    NO_COSTS,
    POLL,
    US,
    judged,
    metadata,
    needs_compiler,
    period,
    run,
    timed,
)

from lightsleep.errors import LightsleepError
from lightsleep.periods.build import Row
from lightsleep.periods.model import AWAKE
from lightsleep.periods.source import as_batch, open_recording
from lightsleep.periods.table import Recording, write_parquet
from lightsleep.record import sidecar
from lightsleep.replay import cli, words
from lightsleep.replay.account import OPTIMUM, Replay, gain, replay, within_ns
from lightsleep.replay.cli import replay_command
from lightsleep.replay.costs import Costs, Ranks
from lightsleep.replay.engine import CompiledEngine, Engine, PythonEngine
from lightsleep.replay.intervals import BLOCKS, RecordedIntervals
from lightsleep.replay.policies import STOCK, Fixed, parse

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
        st.booleans(),  # woken on the CPU itself
    ),
    min_size=1,
    max_size=80,
)


Drawn = list[tuple[int, int, int, int, int | None, str, tuple[int, int], int | None, bool]]


def made(drawn: Drawn) -> list[Row]:
    """Return rows in which each CPU's time goes on."""
    now, rows = [0, 0, 0], []
    for cpu, gap, length, state, wait, cause, pair, timer_us, by_itself in drawn:
        begin = now[cpu] + gap
        length = 0 if state == AWAKE else length
        now[cpu] = begin + length
        row = period(begin, length, state, wait, pair, cpu, cause, by_itself)
        rows.append(timed(row, timer_us))
    return rows


def replayed(
    batches: list[pa.RecordBatch], engine: Engine | None = None, supposed_ns: float | None = None
) -> Replay:
    loops = {7 << 32 | 8: 15_000, 8 << 32 | 7: 40_000}
    ranks = {(0, HALT): Ranks((0, 10_000, 60_000), (3_000, 5_000, 30_000))}
    costs = Costs(5_000.0, {(0, HALT): 40_000.0}, 40_000, loops, ranks=ranks, halts={0: HALT})
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


@pytest.mark.parametrize(("alike", "least"), [(0.0, 0.95), (0.5, 0.88), (0.8, 0.72)])
def test_an_interval_covers_parts_of_a_recording_that_are_alike(alike: float, least: float) -> None:
    """Each part is like the one before it; by 20 independent ones, 0.5 gave 74 %, and 0.8 46 %."""
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
        parts = [rng.normal(0, 1e6)]
        while len(parts) < BLOCKS:
            parts.append(alike * parts[-1] + rng.normal(0, 1e6 * (1 - alike**2) ** 0.5))
        parts_ns = np.array(parts).astype(np.int64)
        covered += abs(int(parts_ns.sum())) <= within_ns(parts_ns)
    assert covered >= least * 400


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


def test_who_catches_most_wakeups_makes_most_tasks_wait_for_no_time() -> None:
    # Nine of ten tasks come after 60 us, and the tenth after 2 ms.
    rows = [period(5000 * n, 2040 if n % 10 == 0 else 100) for n in range(100)]
    found = replay(metadata(), NO_COSTS, [as_batch("host", rows)], parse("stock,fixed:1ms"), 4)
    document = words.document(found, [])
    for policy, waits_us in (("stock", (40, 40)), ("fixed:1ms", (0, 40)), (OPTIMUM, (0, 40))):
        (row,) = (x for x in document["policies"] if x["policy"] == policy)
        percentiles = [row["as_recorded"][f"wait_p{x}_ns"] for x in (50, 99)]
        assert percentiles == pytest.approx([US * x for x in waits_us], rel=0.03)


def test_what_is_hardly_polled_is_not_said_to_be_nothing() -> None:
    batch = as_batch("host", [period(1000 * n, 100 + n) for n in range(50)])
    found = replay(metadata(), NO_COSTS, [batch], {STOCK: None, "f": lambda *_: Fixed(2)})
    shown = {cells[0]: cells[words.TITLES.index("of idle time")] for cells in words.rows(found)}
    assert shown[STOCK] == "0.00 %"
    assert shown["f"] == "0.002 %"


def test_two_recordings_add_up() -> None:
    batch = as_batch("host", [period(1000 * n, 100 + n) for n in range(50)])
    one, two = replayed([batch]), replayed([batch])
    alone = one.outcomes["fixed:50us"].recorded.to_json()
    one.merge(two)
    both = one.outcomes["fixed:50us"].recorded
    assert both.paid_ns == 2 * int(alone["paid_ns"])
    assert both.waits.count == 100
    assert one.span_ns == 2 * two.span_ns


def test_the_share_of_loops_is_one_of_the_wakeups_by_tasks() -> None:
    batch = as_batch("host", [period(1000 * n, 100 + n) for n in range(50)])
    one, two = replayed([batch]), replayed([batch])
    for made, loops, by_tasks in ((one, 1000, 1000), (two, 0, 99_000)):
        made.wakes, made.loop_wakes, made.task_wakes = 100_000, loops, by_tasks
    one.merge(two)
    assert one.loop_share == 0.01


def test_of_each_recording_only_what_is_said_of_it_is_kept() -> None:
    batch = as_batch("host", [period(1000 * n, 100 + n) for n in range(50)])
    costs = dataclasses.replace(NO_COSTS, loops={7 << 32 | 8: 1}, ranks={(0, 1): Ranks((0,), (1,))})
    outcomes = [(dataclasses.replace(costs, halt_ns=n), replayed([batch])) for n in (1, 2)]
    total, kept = cli._together([Path("a.dat"), Path("b.dat")], outcomes)
    assert total.wakes == 100
    wanted = dataclasses.replace(costs, loops={}, ranks={})
    assert kept == [
        ("a.dat", dataclasses.replace(wanted, halt_ns=1)),
        ("b.dat", dataclasses.replace(wanted, halt_ns=2)),
    ]


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
    assert words.recommendation(outcome, []).startswith(
        "Try fixed:30us: sudo lightsleep try -s lightsleep:fixed:30us -- COMMAND. In "
    )
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


def test_what_a_governor_lacks_is_known_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "x.parquet"
    batch = as_batch("host", [period(1000 * n, 100) for n in range(50)])
    list(write_parquet(Recording(metadata(), iter([batch])), table))
    for name in ("replay_files", "replay_tables"):
        monkeypatch.delattr(cli, name)
    for asked in ([MENU, table], [table, MENU], [MENU, PIPE], [table, "--dask", "tcp://host:1"]):
        done = run(*asked, "--policies", "menu@6.12")
        assert done.exit_code == 1
        lacking = f"{PIPE if PIPE in asked else table}: latencies and residencies of CPU 0's idle"
        assert lacking.replace(" ", "") in "".join(done.output.split())


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
    assert "1001ms is not between 0s and 1s" in run(path, "--halt-cost", "1001ms").output
    path.write_text('{"schema": "lightsleep.histogram", "version": 1}')
    assert "has no idle periods to replay: record without --histogram" in run(path).output
