# SPDX-License-Identifier: GPL-2.0-only
"""From what was sampled of a state to its row: what counts, what is subtracted, and the verdict."""

import math
import random
from dataclasses import replace

import pytest
from measure_fakes import cpu, machine, sample, state

from lightsleep.measure.assess import rows
from lightsleep.measure.model import Source, WakePath
from lightsleep.measure.plan import Cell
from lightsleep.measure.result import Row
from lightsleep.measure.run import Tally
from lightsleep.replay.given import by_state
from lightsleep.scan.machine import IdleState

POLL, HALT = state(0, 0, 0, polls=True), state(1, 20, 40)
MWAIT = replace(HALT, monitors=True)


def tally(
    idle: IdleState | None,
    usage: int | None = None,
    source: Source = "ipi",
    path: WakePath | None = "ipi",
) -> Tally:
    """Return 200 wakes out of a state that takes as long as it advertises, or of a busy CPU."""
    rng = random.Random(1)
    found = Tally(Cell(source, 0, 1, idle), usage=usage)
    cost_ns = 1500 + 1000 * ((idle and idle.latency_us) or 0)
    taken = [sample(found.cell.batch(1), cost_ns + rng.randrange(300)) for _ in range(200)]
    found.add([replace(x, path=path) for x in taken])
    return found


def row(idle: IdleState, busy: Tally, woken: Tally) -> Row:
    """Return the row of a state."""
    return rows(machine(cpu(0, idle), cpu(1, idle)), [busy, woken])[1]


@pytest.mark.parametrize(
    ("idle", "kind"), [(POLL, "agrees"), (HALT, "not-entered"), (MWAIT, "not-entered")]
)
def test_only_a_state_that_polls_may_last_for_several_wakes(idle: IdleState, kind: str) -> None:
    assert row(idle, tally(None), tally(idle, usage=3)).verdict.kind == kind
    assert row(idle, tally(None), tally(idle, usage=200)).verdict.kind == "agrees"


def test_where_most_samples_do_not_count_more_have_to_be_asked_for() -> None:
    """Of 800 tries for 200 samples, 120 count: 50 more that are asked for yield 30 that count."""
    slow = state(1, 200, 400)
    found = Tally(Cell("ipi", 0, 1, slow))
    own_ns = [248_000 + 1000 * x for x in range(-60, 60)]  # 252 us is the most that agrees
    random.Random(1).shuffle(own_ns)
    found.add([sample(found.cell.batch(1), 1500 + x) for x in own_ns])
    all_count = row(slow, tally(None), found).verdict
    found.add([sample(found.cell.batch(1), 0, "unsettled") for _ in range(680)])
    few_count = row(slow, tally(None), found).verdict
    assert all_count.more_samples
    assert few_count.more_samples == math.ceil(all_count.more_samples / 0.6)
    assert few_count.text == f"cannot tell, {few_count.more_samples} more samples needed"


@pytest.mark.parametrize("source", ["ipi", "timer"])
@pytest.mark.parametrize("idle", [POLL, MWAIT, HALT])
def test_from_user_space_who_sees_stores_is_not_compared_by_ipi(
    idle: IdleState, source: Source
) -> None:
    """A busy CPU is woken by an IPI. Nothing tells that of another one, but it needs none."""
    path: WakePath | None = None if source == "ipi" else "timer"
    woken = tally(idle, source=source, path=path)
    judged = row(idle, tally(None, source=source, path=path), woken)
    if source == "ipi" and idle.sees_stores:
        assert judged.verdict.kind == "too-noisy"
        assert judged.verdict.text.endswith("with --source store, which needs the module")
        # The figure is there all the same, for replay --measured.
        assert judged.subtracted
        ((key, cost_ns),) = by_state([judged]).items()
        assert key == (idle.name, idle.latency_us, idle.residency_us)
        assert cost_ns == pytest.approx(1000 * (idle.latency_us or 0), abs=300)
    else:
        assert judged.verdict.kind == "agrees"


def test_by_the_module_wakes_by_store_tell_a_replay_what_such_a_state_costs() -> None:
    """The module sees that no IPI came. So by IPI, there is nothing to subtract."""
    tallies = [tally(None), tally(MWAIT, path="none")]
    tallies += [tally(idle, source="store", path="none") for idle in (None, MWAIT)]
    found = rows(machine(cpu(0, MWAIT), cpu(1, MWAIT)), tallies)
    assert [bool(x.subtracted) for x in found] == [False, False, False, True]
    ((key, cost_ns),) = by_state(found).items()
    assert key == (MWAIT.name, MWAIT.latency_us, MWAIT.residency_us)
    assert cost_ns == pytest.approx(1000 * (MWAIT.latency_us or 0), abs=300)
