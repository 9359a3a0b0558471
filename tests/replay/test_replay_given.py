# SPDX-License-Identifier: GPL-2.0-only
"""Costs of wakeups that the user gives: one for all states, or those that were measured."""

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from measurements import State, made_up
from recordings import PIPE
from replays import ADVERTISED, MENU, US, judged, metadata, period, run

from lightsleep.errors import LightsleepError
from lightsleep.measure.result import MeasureResult
from lightsleep.periods.source import as_batch, open_recording
from lightsleep.periods.table import Recording, write_parquet
from lightsleep.record import sidecar
from lightsleep.replay.evidence import costs_of
from lightsleep.replay.given import Given, by_state, measured
from lightsleep.replay.parts import shares_of

STATES = [
    State(name, latency_us, residency_us, true_us, "agrees")
    for (name, latency_us, residency_us), true_us in zip(ADVERTISED, (0.3, 25, 150), strict=True)
]


def written(folder: Path, result: MeasureResult) -> Path:
    path = folder / "measured.json"
    path.write_text(json.dumps(result.document()))
    return path


def test_each_state_costs_what_was_measured(tmp_path: Path) -> None:
    given = measured(written(tmp_path, made_up(states=STATES)))
    # A few wakes, which took longer than was measured, from C1 of CPU 0: C6 is known all the same.
    rows = [period(1000 * i, 500, state=1, wait_us=90) for i in range(5)]
    costs = costs_of(judged(), [as_batch("host", rows)], given)
    assert costs
    assert costs.given
    assert costs.states[0, 1] == pytest.approx(25 * US, rel=0.1)
    assert costs.states[0, 2] == pytest.approx(150 * US, rel=0.1)
    assert (0, 0) not in costs.states
    assert costs.halt_ns == round(costs.states[0, 1])


def test_wakes_of_other_cpus_count_and_no_others(tmp_path: Path) -> None:
    assert by_state(made_up(sources=("timer", "device")).rows) == {}
    found = by_state(made_up(sources=("timer", "ipi")).rows)
    assert {name for name, *_ in found} == {"POLL", "C1", "C1E", "C6"}  # C10 was never entered
    with pytest.raises(LightsleepError, match=r"by another CPU .* --source ipi --source store"):
        measured(written(tmp_path, made_up(sources=("timer",))))


def test_wakes_by_store_count_where_those_by_ipi_have_no_baseline() -> None:
    """As of states that poll or use MWAIT, by the module: a busy CPU needs the interrupt."""
    by_ipi, by_store = (made_up(sources=(source,)).rows for source in ("ipi", "store"))
    spared = [replace(x, subtracted=None) if x.name == "C6" else x for x in by_ipi]
    told = by_state([*spared, *by_store])
    (c6,) = (key for key in told if key[0] == "C6")
    assert told == by_state(by_ipi) | {c6: by_state(by_store)[c6]}
    assert by_state(by_ipi)[c6] != told[c6]


def test_a_state_is_known_by_its_name_if_its_driver_says_something_else_now() -> None:
    given = Given(states={("C1", 5.0, 5.0): 7000.0})
    assert given.cost_ns(judged(), 0, 1) == 7000
    both = Given(states={("C1", 5.0, 5.0): 7000.0, ("C1", 6.0, 6.0): 8000.0}, file="m.json")
    assert both.cost_ns(judged(), 0, 1) is None
    with pytest.raises(LightsleepError, match=r"m\.json: no wakes of CPU 0 from C1"):
        both.required_ns(judged(), 0, 1)


def test_states_of_one_name_are_known_by_what_else_was_measured() -> None:
    name, told = "cluster-sleep-0", judged()
    for state, us in ((3, 60), (4, 600)):
        known = {"name": name, "polls": False, "disabled": False}
        told.add_state(known | {"cpu": 0, "state": state, "advertised_us": us, "residency_us": us})
    given = Given(states={(name, 60, 60): 7000.0, (name, 600, 600): 8000.0}, file="m.json")
    assert [given.cost_ns(told, 0, state) for state in (3, 4)] == [7000, 8000]
    lacking = Given(states={(name, 1, 1): 7000.0, (name, 2, 2): 8000.0}, file="m.json")
    with pytest.raises(LightsleepError, match=f"of CPU 0 from {name}#4, which the recording has"):
        lacking.required_ns(told, 0, 4)


