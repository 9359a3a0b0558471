# SPDX-License-Identifier: GPL-2.0-only
"""What of a recording is drawn: what each CPU did when, and how long wakeups took."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.ticker import FuncFormatter

from lightsleep.periods.lost import TimeLost, Wakes, middle_ns
from lightsleep.report.measure_plots import COLOURS
from lightsleep.report.plots import legend_above, share_axis, short
from lightsleep.report.svg import GRID, blank, style, to_svg

SHOWN_CPUS = 16
COLUMNS = 128
"""Moments that a page has room for."""


def colours_of(lost: TimeLost) -> dict[str, str]:
    """Return the colour of each idle state, in the order in which states were met."""
    # A histogram may have wakeups of a state of which it counted no period.
    names = dict.fromkeys([*lost.states, *lost.groups["state"]])
    return {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}


def timeline_plot(lost: TimeLost, salt: str) -> tuple[str, int] | None:
    """Return an SVG with a band per CPU, and how many CPUs are left out; None without periods."""
    timeline = lost.timeline
    cpus = _shown(lost)
    if not cpus:
        return None
    first_ns, span_ns = lost.metadata.first_ns or 0, lost.metadata.span_ns
    edges_ns = timeline.columns_ns(first_ns, span_ns, COLUMNS)
    colours = colours_of(lost)
    with style(salt):
        figure, axes = blank(0.9 + 0.36 * len(cpus))
        for row, cpu in enumerate(cpus):
            low = np.zeros(len(edges_ns) - 1)
            for name in timeline.idle_ns[cpu]:
                high = low + timeline.shares(cpu, name, edges_ns)
                bottom, top = row + 0.42 - 0.84 * low, row + 0.42 - 0.84 * high
                axes.stairs(top, edges_ns / 1e9, baseline=bottom, fill=True, color=colours[name])
                low = high
            axes.axhline(row + 0.42, color=GRID, linewidth=0.6)
        for name, colour in colours.items():
            axes.plot([], [], color=colour, linewidth=5, label=short(name))
        axes.set_yticks(range(len(cpus)), [f"CPU {cpu}" for cpu in cpus])
        axes.set_ylim(len(cpus) - 0.5, -0.5)
        axes.set_xlim(0, edges_ns[-1] / 1e9)
        axes.set_xlabel("time since the first event, s")
        legend_above(axes)
        # A CPU without a whole period has no band either.
        return to_svg(figure), len(lost.metadata.seen | timeline.idle_ns.keys()) - len(cpus)


def _shown(lost: TimeLost) -> list[int]:
    """Return the CPUs that lost most time, in order."""
    ranked = sorted(
        lost.timeline.idle_ns,
        key=lambda cpu: (-lost.groups["cpu"].get(str(cpu), Wakes()).total_ns, cpu),
    )
    return sorted(ranked[:SHOWN_CPUS])


def waits_plot(lost: TimeLost, salt: str) -> str | None:
    """Return an SVG of how long wakeups took, a curve per state; None where there was none."""
    colours = colours_of(lost)
    curves = [(name, colours[name], "-", wakes) for name, wakes in lost.top("state")]
    if lost.reference.count:
        curves.append(("polling or awake", "#8a8f98", "--", lost.reference))
    if not curves:
        return None
    with style(salt):
        figure, axes = blank(2.9)
        for name, colour, dashes, wakes in curves:
            times_us, shares = _curve(wakes)
            axes.step(
                times_us, shares, where="post", color=colour, linestyle=dashes, label=short(name)
            )
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,.6g}"))
        axes.set_xlabel("from waking to running, µs (logarithmic axis)")
        axes.set_ylim(0, 1)
        share_axis(axes)
        return to_svg(figure)


def _curve(wakes: Wakes) -> tuple[Sequence[float], Sequence[float]]:
    ascending = sorted(wakes.histogram.items())
    times_us = [middle_ns(index) / 1000 for index, _ in ascending]
    shares = np.cumsum([number for _, number in ascending]) / wakes.count
    # From 0 on: one bucket is one point, and without this riser no line.
    return [*times_us[:1], *times_us], [0.0, *shares.tolist()]
