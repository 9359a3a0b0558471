# SPDX-License-Identifier: GPL-2.0-only
"""What record, report and replay print as JSON is what their schemas describe, to the last key."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
from click.testing import CliRunner
from comparisons import made_up
from paths import ROOT
from recordings import PIPE, RECORDINGS

from lightsleep.compare.result import TrialOutcome
from lightsleep.files import write_json
from lightsleep.record import cli as record
from lightsleep.replay.cli import replay_command as replay
from lightsleep.report.cli import report


def check(document: Any, schema: str) -> None:
    """Validate a document; a key that the schema does not have is an error, too."""
    described = json.loads((ROOT / "lightsleep" / schema).read_text())
    closed(described)
    jsonschema.Draft202012Validator(described).validate(document)


def closed(part: Any) -> None:
    """Have objects whose keys are described allow no other."""
    for inner in part.values() if isinstance(part, dict) else part:
        if isinstance(inner, dict | list):
            closed(inner)
    if isinstance(part, dict) and isinstance(part.get("properties"), dict):
        part.setdefault("additionalProperties", False)


@pytest.mark.parametrize("name", ["pipe.txt.gz", "menu-next.parquet", "ftrace.txt.gz"])
def test_report_of_a_recording(name: str) -> None:
    done = CliRunner().invoke(report, [str(RECORDINGS / name), "--json"])
    assert done.exit_code == 0, done.output
    (result,) = json.loads(done.stdout)["results"]
    check(result, "periods/lost.schema.json")


RESULTS = sorted((ROOT / "docs/results").glob("*.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_report_of_a_comparison(path: Path) -> None:
    done = CliRunner().invoke(report, [str(path), "--json"])
    assert done.exit_code == 0, done.output
    (result,) = json.loads(done.stdout)["results"]
    check(result, "report/comparison.schema.json")


@pytest.mark.parametrize("winner", ["lightsleep", None])
def test_report_of_a_trial(winner: str | None, tmp_path: Path) -> None:
    """A single verdict does not allow for how many settings were tried: the outcome does."""
    trial, file = made_up(metrics=2), tmp_path / "trial.json"
    trial.outcome = TrialOutcome(winner, "Of 8 settings one may do so by chance.")
    write_json(file, trial.document())
    done = CliRunner().invoke(report, [str(file), "--json"])
    assert done.exit_code == 0, done.output
    (result,) = json.loads(done.stdout)["results"]
    check(result, "report/comparison.schema.json")
    assert result["outcome"] == dataclasses.asdict(trial.outcome)


@pytest.mark.parametrize("name", ["pipe.txt.gz", "menu-next.parquet"])
def test_replay(name: str) -> None:
    words = [str(RECORDINGS / name), "--policies", "stock,lightsleep,fixed:100us", "--json"]
    done = CliRunner().invoke(replay, words)
    assert done.exit_code == 0, done.output
    check(json.loads(done.stdout), "replay/replay.schema.json")


RECORDED = {"elapsed_s": 1.5, "bytes": 100, "notes": ["x"]}


@pytest.mark.parametrize("more", [{}, {"lost_events": {"1": 5}, "sleep_length": "recorded"}])
def test_record(more: dict[str, Any]) -> None:
    show = click.Command(
        "show", callback=lambda: record._show(Path("x.dat"), RECORDED | more, True)
    )
    check(json.loads(CliRunner().invoke(show).stdout), "record/record.schema.json")


def test_a_key_that_no_schema_has_is_noticed() -> None:
    found = json.loads(CliRunner().invoke(report, [str(PIPE), "--json"]).stdout)["results"][0]
    found["all"]["p98_ns"] = 1
    with pytest.raises(jsonschema.ValidationError, match="p98_ns"):
        check(found, "periods/lost.schema.json")
