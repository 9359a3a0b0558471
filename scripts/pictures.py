# SPDX-License-Identifier: GPL-2.0-only
"""Pictures in pages of the documentation, as SVG documents of their own."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import Console

from lightsleep.compare.analysis import MetricAnalysis
from lightsleep.compare.result import Better
from lightsleep.report.plots import colours_of, log_axis, short
from lightsleep.report.svg import INK, blank, style, to_svg

MARKERS = "osD^vP"  # of treatments: colours alone tell nothing to some, and repeat
ARROWS: dict[Better, str] = {"lower": "←", "higher": "→", "none": ""}


def effects(metrics: Sequence[MetricAnalysis], baseline: str) -> str | None:
    """Return an SVG of how far each treatment is from the baseline, metric by metric, as ratios.

    A dot is the estimate, the line its 95 % confidence interval; it is bold where a difference is
    shown. Percentages, and metrics with a sample of 0, have no ratio. None where nothing has one.
    """
    shown = [
        (
            metric,
            [arm for arm in metric.arms_as("treatment") if arm.baseline and arm.baseline.ratio],
        )
        for metric in metrics
    ]
    shown = [(metric, arms) for metric, arms in shown if arms]
    if not shown:
        return None
    with style("effects"):
        rows = sum(len(arms) for _, arms in shown)
        figure, axes = blank(0.17 * rows + 0.1 * len(shown) + 1.2, width=8.0)
        names = list(dict.fromkeys(arm.name for _, arms in shown for arm in arms))
        place, ticks = 0.0, []
        for metric, arms in shown:
            title = f"{short(metric.metric.title, 52)} {ARROWS[metric.metric.better]}".rstrip()
            ticks.append((place + (len(arms) - 1) / 2, title))
            colours = colours_of({arm.name: arm.role for arm in metric.arms})
            for arm in arms:
                assert arm.baseline
                assert arm.baseline.ratio
                found, bold = arm.baseline.ratio, arm.baseline.verdict.differs
                axes.plot(
                    [found.low, found.high],
                    [place, place],
                    color=colours[arm.name],
                    linewidth=2.4 if bold else 1.0,
                )
                axes.plot(
                    found.value,
                    place,
                    MARKERS[names.index(arm.name) % len(MARKERS)],
                    color=colours[arm.name],
                    markersize=4.5 if bold else 3.5,
                    label=arm.name,
                )
                place += 1
            place += 0.6
        axes.axvline(1, color=INK, linewidth=1)
        log_axis(axes)
        directed = any(metric.metric.better != "none" for metric, _ in shown)
        axes.set_xlabel(
            f"ratio to {short(baseline)} (logarithmic axis)"
            f"{'; ← less is better, → more is better' if directed else ''}"
        )
        axes.set_yticks([at for at, _ in ticks], [title for _, title in ticks])
        axes.set_ylim(place - 0.6, -1)
        axes.tick_params(axis="y", length=0, labelsize=9)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x")
        handles, labels = axes.get_legend_handles_labels()
        named = dict(zip(labels, handles, strict=True))
        figure.legend(
            named.values(),
            [short(name) for name in named],
            loc="outside upper right",
            ncols=4,
            frameon=False,
        )
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
