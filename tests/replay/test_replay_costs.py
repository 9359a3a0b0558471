# SPDX-License-Identifier: GPL-2.0-only
"""Evidence of what wakeups cost: the same however it is cut and shared out."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import PIPE, described_state
from replays import ENGINES, US, metadata, period, run

from lightsleep.periods.build import Row
from lightsleep.periods.model import AWAKE
from lightsleep.periods.source import as_batch, open_recording
from lightsleep.periods.table import write_parquet
from lightsleep.record.sidecar import beside
from lightsleep.replay import evidence, words
from lightsleep.replay.account import gain, replay
from lightsleep.replay.engine import Engine
from lightsleep.replay.evidence import Evidence, Pairs, costs_of
from lightsleep.replay.policies import STOCK, parse
from lightsleep.replay.rows import distinct

pair = st.integers(0, 8) | st.sampled_from([1 << 40, (1 << 62) - 1])


@given(st.lists(st.lists(st.tuples(pair, st.integers(0, 3)), max_size=12), max_size=8))
def test_the_first_pairs_are_counted_however_they_are_cut(cut: list[list[tuple[int, int]]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evidence, "PAIRS_OF_CPU", 5)
        counted = Pairs()
        for part in cut:
            keys, states = np.array(part, np.int64).reshape(-1, 2).T
            counted.add(keys, states)
    every = list(itertools.chain.from_iterable(cut))
    first = list(dict.fromkeys(key for key, _ in every))[:5]
    assert counted.keys.tolist() == sorted(first)
    for key, counts in zip(counted.keys.tolist(), counted.counts.tolist(), strict=True):
        for state, count in zip(counted.states, counts, strict=True):
            assert count == every.count((key, state))


@given(st.lists(st.integers(-3, 1 << 20), max_size=30))
def test_what_occurs(numbers: list[int]) -> None:
    assert distinct(np.array(numbers, np.int64)) == sorted(set(numbers))


row = st.builds(
    period,
    at_us=st.integers(0, 1000).map(lambda x: 1000 * x),
    length_us=st.integers(1, 900),
    state=st.sampled_from([0, 1]),
    wait_us=st.none() | st.integers(1, 200),
    pair=st.tuples(st.integers(0, 3), st.integers(1, 3)),
    cpu=st.integers(0, 2),
)


@given(st.lists(row, min_size=1, max_size=60), st.integers(1, 3))
def test_processes_that_share_the_cpus_find_the_same(rows: list[Row], of: int) -> None:
    whole = Evidence(metadata())
    whole.add(as_batch("host", rows))
    parts = []
    for index in range(of):
        part = Evidence(metadata())
        for each in rows:
            if each[0] % of == index:
                part.add(as_batch("host", [each]))
        parts.append(part)
    for other in parts[1:]:
        parts[0].merge(other)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evidence, "LOOP_WAKES", 1)
        assert parts[0].costs() == whole.costs()


@pytest.mark.parametrize("make_engine", ENGINES)
def test_without_a_reference_the_module_s_own_cost_tells(
    make_engine: Callable[[], Engine],
) -> None:
    known = metadata()
    known.driver_cost_ns = {0: 30_000, 1: 50_000}
    halts = [period(1000 * n, 300, wait_us=100) for n in range(40)]
    found = costs_of(known, [as_batch("host", halts)])
    assert found
    assert found.reference_ns is None
    assert found.halt_ns == pytest.approx(40 * US, rel=1e-3)
    # A wakeup of an awake CPU is taken to last 60 us.
    rows = [period(0, 300, wait_us=130), period(1000, 300, wait_us=50)]
    ((_, made),) = make_engine().reader(known, found).intervals(as_batch("host", rows))
    assert made.cost_ns.tolist() == pytest.approx([70 * US, 0], rel=0.03)
    assert made.arrival_ns.tolist() == pytest.approx([230 * US, 300 * US], rel=0.03)
    # It may take no time. Then what its halt cost came before, and the task came as much earlier.
    assert (made.arrival_ns - made.earliest_ns).tolist() == pytest.approx([60 * US] * 2, rel=0.03)
    assert made.more_ns.tolist() == pytest.approx([60 * US] * 2, rel=0.03)
    # So may the wakeup of a peer: all of 100 us.
    found.loops = {7 << 32 | 8: 100 * US}
    ((_, made),) = make_engine().reader(known, found).intervals(as_batch("host", rows))
    assert (made.arrival_ns - made.earliest_ns).tolist() == pytest.approx([160 * US] * 2, rel=0.03)
    for name, account in zip(
        ("recorded", "earliest"),
        replay(known, found, [as_batch("host", rows)], {STOCK: None}).outcomes[STOCK].ends(),
        strict=True,
    ):
        waited_us = {"recorded": 70 + 0, "earliest": 130 + 60}[name]
        assert account.waits.total_ns == pytest.approx(waited_us * US, rel=0.03)
    awake = [period(10**6 + 1000 * n, 0, AWAKE, wait_us=20) for n in range(40)]
    found = costs_of(known, [as_batch("host", [*halts, *awake])])
    assert found
    assert found.supposed_ns is None
    assert found.halt_ns == pytest.approx(80 * US, rel=0.03)


@pytest.mark.parametrize(("driver_us", "supposed_us"), [(99, 1), (101, None), (150, None)])
def test_a_cost_of_the_module_that_no_wakeup_took_tells_nothing(
    driver_us: int, supposed_us: int | None
) -> None:
    """As where a host polls: a busy guest's halts cost less than those the module tried."""
    known = metadata()
    known.driver_cost_ns = {0: driver_us * US}
    batch = as_batch("host", [period(1000 * n, 300, wait_us=100) for n in range(40)])
    found = costs_of(known, [batch])
    assert found
    assert (found.supposed_ns is None) == (supposed_us is None) == found.at_most
    notes = words.notes(replay(known, found, [batch], {STOCK: None}), [("x.dat", found)])
    assert any("as the module had measured" in x for x in notes) != found.at_most
    if found.at_most:
        assert found.halt_ns == pytest.approx(100 * US, rel=0.03)
        assert any("us, at most: wakeups that found" in x for x in notes)