def test_a_state_that_was_not_measured_is_an_error() -> None:
    given = Given(states={("C1", 10.0, 20.0): 7000.0}, file="m.json")
    rows = [period(0, 500, state=2)]
    with pytest.raises(LightsleepError, match="from C6, which the recording has"):
        costs_of(judged(), [as_batch("host", rows)], given)
    with pytest.raises(LightsleepError, match="from HALT"):
        costs_of(metadata(), [as_batch("host", [period(0, 500)])], given)


def test_a_state_that_only_interrupts_woke_tasks_out_of_is_to_be_measured_too() -> None:
    given = Given(states={("C1", 10.0, 20.0): 7000.0}, file="m.json")
    rows = [period(0, 500, state=1), period(1000, 500, 2, 9, pair=(0, 8), cause="timer")]
    with pytest.raises(LightsleepError, match="from C6, which the recording has"):
        costs_of(judged(), [as_batch("host", rows)], given)


def test_a_machine_with_one_cpu_needs_a_cost_that_is_given(tmp_path: Path) -> None:
    rows = [period(1000 * n, 500, 1, 9, pair=(0, 8), cause="timer") for n in range(500)]
    rows += [period(1000 * n, 500, 2, 9, pair=(0, 8), cause="timer") for n in range(500, 600)]
    table = tmp_path / "one.parquet"
    list(write_parquet(Recording(judged(), iter([as_batch("host", rows)])), table))
    done = run(table)
    assert done.exit_code == 1
    assert "by another CPU, so nothing tells what a halt costs: if timers" in done.stderr
    done = run(table, "--halt-cost", "40us", "--policies", "stock,fixed:1ms", "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    (recording,) = document["recordings"]
    assert (recording["halt_cost_ns"], recording["reference_ns"]) == (40 * US, None)
    assert (recording["measured_wakes"], recording["estimated_wakes"]) == (0, 600)
    waited = {x["policy"]: x["as_recorded"]["waited_ns"] for x in document["policies"]}
    assert (waited["stock"], waited["fixed:1ms"]) == (600 * 40 * US, 0)
    # The usual state is the one that most wakeups came out of.
    given = Given(states={("C1", 10.0, 20.0): 7000.0, ("C6", 100.0, 300.0): 90000.0}, file="m.json")
    costs = costs_of(judged(), [as_batch("host", rows)], given)
    assert costs
    assert (costs.halt_ns, costs.halts) == (7000, {0: 1})


def test_without_any_wakeup_there_is_nothing_to_replay(tmp_path: Path) -> None:
    table = tmp_path / "polls.parquet"
    rows = [period(1000 * n, 500, 0) for n in range(50)]
    list(write_parquet(Recording(judged(), iter([as_batch("host", rows)])), table))
    done = run(table, "--halt-cost", "40us")
    assert done.exit_code == 1
    assert "there is nothing to replay" in done.stderr


def test_the_command_says_what_it_used(tmp_path: Path) -> None:
    known = [("C1", 20, 40), ("C1E", 60, 200), ("C6", 300, 900)]
    states = [State(*each, each[1] * 1.5, "agrees") for each in known]
    file = written(tmp_path, made_up(states=states))
    done = run(MENU, "--measured", file, "--json")
    assert done.exit_code == 0, done.output
    (recording,) = json.loads(done.output)["recordings"]
    assert recording["measured"] == str(file)
    assert recording["halt_cost_ns"] in [
        pytest.approx(1.5 * latency_us * US, rel=0.1) for _, latency_us, _ in known
    ]
    said = " ".join(run(MENU, "--measured", file).output.split())
    assert "and one from each state what" in said


def test_bad_files_and_options(tmp_path: Path) -> None:
    done = run(MENU, "--measured", tmp_path / "none.json")
    assert done.exit_code == 1
    assert "cannot read" in done.stderr
    file = written(tmp_path, made_up(states=STATES))
    done = run(MENU, "--measured", file, "--halt-cost", "40us")
    assert done.exit_code == 2
    assert "give one" in done.output


def described_by(cpus: list[dict[str, object]], folder: Path) -> Path:
    """Return the recording PIPE, with a description in which the scan found these CPUs."""
    trace = folder / "pipe.txt"
    trace.write_bytes(gzip.decompress(PIPE.read_bytes()))
    document = json.loads(sidecar.beside(PIPE).read_text())
    document["scan"] = {"cpus": cpus}
    sidecar.beside(trace).write_text(json.dumps(document))
    return trace


def test_the_module_decides_by_what_it_had_measured(tmp_path: Path) -> None:
    cpus: list[dict[str, object]] = [
        {"cpu": 0, "lightsleep": {"halt_cost_ns": 1000}},
        {"cpu": 1, "lightsleep": {"halt_cost_ns": 2000}},
        {"cpu": 2, "lightsleep": {"halt_cost_ns": 0}},
        {"cpu": 3},
    ]
    told = json.loads(run(described_by(cpus, tmp_path), "--json").stdout)
    (recording,) = told["recordings"]
    assert recording["driver_cost_ns"] == {"0": 1000, "1": 2000}
    assert any("had measured 1.00 to 2.00 us there" in note for note in told["notes"])
    # With a halt as cheap as that, it hardly polls.
    without = json.loads(run(PIPE, "--json").stdout)
    assert without["recordings"][0]["driver_cost_ns"] == {}
    polled = [
        next(x["as_recorded"]["polled_ns"] for x in each["policies"] if x["policy"] == "lightsleep")
        for each in (told, without)
    ]
    assert polled[0] < polled[1] / 2
    # The table that it becomes keeps it, and a cost that is given replaces it.
    table = tmp_path / "pipe.parquet"
    list(write_parquet(open_recording(tmp_path / "pipe.txt"), table))
    again = json.loads(run(table, "--json").stdout)
    assert again["recordings"][0]["driver_cost_ns"] == {"0": 1000, "1": 2000}
    assert again["policies"] == told["policies"]
    given = json.loads(run(table, "--json", "--halt-cost", "40us").stdout)
    assert given["recordings"][0]["driver_cost_ns"] == {}


def test_a_cpu_that_nobody_described_is_no_other(tmp_path: Path) -> None:
    given = Given(states={("C1", 10.0, 20.0): 7000.0}, file="m.json")
    rows = [period(0, 500, state=1, cpu=5)]
    with pytest.raises(LightsleepError, match="no wakes of CPU 5 from state 1, which"):
        costs_of(judged(), [as_batch("host", rows)], given)


def test_what_is_no_recording(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.parquet"
    pq.write_table(pa.table({"cpu": ["a", "b"]}), foreign)
    with pytest.raises(LightsleepError, match="not a table of idle periods of lightsleep"):
        shares_of(foreign, 4)
    (tmp_path / "folder" / "dask.parquet").mkdir(parents=True)
    shutil.copy(MENU, tmp_path / "folder" / "dask.parquet" / "part-0.parquet")
    assert run(tmp_path / "folder").exit_code == 0
    done = run("x" * 300)
    assert done.exit_code == 1
    assert "File name too long" in done.stderr
    many = tmp_path / "negative.parquet"
    rows = [period(0, 500, cpu=-1), period(0, 500, cpu=3)]
    list(write_parquet(Recording(metadata(), iter([as_batch("host", rows)])), many))
    done = run(many)
    assert done.exit_code == 1
    assert "no machine has a CPU -1" in done.stderr
