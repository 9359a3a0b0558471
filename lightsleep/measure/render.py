# SPDX-License-Identifier: GPL-2.0-only
"""A measurement on the terminal: a table for each CPU, or one for all where there are many."""

from collections import defaultdict
from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lightsleep import cpulist
from lightsleep.measure.result import Figures, HalfOpen, MeasureResult, Row
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
        console.print("ipi*: the CPU polled and saw the wakeup, so no IPI or few IPIs were sent.")
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
        groups[row.source, row.state, row.name, row.advertised_us, row.verdict.kind].append(row)
    table = _table("", "state")
    table.add_column("cpus")
    for same in groups.values():
        first = same[0]
        raws = [row.raw for row in same if row.raw]
        owns = [row.subtracted.p50_ns for row in same if row.subtracted]
        table.add_row(
            Text(first.name),
            _by(first),
            _advertised(first),
            str(sum(raw.count for raw in raws)),
            *(map(us, _medians(raws)) if raws else "----"),
            f"{us(min(owns))} to {us(max(owns))}" if owns else "-",
            Text(first.verdict.kind, STYLE.get(first.verdict.kind, "")),
            cpulist.format(row.cpu for row in same),
        )
    return whole(table, "cpus")


def _medians(figures: list[Figures]) -> tuple[float, ...]:
    return (
        median(x.p50_ns for x in figures),
        median(x.p90_ns for x in figures),
        median(x.p99_ns for x in figures),
        max(x.max_ns for x in figures),
    )


def _by(row: Row) -> str:
    return row.source + ("*" if _spared(row) else "")


def _spared(row: Row) -> bool:
    """Whether an IPI was meant to wake, but not needed, at least at times."""
    return row.source == "ipi" and row.path in ("none", "mixed")


def _advertised(row: Row) -> str:
    return "-" if row.advertised_us is None else f"{row.advertised_us:g}"


def _own(row: Row) -> str:
    own = row.subtracted
    if not own:
        return "-"
    interval = f" [{us(own.ci_ns[0])},{us(own.ci_ns[1])}]" if own.ci_ns else ""
    return us(own.p50_ns) + interval
