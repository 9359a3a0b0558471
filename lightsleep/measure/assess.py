# SPDX-License-Identifier: GPL-2.0-only
"""Turns samples into the rows of a result: figures, subtraction and verdict per cell. Pure."""

from collections import Counter
from dataclasses import replace

from lightsleep.measure.model import NOT_IDLE
from lightsleep.measure.plan import TRIES, YIELD
from lightsleep.measure.result import Figures, Row, RowPath, Verdict
from lightsleep.measure.run import Tally
from lightsleep.measure.summary import subtract, summarise
from lightsleep.measure.verdict import MAYBE_SPARED, SPARED, Evidence, judge
from lightsleep.order import percentile
from lightsleep.scan.machine import Machine

BASELINE = Verdict("baseline", None, None, "baseline")


def rows(machine: Machine, tallies: list[Tally], wanted: int) -> list[Row]:
    """Return one row for each tally, in their order; ``wanted`` valid samples were asked for."""
    tallies = [settled(tally) for tally in tallies]
    baselines = {(x.cell.dest, x.cell.source): x for x in tallies if x.cell.state is None}
    return [
        _row(machine, tally, baselines.get((tally.cell.dest, tally.cell.source)), wanted)
        for tally in tallies
    ]


def settled(tally: Tally) -> Tally:
    """Return a tally whose samples do not count where the driver never entered the state.

    The idle loop asked for it, so they look valid, but they met a CPU on its way to be refused.
    """
    if tally.usage != 0 or not tally.valid:
        return tally
    samples = [replace(x, verdict="not-entered") if x.valid else x for x in tally.samples]
    return replace(tally, samples=samples, valid=[])


def _row(machine: Machine, tally: Tally, busy: Tally | None, wanted: int) -> Row:
    cell, state, raw = tally.cell, tally.cell.state, _figures(tally)
    baseline = _figures(busy) if busy else None
    spared = _spared(tally, busy) if busy else None
    own = subtract(raw, baseline) if state and raw and baseline else None
    invalid = dict(Counter(sample.verdict for sample in tally.samples if not sample.valid))
    verdict = BASELINE
    if state:
        verdict = judge(
            Evidence(
                advertised_us=state.latency_us,
                raw=raw,
                baseline=baseline,
                subtracted=None if spared else own,
                fastest_ns=_fastest_ns(tally) if raw else None,
                invalid=invalid,
                instead=_instead(machine, tally),
                usage=tally.usage,
                idled=tally.idled,
                polls=state.polls,
                disturbed=str(tally.disturbed) if tally.disturbed else None,
                spared=spared,
                worth=_worth(tally),
                cut_short=tally.closed or tally.next_batch(wanted) > 0,
            )
        )
    return Row(
        cpu=cell.dest,
        source_cpu=None if cell.source == "timer" else cell.src,
        source=cell.source,
        kind="state" if state else "busy",
        state=state.index if state else None,
        name=state.name if state else "busy",
        advertised_us=state.latency_us if state else None,
        residency_us=state.residency_us if state else None,
        path=_path(tally),
        latencies_ns=[sample.latency_ns for sample in tally.valid],
        invalid=invalid,
        usage=tally.usage,
        elapsed_s=tally.elapsed_ns / 1e9,
        raw=raw,
        subtracted=None if spared == SPARED else own,  # else a figure, if without a verdict
        verdict=verdict,
    )


def _spared(tally: Tally, busy: Tally) -> str | None:
    """Say so if wakes took no IPI, as of a CPU that sees the store, and those of a busy CPU did.

    One wake in ten may be another, as at the moment when a CPU begins to halt. Where nothing tells,
    as in user space, a CPU that sees stores is taken to be woken by one.
    """
    if tally.cell.source != "ipi" or not busy.valid:
        return None
    usual = Counter(sample.path for sample in busy.valid).most_common(1)[0][0]
    if usual is None:
        return MAYBE_SPARED if tally.cell.state and tally.cell.state.sees_stores else None
    others = sum(sample.path != usual for sample in tally.valid)
    return SPARED if 10 * others > len(tally.valid) else None


def _worth(tally: Tally) -> float:
    """Return how many valid samples come of each that is asked for, of TRIES tries at most.

    0 where so few count that a run gives up on them, however many are asked for.
    """
    tried, valid = len(tally.samples), len(tally.valid)
    if valid * YIELD < tried:
        return 0.0
    return min(1.0, TRIES * valid / tried) if tried else 1.0


def _instead(machine: Machine, tally: Tally) -> Counter[str]:
    """Count the idle states that the CPU was in instead, by name."""
    names = {state.index: state.name for state in machine.cpus[tally.cell.dest].states}
    others = (x.entered for x in tally.samples if x.verdict == "wrong-state")
    return Counter(names.get(x, f"state {x}") for x in others if x is not None and x != NOT_IDLE)


def _figures(tally: Tally) -> Figures | None:
    return summarise([sample.latency_ns for sample in tally.valid])


def _fastest_ns(tally: Tally) -> int:
    return percentile(sorted(sample.latency_ns for sample in tally.valid), 10)


def _path(tally: Tally) -> RowPath | None:
    paths = {sample.path for sample in tally.valid}
    return paths.pop() if len(paths) == 1 else "mixed" if paths else None
