# SPDX-License-Identifier: GPL-2.0-only
"""``lightsleep watch``: the command."""

import contextlib
import dataclasses
import itertools
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from lightsleep import terminal
from lightsleep.files import check_writable
from lightsleep.options import cpus_option
from lightsleep.watch import draw
from lightsleep.watch.model import Snapshot
from lightsleep.watch.rates import CpuRates, rates, total
from lightsleep.watch.reading import Reader

ROOT = Path("/")
SCHEMA = "lightsleep.watch"
VERSION = 1
SHORTEST_S = 0.1
AROUND_ROWS = 6
"""Lines of a screen that are no CPU's."""

HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"

Show = Callable[[Snapshot, Snapshot], None]


@click.command()
@cpus_option
@click.option(
    "-i",
    "--interval",
    "interval_s",
    type=click.FloatRange(SHORTEST_S, 86400),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two readings.",
)
@click.option("-n", "--count", type=click.IntRange(1), help="End after so many intervals.")
@click.option(
    "--sort",
    type=click.Choice(draw.SORTS),
    default="cpu",
    show_default=True,
    help="Order of the CPUs, the largest first.",
)
@click.option("--top", type=click.IntRange(1), metavar="N", help="Show only the first N CPUs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document per interval.")
@click.option(
    "--openmetrics",
    "metrics_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.prom",
    help="Write the counters for node_exporter's textfile collector, and print nothing.",
)
def watch(
    cpus: list[int] | None,
    interval_s: float,
    count: int | None,
    sort: str,
    top: int | None,
    as_json: bool,
    metrics_file: Path | None,
) -> None:
    """Show live how the CPUs idle: states, wakeups, polls and what they are worth.

    Needs no privileges and changes nothing. Ends with Ctrl-C, or after --count intervals.
    """
    if not math.isfinite(interval_s):
        raise click.BadParameter("not a finite number", param_hint="--interval")
    if as_json and metrics_file:
        raise click.UsageError("--json and --openmetrics exclude each other")
    with contextlib.closing(Reader(ROOT, cpus)) as reader, contextlib.suppress(KeyboardInterrupt):
        if metrics_file:
            _export(reader, metrics_file, interval_s, count)
        elif as_json:
            _follow(reader, interval_s, count, _print_json)
        else:
            _view(reader, interval_s, count, sort, top)


def document(before: Snapshot, after: Snapshot) -> dict[str, Any]:
    """Return the JSON document of an interval, as watch.schema.json describes it."""
    found = rates(before, after)
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "time_s": time.time(),
        "span_s": after.time_s - before.time_s,
        "driver": after.driver,
        "governor": after.governor,
        "mode": after.mode,
        "all": _fields(total(found)),
        "cpus": [_fields(x) for x in found],
    }


def _fields(found: CpuRates) -> dict[str, Any]:
    return {**dataclasses.asdict(found), "hit_rate": found.hit_rate}


def _print_json(before: Snapshot, after: Snapshot) -> None:
    click.echo(json.dumps(document(before, after)))


def _follow(reader: Reader, interval_s: float, count: int | None, show: Show) -> None:
    """Show every interval; one that was missed (a machine asleep) is not made up for."""
    before = reader.read()
    due = time.monotonic()
    for _ in range(count) if count else itertools.count():
        due = max(due + interval_s, time.monotonic())
        time.sleep(max(due - time.monotonic(), 0))
        after = reader.read()
        show(before, after)
        before = after


def _export(reader: Reader, file: Path, interval_s: float, count: int | None) -> None:
    from lightsleep.watch import openmetrics  # prometheus_client is needed for this alone

    check_writable(file)
    openmetrics.write(reader.read(), file)
    again = range(count - 1) if count else itertools.count()
    for _ in again:
        time.sleep(interval_s)
        openmetrics.write(reader.read(), file)


def _view(reader: Reader, interval_s: float, count: int | None, sort: str, top: int | None) -> None:
    console = terminal.output()

    def page(before: Snapshot, after: Snapshot, rows: int | None) -> list[str]:
        width = None if console.width >= terminal.UNLIMITED else console.width
        return draw.lines(after, rates(before, after), sort=sort, rows=rows, width=width)

    def append(before: Snapshot, after: Snapshot) -> None:
        click.echo("\n".join(page(before, after, top)) + "\n")

    def replace(before: Snapshot, after: Snapshot) -> None:
        room = max(console.height - AROUND_ROWS, 1)
        text = page(before, after, min(top or room, room))
        rest = f"{REST_OF_LINE}\n"
        click.echo(f"{HOME}{rest.join(text)}{REST_OF_LINE}{REST_OF_SCREEN}", nl=False)

    if _on_screen(console, count):
        with console.screen():
            click.echo(f"{HOME}reading for {interval_s:g} s ...", nl=False)
            _follow(reader, interval_s, count, replace)
    else:
        _follow(reader, interval_s, count, append)


def _on_screen(console: Console, count: int | None) -> bool:
    """Return whether each view takes the place of the last; what is counted is meant to stay."""
    return console.is_terminal and count is None
