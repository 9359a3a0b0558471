# SPDX-License-Identifier: GPL-2.0-only
"""Write the page of each result in a folder: docs/results/NAME.md from NAME.json.

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
from lightsleep.compare import same
from lightsleep.compare.markdown import command, page
from lightsleep.compare.result import FORMAT, check_claims
from lightsleep.compare.table import print_table
from lightsleep.document import load
from lightsleep.errors import LightsleepError
from lightsleep.files import write_text
from lightsleep.lab import experiment

DEMO = "idle-x86_64.json"
PICTURE = "demo.svg"
WIDTH = 116
"""Columns of the picture: as many as the table needs."""


def page_of(path: Path) -> str:
    """Return the page of a result file; one without claims is asked those of its experiment."""
    result = load(path, FORMAT)
    if result.claims:
        return page(result, path.name)
    claims = list(experiment.load(result.experiment).claims)
    try:
        check_claims(claims, result.arms, result.metrics)
    except ValueError:  # the experiment has other arms or metrics by now
        return page(result, path.name)
    result.claims = claims
    return page(result, path.name, declared_later=True)


def picture_of(path: Path) -> str:
    """Return an SVG of a terminal that shows a result, as make demo shows its own."""
    result = load(path, FORMAT)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False)
    console.print(Text.assemble(("$ ", "bold"), command(result)))
    print_table(result, console)
    return terminal.picture(console, "demo")


def main(folder: Path) -> None:
    """Write all pages of a folder, and the picture."""
    try:
        for path in sorted(folder.glob("*.json")):
            write_text(path.with_suffix(".md"), page_of(path))
        for path in sorted(x for x in folder.iterdir() if x.is_dir()):
            write_text(path.with_suffix(".md"), same.page(path))
        if (folder / DEMO).exists():
            write_text(folder / PICTURE, picture_of(folder / DEMO))
    except LightsleepError as error:
        sys.exit(error.message)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
