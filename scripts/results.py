# SPDX-License-Identifier: GPL-2.0-only
"""Write the page of each result in a folder: docs/results/NAME.md from NAME.json; and their index.

The page of a folder in it is that of comparisons of the same with the same; see same.py.
Where the result of make demo is among them, also a picture of what the terminal shows of it. Where
there are results to be judged by an older rule, too, also the page that compares both rules.
"""

from __future__ import annotations

import hashlib
import io
import sys
from dataclasses import replace
from pathlib import Path

import click
import rejudged
import same
from kept import load_result
from pictures import alone, effects, levels, scatter, terminal
from result_page import command, page
from rich.console import Console
from rich.text import Text

from lightsleep.compare import words
from lightsleep.compare.analysis import Outcome, analyse, control_failed, judge_claims
from lightsleep.compare.headline import headline
from lightsleep.compare.result import FORMAT, CompareResult
from lightsleep.compare.table import print_table
from lightsleep.document import load
from lightsleep.errors import LightsleepError
from lightsleep.files import write_text
from lightsleep.markdown import table, text

DEMO = "idle-x86_64.json"
PICTURE = "demo.svg"
INDEX = "README.md"
INDEX_OF = ("experiment", "architecture, kernel", "in a sentence", "claims", "control", "date")
NO_CLAIMS = "none declared"
COUNTS = (
    "Where a page names the accelerator `tcg-icount`, the guests' clock counted instructions: what "
    "a wakeup costs a host is not in such times."
)
WIDTH = 116
"""Columns of the picture: as many as the table needs."""


def page_of(path: Path) -> str:
    """Return the page of a result file; one without claims is asked those of its experiment."""
    result, declared_later = load_result(path)
    picture = path.with_suffix(".svg").name if effects_of(path) else ""
    return page(result, path.name, declared_later=declared_later, picture=picture)


def effects_of(path: Path) -> str | None:
    """Return an SVG of what a result shows: effects, or medians where there is no treatment.

    None where it has no ratios.
    """
    result, _ = load_result(path)
    metrics = analyse(result)
    svg = effects(metrics, result.baseline) or levels(metrics)
    return svg and alone(svg, note_of(path))


def same_page(folder: Path) -> str:
    """Return the page of comparisons of the same with the same. Raises LightsleepError."""
    return same.page(folder, picture=f"{folder.name}.svg" if scatter_of(folder) else "")


def scatter_of(folder: Path) -> str | None:
    """Return an SVG of all effects in a folder of comparisons, None where they have no ratios."""
    results = same.read(folder)
    svg = scatter([analyse(x) for x in results], results[0].baseline)
    return svg and alone(svg, note_of(folder))


def note_of(path: Path) -> str:
    """Return what tells of which samples and titles a picture is.

    The picture itself does not: other versions of its library draw alike.
    """
    files = same.files(path) if path.is_dir() else [path]
    digest = hashlib.sha256(b"".join(x.read_bytes() for x in files))
    if not path.is_dir():
        result, _ = load_result(path)
        digest.update("\n".join(metric.title for metric in result.metrics.values()).encode())
    return f"Written by make results from {path.name} ({digest.hexdigest()[:16]}): do not edit."


def _index_row(path: Path) -> tuple[str, ...]:
    result, declared_later = load_result(path)
    outcomes = [words.OUTCOMES[x.outcome] for x in judge_claims(result)]
    declared = replace(result, claims=[]) if declared_later else result
    return (
        f"[{text(result.title)}]({path.stem}.md)",
        _where(result),
        headline(declared, analyse(result)),
        " ".join([*(["declared later:"] if declared_later else []), *outcomes]) or NO_CLAIMS,
        _control(result),
        result.created[:10],
    )


def _control(result: CompareResult) -> str:
    """Say whether the control agrees: a mark, or why there is none."""
    said = words.control_sentences(analyse(result), result.baseline)
    if not said:
        return "none"
    if all(well for well, _ in said):
        return words.OUTCOMES[Outcome.HELD]
    return f"{words.OUTCOMES[Outcome.REFUTED]} differs" if control_failed(result) else "not judged"


