# SPDX-License-Identifier: GPL-2.0-only
"""What a recording does not tell, and what a replay then says and supposes."""

from __future__ import annotations

import dataclasses
import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from recordings import PIPE
from replays import DEEP, ENGINES, HALT, NO_COSTS, US, judged, metadata, period, run, timed

from lightsleep.periods import formats
from lightsleep.periods.model import AWAKE
from lightsleep.periods.source import as_batch, open_recording
from lightsleep.periods.table import open_table, write_parquet
from lightsleep.record import sidecar
from lightsleep.replay import words
from lightsleep.replay.account import Outcome, Replay
from lightsleep.replay.engine import Engine
from lightsleep.replay.evidence import Evidence, costs_of
from lightsleep.replay.given import Given


def test_what_a_recording_lacks_is_said_of_its_replay(tmp_path: Path) -> None:
    text = gzip.decompress(PIPE.read_bytes()).decode()
    lines = text.splitlines(keepends=True)
    lines.insert(len(lines) // 2, "CPU:1 [LOST 58000 EVENTS]\n")
    trace, table = tmp_path / "trace.txt", tmp_path / "table.parquet"
    trace.write_text("".join(lines))
    shutil.copy(sidecar.beside(PIPE), sidecar.beside(trace))
    list(write_parquet(open_recording(trace), table))
    for file in (trace, table):
        document = json.loads(run(file, "--policies", "haltpoll", "--json").stdout)
        (recording,) = document["recordings"]
        assert any("58,000 events or more were lost" in x for x in recording["warnings"])
        assert f"{file}: {recording['warnings'][0]}" in document["notes"]


@pytest.mark.parametrize("arch", ["x86_64", "aarch64", None])
def test_state_0_is_a_poll_where_the_architecture_says_so(
    arch: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = gzip.decompress(PIPE.read_bytes()).decode()
    trace, table = tmp_path / "trace.txt", tmp_path / "table.parquet"
    trace.write_text(text.replace("state=1 ", "state=0 "))
    named = dataclasses.replace(formats.TEXT, architecture=lambda _path: arch)
    monkeypatch.setattr(formats, "FORMATS", (named, *formats.FORMATS))
    list(write_parquet(open_recording(trace), table))
    for file in (trace, table):
        done = run(file, "--policies", "haltpoll", "--halt-cost", "30us")
        polls = arch == "x86_64"
        assert done.exit_code == polls, done.output  # with polls alone, there is nothing to replay
        doubt = "which architecture this is of is not known" in " ".join(done.output.split())
        assert doubt == (arch is None)
    assert len(open_table(table)[0].states) == (2 if arch == "x86_64" else 0)


@pytest.mark.parametrize(("late", "cost_us", "warned"), [(0, 5, 0), (20, 5, 1), (21, 7, 0)])
def test_a_reference_that_differs_much_costs_no_halt_its_price(
    late: int, cost_us: int, warned: int
) -> None:
    """On its way to an idle state, a CPU is woken soon or, with interrupts off, late."""
    rows = [period(1000 * n, 100, wait_us=7) for n in range(2000)]
    waits_us = [2] * (40 - late) + [20] * late
    rows += [period(3_000_000 + n, 0, AWAKE, wait) for n, wait in enumerate(waits_us)]
    costs = costs_of(metadata(), [as_batch("host", rows)])
    assert costs
    assert costs.halt_ns == pytest.approx(1000 * cost_us, rel=0.06)
    assert (costs.reference_ns is None) == (cost_us == 7)
    assert len(costs.warnings) == warned


@pytest.mark.parametrize("by_others", [300, 301])
def test_wakeups_that_are_mostly_estimated_are_named(by_others: int) -> None:
    rows = [period(1000 * n, 100) for n in range(by_others)]
    rows += [period(1000 * n, 100, pair=(0, 8), cause="timer") for n in range(400, 701)]
    costs = costs_of(metadata(), [as_batch("host", rows)])
    assert costs
    assert (costs.measured_wakes, costs.estimated_wakes) == (by_others, 301)
    assert costs.mostly_estimated == (by_others == 300)
    assert not replace(costs, given=True).mostly_estimated
    said = words.notes(Replay({}, 10**9, 10**9, 601), [("a.dat", costs)])
    estimated = "a.dat: 301 wakeups from halts were by interrupts of the CPU itself. "
    told = [x for x in said if estimated in x]
    assert len(told) == (by_others == 300)
    assert all(f"what {by_others} wakeups by other CPUs took" in x for x in told)


@pytest.mark.parametrize("make_engine", ENGINES)
def test_what_an_interrupt_wakes_on_another_cpu_is_measured_and_on_its_own_is_not(
    make_engine: Callable[[], Engine],
) -> None:
    """Waker 0 is each idle CPU: that of the network's interrupts, or this one, in a softirq."""
    there, here = (
        [period(1000 * n, 500, HALT, wait_us, (0, 8), by_itself=wait_us < 9) for n in range(40)]
        for wait_us in (60, 3)
    )
    costs = costs_of(metadata(), [as_batch("host", there)])
    assert costs
    assert (costs.measured_wakes, costs.estimated_wakes) == (40, 0)
    assert costs_of(metadata(), [as_batch("host", here)]) is None
    costs = costs_of(metadata(), [as_batch("host", [*there, *here])])
    assert costs
    assert (costs.measured_wakes, costs.estimated_wakes) == (40, 40)
    assert costs.halt_ns == pytest.approx(60 * US, rel=0.03)
    ((_, made),) = make_engine().reader(metadata(), costs).intervals(as_batch("host", here))
    assert made.cost_ns.tolist() == [costs.halt_ns] * 40


@pytest.mark.parametrize("make_engine", ENGINES)
def test_a_timer_does_not_bound_what_a_wakeup_by_another_cpu_costs(
    make_engine: Callable[[], Engine],
) -> None:
    row = timed(period(0, 100, wait_us=40, cause="timer", by_itself=False), 95)
    ((_, made),) = make_engine().reader(metadata(), NO_COSTS).intervals(as_batch("host", [row]))
    assert made.cost_ns.tolist() == [40 * US]
    assert made.arrival_ns.tolist() == [60 * US]


@pytest.mark.parametrize("make_engine", ENGINES)
@pytest.mark.parametrize("deep", [0, 1, 29, 30])
def test_a_state_that_few_wakeups_tell_of_costs_what_the_usual_one_does(
    deep: int, make_engine: Callable[[], Engine]
) -> None:
    rows = [period(1000 * n, 500, HALT, 60) for n in range(40)]
    rows += [period(1000 * n, 500, DEEP, 310) for n in range(40, 40 + deep)]
    rows += [period(1000 * n, 500, DEEP, 9, pair=(0, 8), cause="timer") for n in range(80, 85)]
    rows += [period(1_000_000 + n, 0, AWAKE, 10) for n in range(40)]
    batch = as_batch("host", rows)
    found = costs_of(judged(), [batch])
    assert found
    assert found.states[0, HALT] == pytest.approx(50 * US, rel=0.05)
    told = deep == 30
    assert found.states[0, DEEP] == pytest.approx((300 if told else 50) * US, rel=0.05)
    warned = [x for x in found.warnings if x.startswith("C6 woke tasks fewer than 30 times")]
    assert len(warned) == (not told)
    assert all(x.endswith("what leaving C1 costs") for x in warned)
    assert (found.measured_wakes, found.estimated_wakes) == (40 + deep, 5)
    # Of a wakeup by a task, what it took above the reference still counts as it was.
    ((_, made),) = make_engine().reader(judged(), found).intervals(batch)
    by_task = made.cost_ns[40 : 40 + deep]
    assert by_task.tolist() == pytest.approx([300 * US] * deep, rel=0.05)
    assert made.cost_ns[-5:].tolist() == [round(found.states[0, DEEP])] * 5
    assert not costs_of(judged(), [batch], Given(7_000)).warnings  # type: ignore[union-attr]


@pytest.mark.parametrize(("halt_us", "told"), [(10, False), (38, False), (42, True), (60, True)])
def test_a_reference_that_is_much_slower_tells_nothing_however_exact_it_is(
    halt_us: int, told: bool
) -> None:
    """In a long recording of CPUs that were awake because a softirq ran."""
    rows = [period(1000 * n, 500, wait_us=halt_us) for n in range(1000)]
    rows += [period(2_000_000 + n, 0, AWAKE, 49 + n % 3) for n in range(1000)]
    found = costs_of(metadata(), [as_batch("host", rows)])
    assert found
    assert found.at_most != told
    assert (found.reference_ns is not None) == told
    cost_us = halt_us if not told else max(0, halt_us - 50)
    assert found.halt_ns == pytest.approx(cost_us * US, rel=0.1)


@pytest.mark.parametrize(
    ("halt_us", "spread_us", "warned"), [(9, 0, 0), (9, 30, 1), (5, 0, 1), (5, 30, 1)]
)
def test_a_state_that_costs_nothing_by_a_doubtful_reference_is_named(
    halt_us: int, spread_us: int, warned: int
) -> None:
    rows = [period(1000 * n, 500, HALT, halt_us) for n in range(40)]
    rows += [period(1000 * n, 500, DEEP, 300) for n in range(40, 100)]
    rows += [period(1_000_000 + n, 0, AWAKE, 10 + spread_us * (n - 19) // 60) for n in range(40)]
    found = costs_of(judged(), [as_batch("host", rows)])
    assert found
    assert found.states[0, HALT] == 0
    assert found.states[0, DEEP] == pytest.approx(290 * US, rel=0.05)
    said = [x for x in found.warnings if x.startswith("leaving C1 counts as nothing: ")]
    assert len(said) == len(found.warnings) == warned
    assert all("than the 40 that found a CPU polling or awake" in x for x in said)


def test_the_usual_state_of_few_wakeups_is_named_and_so_is_that_of_another_cpu() -> None:
    known = judged()
    known.advertised_us[1, DEEP] = 200
    rows = [period(1000 * n, 500, HALT, 60) for n in range(29)]
    timed = [period(1000 * n, 500, HALT, 9, (0, 8), 1, "timer") for n in range(40)]
    found = costs_of(known, [as_batch("host", [*rows, *timed])])
    assert found
    assert found.states[1, HALT] == found.states[0, HALT]
    assert list(found.warnings) == [
        "29 wakeups by other CPUs are all that tells what leaving C1 of CPU 0 and those with the "
        "same states costs",
        "C1 of CPU 1 and those with the same states woke tasks fewer than 30 times by another CPU, "
        "so that leaving one counts as what leaving C1 on CPU 0 costs",
    ]


def test_timers_that_nobody_knows_are_counted_where_governors_ask_for_them() -> None:
    rows = [period(1000 * n, 500) for n in range(5)]
    rows += [(*row[:4], 90 * US, *row[5:]) for row in rows[:2]]
    rows.append(period(9000, 0, AWAKE))
    halves = [Evidence(metadata()) for _ in range(2)]
    for half, some in zip(halves, (rows[:3], rows[3:]), strict=True):
        half.add(as_batch("host", some))
    halves[0].merge(halves[1])
    costs = halves[0].costs()
    assert costs
    assert (costs.untimed, costs.periods) == (5, 7)
    for policy, told in (("menu@6.12", 1), ("fixed:50us", 0)):
        made = Replay({policy: Outcome(policy)}, 10**9, 10**9, 601)
        said = words.notes(made, [("a.dat", costs)])
        assert sum("a.dat: does not say of 5 of 7 idle periods" in x for x in said) == told
        assert not any("next timer" in x for x in words.notes(made, [("a", NO_COSTS)]))
