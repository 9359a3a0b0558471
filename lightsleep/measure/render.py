# SPDX-License-Identifier: GPL-2.0-only
"""A measurement on the terminal: a table for each CPU, or one for all where there are many."""

import re
from collections import defaultdict
from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lightsleep import cpulist
from lightsleep.measure.result import Figures, HalfOpen, MeasureResult, Row, Verdict
from lightsleep.terminal import whole
from lightsleep.units import us

# So many CPUs are shown one by one; more are folded unless asked for.
SHOWN = 4

STYLE = {
    "agrees": "green",
    "optimistic": "bold red",
    "pessimistic": "yellow",
    "not-entered": "bold yellow",
    "too-few": "bold yellow",
    "too-noisy": "bold yellow",
}


def render(console: Console, result: MeasureResult, verbose: bool) -> None:
    """Print a result; ``verbose`` shows every CPU, and what came of invalid samples."""
    _print_tables(console, result.rows, verbose)
    if any(_spared(row) for row in result.rows):
        console.print("ipi*: the CPU polled and saw the wakeup: some or all wakeups took no IPI.")
    if verbose:
        _print_percentiles(console, result.rows)
    # A wake that never came, or came after so long, is no matter of detail.
    invalid = [x for x in result.rows if x.invalid and (verbose or "timeout" in x.invalid)]
    if invalid:
        console.print()
        for row in invalid:
            reasons = ", ".join(f"{count} {reason}" for reason, count in row.invalid.items())
            console.print(Text(f"CPU {row.cpu} {row.name} by {row.source}, not counted: {reasons}"))
    for note in result.notes:
        console.print(Text.assemble(("note: ", "bold cyan"), note))


def _print_tables(console: Console, rows: list[Row], verbose: bool) -> None:
    """Print a table for each CPU, or one for all where they are many and not ``verbose``."""
    by_cpu: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        by_cpu[row.cpu].append(row)
    if len(by_cpu) > SHOWN and not verbose:
        console.print(_folded(rows), crop=False)
        console.print(f"\n{len(by_cpu)} CPUs, folded; -v shows each")
        console.print(
            "\nAll values in us. p50, p90, p99: as measured, medians over the CPUs; max: of all. "
            "own: p50 minus the p50 of the busy CPU, from the lowest to the highest of the CPUs."
        )
        return
    for number, (cpu, rows_of_cpu) in enumerate(by_cpu.items()):
        if number:
            console.print()
        console.print(_of_cpu(cpu, rows_of_cpu), crop=False)
    console.print(
        "\nAll values in us. p50, p90, p99, max: as measured. "
        "own: p50 minus the p50 of the busy CPU, with its 95 % interval."
    )


def _print_percentiles(console: Console, rows: list[Row]) -> None:
    """Print how sure the percentiles are, and of how many independent samples they are."""
    console.print()
    for row in rows:
        if row.raw:
            raw, ends = row.raw, (row.raw.p90_ci_ns, row.raw.p99_ci_ns)
            said = ", ".join(
                f"{name} {us(value)} {_reach(end)}"
                for name, value, end in zip(
                    ("p90", "p99"), (raw.p90_ns, raw.p99_ns), ends, strict=True
                )
            )
            worth = f"{raw.count} samples, worth {raw.independent} independent ones"
            console.print(Text(f"CPU {row.cpu} {row.name} by {row.source}: {said}; {worth}"))


def _reach(ends: HalfOpen | None) -> str:
    if ends is None:
        return "(no interval)"
    return f"[{us(ends[0])},{'' if ends[1] is None else us(ends[1])}]"


def _table(title: str, first: str) -> Table:
    table = Table(
        title=Text(title, style="bold") if title else None,
        title_justify="left",
        box=None,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column(first)
    table.add_column("by")
    for column in ("adv", "n", "p50", "p90", "p99", "max", "own"):
        table.add_column(column, justify="right")
    table.add_column("verdict")
    return table


def _of_cpu(cpu: int, rows: list[Row]) -> Table:
    wakers = {row.source_cpu for row in rows} - {None}
    by = f", woken by CPU {cpulist.format(x for x in wakers if x is not None)}" if wakers else ""
    table = _table(f"CPU {cpu}{by}", "state")
    for row in rows:
        raw = row.raw
        figures = (raw.p50_ns, raw.p90_ns, raw.p99_ns, raw.max_ns) if raw else ()
        table.add_row(
            Text(row.name),
            _by(row),
            _advertised(row),
            str(raw.count if raw else 0),
            *(map(us, figures) if figures else "----"),
            _own(row),
            Text(row.verdict.text, STYLE.get(row.verdict.kind, "")),
        )
    return whole(table, "verdict")


def _folded(rows: list[Row]) -> Table:
    """Return a table in which CPUs that tell the same share a line: medians over the CPUs."""
    groups: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        told = (row.verdict.kind, _alike(row.verdict))
        groups[row.source, row.state, row.name, row.advertised_us, told].append(row)
    table = _table("", "state")
    table.add_column("cpus")
    for same in groups.values():
        first = same[0]
        raws = [row.raw for row in same if row.raw]
        owns = [row.subtracted.p50_ns for row in same if row.subtracted]
        table.add_row(
            Text(first.name),
            _by(*same),
            _advertised(first),
            str(sum(raw.count for raw in raws)),
            *(map(us, _medians(raws)) if raws else "----"),
            f"{us(min(owns))} to {us(max(owns))}" if owns else "-",
            Text(_shared(same), STYLE.get(first.verdict.kind, "")),
            cpulist.format(row.cpu for row in same),
        )
    return whole(table, "verdict", "cpus")


def _alike(verdict: Verdict) -> str:
    """Return what tells a verdict from others of its kind, but for its figures."""
    return "" if re.search("[0-9]", verdict.text) else verdict.text


def _shared(rows: list[Row]) -> str:
    """Return what alike verdicts say together: where they differ in how much, the utmost."""
    texts = [row.verdict.text for row in rows]
    if len({*texts}) == 1:
        return texts[0]
    kind = rows[0].verdict.kind
    missing = [row.verdict.more_samples for row in rows if row.verdict.more_samples]
    if len(missing) == len(rows):
        return f"cannot tell, up to {max(missing)} more samples needed"
    if kind in ("optimistic", "pessimistic"):
        return max(rows, key=_off_ns).verdict.text.replace(" by ", " by up to ")
    return f"{kind.replace('-', ' ')}: -v shows why"


def _off_ns(row: Row) -> float:
    """Return by how much a state is off what it advertises."""
    return abs(row.subtracted.p50_ns - 1000 * (row.advertised_us or 0)) if row.subtracted else 0.0


def _medians(figures: list[Figures]) -> tuple[float, ...]:
    return (
        median(x.p50_ns for x in figures),
        median(x.p90_ns for x in figures),
        median(x.p99_ns for x in figures),
        max(x.max_ns for x in figures),
    )


def _by(*rows: Row) -> str:
    return rows[0].source + ("*" if any(map(_spared, rows)) else "")


def _spared(row: Row) -> bool:
    """Whether wakeups by IPI took none: all of them, or too many to judge by those that did."""
    many = row.path == "none" or (row.path == "mixed" and row.subtracted is None)
    return row.source == "ipi" and row.kind == "state" and many


def _advertised(row: Row) -> str:
    return "-" if row.advertised_us is None else f"{row.advertised_us:g}"


def _own(row: Row) -> str:
    own = row.subtracted
    if not own:
        return "-"
    interval = f" [{us(own.ci_ns[0])},{us(own.ci_ns[1])}]" if own.ci_ns else ""
    return us(own.p50_ns) + interval
