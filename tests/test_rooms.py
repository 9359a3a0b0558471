# SPDX-License-Identifier: GPL-2.0-only
"""Which room of the package uses which: order, units and compare know nothing of those above."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import lightsleep

PACKAGE = Path(lightsleep.__file__).parent

# A room, and all that it may import of the package.
ROOMS = {
    "order": set[str](),
    "units": set[str](),
    "compare": {"compare", "document", "errors", "files", "order", "units"},
    "document": {"errors"},
}


def imported(path: Path) -> Iterator[str]:
    """Yield the rooms that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            package, _, inside = name.partition(".")
            if package == "lightsleep":
                yield inside.partition(".")[0]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_uses_those_below_it_only(room: str) -> None:
    folder, single = PACKAGE / room, PACKAGE / f"{room}.py"
    files = sorted(folder.glob("**/*.py")) if folder.is_dir() else [single]
    assert files
    used = {name for path in files for name in imported(path)}
    assert used <= ROOMS[room]
