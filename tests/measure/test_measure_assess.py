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
from lightsleep.measure.result import Row, Verdict
from lightsleep.measure.run import Tally
from lightsleep.replay.given import by_state
from lightsleep.scan.machine import IdleState

POLL, HALT = state(0, 0, 0, polls=True), state(1, 20, 40)
MWAIT = replace(HALT, monitors=True)
SLOW = state(1, 200, 400)


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


def scattered(count: int) -> Tally:
    """Return wakes out of SLOW that lie on both sides of the end of what agrees, 252 us."""
    found = Tally(Cell("ipi", 0, 1, SLOW))
    own_ns = [248_000 + 120_000 // count * x for x in range(-(count // 2), count // 2)]
    random.Random(1).shuffle(own_ns)
    found.add([sample(found.cell.batch(1), 1500 + x) for x in own_ns])
    return found


def row(idle: IdleState, busy: Tally, woken: Tally, wanted: int = 200) -> Row:
    """Return the row of a state."""
    return rows(machine(cpu(0, idle), cpu(1, idle)), [busy, woken], wanted)[1]


@pytest.mark.parametrize(
    ("idle", "kind"), [(POLL, "agrees"), (HALT, "not-entered"), (MWAIT, "not-entered")]
)
def test_only_a_state_that_polls_may_last_for_several_wakes(idle: IdleState, kind: str) -> None:
    assert row(idle, tally(None), tally(idle, usage=3)).verdict.kind == kind
    assert row(idle, tally(None), tally(idle, usage=200)).verdict.kind == "agrees"


def test_where_most_samples_do_not_count_more_have_to_be_asked_for() -> None:
    """Of 800 tries for 200 samples, 120 count: 50 more that are asked for yield 30 that count."""
    found = scattered(120)
    all_count = row(SLOW, tally(None), found, 120).verdict
    found.add([sample(found.cell.batch(1), 0, "unsettled") for _ in range(680)])
    few_count = row(SLOW, tally(None), found).verdict
    assert all_count.more_samples
    assert few_count.more_samples == math.ceil(all_count.more_samples / 0.6)
    assert few_count.text == f"cannot tell, {few_count.more_samples} more samples needed"


@pytest.mark.parametrize("valid", [4, 12])
def test_no_number_is_asked_for_where_a_run_gives_up_on_a_state(valid: int) -> None:
    """After 16 batches of which not one sample in 8 counts, however many are asked for."""
    found = scattered(valid)
    for _ in range(15):
        found.add([sample(found.cell.batch(1), 0, "unsettled") for _ in range(10)])
    found.add([sample(found.cell.batch(1), 0, "unsettled") for _ in range(10 - valid % 10)])
    assert found.next_batch(200) == found.next_batch(10_000) == 0
    verdict = row(SLOW, tally(None), found).verdict
    assert (verdict.kind, verdict.more_samples) == ("too-noisy", None)
    assert verdict.text == f"only {valid} of {len(found.samples)} wakes count"


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("valid", [4, 20])
def test_no_number_is_asked_for_where_a_measurement_ended_early(valid: int, closed: bool) -> None:
    """By Ctrl-C, or as the CPU became busy: the 200 that were asked for may be enough."""
    found = scattered(valid)
    found.closed = closed
    judged = row(SLOW, tally(None), found)
    assert judged.verdict == Verdict("too-few", None, None, "cannot tell: ended early")
    found.closed = False
    assert row(SLOW, tally(None), found, wanted=valid).verdict.more_samples


def test_a_baseline_without_samples_asks_for_none_where_a_measurement_ended_early() -> None:
    """By Ctrl-C in the first round: the state had its batch, and the busy CPU had not."""
    found, busy = scattered(120), Tally(Cell("ipi", 0, 1, None))
    judged = row(SLOW, busy, found)
    assert judged.verdict == Verdict("too-few", None, None, "cannot tell: ended early")
    complete = row(SLOW, busy, found, wanted=120).verdict
    assert complete.text == "the busy baseline has too few samples"


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
    found = rows(machine(cpu(0, MWAIT), cpu(1, MWAIT)), tallies, 200)
    assert [bool(x.subtracted) for x in found] == [False, False, False, True]
    ((key, cost_ns),) = by_state(found).items()
    assert key == (MWAIT.name, MWAIT.latency_us, MWAIT.residency_us)
    assert cost_ns == pytest.approx(1000 * (MWAIT.latency_us or 0), abs=300)


def test_from_user_space_a_cpu_that_is_interrupted_while_it_polls_is_compared() -> None:
    """As by a stock arm64 kernel: a busy CPU took such an interrupt, too."""
    polls = replace(POLL, interrupted=True)
    assert row(polls, tally(None, path=None), tally(polls, path=None)).verdict.kind == "agrees"
