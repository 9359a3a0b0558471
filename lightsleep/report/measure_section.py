# SPDX-License-Identifier: GPL-2.0-only
"""From a measurement to a section of the page, in the order in which people ask.

Are the advertised latencies true, state by state; what the reader has to know; then, for each
source of wakes, how the latencies are distributed and all figures of every CPU; at last on what
and how it was measured.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lightsleep import cpulist, units
from lightsleep.document import headed
from lightsleep.measure.result import MeasureResult, Row, VerdictKind
from lightsleep.report import measure_words
from lightsleep.report.cdf import limits_of
from lightsleep.report.measure_plots import Look, Plot, curves_of, looks_of, many, plots_of
from lightsleep.report.measure_words import Idle, idle
from lightsleep.report.rows import Rows, flat

SCHEMA = "lightsleep.measurement"
VERSION = 1


@dataclass(frozen=True)
class Finding:
    """One verdict and the CPUs that got it (empty: all); ``ratio`` is observed / advertised."""

    kind: VerdictKind
    cpus: str
    ratio: str


@dataclass(frozen=True)
class Cell:
    """One state and source on all CPUs: their medians and verdicts.

    ``reach`` goes from the fastest to the slowest CPU, empty for one CPU. ``subtracted`` says
    that the busy baseline is not in these medians.
    """

    median: str
    reach: str
    subtracted: bool
    findings: list[Finding]


@dataclass(frozen=True)
class SourceSection:
    """All wakes by one source; ``cells`` by state. ``folded`` hides the rows until asked for."""

    title: str
    explained: str
    plots: list[Plot]
    rows: list[Row]
    cells: dict[Idle, Cell]
    folded: bool


@dataclass(frozen=True)
class MeasureSection:
    """One result file: ``key`` makes ids unique in the page, ``label`` names the file."""

    kind: ClassVar = "measure"

    key: str
    label: str
    title: str
    system: str
    result: MeasureResult
    cpus: str
    looks: dict[Idle, Look]
    sources: list[SourceSection]
    counts: dict[VerdictKind, int]
    environment: Rows
    settings: Rows


def section(key: str, label: str, result: MeasureResult) -> MeasureSection:
    """Return the section of one result; ``key`` and ``label`` as in MeasureSection."""
    rows, where = result.rows, measure_words.machine(result.environment)
    looks = looks_of(rows)
    by_source = {
        source: [row for row in rows if row.source == source]
        for source in dict.fromkeys(row.source for row in rows)
    }
    limits = limits_of(curve for each in by_source.values() for curve in curves_of(each, looks))
    counted = Counter(row.verdict.kind for row in rows if row.kind == "state")
    return MeasureSection(
        key=key,
        label=label,
        title=f"What a wake costs: {where}" if where else "What a wake costs",
        system=measure_words.system(result.environment),
        result=result,
        cpus=cpulist.format(row.cpu for row in rows),
        looks=looks,
        sources=[
            SourceSection(
                *measure_words.source(result.mode, source),
                plots=plots_of(f"{key}s{index}", of_source, looks, limits),
                rows=of_source,
                cells=_cells(of_source),
                folded=many(of_source),
            )
            for index, (source, of_source) in enumerate(by_source.items())
        ],
        counts={kind: counted[kind] for kind in measure_words.VERDICTS if counted[kind]},
        environment=flat(result.environment),
        settings=flat(result.settings),
    )


def _cells(rows: Sequence[Row]) -> dict[Idle, Cell]:
    states = dict.fromkeys(idle(row) for row in rows if row.kind == "state")
    return {state: _cell([row for row in rows if idle(row) == state]) for state in states}


def _cell(rows: Sequence[Row]) -> Cell:
    subtracted = all(row.subtracted for row in rows if row.raw)
    figures = [row.subtracted if subtracted else row.raw for row in rows]
    medians_us = sorted(each.p50_ns / 1000 for each in figures if each)
    return Cell(
        median=units.value(statistics.median(medians_us), "µs") if medians_us else "",
        reach=units.span(medians_us[0], medians_us[-1], "µs") if len(medians_us) > 1 else "",
        subtracted=subtracted,
        findings=[
            _finding(kind, [row for row in rows if row.verdict.kind == kind], of=len(rows))
            for kind in measure_words.VERDICTS
            if any(row.verdict.kind == kind for row in rows)
        ],
    )


def _finding(kind: VerdictKind, rows: Sequence[Row], of: int) -> Finding:
    """Return what these rows, out of so many of the cell, were found to be."""
    ratios = [row.verdict.ratio for row in rows if row.verdict.ratio is not None]
    return Finding(
        kind=kind,
        cpus="" if len(rows) == of else cpulist.format(row.cpu for row in rows),
        ratio=units.value(statistics.median(ratios), "×") if ratios else "",
    )


def document(result: MeasureResult) -> dict[str, Any]:
    """Return the JSON document of a result without its samples: the figures and verdicts."""
    rest = dataclasses.asdict(result)
    for row in rest["rows"]:
        del row["latencies_ns"]
    return headed(SCHEMA, VERSION, rest)
