# SPDX-License-Identifier: GPL-2.0-only
"""How tests call ``lightsleep measure``, and the truth of the machine that they measure."""

import json
from importlib import resources
from typing import Any

from click.testing import CliRunner, Result
from schemas import validator

from lightsleep.cli import main

VALID = validator(
    json.loads(resources.files("lightsleep.measure").joinpath("measure.schema.json").read_text())
)
# The states of powernv-power9: 0, 1, 2 and 5 us advertised.
TRUTH_NS = {0: 100, 1: 1000, 2: 20_000, 3: 5000}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["measure", *arguments], env={"COLUMNS": "120"})


def measured(*arguments: str) -> dict[str, Any]:
    result = run("--json", *arguments)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    VALID.validate(document)
    return document
