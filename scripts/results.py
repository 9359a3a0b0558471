# SPDX-License-Identifier: GPL-2.0-only
"""Write the page of each result in a folder: docs/results/NAME.md from NAME.json; and their index.

The page of a folder in it is that of comparisons of the same with the same; see compare/same.py.
Where the result of make demo is among them, also a picture of what the terminal shows of it.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from lightsleep import terminal
from lightsleep.compare import same, words
from lightsleep.compare.analysis import analyse, judge_claims
from lightsleep.compare.markdown import command, page, table, text
from lightsleep.compare.result import FORMAT, CompareResult, check_claims
from lightsleep.compare.table import print_table
from lightsleep.document import load
from lightsleep.errors import LightsleepError
from lightsleep.files import write_text
from lightsleep.lab import experiments

DEMO = "idle-x86_64.json"
PICTURE = "demo.svg"
INDEX = "README.md"
WIDTH = 116
"""Columns of the picture: as many as the table needs."""


def load_result(path: Path) -> tuple[CompareResult, bool]:
    """Return a result, and whether its claims are those that its experiment declares by now."""
    result = load(path, FORMAT)
    if result.claims:
        return result, False
    claims = list(experiments.load(result.experiment).claims)
    try:
        check_claims(claims, result.arms, result.metrics)
    except ValueError:  # the experiment has other arms or metrics by now
        return result, False
    result.claims = claims
    return result, True


def page_of(path: Path) -> str:
    """Return the page of a result file; one without claims is asked those of its experiment."""
    result, declared_later = load_result(path)
    return page(result, path.name, declared_later=declared_later)


def _index_row(result: CompareResult, stem: str) -> tuple[str, ...]:
    outcomes = [words.OUTCOMES[x.outcome] for x in judge_claims(result)]
    return (
        f"[{text(result.title)}]({stem}.md)",
        str(result.environment.get("arch", "")),
        words.headline(result, analyse(result)),
        " ".join(outcomes),
        result.created[:10],
    )


def index_of(folder: Path) -> str:
    """Return the page that lists all results of a folder."""
    rows = [_index_row(load_result(x)[0], x.stem) for x in sorted(folder.glob("*.json"))]
    for path in sorted(x for x in folder.iterdir() if x.is_dir()):
        results = same.read(path)
        said = f"{same.report(results).splitlines()[0]}."
        title = f"[{text(results[0].title)}]({path.name}.md)"
        arch = str(results[0].environment.get("arch", ""))
        rows.append((title, arch, said, "", results[0].created[:10]))
    marks = ", ".join(f"{mark} {outcome.value}" for outcome, mark in words.OUTCOMES.items())
    parts = [
        "<!-- SPDX-License-Identifier: GPL-2.0-only -->",
        "<!-- Written by make results: do not edit. -->",
        "# Results",
        "Each page has all figures with their intervals, the claims that were declared beforehand, "
        "the command, the machine, and the raw samples. All guests were emulated.",
        f"Claims: {marks}.",
        table(("experiment", "architecture", "in a sentence", "claims", "date"), rows),
    ]
    return "\n\n".join(parts) + "\n"


def picture_of(path: Path) -> str:
    """Return an SVG of a terminal that shows a result, as make demo shows its own."""
    result = load(path, FORMAT)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False)
    console.print(Text.assemble(("$ ", "bold"), command(result)))
    print_table(result, console)
    return terminal.picture(console, "demo")


def main(folder: Path) -> None:
    """Write all pages of a folder, their index, and the picture."""
    try:
        for path in sorted(folder.glob("*.json")):
            write_text(path.with_suffix(".md"), page_of(path))
        for path in sorted(x for x in folder.iterdir() if x.is_dir()):
            write_text(path.with_suffix(".md"), same.page(path))
        write_text(folder / INDEX, index_of(folder))
        if (folder / DEMO).exists():
            write_text(folder / PICTURE, picture_of(folder / DEMO))
    except LightsleepError as error:
        sys.exit(error.message)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