def test_who_does_what_was_recorded_gains_nothing_whatever_wakeups_cost() -> None:
    known = metadata()
    known.driver_cost_ns = {0: 30_000}
    halts = [period(1000 * n, 300, wait_us=100, pair=(7 + n % 2, 8 - n % 2)) for n in range(80)]
    found = costs_of(known, [as_batch("host", halts)])
    assert found
    assert found.supposed_ns == pytest.approx(70 * US, rel=0.03)
    # As that is not known, either task's wakeup may have cost the other all of it.
    assert found.loops == pytest.approx({7 << 32 | 8: 100 * US, 8 << 32 | 7: 100 * US}, rel=0.03)
    alike = replay(known, found, [as_batch("host", halts)], parse("stock,fixed:0ns,fixed:1ms"))
    same = replay(
        dataclasses.replace(known, host="other"),
        found,
        [as_batch("host", halts)],
        parse("stock,fixed:0ns,fixed:1ms"),
    )
    for _ in range(2):
        waited = [x.waits.total_ns for x in alike.outcomes["fixed:0ns"].ends()]
        assert waited[0] < waited[1]
        assert vars(gain(alike, "fixed:0ns")) == {"ns": 0, "low_ns": 0, "high_ns": 0}
        assert gain(alike, "fixed:1ms").high_ns > gain(alike, "fixed:1ms").low_ns
        alike.merge(same)


BIG = [described_state(1, "big", 50, 90)]
LITTLE = [described_state(1, "little", 5, 90)]
SHARED = described_state(2, "deep", 500, 900)


@pytest.mark.parametrize("cpu", [1, 3])
def test_cpus_that_had_no_event_have_no_part_in_the_costs(cpu: int, tmp_path: Path) -> None:
    """Until the end, CPUs that nobody described are taken to have the states that all share."""
    trace, table = tmp_path / "trace.txt", tmp_path / "table.parquet"
    text = gzip.decompress(PIPE.read_bytes()).decode()
    trace.write_text(text.replace("[001]", f"[{cpu:03}]").replace("cpu_id=1", f"cpu_id={cpu}"))
    document = json.loads(beside(PIPE).read_text())
    document["states"] = {"0": [*BIG, SHARED], str(cpu): [*LITTLE, SHARED]}
    beside(trace).write_text(json.dumps(document))
    recording = open_recording(trace)
    found = costs_of(recording.metadata, recording.batches)
    assert found
    assert {key for key, _ in found.states} == {0, 1}
    list(write_parquet(open_recording(trace), table))
    for options in ((), ("--halt-cost", "40us")):
        first, second = (json.loads(run(x, *options, "--json").stdout) for x in (trace, table))
        assert first["policies"] == second["policies"]
        assert first["policies"][0]["as_recorded"]["waited_ns"] > 0
