# SPDX-License-Identifier: GPL-2.0-only
"""From a replay to a page: which policy to prefer, and CPU time against waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from markupsafe import Markup

from lightsleep.replay import words
from lightsleep.replay.account import OPTIMUM, Replay
from lightsleep.replay.costs import Costs
from lightsleep.report.measure_plots import COLOURS
from lightsleep.report.plots import short
from lightsleep.report.svg import INK, blank, style, to_svg


@dataclass(frozen=True)
class ReplaySection:
    """A replay: ``key`` makes ids unique in the page, ``label`` names the files."""

    kind: ClassVar = "replay"

    key: str
    label: str
    title: str
    recommendation: str
    titles: Sequence[str]
    rows: list[tuple[str, ...]]
    front: list[str]
    notes: list[str]
    explained: str
    plot: Markup


def section(key: str, replay: Replay, costs: Sequence[tuple[str, Costs]]) -> ReplaySection:
    """Return the section of a replay of the recordings that ``costs`` name."""
    return ReplaySection(
        key=key,
        label=", ".join(path for path, _ in costs),
        title="What other idle policies would have made of it",
        recommendation=words.recommendation(replay, costs),
        titles=words.TITLES,
        rows=words.rows(replay),
        front=[name for name in replay.outcomes if name in words.front(replay)],
        notes=words.notes(replay, costs),
        explained=words.explained(replay),
        plot=Markup(pareto_plot(replay, key)),
    )


def pareto_plot(replay: Replay, salt: str) -> str:
    """Return an SVG: time polled and time waited of each policy, a line where it is a range."""
    front = words.front(replay)
    with style(salt):
        figure, axes = blank(3.8)
        reached = []
        for index, (name, outcome) in enumerate(replay.outcomes.items()):
            ends = [(x.polled_ns / 1e9, x.waits.total_ns / 1e9) for x in outcome.ends()]
            colour = INK if name == OPTIMUM else COLOURS[index % len(COLOURS)]
            axes.plot(*zip(*ends, strict=True), color=colour, linewidth=1.2)
            marker = "*" if name == OPTIMUM else "o"
            hollow = name != OPTIMUM and name not in front
            face = "none" if hollow else colour
            axes.plot(*ends[0], marker, color=colour, markerfacecolor=face, markersize=6)
            axes.annotate(short(name), ends[0], (5, 5), textcoords="offset points", fontsize=8)
            if name in front:
                reached.append(ends[0])
        reached.sort()
        axes.plot(*zip(*reached, strict=True), color=INK, linewidth=0.7, linestyle=":")
        axes.set_xlabel("CPU time polled, s")
        axes.set_ylabel("time tasks waited, s")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.margins(0.15)
        axes.grid()
        return to_svg(figure)
