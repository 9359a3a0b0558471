# SPDX-License-Identifier: GPL-2.0-only
"""Tables that lose nothing, however narrow the terminal, and in files and pipes least of all."""

import os
import sys

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

UNLIMITED = 1_000_000
LONG = 20
"""Longer words may be folded."""


def output() -> Console:
    """Return stdout; where it is no terminal, lines are as long as what they say.

    As everywhere, the variable COLUMNS has the last word.
    """
    limited = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, width=None if limited else UNLIMITED)


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
            column.min_width = max(map(cell_len, words + cells), default=0)
    return table
