# SPDX-License-Identifier: GPL-2.0-only
"""How tests run ``lightsleep scan`` on a machine in a folder."""

import json
from importlib import resources
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from schemas import validator

from lightsleep.scan.cli import scan

CPU = "sys/devices/system/cpu"
VALID = validator(
    json.loads(resources.files("lightsleep.scan").joinpath("scan.schema.json").read_text())
)


def run(*arguments: str | Path, width: int = 100) -> Result:
    return CliRunner().invoke(scan, [str(a) for a in arguments], env={"COLUMNS": str(width)})


def show(root: Path, *arguments: str) -> str:
    result = run("--root", root, *arguments)
    assert result.exception is None, result.output
    return result.stdout


def check_everything(root: Path) -> dict[str, Any]:
    """Run both outputs on a tree; return the JSON document, which the schema accepts.

    A terminal is told nothing that a file of the tree says to it.
    """
    assert "\x1b" not in show(root, "-v")
    printed: dict[str, Any] = json.loads(show(root, "--json"))
    VALID.validate(printed)
    return printed
