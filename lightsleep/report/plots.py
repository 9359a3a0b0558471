# SPDX-License-Identifier: GPL-2.0-only
"""The plots of one metric of a comparison, as SVG to be put into a page."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from numpy.typing import NDArray

from lightsleep import units
from lightsleep.compare.analysis import ArmAnalysis, MetricAnalysis
from lightsleep.compare.result import Role
from lightsleep.report.svg import INK, blank, style, to_svg

WIDE = 10.0  # arms whose medians differ by more than this factor need a logarithmic axis
MIN_ECDF = 20  # with fewer samples the dots of the strip say all that there is
FEW_DECADES = 2.5  # on a longer logarithmic axis only powers of ten are labelled
LINEAR_DECADES = 0.5  # on a shorter one the labels are as far apart as on a linear one
LINE = 0.2  # inches
LONGEST_NAME = 28
LONGEST_LINE = 24  # of a name in lines
LEGEND = 0.85  # of the width of a figure: left of it are the labels of an axis
MOST_COLUMNS = 4
LONGEST_TITLE = 50  # the rest of a longer one is left out
MANY = 1000  # more dots than this are drawn as an image, or the page becomes huge

# Mid tones, readable on white and on near-black, told apart by the colour-blind too.
COLOURS: dict[Role, tuple[str, ...]] = {
    "baseline": ("#8a8f98",),
    "control": ("#b08d57",),
    "limit": ("#d0679d", "#a0446f"),
    "treatment": ("#2f8fd8", "#e0812b", "#1fa27f", "#8a6fd1", "#a89200", "#3aa9bd"),
}


def colours_of(roles: Mapping[str, Role]) -> dict[str, str]:
    """Return the colour of each arm: grey for the baseline, another one for each treatment."""
    seen: Counter[Role] = Counter()
    colours = {}
    for arm, role in roles.items():
        colours[arm] = COLOURS[role][seen[role] % len(COLOURS[role])]
        seen[role] += 1
    return colours


def _colours(metric: MetricAnalysis) -> dict[str, str]:
    return colours_of({arm.name: arm.role for arm in metric.arms})


def scale_of(metric: MetricAnalysis) -> str:
    """Return the scale of the value axis: linear, log, or symlog where there are values <= 0.

    Percentages are shares of one whole: 99.9 and 1.7 % belong on a linear axis.
    """
    medians = [abs(arm.summary.median) for arm in metric.arms if arm.summary]
    if metric.metric.unit == "%" or not medians or max(medians) <= WIDE * min(medians):
        return "linear"
    return "log" if min(arm.summary.minimum for arm in metric.arms if arm.summary) > 0 else "symlog"


def strip_plot(metric: MetricAnalysis, salt: str) -> str:
    """Return an SVG in which every sample is a dot, with median, interval and quartiles per arm.

    ``salt`` keeps its ids apart from those of other plots of the page.
    """
    arms = metric.arms
    labels = _labels(arms, metric.metric.unit)
    with style(salt):
        figure, axes = blank(_row_height(labels) * len(arms) + 0.75)
        _value_axis(axes, metric)
        colours = _colours(metric)
        for row, arm in enumerate(arms):
            _draw_arm(axes, row, arm, colours[arm.name], _heights(len(arm.samples), metric.boots))
        axes.set_yticks(range(len(arms)), labels)
        axes.set_ylim(len(arms) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x")
        return to_svg(figure)


def log_axis(axes: Axes) -> None:
    """Make the horizontal axis logarithmic, with labels that tell where values are.

    Call it last, or set the limits before.
    """
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    decades = math.log10(high / low)
    labelled = (1.0, 2.0, 5.0) if decades < FEW_DECADES else (1.0,)
    axes.xaxis.set_major_locator(
        LogLocator(subs=labelled, numticks=20) if decades > LINEAR_DECADES else MaxNLocator(5)
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,.6g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def ecdf_plot(metric: MetricAnalysis, salt: str) -> str | None:
    """Return an SVG of the share of samples up to each value; None with few samples."""
    arms = [arm for arm in metric.arms if len(arm.samples) >= MIN_ECDF]
    if not arms:
        return None
    names = short_names(arm.name for arm in arms)
    with style(salt):
        figure, axes = blank(2.7)
        _value_axis(axes, metric)
        colours = _colours(metric)
        for arm, dashes in zip(arms, _dashes(arms), strict=True):
            share_curve(
                axes,
                arm.samples,
                color=colours[arm.name],
                linewidth=1.8,
                linestyle=dashes,
                label=names[arm.name],
            )
        share_axis(axes)
        return to_svg(figure)


def share_curve(axes: Axes, samples: Sequence[float], **look: Any) -> None:
    """Draw the share of ``samples`` (at least one) up to each value, in a look that plot() knows.

    Axes.ecdf() draws the same, but needs matplotlib 3.8; Debian 12 has 3.6.
    """
    ascending = np.sort(samples)
    shares = np.arange(len(ascending) + 1) / len(ascending)
    (line,) = axes.plot([ascending[0], *ascending], shares, drawstyle="steps-post", **look)
    line.sticky_edges.y[:] = [0, 1]  # no margin below 0 and above 1


def share_axis(axes: Axes) -> None:
    """Finish a plot of shares of samples: the axis in percent, a grid, names above the curves."""
    axes.set_ylabel("share of samples")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.0f} %"))
    axes.grid()
    legend_above(axes)


def legend_above(axes: Axes) -> None:
    """Put the names of all lines above a plot, and make the figure higher by what they need."""
    if not axes.get_legend_handles_labels()[1]:
        return
    figure = cast(Figure, axes.figure)  # ours have no subfigures

    def legend(columns: int) -> Legend:
        return axes.legend(
            loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, frameon=False, borderaxespad=0
        )

    figure.set_figheight(figure.get_figheight() + fit_legend(legend, figure))


def fit_legend(make: Callable[[int], Legend], figure: Figure) -> float:
    """Make a legend of as many columns as fit into a figure; return its height in inches.

    One that is wider than the figure leaves the plot no room: the layout squeezes it.
    """
    for columns in range(MOST_COLUMNS, 0, -1):
        legend = make(columns)
        size = legend.get_window_extent()
        if columns == 1 or size.width <= LEGEND * figure.bbox.width:
            break
        legend.remove()
    return size.height / figure.dpi


def _heights(samples: int, boots: int) -> NDArray[np.float64]:
    """Return where the dots of an arm are: those of one boot in a line, the first boot on top."""
    if boots == 1 or samples % boots:
        return np.random.default_rng(0).uniform(-0.14, 0.14, samples)
    return np.repeat(np.linspace(-0.14, 0.14, boots), samples // boots)


def _draw_arm(
    axes: Axes, row: int, arm: ArmAnalysis, colour: str, heights: NDArray[np.float64]
) -> None:
    if arm.summary is None:
        return
    summary = arm.summary
    axes.scatter(
        arm.samples,
        row - 0.14 + heights,
        s=20,
        color=colour,
        alpha=0.75,
        linewidths=0,
        rasterized=len(arm.samples) > MANY,
    )
    low = row + 0.2
    axes.fill_betweenx([low - 0.1, low + 0.1], summary.q1, summary.q3, color=colour, alpha=0.35)
    axes.plot(
        [summary.ci_low, summary.ci_high],
        [low, low],
        color=INK,
        linewidth=1.4,
        marker="|",
        markersize=5,
    )
    axes.vlines(summary.median, low - 0.16, low + 0.16, color=INK, linewidth=2.6)


def _labels(arms: Sequence[ArmAnalysis], unit: str) -> list[str]:
    names = short_names(arm.name for arm in arms)
    medians = [units.value(x.summary.median, unit) if x.summary else "no samples" for x in arms]
    return [f"{names[arm.name]}\n{median}" for arm, median in zip(arms, medians, strict=True)]


def _row_height(labels: Sequence[str]) -> float:
    """Return the height of a row in inches, with room for the label that has most lines."""
    return max([0.62, *(LINE * (label.count("\n") + 1) for label in labels)])


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Return the names in a plot as they fit into it, each under the whole one.

    Those that would look the same are not cut, but have several lines.
    """
    cut = {name: short(name) for name in names}
    seen = Counter(cut.values())
    return {name: text if seen[text] == 1 else _in_lines(name) for name, text in cut.items()}


