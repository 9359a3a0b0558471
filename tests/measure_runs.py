# SPDX-License-Identifier: GPL-2.0-only
"""How tests call ``lightsleep measure``, and the truth of the machine that they measure."""

import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from measure_fakes import FakeBackend
from scan_trees import unfold
from schemas import validator

from lightsleep.cli import main
from lightsleep.measure import cli, module

SCHEMA: dict[str, Any] = json.loads(
    resources.files("lightsleep.measure").joinpath("measure.schema.json").read_text()
)
VALID = validator(SCHEMA)
CPU = "sys/devices/system/cpu"
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


@pytest.fixture
def power9(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    root = unfold("powernv-power9", tmp_path / "machine")
    monkeypatch.setattr(cli, "ROOT", root)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # /run, where the journal is, has no disk
    monkeypatch.chdir(tmp_path)
    backend = FakeBackend(dict(TRUTH_NS), root)

    monkeypatch.setattr(module, "attached", lambda *_: backend)
    return backend


def knobs(root: Path) -> dict[str, str]:
    return {str(x): x.read_text() for x in sorted(root.glob(f"{CPU}/cpu*/cpuidle/*/disable"))}


def rows(document: dict[str, Any], **wanted: object) -> list[dict[str, Any]]:
    return [x for x in document["rows"] if all(x[key] == value for key, value in wanted.items())]
