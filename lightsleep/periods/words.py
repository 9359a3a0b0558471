# SPDX-License-Identifier: GPL-2.0-only
"""How what a recording says is said, on the page and on the terminal."""

from __future__ import annotations

from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lightsleep.document import UNPRINTABLE
from lightsleep.periods.lost import FEWEST, TimeLost, Wakes
from lightsleep.periods.model import Metadata
from lightsleep.terminal import whole
from lightsleep.units import counted, digits, seconds, us, value

# kind of group -> what its table is called, and its first column
TITLES = {
    "cause": ("By idle state and by what ended it", "state, ended by"),
    "state": ("By idle state", "state"),
    "task": ("By woken task", "task"),
    "waker": ("By waker", "waker"),
    "cpu": ("By CPU", "CPU"),
}


def kinds(lost: TimeLost) -> list[str]:
    """Return the kinds of groups that there are; a histogram has no causes, tasks and wakers."""
    found = [kind for kind in TITLES if lost.groups[kind]]
    return [kind for kind in found if not (kind == "state" and "cause" in found)]


TOP = 5
"""Lines of each table on the terminal."""

FIGURES = ("wakeups", "total", "of wall time", "p50 us", "p99 us", "idle state's part")
"""The other columns of each table."""

HUNDRED = 100
"""Of fewer wakeups, none is the slowest in a hundred."""


class Line(NamedTuple):
    """One group of wakeups, in words."""

    name: str
    wakes: str
    total: str
    share: str
    p50_us: str
    p99_us: str
    above: str


def line(lost: TimeLost, name: str, wakes: Wakes) -> Line:
    """Return the figures of one group."""
    above_ns = lost.above_reference_ns(wakes)
    return Line(
        UNPRINTABLE.sub("?", name) or "-",
        f"{wakes.count:,}",
        seconds(wakes.total_ns),
        value(100 * lost.share(wakes), "%"),
        us(wakes.within_ns(0.5)) if wakes.count else "-",
        us(wakes.within_ns(0.99)) if wakes.count else "-",
        "" if above_ns is None or wakes is lost.reference else seconds(above_ns),
    )


def headline(lost: TimeLost) -> list[str]:
    """Return the answer in a few sentences."""
    if not lost.all.count:
        if lost.metadata.lacking:
            return ["The recording cannot tell whether tasks waited for a CPU in an idle state."]
        return ["No task was seen to wait for a CPU in an idle state."]
    said = [
        f"In {seconds(lost.metadata.span_ns)}, {counted(lost.all.count, 'wakeup')} found "
        f"{'its' if lost.all.count == 1 else 'their'} CPU in an idle state. From waking to "
        f"running, that took {seconds(lost.all.total_ns)} in all, "
        f"{value(100 * lost.share(lost.all), '%')} of wall time.",
        f"Half of them took {us(lost.all.within_ns(0.5))} us or less, "
        + (
            f"one in a hundred {us(lost.all.within_ns(0.99))} us or more."
            if lost.all.count >= HUNDRED
            else f"the longest {us(lost.all.longest_ns)} us{_or_more(lost.metadata)}."
        ),
    ]
    if lost.reference_ns is None:
        few = lost.reference.count
        found = "wakeup found its" if few == 1 else "wakeups found their"
        said.append(
            f"{f'Only {few:,}' if few else 'No'} {found} CPU polling or awake: too few to tell how "
            "much of that time the idle states take."
        )
    else:
        above = lost.above_reference_ns(lost.all)
        if above is not None:
            part = f"Going by the medians, the idle states took {seconds(above)} of the total"
        elif all(wakes.count < FEWEST for wakes in lost.groups["state"].values()):
            part = "Too few wakeups are known to tell what part of the total the idle states took"
        else:
            part = "That is too close to tell what part of the total the idle states took"
        said.append(
            f"A CPU that polled or was awake took {us(lost.reference_ns)} us (median of "
            f"{lost.reference.count:,} wakeups). {part}."
        )
    return said


def _or_more(metadata: Metadata) -> str:
    """Of a histogram, the longest time that is known is the mean of a bucket."""
    return " or more" if metadata.source == "histogram" else ""


def idle_lines(lost: TimeLost) -> list[tuple[str, ...]]:
    """Return a row for each idle state: its name, periods, total time, mean."""
    return [
        (name, f"{x.periods:,}", seconds(x.total_ns), us(x.total_ns / max(1, x.periods)))
        for name, x in lost.states.items()
    ]


def show(console: Console, lost: TimeLost, label: str) -> None:
    """Print what a recording says: the answer and the first lines of each table."""
    console.print(Text(f"{label}: {lost.metadata.host}", "bold"))
    for sentence in headline(lost):
        console.print(Text(sentence))
    for number, kind in enumerate(kinds(lost)):
        ranked, first = lost.top(kind), TITLES[kind][1]
        table = Table(box=None, pad_edge=False, header_style="dim")
        for title in (first, *FIGURES):
            table.add_column(title, justify="left" if title == first else "right")
        for name, wakes in ranked[:TOP]:
            table.add_row(*(Text(cell) for cell in line(lost, name, wakes)))
        if number == 0 and lost.reference.count:
            table.add_row(*(Text(x) for x in line(lost, "polling or awake", lost.reference)))
        console.print()
        console.print(whole(table), crop=False)
        if len(ranked) > TOP:
            console.print(Text(f"and {digits(len(ranked) - TOP, '')} more", "dim"))
    console.print(
        f"\n{FIGURES[-1]}: what it took of the total, going by the medians of wakeups out of each "
        "state. It is empty where these are too close to that of wakeups that found a CPU polling "
        "or awake, or where too few wakeups are known."
    )
    for note in lost.metadata.warnings():
        console.print(Text.assemble(("note: ", "bold cyan"), note))
