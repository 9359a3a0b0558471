# SPDX-License-Identifier: GPL-2.0-only
"""Pictures in pages of the documentation, as SVG documents of their own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.legend import Legend
from rich.console import Console

from lightsleep.compare.analysis import ArmAnalysis, MetricAnalysis
from lightsleep.compare.method import Estimate
from lightsleep.compare.result import Better
from lightsleep.report.plots import (
    colours_of,
    fit_legend,
    log_axis,
    short,
    short_names,
    short_title,
)
from lightsleep.report.svg import INK, blank, style, to_svg

MARKERS = "osD^vP"  # of arms: colours alone tell nothing to some, and repeat
ARROWS: dict[Better, str] = {"lower": "←", "higher": "→", "none": ""}
PITCH = 0.17
"""Inches between two rows."""
LOW_LEGEND = 0.6
"""Inches: there is room for a legend of two lines."""


@dataclass(frozen=True)
class Row:
    """A dot with the line of its interval; bold where a difference is shown."""

    name: str
    colour: str
    found: Estimate
    bold: bool = False


def effects(metrics: Sequence[MetricAnalysis], baseline: str) -> str | None:
    """Return an SVG of how far each treatment is from the baseline, metric by metric, as ratios.

    A dot is the estimate, the line its 95 % confidence interval; it is bold where a difference is
    shown. Percentages, and metrics with a sample of 0, have no ratio. None where nothing has one.
    """
    groups = [
        (f"{short_title(metric.metric.title, 52)} {ARROWS[metric.metric.better]}".rstrip(), rows)
        for metric in metrics
        if (rows := _ratios(metric, metric.arms_as("treatment")))
    ]
    if not groups:
        return None
    directed = any(title.endswith(("←", "→")) for title, _ in groups)
    said = "; ← less is better, → more is better" if directed else ""
    return _drawn(groups, f"ratio to {short(baseline)} (logarithmic axis){said}", origin=1)


def levels(metrics: Sequence[MetricAnalysis]) -> str | None:
    """Return an SVG of the medians of a result without treatments, metric by metric.

    A dot is the median of one arm, the line its confidence interval. It is of metrics with the unit
    of the first, and without samples of 0 or below. None where there is none, or a treatment.
    """
    if any(metric.arms_as("treatment") for metric in metrics):
        return None
    groups = []
    for metric in metrics:
        colours = colours_of({arm.name: arm.role for arm in metric.arms})
        rows = [
            Row(arm.name, colours[arm.name], Estimate(x.median, x.ci_low, x.ci_high))
            for arm in metric.arms
            if (x := arm.summary) and x.minimum > 0
        ]
        if rows and metric.metric.unit == metrics[0].metric.unit != "%":
            groups.append((short_title(metric.metric.title, 52), rows))
    unit = metrics[0].metric.unit if metrics else ""
    return _drawn(groups, f"{unit} (logarithmic axis)".lstrip()) if groups else None


def scatter(results: Sequence[Sequence[MetricAnalysis]], baseline: str) -> str | None:
    """Return an SVG of the effects of many comparisons of the same with the same, by metric."""
    groups = []
    for metrics in zip(*results, strict=False):  # a page refuses those that are not alike
        rows = [x for each in metrics for x in _ratios(each, each.arms_as("control"))]
        if rows:
            groups.append((short_title(metrics[0].metric.title, 52), rows))
    label = f"ratio to {short(baseline)} (logarithmic axis)"
    return _drawn(groups, label, origin=1, pitch=PITCH / 2) if groups else None


def _ratios(metric: MetricAnalysis, arms: Sequence[ArmAnalysis]) -> list[Row]:
    """Return the rows of those of a metric's arms that have a ratio to the baseline."""
    colours = colours_of({arm.name: arm.role for arm in metric.arms})
    return [
        Row(arm.name, colours[arm.name], arm.baseline.ratio, arm.baseline.verdict.differs)
        for arm in arms
        if arm.baseline and arm.baseline.ratio
    ]


def _drawn(
    groups: Sequence[tuple[str, Sequence[Row]]],
    label: str,
    origin: float | None = None,
    pitch: float = PITCH,
) -> str:
    """Return an SVG of groups of rows, each with a title, over a logarithmic axis."""
    with style("effects"):
        count = sum(len(rows) for _, rows in groups)
        names = list(dict.fromkeys(row.name for _, rows in groups for row in rows))
        shown = short_names(names)
        figure, axes = blank(pitch * count + 0.1 * len(groups) + 1.2, width=8.0)
        place, ticks = 0.0, []
        for title, rows in groups:
            ticks.append((place + (len(rows) - 1) / 2, title))
            for row in rows:
                axes.plot(
                    [row.found.low, row.found.high],
                    [place, place],
                    color=row.colour,
                    linewidth=2.4 if row.bold else 1.0,
                )
                axes.plot(
                    row.found.value,
                    place,
                    MARKERS[names.index(row.name) % len(MARKERS)],
                    color=row.colour,
                    markersize=4.5 if row.bold else 3.5,
                    label=row.name,
                )
                place += 1
            place += 0.6
        if origin is not None:
            axes.axvline(origin, color=INK, linewidth=1)
        log_axis(axes)
        axes.set_xlabel(label)
        axes.set_yticks([at for at, _ in ticks], [title for _, title in ticks])
        axes.set_ylim(place - 0.6, -1)
        axes.tick_params(axis="y", length=0, labelsize=9)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x")
        handles, labels = axes.get_legend_handles_labels()
        named = dict(zip(labels, handles, strict=True))

        def legend(columns: int) -> Legend:
            return figure.legend(
                named.values(),
                [shown[name] for name in named],
                loc="outside upper right",
                ncols=columns,
                frameon=False,
            )

        more = fit_legend(legend, figure) - LOW_LEGEND
        figure.set_figheight(figure.get_figheight() + max(0, more))
        return to_svg(figure)


def alone(svg: str, note: str) -> str:
    """Return the element of a page as a document of its own, which follows the viewer's colours.

    ``note`` is a comment in it.
    """
    left, top, width, height = re.findall(r"[\d.]+", svg[: svg.index(">")])[:4]
    assert (left, top) == ("0", "0")
    light, dark = ("#1f2328", "#d0d7de"), ("#e6edf3", "#3d444d")
    themes = [f":root{{--ink:{ink};--rule:{rule}}}" for ink, rule in (light, dark)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif">\n<!-- {note} -->\n'
        f"<style>{themes[0]}@media(prefers-color-scheme:dark){{{themes[1]}}}</style>"
        f"{svg[svg.index('>') + 1 :].rstrip()}\n"
    )


def terminal(console: Console, name: str) -> str:
    """Return what a console recorded, as an SVG; ``name`` keeps its classes apart from others'."""
    svg = console.export_svg(title="lightsleep", unique_id=name)
    # A page must not fetch anything from anywhere.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
