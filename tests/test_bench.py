# SPDX-License-Identifier: GPL-2.0-only
"""Experiments that are run unattended: what is to run, what is there already, what is counted."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner
from results import made_up

from lightsleep.errors import LightsleepError
from lightsleep.lab import experiment, repeat

SCRIPTS = Path(__file__).parent.parent / "scripts"
COMMIT = "0123abc"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_script", SCRIPTS / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


bench, false_alarms = script("bench"), script("false_alarms")


def write(path: Path, commit: str = COMMIT, differs: bool = False) -> None:
    result = made_up(n=12, boots=6)
    result.environment["source"] = {"commit": commit}
    if differs:
        samples = result.metrics["sched_pipe_s"].samples
        samples["control"] = [2 * x for x in samples["stock"]]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result.to_json()))


@pytest.fixture(autouse=True)
def sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeat, "commit", lambda: COMMIT)


def test_only_a_whole_result_of_these_sources_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.json"
    assert repeat.there(path) is None
    write(path)
    assert repeat.there(path)
    write(path, commit="older")
    assert repeat.there(path) is None
    write(path)
    path.write_text(path.read_text()[:-100])
    assert repeat.there(path) is None
    write(path, commit=f"{COMMIT}-dirty")
    monkeypatch.setattr(repeat, "commit", lambda: f"{COMMIT}-dirty")
    assert repeat.there(path) is None


def test_a_run_without_a_result_says_why(tmp_path: Path) -> None:
    with pytest.raises(LightsleepError, match=r"(?s)compare nap .*exit status 2.*no experiment"):
        repeat.run(["nap"], tmp_path / "out/nap.json")
    assert not (tmp_path / "out/nap.json").exists()


def test_the_plan_is_what_pages_cite_and_each_can_be_run(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(
        "[a](docs/results/idle-x86_64.md) [b](../results/idle-x86_64-12-rounds.md)"
        "[c](results/idle-aarch64.md)"
    )
    planned = bench.plan([tmp_path / "page.md"])
    assert [each.name for each in planned] == ["arm64-idle-aarch64", "idle-x86_64"]
    result = CliRunner().invoke(bench.main, [str(tmp_path / "out"), "--plan"])
    assert result.exit_code == 0
    *lines, total = result.output.splitlines()
    assert {line.split("-x86")[0].split("-aarch")[0].split("-ppc")[0] for line in lines} <= set(
        experiment.names()
    )
    assert total.startswith(f"{len(lines)} to run: ")


def test_what_is_there_is_not_run_again_and_a_failure_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def run(arguments: list[str], path: Path) -> Any:
        ran.append(" ".join(arguments))
        if arguments[0] == "b":
            raise LightsleepError("b went wrong")
        write(path, differs=True)
        return repeat.there(path)

    planned = [bench.Planned(name, "x86_64", 90.0) for name in "abc"]
    monkeypatch.setattr(bench, "plan", lambda _: planned)
    monkeypatch.setattr(repeat, "run", run)
    write(tmp_path / "a-x86_64.json")
    result = CliRunner().invoke(bench.main, [str(tmp_path)])
    assert ran == ["b --arch x86_64", "c --arch x86_64"]
    assert result.exit_code == 1
    assert "2 to run: 3 min" in result.output
    assert "c-x86_64: the control differs" in result.output
    assert "b went wrong" in result.output


def test_false_alarms_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 5):
        write(tmp_path / f"same-{number:02}.json", differs=number == 2)
    monkeypatch.setattr(repeat, "run", lambda *_: pytest.fail("all are there"))
    result = CliRunner().invoke(false_alarms.main, ["4", str(tmp_path)])
    assert result.exit_code == 0
    assert (
        "4 of 4: 1 of 4 comparisons showed a difference; at 5% each, up to 1 are within 95 %"
        in result.output
    )
    assert "sched_pipe_s: boots scatter by" in result.output
