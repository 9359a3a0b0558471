# SPDX-License-Identifier: GPL-2.0-only
"""The verb ``lightsleep replay``."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import click

from lightsleep import terminal, units
from lightsleep.document import text_of
from lightsleep.errors import LightsleepError
from lightsleep.files import write_text, written
from lightsleep.governors.build import library_file
from lightsleep.options import Duration, NamedPath, OutputFile, json_option
from lightsleep.periods.description import HISTOGRAM, check_output
from lightsleep.periods.formats import head_of, is_recording
from lightsleep.periods.paths import expanded
from lightsleep.periods.source import open_recording, watched
from lightsleep.periods.table import Recording, write_rows
from lightsleep.replay import words
from lightsleep.replay.account import Replay
from lightsleep.replay.cluster import replay_tables
from lightsleep.replay.costs import Costs
from lightsleep.replay.evidence import costs_of
from lightsleep.replay.given import Given
from lightsleep.replay.given import measured as measured_costs
from lightsleep.replay.governed import Governor, require_advertised
from lightsleep.replay.parts import replay_files, replay_table, require_costs
from lightsleep.replay.policies import STOCK, WAIT_WEIGHT, parse
from lightsleep.replay.rows import NEEDED

SCRATCH = "/var/tmp"  # noqa: S108 (what is there has no name)
"""Where the table of a recording is while it is replayed, without TMPDIR: /tmp may be memory."""


def _policies(_context: click.Context, _option: click.Parameter, names: str) -> str:
    try:
        return ",".join(parse(f"{STOCK},{names}"))
    except LightsleepError as error:
        raise click.BadParameter(error.message) from error


@click.command("replay")
@click.argument(
    "recordings",
    nargs=-1,
    required=True,
    metavar="RECORDING...",
    type=NamedPath(path_type=Path),
)
@click.option(
    "--policies",
    callback=_policies,
    default="stock,lightsleep,haltpoll,fixed:50us,fixed:200us",
    show_default="stock, lightsleep, haltpoll, fixed:50us, fixed:200us",
    metavar="LIST",
    help="stock (the idle states that were recorded), lightsleep, haltpoll, fixed:TIME, menu@6.12 "
    "or teo@7.3 (that kernel's governor), menu@6.12+promote (with promotion).",
)
@click.option(
    "--halt-cost",
    "cost_s",
    type=Duration(least_s=0, most_s=1),
    metavar="TIME",
    help="What a wakeup from a halt costs, at most 1s; without it the recording tells.",
)
@click.option(
    "--measured",
    type=NamedPath(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="What wakeups from each idle state cost: a result of lightsleep measure -o FILE.",
)
@click.option(
    "--wait-weight",
    "weight",
    type=click.IntRange(1, 100),
    default=WAIT_WEIGHT,
    show_default=True,
    help="How many ns of CPU time one ns of waiting is worth.",
)
@click.option(
    "-o",
    "--output",
    type=OutputFile(),
    metavar="FILE",
    help="Also write a page (HTML) with a plot of CPU time against waiting.",
)
@click.option(
    "--dask",
    "cluster",
    metavar="ADDRESS",
    help="Replay on the Dask cluster whose scheduler is there, as in tcp://host:8786. Its workers "
    "read the tables (*.parquet) at the same paths.",
)
@json_option()
def replay_command(
    recordings: tuple[Path, ...],
    policies: str,
    cost_s: float | None,
    measured: Path | None,
    weight: int,
    output: Path | None,
    cluster: str | None,
    as_json: bool,
) -> None:
    """What other polling policies would have made of recorded idle periods.

    For each policy: how long tasks would have waited for CPUs to wake, how long CPUs would have
    polled, and how much more that is than an optimum that knows the future would pay.

    A RECORDING that is a folder stands for all tables (*.parquet) below it. One that is named twice
    counts once.

    A replay cannot know that a task which is woken earlier also answers earlier. Where two tasks
    wake each other in turn, figures are a range: from the times as recorded, to those with the
    peer's wakeups for free.
    """
    # Path.resolve() fails where links lead in a circle, and not with an OSError.
    files = list({os.path.realpath(path): path for path in expanded(recordings)}.values())
    if output:
        check_output(output, [*files, *([measured] if measured else [])])
    given = _given(cost_s, measured)
    governors = [x for x in parse(policies).values() if isinstance(x, Governor)]
    if governors:
        _require_advertised(files)
    if cluster is not None:
        each = replay_tables(cluster, files, policies, given, weight)
    else:
        for governor in governors:  # now, not once a long recording has been read
            library_file(governor.version)

        def alone(path: Path) -> tuple[Costs, Replay]:
            return _replayed(path, policies, given, weight)

        each = replay_files(files, policies, given, weight, alone)
    with contextlib.closing(each):
        total, costs = _together(files, each)

    def write() -> None:
        if output:
            from lightsleep.report.page import page  # needs matplotlib
            from lightsleep.report.replay_section import section

            write_text(output, page([section("r1", total, costs)]))
            click.echo(f"wrote {output}", err=True)

    with written(write):
        if as_json:
            click.echo(text_of(words.document(total, costs)))
        else:
            words.show(terminal.output(), total, costs)


def _require_advertised(files: Iterable[Path]) -> None:
    """Raise LightsleepError where no governor can be replayed on one of the recordings.

    That is known before any is read. Who reads a file says what else is wrong with it.
    """
    for path in files:
        try:
            metadata = open_recording(path, NEEDED).metadata if is_recording(path) else None
        except LightsleepError:
            continue
        if metadata:
            # In a folder of tables, many may be made of a trace of the same name.
            require_advertised(dataclasses.replace(metadata, source=str(path)))


def _given(cost_s: float | None, file: Path | None) -> Given | None:
    if cost_s is not None and file is not None:
        raise click.UsageError("--halt-cost and --measured both say what a wakeup costs: give one")
    if file is not None:
        return measured_costs(file)
    return None if cost_s is None else Given(round(cost_s * units.SECOND_NS))


def _together(
    files: list[Path], outcomes: Iterable[tuple[Costs, Replay]]
) -> tuple[Replay, list[tuple[str, Costs]]]:
    """Add up the replays of all recordings; return that, and what a wakeup costs in each.

    Of each, what only a replay needs is forgotten: it would take most of the memory.
    """
    total: Replay | None = None
    costs = []
    for path, (cost, outcome) in zip(files, outcomes, strict=True):
        # A name may be any bytes.
        name = os.fsencode(path).decode(errors="replace")
        costs.append((name, dataclasses.replace(cost, loops={}, ranks={})))
        if total is None:
            total = outcome
        else:
            total.merge(outcome)
    assert total
    return total, costs


def _replayed(path: Path, policies: str, given: Given | None, weight: int) -> tuple[Costs, Replay]:
    """Replay a recording that is no table as the table that it becomes."""
    if not is_recording(path):
        if f'"{HISTOGRAM}"'.encode() in head_of(path, 4096):
            raise LightsleepError(
                f"{path}: a histogram has no idle periods to replay: record without --histogram"
            )
        raise LightsleepError(f"{path}: no recording: lightsleep record makes one")
    recording = open_recording(path, NEEDED)
    if recording.is_table:
        return replay_table(path, policies, weight, given)
    folder = os.environ.get("TMPDIR") or SCRATCH
    with contextlib.ExitStack() as stack:
        try:
            # Has no name: it is gone with this process, whatever ends that.
            file = stack.enter_context(tempfile.TemporaryFile(dir=folder))
            found = _tabled(recording, file.fileno(), given)
            costs = require_costs(path, found, given, recording.metadata)
        except OSError as error:
            raise LightsleepError(
                f"{path}: cannot write its idle periods to {folder}: {error.strerror or error}; "
                "set TMPDIR to a folder with room for them"
            ) from error
        table = Path(f"/proc/{os.getpid()}/fd/{file.fileno()}")
        try:
            return replay_table(table, policies, weight, costs=costs)
        except LightsleepError as error:
            raise LightsleepError(error.message.replace(str(table), str(path))) from error


def _tabled(recording: Recording, descriptor: int, given: Given | None) -> Costs | None:
    """Write the table of a recording; return what its wakeups cost. Raises OSError."""
    with open(descriptor, "wb", closefd=False) as file:
        batches = write_rows(recording, file)
        with contextlib.closing(watched(recording.metadata, batches)) as rows:
            return costs_of(recording.metadata, rows, given)
