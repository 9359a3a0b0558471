# SPDX-License-Identifier: GPL-2.0-only
"""A view of rates in lines of text. Formatted by hand: a table of rich takes 20 times as long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lightsleep.scan.facts import LIGHTSLEEP_DRIVER
from lightsleep.units import whole_s
from lightsleep.watch.model import Snapshot
from lightsleep.watch.rates import CpuRates, total

Value = float | None


@dataclass(frozen=True)
class Column:
    """A column: its title, how it is sorted by and what it shows."""

    title: str
    value: Callable[[CpuRates], Value]
    show: Callable[[float], str]


def _share(value: float) -> str:
    return f"{100 * value:.1f}"


def _rate(value: float) -> str:
    return f"{value:,.0f}"


def _us(value_ns: float) -> str:
    value_us = value_ns / 1000
    return f"{value_us:,.1f}" if value_us < 100 else f"{value_us:,.0f}"


# In the order of the page; a state's share stands between the two lists.
BEFORE_STATES = {"busy": Column("busy %", lambda x: x.busy_share, _share)}
BEHIND_STATES = {
    "asleep": Column("asleep %", lambda x: x.asleep_share, _share),
    "wakes": Column("wakes/s", lambda x: x.wakes_per_s, _rate),
    "ipi": Column("ipi/s", lambda x: x.ipi_per_s, _rate),
    "timer": Column("timer/s", lambda x: x.timer_per_s, _rate),
    "device": Column("dev/s", lambda x: x.device_per_s, _rate),
    "store": Column("store/s", lambda x: x.stores_per_s, _rate),
    "polls": Column("polls/s", lambda x: x.polls_per_s, _rate),
    "hits": Column("hit %", lambda x: x.hit_rate, _share),
    "polled": Column("polled %", lambda x: x.polled_share, _share),
    "wasted": Column("in vain %", lambda x: x.wasted_share, _share),
    "limit": Column("limit us", lambda x: x.limit_ns, _us),
    "cost": Column("cost us", lambda x: x.halt_cost_ns, _us),
    "lost": Column("lost %", lambda x: x.lost_share, _share),
    "stolen": Column("stolen %", lambda x: x.stolen_share, _share),
    "paused": Column("paused %", lambda x: x.paused_share, _share),
}
COLUMNS = BEFORE_STATES | BEHIND_STATES
SORTS = ("cpu", *COLUMNS)


def sort_cpus(found: Sequence[CpuRates], sort: str) -> list[CpuRates]:
    """Return CPUs by number, or by a column, the largest first."""
    if sort == "cpu":
        return sorted(found, key=lambda x: x.cpu or 0)
    value = COLUMNS[sort].value
    return sorted(found, key=lambda x: (-(value(x) or 0.0), x.cpu or 0))


def lines(
    after: Snapshot,
    found: Sequence[CpuRates],
    span_s: float,
    *,
    sort: str,
    rows: int | None,
    width: int | None,
) -> list[str]:
    """Return the view of a span: a headline, the sum, and as many CPUs as ``rows``.

    Columns that do not fit into ``width`` are left out from the right, and so is, everywhere, what
    no CPU knows.
    """
    whole = total(found)
    shown = [whole, *sort_cpus(found, sort)[:rows]]
    columns = _columns(whole)
    cells = [_right(["cpu", *(_name(x.cpu) for x in shown)])]
    while columns:
        column = _right([columns[0].title, *(_cell(columns[0], x, after) for x in shown)])
        if width is not None and _width([*cells, column]) > width:
            break
        cells.append(column)
        columns.pop(0)
    lacking = sort != "cpu" and all(COLUMNS[sort].value(x) is None for x in found)
    out = [_headline(after, found, span_s, COLUMNS[sort].title if lacking else None), ""]
    out += ["  ".join(row) for row in zip(*cells, strict=True)]
    if hidden := len(found) - len(shown) + 1:
        out.append(f"{hidden} more CPUs; --top, --sort and --cpus choose")
    if columns:
        out.append(f"too narrow for: {', '.join(x.title for x in columns)}")
    return out


def _right(cells: list[str]) -> list[str]:
    widest = max(map(len, cells))
    return [cell.rjust(widest) for cell in cells]


def _width(cells: list[list[str]]) -> int:
    return sum(len(column[0]) + 2 for column in cells) - 2


def _columns(whole: CpuRates) -> list[Column]:
    states = [
        Column(f"{name} %", lambda x, name=name: x.state_shares.get(name), _share)  # type: ignore[misc]
        for name in whole.state_shares
    ]
    every = [*BEFORE_STATES.values(), *states, *BEHIND_STATES.values()]
    settings = ("limit us", "cost us")  # no sum has them
    kept = [x for x in every if x.title in settings or x.value(whole) is not None]
    has_own = whole.polls_per_s is not None
    return [x for x in kept if has_own or x.title not in settings]


def _headline(
    after: Snapshot, found: Sequence[CpuRates], span_s: float, lacking: str | None
) -> str:
    """Return the first line; ``lacking`` is what the CPUs found cannot be sorted by.

    That and pauses come first: a narrow screen cuts the line.
    """
    said = f"over {span_s:.1f} s: "
    if not found and after.cpus:  # each came online in between
        said += "no CPU was online at both readings; "
    elif not found:
        said += "no CPU is online whose counters can be read (see lightsleep scan -v); "
    elif lacking:
        said += f"no CPU shows {lacking}, so they are sorted by number; "
    said += _pauses([left_ms for x in found if (left_ms := _pause_left_ms(x, after))])
    said += f"driver {after.driver or 'none'}"
    if after.governor:
        said += f", governor {after.governor}"
    if after.mode:
        said += f", mode {after.mode}"
    uncounted = after.cpus and all(x.own is None for x in after.cpus.values())
    if uncounted and after.driver == LIGHTSLEEP_DRIVER:
        said += ", but the driver's own counters cannot be read (see lightsleep status)"
    if after.spins:
        said += f", idle CPUs spin ({after.spins})"
    if after.host_is_short:
        said += ", no latency limit counts: the host is short of cores"
    if not after.driver:
        said += ": nothing counts idle states; shares are of the kernel's idle time"
    return said


def _pauses(left_ms: list[int]) -> str:
    """Return what to say of CPUs in pauses."""
    if not left_ms:
        return ""
    one = len(left_ms) == 1
    cpus = "1 CPU finds its" if one else f"{len(left_ms)} CPUs find their"
    return f"{cpus} host short of cores, for up to {whole_s(max(left_ms))} s more; "


def _pause_left_ms(x: CpuRates, after: Snapshot) -> int | None:
    """Return what is left of a pause, in the mode in which it may keep the CPU from polling."""
    return x.pause_left_ms if after.mode == "adaptive" else None


def _name(cpu: int | None) -> str:
    return "all" if cpu is None else str(cpu)


def _cell(column: Column, x: CpuRates, after: Snapshot) -> str:
    if column is COLUMNS["limit"] and (left_ms := _pause_left_ms(x, after)):
        return f"paused {whole_s(left_ms)} s"
    value = column.value(x)
    return "-" if value is None else column.show(value)
