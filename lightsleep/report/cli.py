# SPDX-License-Identifier: GPL-2.0-only
"""The verb ``lightsleep report``."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lightsleep import terminal
from lightsleep.compare import analysis, result
from lightsleep.document import Format, NotJsonError, headed, load, text_of
from lightsleep.errors import LightsleepError
from lightsleep.files import same, write_text, written
from lightsleep.measure import result as measured
from lightsleep.measure.result import MeasureResult
from lightsleep.options import NamedPath, OutputFile, json_option
from lightsleep.periods import histogram
from lightsleep.periods.description import check_output
from lightsleep.periods.formats import is_recording
from lightsleep.periods.lost import TimeLost, time_lost
from lightsleep.periods.paths import expanded
from lightsleep.periods.words import show

if TYPE_CHECKING:
    from lightsleep.report.page import Result

SCHEMA = "lightsleep.report"
VERSION = 1
READS = (
    "report reads results of lightsleep (JSON) and recordings, and this looks like neither: "
    "lightsleep report --help names the programs whose recordings it reads"
)
FORMATS: tuple[Format[Result], ...] = (result.FORMAT, measured.FORMAT, histogram.FORMAT)


@click.command()
@click.argument(
    "results", nargs=-1, required=True, metavar="RESULT...", type=NamedPath(path_type=Path)
)
@click.option(
    "-o",
    "--output",
    default="report.html",
    show_default=True,
    type=NamedPath(path_type=Path, allow_dash=True),
    help="The page to write; - is standard output.",
)
@json_option(help="Print one JSON document instead of writing a page.")
@click.option(
    "--parquet",
    "table",
    type=OutputFile(),
    metavar="FILE",
    help="Also save the idle periods of a recording, one row each.",
)
@click.option(
    "--perfetto",
    "trace",
    type=OutputFile(),
    metavar="FILE",
    help="Also save them as a trace for ui.perfetto.dev.",
)
def report(
    results: tuple[Path, ...],
    output: Path,
    as_json: bool,
    table: Path | None,
    trace: Path | None,
) -> None:
    """Write one self-contained HTML page that shows one or several files.

    RESULT is a comparison, a measurement, a histogram (lightsleep record --histogram), or a
    recording: of lightsleep record, trace-cmd (trace.dat), perf (perf.data, perf script), LTTng,
    Perfetto, the kernel's trace file, or saved with --parquet. Of a recording, the command also
    prints how much time tasks lost while CPUs woke. A folder stands for all tables (*.parquet)
    below it.
    """
    results = tuple(expanded(results))
    given = click.get_current_context().get_parameter_source("output")
    if as_json and given == click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("-o names a page, and --json writes none: leave one of them out")
    if (table or trace) and (len(results) > 1 or not is_recording(results[0])):
        option = "--parquet" if table else "--perfetto"
        raise click.UsageError(f"{option} saves the idle periods of one recording: name one")
    page = None if as_json or str(output) == "-" else output
    outputs = [file for file in (page, table, trace) if file]
    for file in outputs:
        check_output(file, results)
    for file, other in itertools.combinations(outputs, 2):
        if same(file, other) and (file.is_file() or not file.exists()):
            raise LightsleepError(f"{file} is named twice: each output needs a file of its own")
    if as_json:
        documents = [{"file": str(path), **_summary(_load(path, table, trace))} for path in results]
        click.echo(text_of(headed(SCHEMA, VERSION, {"results": documents})))
        return
    # Not above: matplotlib takes a second to load, and help and figures need none.
    from lightsleep.report.page import render

    labelled = _labelled(results, table, trace)
    text = render(labelled)
    with written(*((lambda: write_text(page, text),) if page else ())):
        if page is None:
            click.echo(text.encode(), nl=False)  # the page says of itself that it is UTF-8
        else:
            for label, loaded in labelled:
                if isinstance(loaded, TimeLost):
                    show(terminal.output(), loaded, label)
    for file in outputs:
        click.echo(f"wrote {file}", err=True)


def _load(path: Path, table: Path | None, trace: Path | None) -> Result:
    """Load a result of any kind; a recording's rows are also written to ``table`` and ``trace``."""
    if not is_recording(path):
        try:
            return load(path, *FORMATS)
        except LightsleepError as error:
            if isinstance(error.__cause__, NotJsonError):
                raise LightsleepError(f"{error.message}. {READS}") from error
            raise
    # Here, because they need pyarrow: the other results have a page without it.
    from lightsleep.periods.source import open_recording, watched
    from lightsleep.periods.table import write_parquet

    recording = open_recording(path)
    batches = write_parquet(recording, table) if table else recording.batches
    if trace:
        from lightsleep.periods.perfetto_export import write_perfetto

        batches = write_perfetto(recording.metadata, batches, trace)
    with contextlib.closing(watched(recording.metadata, batches)) as rows:
        return time_lost(recording.metadata, rows)


def _summary(loaded: Result) -> dict[str, Any]:
    if isinstance(loaded, MeasureResult):
        from lightsleep.report import measure_section

        return measure_section.document(loaded)
    if isinstance(loaded, TimeLost):
        return loaded.document()
    return analysis.document(loaded)


def _labelled(
    results: tuple[Path, ...], table: Path | None, trace: Path | None
) -> list[tuple[str, Result]]:
    """Load the results; a file that is named twice is told apart by a number."""
    labelled, seen = [], Counter[Path]()
    for path in results:
        seen[path] += 1
        label = os.fsencode(path).decode(errors="replace")  # a name may be any bytes
        if seen[path] > 1:
            label += f" ({seen[path]})"
        labelled.append((label, _load(path, table, trace)))
    return labelled
