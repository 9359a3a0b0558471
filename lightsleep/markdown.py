# SPDX-License-Identifier: GPL-2.0-only
"""Text and tables as Markdown, for pages that programs write."""

from __future__ import annotations

from collections.abc import Iterable


def table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table of plain text."""
    return table_of_markdown(map(text, headings), (map(text, row) for row in rows))


def table_of_markdown(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table whose cells are Markdown already; in them, a bar is still a bar."""
    heads = list(headings)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def text(plain: str) -> str:
    """Return plain text as Markdown shows it, in one line."""
    return " ".join(plain.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
