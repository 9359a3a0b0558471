# SPDX-License-Identifier: GPL-2.0-only
"""What of a measurement is drawn, and in which look: its states on one CPU or on many."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

from lightsleep import units
from lightsleep.measure.result import Row
from lightsleep.report.cdf import Curve, Dashes, Limits, cdf_plot
from lightsleep.report.measure_words import Idle, idle, label

FEW_CPUS = 4  # more do not get a plot each, and their figures are folded away


class Look(NamedTuple):
    """How the curves and the dots of a state are drawn."""

    colour: str
    dashes: Dashes


BUSY = Look("#8a8f98", "-")
# Mid tones, readable on white and on near-black; neighbours differ for the colour-blind, too.
COLOURS = ("#2f8fd8", "#e0812b", "#1fa27f", "#c2559d", "#a89200", "#8a6fd1", "#c8503c", "#3aa9bd")
DASHES: tuple[Dashes, ...] = ("-", (0, (7, 1.5)), (0, (2.5, 1)))


@dataclass(frozen=True)
class Plot:
    """A plot (SVG); ``medians`` says in words what it shows."""

    title: str
    svg: Markup
    medians: str


def looks_of(rows: Sequence[Row]) -> dict[Idle, Look]:
    """Return how each state is drawn: the baseline first, then from the shallowest state on."""
    states = sorted({idle(row) for row in rows if row.kind == "state"}, key=_depth)
    busy = {idle(row): BUSY for row in rows if row.kind == "busy"}
    return busy | {
        state: Look(COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)])
        for index, state in enumerate(states)
    }


def _depth(state: Idle) -> tuple[float, str, float, float]:
    return (state.state or 0, state.name, state.advertised_us or 0, state.residency_us or 0)


def many(rows: Sequence[Row]) -> bool:
    """Whether these are more CPUs than one looks at one by one."""
    return len({row.cpu for row in rows}) > FEW_CPUS


def plots_of(
    key: str, rows: Sequence[Row], looks: Mapping[Idle, Look], limits: Limits | None
) -> list[Plot]:
    """Return a plot per CPU, or one of all CPUs where they are many; none without samples."""
    cpus = sorted({row.cpu for row in rows if row.latencies_ns})
    if limits is None or not cpus:
        return []
    if many(rows):
        title = f"{len(cpus)} CPUs: a faint curve each, a strong one of all samples together"
        return [_plot(f"{key}all", title, rows, looks, limits)]
    return [
        _plot(f"{key}c{cpu}", f"CPU {cpu}", [row for row in rows if row.cpu == cpu], looks, limits)
        for cpu in cpus
    ]


def _plot(
    key: str, title: str, rows: Sequence[Row], looks: Mapping[Idle, Look], limits: Limits
) -> Plot:
    curves = curves_of(rows, looks)
    medians = (
        f"{curve.label}: {units.value(statistics.median(curve.pooled_us), 'µs')}"
        for curve in curves
    )
    return Plot(title, Markup(cdf_plot(curves, limits, key)), ", ".join(medians))


def curves_of(rows: Sequence[Row], looks: Mapping[Idle, Look]) -> list[Curve]:
    """Return a curve for each state that has samples."""
    busy_ns = [x for row in rows if row.kind == "busy" for x in row.latencies_ns]
    busy_us = statistics.median(busy_ns) / 1000 if busy_ns else 0.0
    found = []
    for state, look in looks.items():
        samples = [row.latencies_ns for row in rows if idle(row) == state and row.latencies_ns]
        if samples:
            advertised = state.advertised_us
            found.append(
                Curve(
                    label=label(state),
                    **look._asdict(),
                    latencies_us=[[ns / 1000 for ns in each] for each in samples],
                    expected_us=None if advertised is None else advertised + busy_us,
                )
            )
    return found
