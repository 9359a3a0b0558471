# SPDX-License-Identifier: GPL-2.0-only
"""Which room of the package uses which: imports lead down, so there is no cycle between rooms."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from paths import ROOT

import lightsleep

PACKAGE = Path(lightsleep.__file__).parent

# From the bottom up. A room is a folder or a file at the top of the package. It may import from
# the layers below its own, and from itself. A verb, which is the cli.py of a room, belongs to cli.
LAYERS = (
    {"errors", "markdown", "matches", "namespaces", "order", "place", "units"},
    {"document"},
    {"cache", "cpulist", "ending", "files", "interrupts", "sources", "terminal"},
    {"compare", "compiled", "options"},
    {"governors", "scan"},
    {"lab", "periods", "settings", "watch"},
    {"enable", "measure", "record"},
    {"replay", "trial"},
    {"report"},
    {"cli"},
    {"__main__"},
)
LAB = (
    {"host"},
    {"kernels"},
    {"boot"},
    {"options", "run"},
    {"loads"},
    {"experiments"},
    {"cli"},
)
"""The same for the rooms of the lab."""
LAYER = {room: number for number, layer in enumerate(LAYERS) for room in layer}


def rooms(package: Path = PACKAGE) -> Iterator[str]:
    """Yield every room that a package has."""
    for path in package.iterdir():
        if path.suffix == ".py" and path.stem != "__init__":
            yield path.stem
        elif (path / "__init__.py").exists():
            yield path.name


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
            room, _, module = inside.partition(".")
            if package == "lightsleep" and room in LAYER:
                yield "cli" if module.partition(".")[0] == "cli" else room


def imported_of_lab(path: Path) -> Iterator[str]:
    """Yield the modules of the lab that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lightsleep.lab"):
            inside = (node.module or "").removeprefix("lightsleep.lab").lstrip(".")
            yield from [inside] if inside else [alias.name for alias in node.names]


def test_every_room_has_its_layer() -> None:
    assert sorted(rooms()) == sorted(LAYER)


@pytest.mark.parametrize("room", sorted(LAYER))
def test_a_room_uses_those_below_it_only(room: str) -> None:
    files = sorted((PACKAGE / room).glob("**/*.py")) + list(PACKAGE.glob(f"{room}.py"))
    verbs = set(PACKAGE.glob("*/cli.py"))
    files = [*files, *verbs] if room == "cli" else [path for path in files if path not in verbs]
    assert files
    used = {name for path in files for name in imported(path)} - {room}
    above = {name for name in used if LAYER[name] >= LAYER[room]}
    assert not above, f"{room} imports from {', '.join(sorted(above))}: not below it"


def test_the_lab_has_its_layers() -> None:
    assert sorted(rooms(PACKAGE / "lab")) == sorted(set().union(*LAB))
    for number, layer in enumerate(LAB):
        allowed = set().union(*LAB[:number]) | {""}
        for room in layer:
            files = [*(PACKAGE / "lab" / room).glob("**/*.py"), *PACKAGE.glob(f"lab/{room}.py")]
            for path in files:
                used = {x.partition(".")[0] for x in imported_of_lab(path)} - {room}
                assert used <= allowed, f"{path} imports from {sorted(used - allowed)}: not below"


def test_tests_have_the_rooms_of_the_package() -> None:
    others = {"docs", "fixtures", "kernel", "packages", "scripts"}
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert folders - others <= set(LAYER)
