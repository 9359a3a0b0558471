# SPDX-License-Identifier: GPL-2.0-only
"""Writes the tables of options of pages anew, from the text that --help prints: option_tables.py.

A table stands below the line ``<!-- options of lightsleep VERB -->`` and a blank line.
"""

import re
from pathlib import Path

import click

from lightsleep.cli import main

DOCS = Path(__file__).parents[1] / "docs"
TABLE = re.compile(r"(?m)^(<!-- options of lightsleep ([a-z]+) -->\n\n)(?:\|.*\n)*")

CODE = re.compile(r"(?<!\w)--[a-z-]+|\b[0-9]+-[0-9]+(,[0-9]+)*")
"""What is set as code: options, and lists of CPUs."""


def table(verb: str) -> str:
    """Return the table of a verb's options, as Markdown."""
    context = click.Context(main)
    command = main.get_command(context, verb)
    assert command, verb
    rows = ["| option | meaning |", "|---|---|"]
    for option in command.params:
        if isinstance(option, click.Option) and (record := option.get_help_record(context)):
            names, meaning = (text.replace("|", r"\|") for text in record)
            meaning = CODE.sub(r"`\g<0>`", " ".join(meaning.split()))
            rows.append(f"| `{names}` | {meaning} |")
    return "\n".join(rows) + "\n"


def renewed(page: str) -> str:
    """Return a page with its tables as they should be."""
    return TABLE.sub(lambda found: found[1] + table(found[2]), page)


if __name__ == "__main__":
    for file in sorted(DOCS.glob("*.md")):
        if (page := file.read_text()) != (new := renewed(page)):
            file.write_text(new)
            print(f"wrote {file.relative_to(DOCS.parent)}")
