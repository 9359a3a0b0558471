# SPDX-License-Identifier: GPL-2.0-only
"""From a recording to a section of the page, in the order in which people ask.

How much time tasks lost while CPUs woke; in which state, which task, woken by whom, on which CPU;
how long wakeups took; what the CPUs did meanwhile; on what it was recorded, and how.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from markupsafe import Markup

from lightsleep.periods.lost import TimeLost, Wakes
from lightsleep.periods.words import TITLES, Line, headline, idle_lines, kinds, line
from lightsleep.report.recording_plots import timeline_plot, waits_plot
from lightsleep.report.rows import Rows, flat

SHOWN = 12
"""Rows of a table."""


@dataclass(frozen=True)
class Table:
    """The groups of one kind that lost most time; ``left_out`` counts the others."""

    title: str
    first: str
    lines: list[Line]
    left_out: int


@dataclass(frozen=True)
class RecordingSection:
    """One recording: ``key`` makes ids unique in the page, ``label`` names the file."""

    kind: ClassVar = "recording"

    key: str
    label: str
    lost: TimeLost
    title: str
    headline: list[str]
    notes: list[str]
    tables: list[Table]
    reference: Line
    idle: list[tuple[str, ...]]
    waits: Markup | None
    timeline: Markup | None
    left_out_cpus: int
    environment: Rows
    settings: Rows


def section(key: str, label: str, lost: TimeLost) -> RecordingSection:
    """Return the section of one recording; ``key`` and ``label`` as in RecordingSection."""
    timeline = timeline_plot(lost, f"{key}t")
    waits = waits_plot(lost, f"{key}w")
    return RecordingSection(
        key=key,
        label=label,
        lost=lost,
        title=f"Time lost waking on {lost.metadata.host}",
        headline=headline(lost),
        notes=lost.metadata.warnings(),
        tables=[_table(lost, kind) for kind in kinds(lost)],
        reference=line(lost, "polling or awake", lost.reference),
        idle=idle_lines(lost),
        waits=Markup(waits) if waits else None,
        timeline=Markup(timeline[0]) if timeline else None,
        left_out_cpus=timeline[1] if timeline else 0,
        environment=flat(lost.metadata.environment),
        settings=flat(lost.metadata.settings),
    )


def _table(lost: TimeLost, kind: str) -> Table:
    title, first = TITLES[kind]
    ranked: list[tuple[str, Wakes]] = lost.top(kind)
    lines = [line(lost, name, wakes) for name, wakes in ranked[:SHOWN]]
    return Table(title, first, lines, max(0, len(ranked) - SHOWN))
