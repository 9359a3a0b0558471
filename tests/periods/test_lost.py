# SPDX-License-Identifier: GPL-2.0-only
"""What is made of rows: the time that tasks lost waiting for CPUs to wake."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import ROOT
from recordings import PIPE, described_state, rows_of
from schemas import validator
from traces import idle, left, switched, waking

from lightsleep.periods import lost as lost_module
from lightsleep.periods.build import Row
from lightsleep.periods.lost import BUCKETS_PER_OCTAVE, OTHERS, Ns, TimeLost, Wakes, time_lost
from lightsleep.periods.model import Metadata
from lightsleep.periods.source import as_batch, open_recording
from lightsleep.periods.words import headline, line
from lightsleep.record import sidecar
from lightsleep.report.recording_plots import colours_of, timeline_plot, waits_plot


@pytest.mark.parametrize("end_us", [0, 40, 24 * 3600 * 10**6])
def test_a_timeline_of_any_length_is_drawn(end_us: int, tmp_path: Path) -> None:
    """CPU 1 idles at the begin, or for no time at all; what others do goes on for a day."""
    path = tmp_path / "trace.txt"
    path.write_text(idle(0, 1, 1) + left(min(end_us, 20), 1) + waking(end_us, 0, 5))
    recording = open_recording(path)
    lost = time_lost(recording.metadata, recording.batches)
    tracemalloc.start()
    drawn = timeline_plot(lost, "salt")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert drawn
    assert drawn[0].startswith("<svg")
    assert peak < 64 << 20


@pytest.mark.parametrize("known", ["before the rows", "after them"])
def test_a_timeline_begins_at_the_first_event(known: str) -> None:
    """The compiled reader of a trace.dat tells only at its end when the recording began."""
    second_ns, start_ns = 10**9, 7 * 10**9
    who = (None, None, None, None)
    end = (None, None, None, None)
    row: Row = (1, start_ns + 600_000_000, 300_000_000, 1, None, "ipi", *who, *end)
    metadata = Metadata("host", "x")

    def batches() -> Iterator[pa.RecordBatch]:
        if known == "before the rows":
            metadata.first_ns, metadata.last_ns = start_ns, start_ns + second_ns
        yield as_batch("host", [row])
        metadata.first_ns, metadata.last_ns = start_ns, start_ns + second_ns

    lost = time_lost(metadata, batches())
    edges_ns = lost.timeline.columns_ns(start_ns, second_ns, 128)
    assert edges_ns[-1] == second_ns
    assert len(edges_ns) <= 129
    (name,) = lost.timeline.idle_ns[1]
    shares = lost.timeline.shares(1, name, edges_ns)
    idle_ns = shares * np.diff(edges_ns)
    assert idle_ns.sum() == pytest.approx(300_000_000)
    inside = (edges_ns[1:] > 600_000_000) & (edges_ns[:-1] < 900_000_000)
    assert not idle_ns[~inside].any()
    drawn = timeline_plot(lost, "salt")
    assert drawn
    assert "time since the first event" in drawn[0]


def test_the_last_column_of_a_timeline_ends_with_the_recording() -> None:
    who = (None, None, None, None)
    span_ns = 1_000_000_000 + 12_345
    row: Row = (0, 0, span_ns, 1, None, "ipi", *who, None, None, None, None)
    lost = time_lost(Metadata("host", "x", first_ns=0, last_ns=span_ns), [as_batch("host", [row])])
    (name,) = lost.timeline.idle_ns[0]
    shares = lost.timeline.shares(0, name, lost.timeline.columns_ns(0, span_ns, 128))
    assert shares == pytest.approx(1.0)


def test_a_cpu_without_a_whole_period_is_said_to_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    bands = "".join(idle(us, us, 1) + left(us + 100, us) for us in range(17))
    path.write_text(bands + left(200, 50))
    recording = open_recording(path)
    drawn = timeline_plot(time_lost(recording.metadata, recording.batches), "salt")
    assert drawn
    assert "CPU 50" not in drawn[0]
    assert drawn[1] == 2


def test_a_driver_in_mode_off_hides_no_polls() -> None:
    ours = {"cpuidle_driver": "lightsleep"}
    for environment, hides in (
        (ours, True),
        ({**ours, "driver_mode": "adaptive"}, True),
        ({**ours, "driver_mode": "off"}, False),
        ({"cpuidle_driver": "intel_idle"}, False),
    ):
        metadata = Metadata("host", "x", environment=environment, polling={(0, 0)})
        assert metadata.hides_polls is hides
        # In its state POLL our driver halts as well, in mode off, too.
        assert metadata.polls(0, 0) is (environment["cpuidle_driver"] != "lightsleep")


def test_a_task_whose_name_was_not_recorded_has_none() -> None:
    recording = open_recording(ROOT / "tests/fixtures/record/menu.parquet")
    lost = time_lost(recording.metadata, recording.batches)
    document = lost.document()
    assert [x["task"] for x in document["by_task"]] == [None]
    assert [x["waker"] for x in document["by_waker"]] == [None]
    schema = (ROOT / "lightsleep/periods/lost.schema.json").read_text()
    validator(json.loads(schema)).validate(document)
    ((name, wakes),) = lost.top("task")
    assert line(lost, name, wakes)[0] == "-"


def test_names_beyond_the_most_are_counted_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(lost_module, "MOST_NAMES", 3)
    path, lines = tmp_path / "trace.txt", []
    for number in range(8):
        us, task = 1000 * number, 10 + number % 5
        period = idle(us, 1, 1), waking(us + 10, 0, task), left(us + 20, 1)
        lines += [*period, switched(us + 30, 1, f"t{task}", task)]
    path.write_text("".join(lines))
    recording = open_recording(path)
    added, real = [], Wakes.add

    def add(self: Wakes, waits_ns: Ns) -> None:
        added.append(self)
        real(self, waits_ns)

    monkeypatch.setattr(Wakes, "add", add)
    lost = time_lost(recording.metadata, recording.batches)
    others = lost.groups["task"][OTHERS]
    assert sum(each is others for each in added) == 1  # an array for each name takes long
    counts = {name: wakes.count for name, wakes in lost.groups["task"].items()}
    assert counts == {"t10": 2, "t11": 2, "t12": 2, OTHERS: 2}
    assert lost.groups["waker"].keys() == {"waker"}
    (note,) = [x for x in lost.metadata.warnings() if OTHERS in x]
    assert note == (
        'more than 3 names of tasks: names after the first 3 are counted together, as "others, '
        'together"'
    )


def test_time_lost_is_the_sum_of_the_waits() -> None:
    rows, _ = rows_of(PIPE)
    recording = open_recording(PIPE)
    lost = time_lost(recording.metadata, recording.batches)
    waits = [x["waking_to_running_ns"] for x in rows if x["state"] != -1]
    waits = sorted(x for x in waits if x is not None)
    assert lost.all.count == len(waits)
    assert lost.all.total_ns == sum(waits)
    for groups in lost.groups.values():
        assert sum(x.count for x in groups.values()) == len(waits)
        assert sum(x.total_ns for x in groups.values()) == sum(waits)
    for share in (0.5, 0.99):
        exact = waits[int(share * len(waits))]
        assert lost.all.within_ns(share) == pytest.approx(exact, rel=0.05)
    (name,) = lost.states
    assert lost.states[name].total_ns == sum(x["length_ns"] for x in rows)
    awake = [x for x in rows if x["state"] == -1]
    assert lost.reference.count == sum(x["waker_cpu"] != x["cpu"] for x in awake)
    drawn = sum(bins.sum() for states in lost.timeline.idle_ns.values() for bins in states.values())
    assert drawn == pytest.approx(lost.states[name].total_ns)
    assert json.dumps(lost.document())


def wakes(*waits_us: float) -> Wakes:
    found = Wakes()
    found.add(np.array([round(1000 * x) for x in waits_us]))
    return found


def test_a_state_whose_wakeups_all_took_the_same_has_a_curve() -> None:
    lost = TimeLost(Metadata("host", "x"))
    lost.groups["state"]["C1"] = wakes(*[7.0] * 20)
    drawn = waits_plot(lost, "salt")
    assert drawn
    colour = colours_of(lost)["C1"]
    lines = re.findall(rf'<path d="([^"]*)"[^>]*stroke: {colour}', drawn)
    assert len(lines) == 2  # the other is in the legend
    assert all("L" in line for line in lines)


def test_a_reference_that_is_too_close_tells_nothing() -> None:
    """On its way to an idle state, a CPU is woken soon or, with interrupts off, late."""
    lost = TimeLost(Metadata("host", "x"))
    lost.all = lost.groups["state"]["C1"] = wakes(*[7.0] * 2000)
    lost.reference = wakes(*[2.5] * 20, *[20.0] * 20)
    assert lost.reference_ns is not None
    assert lost.above_reference_ns(lost.all) is None
    assert "too close to tell what part" in headline(lost)[-1]
    lost.reference = wakes(*[2.5] * 40)
    assert lost.above_reference_ns(lost.all) == pytest.approx(2000 * 4500, rel=0.05)
    assert "the idle states took 8.93 ms" in headline(lost)[-1]
    assert not wakes().is_slower_than(lost.reference)


def test_medians_are_compared_by_the_interval_of_their_difference() -> None:
    """That is narrower than the intervals of both, one end to the other."""
    usual, slower, close = (wakes(*range(first, first + 40)) for first in (10, 21, 18))
    assert slower.median_interval_ns()[0] < usual.median_interval_ns()[1]
    assert slower.is_slower_than(usual)
    assert not close.is_slower_than(usual)
    assert not usual.is_slower_than(slower)


def test_no_part_of_a_total_is_above_it() -> None:
    """Of two states that a CPU enters, the median is that of one; some waits have other reasons."""
    lost = TimeLost(Metadata("host", "x", first_ns=0, last_ns=10**9))
    lost.reference = wakes(*[2.0] * 40)
    shallow, deep, long = [3.0] * 490, [150.0] * 500, [5000.0] * 10
    for kind, shallow_name, deep_name in (("state", "C1", "C6"), ("cpu", "0", "0")):
        lost.parts[kind][shallow_name]["C1"] = wakes(*shallow)
        lost.parts[kind][deep_name]["C6"] = wakes(*deep, *long)
    lost.add_up()
    states = [lost.above_reference_ns(x) for _, x in lost.top("state")]
    assert states == pytest.approx([510 * 148e3, 490 * 1e3], rel=0.03)
    assert lost.above_reference_ns(lost.all) == pytest.approx(510 * 148e3 + 490 * 1e3, rel=0.03)
    assert lost.above_reference_ns(lost.groups["cpu"]["0"]) == lost.above_reference_ns(lost.all)
    assert lost.groups["cpu"]["0"].count == 1000


def test_what_too_few_wakeups_took_is_not_told() -> None:
    lost = TimeLost(Metadata("host", "x", first_ns=0, last_ns=10**9))
    lost.reference = wakes(*[2.0] * 40)
    for state, count in (("C1", 5), ("C6", 6)):
        lost.parts["state"][state][state] = wakes(*[100.0] * count)
        lost.parts["task"]["redis"][state] = wakes(*[100.0] * count)
    lost.add_up()
    assert lost.above_reference_ns(lost.groups["state"]["C1"]) is None
    assert "the idle states took 0.588 ms" in headline(lost)[-1]
    both = [lost.all, lost.groups["task"]["redis"]]
    assert [lost.above_reference_ns(x) for x in both] == pytest.approx([6 * 98e3] * 2, rel=0.03)


def test_a_headline_says_that_too_few_are_known() -> None:
    lost = TimeLost(Metadata("host", "x", first_ns=0, last_ns=10**9))
    lost.reference = wakes(*[2.0] * 40)
    lost.parts["state"]["C6"]["C6"] = wakes(*[5000.0] * 5)
    lost.add_up()
    assert "Too few wakeups are known" in headline(lost)[-1]


def test_wakeups_of_a_task_are_judged_by_state(tmp_path: Path) -> None:
    """Most are short: by the median of all, the long ones would count for nothing."""
    path = tmp_path / "trace.txt"
    lines, us = [], 0
    for state, wait, count in ((0, 2, 40), (1, 10, 60), (2, 210, 40)):
        for _ in range(count):
            us += 1000
            lines += [idle(us, 1, state), waking(us + 100, 0, 42), left(us + 100 + wait, 1)]
            lines += [switched(us + 100 + wait, 1, "x", 42)]
    path.write_text("".join(lines))
    names = ("POLL", "C1", "C6")
    known = [described_state(index, name, 0, 0) for index, name in enumerate(names)]
    document = json.loads(sidecar.beside(PIPE).read_text()) | {"states": {"1": known}}
    sidecar.beside(path).write_text(json.dumps(document))
    recording = open_recording(path)
    lost = time_lost(recording.metadata, recording.batches)
    expected_ns = 60 * 8000 + 40 * 208_000
    for wakes in (lost.all, lost.groups["task"]["x"], lost.groups["cpu"]["1"]):
        assert lost.above_reference_ns(wakes) == pytest.approx(expected_ns, rel=0.05)


def test_a_little_of_wall_time_is_not_none_of_it() -> None:
    lost = TimeLost(Metadata("host", "x", first_ns=0, last_ns=10**9))
    lost.all = lost.groups["cpu"]["0"] = wakes(5.0)
    assert line(lost, "0", lost.all).share == "0.0005 %"
    assert "0.0005 % of wall time" in headline(lost)[0]


def test_no_wakeup_has_no_percentile() -> None:
    lost = TimeLost(Metadata("host", "x"))
    assert line(lost, "", lost.all)[1:6] == ("0", "0 ms", "0.00 %", "-", "-")


@given(st.lists(st.integers(1, 1 << 40), min_size=1, max_size=200), st.integers(1, 10**6))
def test_a_part_is_of_its_total(waits: list[int], reference_ns: int) -> None:
    lost = TimeLost(Metadata("host", "x"))
    lost.reference.add(np.array([reference_ns] * 40, np.int64))
    lost.parts["state"]["C1"]["C1"].add(np.array(waits, np.int64))
    lost.add_up()
    part = lost.above_reference_ns(lost.all)
    assert part is None or 0 <= part <= sum(waits)


def test_wakeups_of_a_polling_cpu_are_the_reference(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    lines = []
    for number in range(40):
        us = 1000 * number
        state, wait = number % 2, (5, 105)[number % 2]
        lines += [idle(us, 1, state), waking(us + 100, 0, 42), left(us + 100 + wait, 1)]
        lines += [switched(us + 100 + wait, 1, "x", 42)]
    path.write_text("".join(lines * 1))
    known_states = [described_state(0, "POLL", 0, 0), described_state(1, "C1", 0, 0)]
    document = json.loads(sidecar.beside(PIPE).read_text()) | {"states": {"1": known_states}}
    sidecar.beside(path).write_text(json.dumps(document))
    recording = open_recording(path)
    lost = time_lost(recording.metadata, recording.batches)
    assert lost.reference.count == 20
    assert lost.reference_ns is None  # too few to compare with
    assert dict(lost.groups["state"]).keys() == {"C1"}
    assert lost.all.total_ns == 20 * 105_000


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=200), st.floats(0.01, 1))
def test_percentiles_are_near(waits: list[int], share: float) -> None:
    wakes = Wakes()
    wakes.add(np.array(waits, np.int64))
    exact = sorted(waits)[max(0, int(np.ceil(share * len(waits))) - 1)]
    found = wakes.within_ns(share)
    assert found <= max(1, max(waits))
    assert found == pytest.approx(exact, rel=2 ** (1 / BUCKETS_PER_OCTAVE) - 1, abs=1.1)


def test_memory_does_not_grow_with_the_recording(tmp_path: Path) -> None:
    metadata = Metadata("host", "x")
    batch = next(iter(open_recording(PIPE).batches))
    many = time_lost(metadata, (batch for _ in range(50)))
    once = time_lost(Metadata("host", "x"), [batch])
    assert many.all.count == 50 * once.all.count
    assert many.all.histogram.keys() == once.all.histogram.keys()
