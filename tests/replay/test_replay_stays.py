# SPDX-License-Identifier: GPL-2.0-only
"""Time in stays that were too shallow or too deep, and states that are disabled."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from recordings import PIPE
from replays import DEEP, HALT, MENU, NO_COSTS, POLL, US, judged, metadata, period, run

from lightsleep.periods.build import Row
from lightsleep.periods.model import AWAKE, Metadata
from lightsleep.periods.source import as_batch, open_recording
from lightsleep.periods.table import write_parquet
from lightsleep.record.sidecar import beside
from lightsleep.replay.account import replay
from lightsleep.replay.costs import Costs
from lightsleep.replay.engine import CompiledEngine, PythonEngine
from lightsleep.replay.policies import STOCK, parse

ENGINES = (CompiledEngine, PythonEngine) if shutil.which("cc") else (PythonEngine,)


def stayed(
    of: Metadata,
    rows: list[Row],
    name: str,
    engine: type[CompiledEngine | PythonEngine],
    turn_us: int = 0,
) -> tuple[int, int, int]:
    """Return halts, and us in stays too shallow and too deep, of a policy; leaving costs 5 us."""
    costs = Costs(
        None,
        dict.fromkeys([(0, HALT), (0, DEEP)], 5_000.0),
        5_000,
        NO_COSTS.loops,
        halts={0: HALT},
        turn_ns=turn_us * US,
    )
    made = replay(of, costs, [as_batch("host", rows)], parse(f"stock,{name}"), engine=engine())
    found = made.outcomes[name].recorded.to_json()
    return found["halt_wakes"], found["too_shallow_ns"] // US, found["too_deep_ns"] // US


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("lengths_us", "policy", "expected"),
    [
        # Of each period, 5 us leave its state. Of a poll, 20 us in all are too long.
        ((14, 14), "fixed:1ms", (0, 0, 0)),
        ((15, 15), "fixed:1ms", (0, 20, 0)),
        ((15, 15, 15), "fixed:1ms", (0, 30, 0)),
        ((55, 15), "fixed:1ms", (0, 60, 0)),
        # It ends at its limit. The rest is a halt: here one of 10 us, which is too deep, or two.
        ((15, 20), "fixed:20us", (1, 20, 10)),
        ((15, 20), "fixed:19us", (1, 0, 11)),
        ((15, 20, 30), "fixed:20us", (2, 20, 10)),
    ],
)
def test_a_poll_that_interrupts_divide_is_one_stay(
    lengths_us: tuple[int, ...],
    policy: str,
    expected: tuple[int, int, int],
    engine: type[CompiledEngine | PythonEngine],
) -> None:
    rows, now_us = [], 0
    for length_us in lengths_us[:-1]:
        rows.append(period(now_us, length_us, wait_us=None, cause="tick"))
        now_us += length_us + 1
    rows.append(period(now_us, lengths_us[-1], wait_us=5))
    assert stayed(judged(), rows, policy, engine) == expected


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("state", "length_us", "disabled", "expected"),
    [
        # C1 has a latency of 10 us and a residency of 20; C6 of 100 and 300.
        (HALT, 19, (), (1, 0, 19)),
        (HALT, 20, (), (1, 0, 0)),
        (HALT, 309, (), (1, 0, 0)),
        (HALT, 310, (), (1, 310, 0)),
        (DEEP, 299, (), (1, 0, 299)),
        (DEEP, 300, (), (1, 0, 0)),
        (DEEP, 9000, (), (1, 0, 0)),
        # What is disabled is neither shallower nor deeper.
        (HALT, 310, (DEEP,), (1, 0, 0)),
        (HALT, 19, (POLL,), (1, 0, 0)),
        (DEEP, 299, (HALT,), (1, 0, 299)),
        (DEEP, 299, (POLL, HALT), (1, 0, 0)),
        # A poll that is as long as the first state that halts would fit.
        (POLL, 19, (), (0, 0, 0)),
        (POLL, 20, (), (0, 20, 0)),
        (POLL, 299, (HALT,), (0, 0, 0)),
        (POLL, 300, (HALT,), (0, 300, 0)),
        # Nothing is advertised of this one.
        (7, 5000, (), (1, 0, 0)),
    ],
)
def test_stays_too_shallow_and_too_deep_as_the_kernel_counts_them(
    state: int,
    length_us: int,
    disabled: tuple[int, ...],
    expected: tuple[int, int, int],
    engine: type[CompiledEngine | PythonEngine],
) -> None:
    for wait_us in (3, 40, None):  # of what was recorded, the length alone counts
        rows = [period(0, length_us, state, wait_us, cause="ipi" if wait_us else "tick")]
        assert stayed(judged(disabled), rows, STOCK, engine) == expected


@pytest.mark.parametrize("engine", ENGINES)
def test_a_poll_and_a_halt_are_a_stay_each(engine: type[CompiledEngine | PythonEngine]) -> None:
    # Tasks come 395, 15 and 115 us after the beginning, and leaving C1 or C6 takes 5 us more.
    rows = [
        period(0, 400, HALT, 5),
        period(1000, 20, HALT, 5),
        period(2000, 120, DEEP, 5),
        period(3000, 70, POLL, 5),
    ]
    assert stayed(judged(), rows, STOCK, engine) == (3, 400 + 70, 120)
    # Polls 50, 15, 50 and 50, all but the second too long. Then it halts for 350, 70 in C6, and 25
    # where it was recorded to poll, in the usual state.
    assert stayed(judged(), rows, "fixed:50us", engine) == (3, 3 * 50 + 350, 70)
    # The way from a poll to a halt, of 10, is part of neither; so the last halt is too deep, too.
    assert stayed(judged(), rows, "fixed:50us", engine, 10) == (3, 3 * 50 + 340, 60 + 15)
    # Polls 10 in each; halts for 390, 10 in C1, and 110 in C6, then 65.
    assert stayed(judged(), rows, "fixed:10us", engine) == (4, 390, 10 + 110)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("limit_us", "expected"), [(15, (0, 0, 0)), (20, (0, 20, 0))])
def test_the_way_from_a_poll_is_no_part_of_it(
    limit_us: int, expected: tuple[int, int, int], engine: type[CompiledEngine | PythonEngine]
) -> None:
    """A task comes after 24 us, on the way: a poll of 15 us is not as long as C1 wants, 20 us."""
    rows = [period(0, 29, HALT, 5)]
    assert stayed(judged(), rows, f"fixed:{limit_us}us", engine, 10) == expected


def test_of_states_that_nobody_described_nothing_is_too_deep() -> None:
    rows = [period(0, 400, HALT, 5), period(1000, 1, HALT, 5), period(2000, 900, POLL, 5)]
    assert stayed(metadata(), rows, "fixed:50us", PythonEngine)[1:] == (0, 0)


def test_stays_of_the_recorded_menu() -> None:
    stock = json.loads(run(MENU, "--policies", STOCK, "--json").stdout)["policies"][0]
    found = stock["as_recorded"]
    too_shallow_ns = too_deep_ns = halts = 0
    residency_ns, latency_ns = (40_000, 200_000, 900_000), (20_000, 60_000, 300_000)
    for batch in open_recording(MENU).batches:
        for state, length_ns in zip(
            batch["state"].to_pylist(), batch["length_ns"].to_pylist(), strict=True
        ):
            if state == AWAKE:
                continue
            halts += 1
            if length_ns < residency_ns[state]:
                too_deep_ns += length_ns if state > 0 else 0
            elif state < 2 and length_ns - latency_ns[state] >= residency_ns[state + 1]:
                too_shallow_ns += length_ns
    assert (found["too_shallow_ns"], found["too_deep_ns"]) == (too_shallow_ns, too_deep_ns)
    assert found["halt_wakes"] == halts
    assert too_shallow_ns > 0
    assert too_deep_ns > 0


def test_a_trace_s_document_says_which_states_are_disabled(tmp_path: Path) -> None:
    trace, table = tmp_path / PIPE.name, tmp_path / "x.parquet"
    shutil.copy(PIPE, trace)
    document = json.loads(PIPE.with_name(f"{PIPE.name}.json").read_text())
    cpu, states = next(iter(document["states"].items()))
    states[-1]["disabled"] = True
    beside(trace).write_text(json.dumps(document))
    recording = open_recording(trace)
    expected = {(int(cpu), states[-1]["index"])}
    assert recording.metadata.disabled == expected
    list(write_parquet(recording, table))
    assert open_recording(table).metadata.disabled == expected
