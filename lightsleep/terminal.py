# SPDX-License-Identifier: GPL-2.0-only
"""What the terminal shows: tables that lose nothing, however narrow it is, and progress."""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO, cast

import click
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

UNLIMITED = 1_000_000
LONG = 20
"""Longer words may be folded."""


class _Trimmed:
    """A text file that gets no blanks at the end of a line: Rich fills up the cells of tables."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        return self._file.write(re.sub(r" +(?=\n)", "", text))


def output() -> Console:
    """Return stdout; where it is no terminal, lines are as long as what they say.

    As everywhere, the variable COLUMNS has the last word.
    """
    environment = _environment()
    if sys.stdout.isatty():
        return Console(highlight=False, markup=False, _environ=environment)
    width = None if "COLUMNS" in environment else UNLIMITED
    trimmed = cast(TextIO, _Trimmed(sys.stdout))
    return Console(highlight=False, markup=False, width=width, file=trimmed, _environ=environment)


def messages(force_terminal: bool | None = None) -> Console:
    """Return stderr; ``force_terminal`` is what Rich takes it for, where that is given.

    What stands in brackets is shown as it is: it may be a part of a name, or of a kernel's log.
    """
    return Console(
        stderr=True, markup=False, force_terminal=force_terminal, _environ=_environment()
    )


def tell(notes: Iterable[str]) -> None:
    """Say on stderr what there is to note, beside what is shown."""
    for note in notes:
        click.echo(f"note: {note}", err=True)


def _environment() -> dict[str, str]:
    """Return the environment as Rich is to see it.

    Without COLUMNS where that is 0: some set it so where there is no terminal, and Rich then shows
    nothing.
    """
    return {k: v for k, v in os.environ.items() if k != "COLUMNS" or v.strip("0")}


def has_screen(console: Console) -> bool:
    """Return whether what a console shows can be replaced by something else.

    Rich takes a pipe for a terminal where FORCE_COLOR asks for colours.
    """
    return console.file.isatty() and console.is_terminal and not console.is_dumb_terminal


def whole(table: Table, *wrap: str) -> Table:
    """Have a filled table keep its cells in one piece, but for words in the columns ``wrap``.

    Where it is too wide then, it is for the terminal to go on in the next line: print it with
    ``crop=False``.
    """
    for column in table.columns:
        column.overflow = "fold"
        cells, words = [str(cell) for cell in column.cells], str(column.header).split()
        if column.header in wrap:
            words += " ".join(cells).split()
            column.min_width = min(LONG, max(map(cell_len, words), default=0))
        else:
            lines = [line for cell in cells for line in cell.splitlines()]
            column.min_width = max(map(cell_len, words + lines), default=0)
    return table


def least_width(console: Console, table: Table) -> int:
    """Return how many columns of a terminal a table needs, if it may fold what can be folded."""
    return Measurement.get(console, console.options.update(width=UNLIMITED), table).minimum


@contextlib.contextmanager
def progress(has_end: bool = True) -> Iterator[Callable[[str, float, float | None], None]]:
    """Show on stderr, if that has a screen, what runs, how much is done, and how much there is.

    What has no end shows words only. All is drawn when it is told, so no thread of ours wakes a CPU
    that is being measured. A terminal that is lost shows no more; what is measured goes on.
    """
    console = messages()
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        *((BarColumn(), TimeRemainingColumn()) if has_end else ()),
        console=console,
        disable=not has_screen(console),
        auto_refresh=False,
        transient=True,
        speed_estimate_period=3600,
    )
    task = bar.add_task("", total=None)
    there = True

    def tell(what: str, done: float, total: float | None) -> None:
        nonlocal there
        bar.update(task, description=what, completed=done, total=total)
        there = there and _drawn(bar.refresh)

    try:
        there = _drawn(bar.start)
        yield tell
    finally:
        # It gives stdout and stderr back. IndexError: what failed to start has nothing to take off.
        with contextlib.suppress(OSError, IndexError):
            bar.stop()


def remark(text: str) -> None:
    """Print a line on stderr, if it is still there: what runs goes on without its terminal."""
    if sys.stderr is None:  # closed from the start; print() would take stdout for it
        return
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _drawn(draw: Callable[[], None]) -> bool:
    """Draw; return whether there was a terminal to take it."""
    try:
        draw()
    except OSError:
        return False
    return True
