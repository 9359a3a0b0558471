# SPDX-License-Identifier: GPL-2.0-only
"""``lightsleep watch``: the command."""

import contextlib
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console

from lightsleep import terminal
from lightsleep.document import headed
from lightsleep.ending import meant_to_end
from lightsleep.errors import LightsleepError
from lightsleep.files import check_writable
from lightsleep.options import Duration, OutputFile, cpus_option, json_option
from lightsleep.watch import draw, openmetrics
from lightsleep.watch.model import Snapshot
from lightsleep.watch.pace import LIVE_S, SCRAPED_S, SHARE, paced
from lightsleep.watch.rates import NAMES, CpuRates, rates, total
from lightsleep.watch.reading import Reader

ROOT = Path("/")
SCHEMA = "lightsleep.watch"
VERSION = 1
SHORTEST_S, LONGEST_S = 0.1, 86400
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
    type=Duration(SHORTEST_S, LONGEST_S, bare=True),
    metavar="TIME",
    help="Time between two readings, 0.1s to 24h; a number without a unit is in seconds.  "
    f"[default: {LIVE_S[0]}s; longer, up to {LIVE_S[1]}s, to stay below {SHARE:.1%} of one CPU]",
)
@click.option(
    "-n", "--count", type=click.IntRange(1), metavar="N", help="End after so many intervals."
)
@click.option(
    "--sort",
    type=click.Choice(draw.SORTS),
    default="cpu",
    show_default=True,
    help="Order of the CPUs, the largest first.",
)
@click.option("--top", type=click.IntRange(1), metavar="N", help="Show only the first N CPUs.")
@json_option(help="Print one JSON document per interval, on one line.")
@click.option(
    "--openmetrics",
    "metrics_file",
    type=OutputFile(),
    metavar="FILE.prom",
    help="Write the counters in Prometheus' text format, which node_exporter's textfile collector "
    "reads, and print nothing. Without --interval, watch writes every "
    f"{SCRAPED_S[0]} s or less often.",
)
def watch(
    cpus: list[int] | None,
    interval_s: float | None,
    count: int | None,
    sort: str,
    top: int | None,
    as_json: bool,
    metrics_file: Path | None,
) -> None:
    """Show live how the CPUs idle: states, wakeups, polls and what they are worth.

    Needs no privileges and changes nothing. Ends with Ctrl-C, SIGTERM, or after --count intervals.
    """
    if as_json and metrics_file:
        raise click.UsageError("--json and --openmetrics exclude each other")
    if as_json or metrics_file:
        _refuse_order("--json" if as_json else "--openmetrics")
    exports = metrics_file is not None
    with meant_to_end(), contextlib.closing(Reader(ROOT, cpus, contention=exports)) as reader:
        gc.freeze()  # thousands of descriptors, which are not worth looking at again
        if metrics_file:
            _export(reader, metrics_file, interval_s, count)
        elif as_json:
            _follow(reader, interval_s, count, _print_json)
        else:
            _view(reader, interval_s, count, sort, top)


def _refuse_order(output: str) -> None:
    """Refuse options that choose what a view shows, where ``output`` has all CPUs."""
    context = click.get_current_context()
    for name in ("top", "sort"):
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(
                f"--{name} has no effect with {output}: leave out --{name}; --cpus chooses CPUs"
            )


def document(before: Snapshot, after: Snapshot) -> dict[str, Any]:
    """Return the JSON document of an interval, as watch.schema.json describes it."""
    found = rates(before, after)
    rest = {
        "time_s": time.time(),
        "span_s": after.time_s - before.time_s,
        "driver": after.driver,
        "governor": after.governor,
        "mode": after.mode,
        "host_is_short": after.host_is_short,
        "all": _fields(total(found)),
        "cpus": [_fields(x) for x in found],
    }
    return headed(SCHEMA, VERSION, rest)


def _fields(found: CpuRates) -> dict[str, Any]:
    return {**{name: getattr(found, name) for name in NAMES}, "hit_rate": found.hit_rate}


def _print_json(before: Snapshot, after: Snapshot) -> None:
    click.echo(json.dumps(document(before, after)))


def _follow(reader: Reader, interval_s: float | None, count: int | None, show: Show) -> None:
    """Show every interval, of which the first begins now."""
    before: Snapshot | None = None
    for _ in paced(interval_s, LIVE_S, count + 1 if count else None):
        after = reader.read()
        if before:
            show(before, after)
        before = after


def _export(reader: Reader, file: Path, interval_s: float | None, count: int | None) -> None:
    check_writable(file)
    if file.suffix != ".prom" and (file.is_file() or not file.exists()):
        raise click.UsageError(
            f"--openmetrics {file}: node_exporter reads no file whose name does not end in .prom"
        )
    # Where the time between two writes changes, so do the rates that Prometheus computes.
    failed, first = None, True
    seen: openmetrics.First = {}
    for _ in paced(interval_s, SCRAPED_S, count, steady=True):
        try:
            found = reader.read()
            # A single write has none before it: another process may have made that.
            openmetrics.write(found if count == 1 else openmetrics.since(seen, found), file)
            failed, first = None, False
        except LightsleepError as error:
            # A disk that is full for a while, hours later, is no reason to end a service.
            if first:
                raise
            if error.message != failed:
                click.echo(f"{error.message}; trying again", err=True)
            failed = error.message
    if failed:
        raise LightsleepError(failed)


def _view(
    reader: Reader, interval_s: float | None, count: int | None, sort: str, top: int | None
) -> None:
    console = terminal.output()

    def page(before: Snapshot, after: Snapshot, rows: int | None) -> list[str]:
        width = None if console.width >= terminal.UNLIMITED else console.width
        span_s = after.time_s - before.time_s
        return draw.lines(after, rates(before, after), span_s, sort=sort, rows=rows, width=width)

    def append(before: Snapshot, after: Snapshot) -> None:
        click.echo("\n".join(page(before, after, top)) + "\n")

    def replace(before: Snapshot, after: Snapshot) -> None:
        room = max(console.height - AROUND_ROWS, 1)
        # A line that the terminal wraps would scroll the first one away.
        text = [line[: console.width] for line in page(before, after, min(top or room, room))]
        # What was there goes first. Behind a line that fills the screen, the cursor of some
        # terminals is still on its last character, which would go, too.
        shown = [f"{REST_OF_LINE}{line}\n" for line in text[:-1]]
        click.echo(f"{HOME}{''.join(shown)}{REST_OF_SCREEN}{text[-1]}", nl=False)

    if _on_screen(console, count):
        with console.screen():
            click.echo(f"{HOME}reading ...", nl=False)
            _follow(reader, interval_s, count, replace)
    else:
        _follow(reader, interval_s, count, append)


def _on_screen(console: Console, count: int | None) -> bool:
    """Return whether each view takes the place of the last; what is counted is meant to stay."""
    return terminal.has_screen(console) and count is None