def _in_lines(name: str, most: int = LONGEST_LINE) -> str:
    """Return a name in lines that end at a separator where they can."""
    lines = [""]
    for piece in re.findall(rf"[^+:/=]{{0,{most - 1}}}[+:/=]|[^+:/=]{{1,{most}}}", name):
        if len(lines[-1]) + len(piece) > most:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)


def short(name: str, most: int = LONGEST_NAME) -> str:
    """Return a name as it fits into a plot, without its middle where it is too long.

    Arms may differ at the end only: a setting of try may be a path of sysfs with a value.
    """
    begin = 3 * most // 8
    return name if len(name) <= most else f"{name[:begin]}…{name[begin + 1 - most :]}"


def short_title(title: str, most: int = LONGEST_TITLE) -> str:
    """Return the title of a metric as it fits into a plot: it says first what it is about."""
    return title if len(title) <= most else f"{title[: most - 1]}…"


def _dashes(arms: list[ArmAnalysis]) -> Iterator[str]:
    """Yield a line style per arm, so that two arms of one role do not look the same."""
    styles, seen = ("-", "--", ":", "-."), dict.fromkeys(COLOURS, 0)
    for arm in arms:
        yield styles[seen[arm.role] % len(styles)]
        seen[arm.role] += 1


def _value_axis(axes: Axes, metric: MetricAnalysis) -> None:
    scale = scale_of(metric)
    if scale == "symlog":
        medians = (abs(arm.summary.median) for arm in metric.arms if arm.summary)
        threshold = min(median for median in medians if median)
        axes.set_xscale("symlog", linthresh=min(1.0, threshold), linscale=0.5)
    else:
        axes.set_xscale(scale)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,.6g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    unit = f", {metric.metric.unit}" if metric.metric.unit else ""
    axes.set_xlabel(f"{short_title(metric.metric.title)}{unit}")
