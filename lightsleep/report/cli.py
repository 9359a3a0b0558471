# SPDX-License-Identifier: GPL-2.0-only
"""The verb ``lightsleep report``."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import click

from lightsleep.compare import analysis, result
from lightsleep.document import Format, load
from lightsleep.errors import LightsleepError
from lightsleep.files import check_writable, same, write_text
from lightsleep.measure import load as measure_load
from lightsleep.measure.result import MeasureResult
from lightsleep.report import measure_section
from lightsleep.report.page import Result, render

FORMATS: tuple[Format[Result], ...] = (result.FORMAT, measure_load.FORMAT)


@click.command()
@click.argument(
    "results", nargs=-1, required=True, metavar="RESULT...", type=click.Path(path_type=Path)
)
@click.option(
    "-o",
    "--output",
    default="report.html",
    show_default=True,
    type=click.Path(path_type=Path, allow_dash=True),
    help="The page to write; - is standard output.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the figures as JSON instead of writing a page."
)
def report(results: tuple[Path, ...], output: Path, as_json: bool) -> None:
    """Write one self-contained HTML page that shows one or several result files."""
    if as_json:
        documents = [{"file": str(path), **_summary(_load(path))} for path in results]
        summary = {"schema": "lightsleep.report", "version": 1, "results": documents}
        click.echo(json.dumps(summary, indent=1))
        return
    to_stdout = str(output) == "-"
    if not to_stdout:
        _check_output(output, results)
    page = render(_labelled(results))
    if to_stdout:
        click.echo(page.encode(), nl=False)  # the page says of itself that it is UTF-8
    else:
        write_text(output, page)
        click.echo(f"wrote {output}", err=True)


def _load(path: Path) -> Result:
    return load(path, *FORMATS)


def _summary(loaded: Result) -> dict[str, Any]:
    if isinstance(loaded, MeasureResult):
        return measure_section.to_json(loaded)
    return {"schema": loaded.schema, **analysis.to_json(loaded)}


def _check_output(output: Path, results: tuple[Path, ...]) -> None:
    """Refuse what would lose something, before any work is done."""
    if any(same(output, path) for path in results):
        raise LightsleepError(f"{output} is one of the results: name another file with -o")
    check_writable(output)


def _labelled(results: tuple[Path, ...]) -> list[tuple[str, Result]]:
    """Load the results; a file that is named twice is told apart by a number."""
    labelled, seen = [], Counter[Path]()
    for path in results:
        seen[path] += 1
        label = os.fsencode(path).decode(errors="replace")  # a name may be any bytes
        if seen[path] > 1:
            label += f" ({seen[path]})"
        labelled.append((label, _load(path)))
    return labelled
