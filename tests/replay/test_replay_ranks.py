# SPDX-License-Identifier: GPL-2.0-only
"""What one wakeup cost: what it took above one of the reference that is as slow among its like."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replays import US, metadata, needs_compiler, period

from lightsleep.periods.lost import Wakes, bucket, least_ns
from lightsleep.periods.model import AWAKE
from lightsleep.periods.source import as_batch
from lightsleep.replay.account import Replay, replay
from lightsleep.replay.engine import CompiledEngine, Engine, PythonEngine
from lightsleep.replay.evidence import costs_of, ranked
from lightsleep.replay.policies import parse

ENGINES = [PythonEngine, pytest.param(CompiledEngine, marks=needs_compiler)]
TAIL_US = 500
"""How long a task waits for something else than the CPU, now and then."""


def recording(halted_us: list[int], awake_us: list[int], length_us: int = 2000) -> pa.RecordBatch:
    """Return wakeups out of a halt and of an awake CPU that took so long."""
    rows = [period(5000 * n, length_us, wait_us=x) for n, x in enumerate(halted_us)]
    begin_us = 5000 * len(halted_us)
    rows += [period(begin_us + 10 * n, 0, AWAKE, x) for n, x in enumerate(awake_us)]
    return as_batch("host", rows)


def replayed(batch: pa.RecordBatch, policies: str, engine: Engine) -> Replay:
    costs = costs_of(metadata(), [batch])
    assert costs
    return replay(metadata(), costs, [batch], parse(policies), engine=engine)


@pytest.mark.parametrize("make_engine", ENGINES)
def test_what_every_wakeup_suffers_from_is_no_cost_of_a_halt(
    make_engine: Callable[[], Engine],
) -> None:
    # One in fifty waits for something else, whether the CPU had halted or not.
    awake_us = [TAIL_US if n % 50 == 0 else 5 + n % 3 for n in range(300)]
    found = replayed(recording(3 * awake_us, awake_us), "stock,fixed:50us", make_engine())
    # But for the width of the buckets that percentiles come from.
    assert found.outcomes["stock"].recorded.waits.total_ns < 0.01 * 3 * sum(awake_us) * US
    # If leaving the halt takes 40 us more, each wakeup waits for that, a slow one too.
    slower_us = [40 + x for x in 3 * awake_us]
    found = replayed(recording(slower_us, awake_us), "stock,fixed:50us", make_engine())
    waited = found.outcomes["stock"].recorded.waits
    assert waited.total_ns == pytest.approx(900 * 40 * US, rel=0.1)
    assert waited.longest_ns < 60 * US


@pytest.mark.parametrize("make_engine", ENGINES)
def test_a_halt_that_is_slow_now_and_then_costs_what_it_takes(
    make_engine: Callable[[], Engine],
) -> None:
    halted_us = [TAIL_US if n % 4 == 0 else 10 for n in range(400)]
    found = replayed(recording(halted_us, [5] * 100), "stock,fixed:50us", make_engine())
    total_ns = found.outcomes["stock"].recorded.waits.total_ns
    assert total_ns == pytest.approx((100 * (TAIL_US - 5) + 300 * 5) * US, rel=0.03)


@pytest.mark.parametrize("make_engine", ENGINES)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=30, max_size=60))
def test_a_cpu_that_never_polls_does_what_was_recorded(
    make_engine: Callable[[], Engine], drawn: list[tuple[int, int]]
) -> None:
    # A task that waits longer than its CPU slept came at once: not even that is a hit.
    rows = [period(5000 * n, length, wait_us=wait) for n, (length, wait) in enumerate(drawn)]
    rows += [period(10**6 + 10 * n, 0, AWAKE, 3) for n in range(30)]
    outcomes = replayed(as_batch("host", rows), "stock,fixed:0us", make_engine()).outcomes
    stock, never = outcomes["stock"].recorded.tally, outcomes["fixed:0us"].recorded.tally
    for name in ("waited_ns", "polled_ns", "hits", "halts"):
        assert never[name] == stock[name], name


@needs_compiler
@given(
    st.lists(st.integers(1, 2000), min_size=1, max_size=60),
    st.lists(st.integers(1, 2000), min_size=30, max_size=60),
)
def test_compiled_and_python_cost_the_same(halted_us: list[int], awake_us: list[int]) -> None:
    batch = recording(halted_us, awake_us)
    compiled, python = (
        replayed(batch, "stock,lightsleep", engine) for engine in (CompiledEngine(), PythonEngine())
    )
    for name, outcome in compiled.outcomes.items():
        assert (outcome.recorded.tally.data == python.outcomes[name].recorded.tally.data).all()


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=50))
def test_ranks_of_the_same_wakeups_are_their_own_times(waits_ns: list[int]) -> None:
    wakes = Wakes()
    wakes.add(np.array(waits_ns, np.int64))
    ranks = ranked(wakes, wakes)
    assert ranks.from_ns[0] == 0
    assert list(ranks.from_ns) == sorted(set(ranks.from_ns))
    assert list(ranks.usual_ns) == sorted(ranks.usual_ns)
    times = np.array(waits_ns, np.int64)
    assert ranks.of(times) == pytest.approx(times, rel=0.03, abs=2)


@given(st.integers(1, 2**62))
def test_the_shortest_time_of_a_bucket_is_in_it(wait_ns: int) -> None:
    index = int(bucket(np.array([wait_ns]))[0])
    least = least_ns(index)
    assert least <= wait_ns * (1 + 1e-12)
    assert int(bucket(np.array([least]))[0]) >= index