def _where(result: CompareResult) -> str:
    """Return the architecture of a result's guests, and their kernels."""
    guests = result.environment.get("guests", {}).values()
    kernels = dict.fromkeys(str(guest["kernel"]) for guest in guests if guest.get("kernel"))
    return ", ".join([str(result.environment.get("arch", "")), *kernels])


def folders_of(folder: Path) -> list[Path]:
    """Return the folders of comparisons of the same with the same, in order."""
    return sorted(x for x in folder.iterdir() if x.is_dir() and same.files(x))


def index_of(folder: Path) -> str:
    """Return the page that lists all results of a folder."""
    rows = [_index_row(x) for x in sorted(folder.glob("*.json"))]
    for path in folders_of(folder):
        results = same.read(path)
        said = f"{same.report(results).splitlines()[0]}."
        title = f"[{text(results[0].title)}]({path.name}.md)"
        rows.append((title, _where(results[0]), said, NO_CLAIMS, "", results[0].created[:10]))
    accelerators = {
        str(load_result(x)[0].environment.get("accelerator", {}).get("name"))
        for x in folder.glob("*.json")
    }
    emulated = all(name.startswith("tcg") for name in accelerators)
    marks = ", ".join(f"{mark} {outcome.value}" for outcome, mark in words.OUTCOMES.items())
    parts = [
        "<!-- SPDX-License-Identifier: GPL-2.0-only -->",
        "<!-- Written by make results: do not edit. -->",
        "# Results",
        "Each page has all figures with their intervals, the claims, the command, the machine, and "
        "the raw samples, and says what each arm is."
        f"{' All guests were emulated.' if emulated else ''}"
        f"{f' {COUNTS}' if 'tcg-icount' in accelerators else ''}",
        'In the interval behind such words as "times lower", a figure below 1 means the opposite: '
        "higher.",
        f"Claims: {marks}. Those declared later, after the run, are not in the sentence. The "
        "control is a guest booted as the baseline is: it must not differ. Where a result has too "
        "few rounds for that, it was not judged.",
        f"{words.COULD_BE_MISSED}." if any(words.DAGGER in row[2] for row in rows) else "",
        table(INDEX_OF, rows),
    ]
    if (folder / rejudged.FOLDER).is_dir():
        parts.append(f"[What an older rule said of these results]({rejudged.PAGE})")
    return "\n\n".join(part for part in parts if part) + "\n"


def picture_of(path: Path) -> str:
    """Return an SVG of a terminal that shows a result, as make demo shows its own."""
    result = load(path, FORMAT)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False)
    console.print(Text.assemble(("$ ", "bold"), command(result)))
    print_table(result, console)
    return terminal(console, "demo")


def pages_of(folder: Path) -> dict[Path, str]:
    """Return all pages of a folder, their index, and their pictures. Raises LightsleepError."""
    pages: dict[Path, str] = {}
    for path in sorted(folder.glob("*.json")):
        pages[path.with_suffix(".md")] = page_of(path)
        if svg := effects_of(path):
            pages[path.with_suffix(".svg")] = svg
    for path in folders_of(folder):
        pages[path.with_suffix(".md")] = same_page(path)
        if svg := scatter_of(path):
            pages[path.with_suffix(".svg")] = svg
    if (folder / rejudged.FOLDER).is_dir():
        pages[folder / rejudged.PAGE] = rejudged.page(folder)
    pages[folder / INDEX] = index_of(folder)
    if (folder / DEMO).exists():
        pages[folder / PICTURE] = picture_of(folder / DEMO)
    return pages


def write_pages(folder: Path) -> None:
    """Write all pages of a folder, or none where a result is damaged. Raises LightsleepError."""
    for path, written in pages_of(folder).items():
        write_text(path, written)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
def main(folder: Path) -> None:
    """Write all pages of the results in FOLDER, their index, and the picture."""
    try:
        write_pages(folder)
    except LightsleepError as error:
        sys.exit(error.message)


if __name__ == "__main__":
    main()
