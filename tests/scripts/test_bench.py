# SPDX-License-Identifier: GPL-2.0-only
"""Experiments that are run unattended: what is to run, what is there already, what is counted."""

from __future__ import annotations

import fcntl
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import repeat
from click.testing import CliRunner
from comparisons import made_up
from programs_here import loaded

from lightsleep.compare.result import FORMAT
from lightsleep.document import load
from lightsleep.errors import LightsleepError
from lightsleep.lab import experiments
from lightsleep.lab.run import protocol

COMMIT = "0123abc"


bench, false_alarms = loaded("scripts/bench.py"), loaded("scripts/false_alarms.py")


ARGUMENTS = ["same", "--boots", "6"]


def result_file(path: Path, differs: bool, commit: str) -> None:
    result = made_up(n=12, boots=6)
    result.environment["source"] = {"version": "0.1.0", "commit": commit}
    if differs:
        samples = result.metrics["sched_pipe_s"].samples
        samples["control"] = [2 * x for x in samples["stock"]]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result.document()))


class Tool:
    """Takes the place of ``lightsleep lab compare``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[str] = []
        self.differs = False
        self.commit = COMMIT
        monkeypatch.setattr(subprocess, "run", self.run)

    def run(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        arguments = command[command.index("compare") + 1 : command.index("--output")]
        self.ran.append(" ".join(arguments))
        if arguments[0] == "broken":
            return subprocess.CompletedProcess(command, 2)
        result_file(Path(command[-1]), self.differs, self.commit)
        return subprocess.CompletedProcess(command, 0)


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Tool:
    return Tool(monkeypatch)


@pytest.fixture(autouse=True)
def sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeat, "commit", lambda: COMMIT)


@pytest.mark.usefixtures("tool")
def test_a_result_is_used_again_only_for_the_same_sources_and_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.json"
    assert repeat.there(path, ARGUMENTS) is None
    repeat.run(ARGUMENTS, path)
    assert repeat.there(path, ARGUMENTS)
    assert repeat.there(path, [*ARGUMENTS, "--rounds", "24"]) is None
    monkeypatch.setattr(repeat, "commit", lambda: "older")
    assert repeat.there(path, ARGUMENTS) is None
    monkeypatch.setattr(repeat, "commit", lambda: COMMIT)
    path.write_text(path.read_text()[:-100])
    assert repeat.there(path, ARGUMENTS) is None


@pytest.mark.usefixtures("tool")
@pytest.mark.parametrize("commit", [f"{COMMIT}-dirty", None])
def test_a_result_of_sources_that_cannot_be_told_is_kept_but_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: str | None
) -> None:
    monkeypatch.setattr(repeat, "commit", lambda: commit)
    repeat.run(ARGUMENTS, tmp_path / "x.json")
    assert (tmp_path / "x.json").exists()
    assert repeat.there(tmp_path / "x.json", ARGUMENTS) is None


def test_a_run_that_fails_leaves_the_older_result(tmp_path: Path, tool: Tool) -> None:
    path = tmp_path / "x.json"
    repeat.run(ARGUMENTS, path)
    before = path.read_text()
    with pytest.raises(LightsleepError, match="exit status 2, no result"):
        repeat.run(["broken"], path)
    assert path.read_text() == before
    assert tool.ran == [" ".join(ARGUMENTS), "broken"]


@pytest.mark.usefixtures("tool")
def test_one_comparison_at_a_time_writes_to_a_folder(tmp_path: Path) -> None:
    with (tmp_path / repeat.LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LightsleepError, match="another comparison is writing to"):
            repeat.run(ARGUMENTS, tmp_path / "x.json")
    repeat.run(ARGUMENTS, tmp_path / "x.json")


@pytest.mark.usefixtures("tool")
def test_what_ends_in_json_is_a_result(tmp_path: Path) -> None:
    repeat.run(ARGUMENTS, tmp_path / "x.json")
    assert [x.name for x in tmp_path.glob("*.json")] == ["x.json"]
    assert repeat.there(tmp_path / "x.json", ARGUMENTS)


def test_a_run_without_a_result_says_why(tmp_path: Path) -> None:
    with pytest.raises(LightsleepError, match=r"(?s)compare nap .*exit status 2.*no experiment"):
        repeat.run(["nap"], tmp_path / "out/nap.json")
    assert not (tmp_path / "out/nap.json").exists()


def test_the_plan_is_what_pages_cite_and_each_can_be_run(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(
        "[a](docs/results/idle-x86_64.md) [b](../results/idle-x86_64.md)"
        "[c](results/idle-poll-aarch64.md) [d](results/own-kernel-x86_64.md)"
        "[e](results/rejudged.md)"
    )
    planned, left_out = bench.plan([tmp_path / "page.md"])
    ((name, how),) = left_out  # it would be run in another kernel
    assert name == "own-kernel-x86_64"
    assert how.startswith("lightsleep lab compare idle --kernel-tree linux-7.3 --rounds 18 ")
    assert [each.name for each in planned] == ["idle-poll-aarch64", "idle-x86_64"]
    assert not any(each.estimated for each in planned)


def test_what_is_left_out_is_planned_with_its_command(tmp_path: Path) -> None:
    result = CliRunner().invoke(bench.main, [str(tmp_path / "out"), "--plan"])
    assert result.exit_code == 0
    *lines, own_kernel, own_patch, many, note, total = result.output.splitlines()
    compare = "left out: lightsleep lab compare idle --kernel-tree linux-"
    for name, how, said in (
        ("own-kernel", compare, own_kernel),
        ("own-patch", compare, own_patch),
        ("same", "left out: make false-alarms RUNS=40 ", many),
    ):
        assert " ".join(said.split()).startswith(f"{name}-x86_64 {how}")
    assert " --patched-tree " in own_patch
    assert note == bench.LEFT_OUT
    assert {line.split("-x86")[0].split("-aarch")[0].split("-ppc")[0] for line in lines} <= set(
        experiments.names()
    )
    assert re.match(rf"{len(lines)} to run\b.*: \d+ min$", total)


@pytest.mark.parametrize(
    ("experiment", "arguments", "runs"),
    [
        ("idle", None, True),
        ("idle", ["idle"], True),
        ("idle", ["idle", "--arch", "x86_64"], True),
        ("mine", ["./mine.py"], False),
        ("idle", ["./idle.py"], False),
        ("no-more", None, False),
        ("idle", ["idle", "--vcpus", "8"], False),
        ("idle", ["idle", "--kernel", "6.1"], False),
        ("idle", ["idle", "--arms", "stock,lightsleep"], False),
    ],
)
def test_what_cannot_be_run_as_it_was_is_left_out(
    experiment: str,
    arguments: list[str] | None,
    runs: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    result = made_up()
    result.experiment = experiment
    result.environment["arch"] = "x86_64"
    if arguments:
        result.protocol["arguments"] = arguments
    (tmp_path / "cited.json").write_text(json.dumps(result.document()))
    (tmp_path / "page.md").write_text("[a](results/cited.md)")
    planned, left_out = bench.plan([tmp_path / "page.md"])
    assert ([each.name for each in planned], [name for name, _ in left_out]) == (
        (["idle-x86_64"], []) if runs else ([], ["cited"])
    )


def test_what_is_there_is_not_run_again_and_a_failure_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: Tool
) -> None:
    planned = [bench.Planned(name, "x86_64", 90.0) for name in ("a", "broken", "c")]
    monkeypatch.setattr(bench, "plan", lambda _: (planned, []))
    repeat.run(planned[0].arguments, tmp_path / "a-x86_64.json")
    tool.ran.clear()
    tool.differs = True
    result = CliRunner().invoke(bench.main, [str(tmp_path)])
    assert tool.ran == ["broken --arch x86_64", *["c --arch x86_64"] * 2]
    assert result.exit_code == 1
    assert "2 to run: 3 min" in result.output
    last = (
        "c-x86_64: the control differs (see c-x86_64.differs-1, c-x86_64.differs-2); run it again"
    )
    assert last in result.output
    assert "compare broken" in result.output
    assert len([*tmp_path.glob("c-x86_64.differs-*")]) == 2
    tool.ran.clear()
    tool.differs = False
    result = CliRunner().invoke(bench.main, [str(tmp_path)])
    assert tool.ran == ["broken --arch x86_64", "c --arch x86_64"]  # its control differed
    kept = load(tmp_path / "c-x86_64.json", FORMAT)
    assert kept.protocol["control_differed"] == 2
    tool.ran.clear()
    CliRunner().invoke(bench.main, [str(tmp_path)])
    assert tool.ran == ["broken --arch x86_64"]


def test_one_whose_control_differs_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: Tool
) -> None:
    monkeypatch.setattr(bench, "plan", lambda _: ([bench.Planned("c", "x86_64", 90.0)], []))
    run = tool.run
    monkeypatch.setattr(tool, "differs", True)

    def quiet_later(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        done = run(command, **options)
        tool.differs = False
        return done

    monkeypatch.setattr(subprocess, "run", quiet_later)
    result = CliRunner().invoke(bench.main, [str(tmp_path)])
    assert (result.exit_code, tool.ran) == (0, ["c --arch x86_64"] * 2)
    assert "the control differs (see c-x86_64.differs-1)" in result.output
    assert load(tmp_path / "c-x86_64.json", FORMAT).protocol["control_differed"] == 1


def test_runs_that_were_set_aside_count_for_their_commit_and_none_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: Tool
) -> None:
    monkeypatch.setattr(bench, "plan", lambda _: ([bench.Planned("c", "x86_64", 90.0)], []))

    def run(commit: str, *, differs: bool) -> None:
        monkeypatch.setattr(repeat, "commit", lambda: commit)
        tool.differs, tool.commit = differs, commit
        CliRunner().invoke(bench.main, [str(tmp_path)])

    monkeypatch.setattr(bench, "TRIES", 1)
    run("older", differs=True)
    for _ in range(2):
        run(COMMIT, differs=True)
    (tmp_path / "c-x86_64.differs-1").unlink()
    run("older", differs=True)
    (tmp_path / "c-x86_64.differs-2").write_text("{")
    run(COMMIT, differs=False)
    assert load(tmp_path / "c-x86_64.json", FORMAT).protocol["control_differed"] == 1
    kept = {path.name[-1]: path.read_text() for path in tmp_path.glob("*.differs-*")}
    assert {number: COMMIT in text for number, text in kept.items()} == {
        "2": False,
        "3": True,
        "4": False,
    }


def test_the_time_that_an_experiment_takes_is_for_as_many_rounds_as_it_has_now() -> None:
    result = made_up(n=12, boots=6)
    result.protocol["took_s"] = 120
    assert bench.seconds_of(result) == 120 / 12 * protocol.ROUNDS
    result.experiment = "record-cost"
    assert bench.seconds_of(result) == 120 / 12 * 9  # it asks for as many itself
    del result.protocol["took_s"]
    assert bench.seconds_of(result) is None


def test_a_time_that_no_result_has_is_estimated_from_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "results/idle-x86_64.md results/idle-poll-x86_64.md results/promotion-x86_64.md"
    )
    took = {"idle": 570.0, "idle-poll": 1330.0, "promotion": None}
    monkeypatch.setattr(bench, "seconds_of", lambda result: took[result.experiment])
    monkeypatch.setattr(bench, "turns", {"idle": 57, "idle-poll": 133, "promotion": 100}.get)
    by_name = {each.experiment: each for each in bench.plan([page])[0]}
    assert by_name["promotion"].seconds == 1000
    assert by_name["promotion"].minutes == "about 17 min (as others take)"
    assert by_name["idle"].minutes == "10 min"  # 9.5
    monkeypatch.setattr(bench, "plan", lambda _: (list(by_name.values()), []))
    result = CliRunner().invoke(bench.main, [str(tmp_path / "out"), "--plan"])
    last = result.output.splitlines()[-1]
    assert last == "3 to run, 1 of them with an estimated time: 48 min"


def test_as_many_turns_as_arms_in_rounds_and_in_those_of_warm_up_of_each_boot() -> None:
    idle, mask = experiments.load("idle"), experiments.load("measure-truth")
    assert (idle.warmup, mask.warmup) == (1, 0)
    assert bench.turns("idle") == len(idle.arms) * (protocol.ROUNDS + protocol.BOOTS)
    assert bench.turns("measure-truth") == len(mask.arms) * protocol.ROUNDS


def test_false_alarms_are_counted(tmp_path: Path, tool: Tool) -> None:
    assert CliRunner().invoke(false_alarms.main, ["1", str(tmp_path)]).exit_code == 0
    tool.differs = True
    assert CliRunner().invoke(false_alarms.main, ["2", str(tmp_path)]).exit_code == 0
    tool.differs = False
    result = CliRunner().invoke(false_alarms.main, ["4", str(tmp_path)])
    assert result.exit_code == 0
    assert (
        "4 of 4: 1 of 4 comparisons showed a difference; by chance alone, up to 1 of 4 would be no "
        "surprise (95 %)"
    ) in result.output
    assert "sched pipe: boot to boot, over all comparisons, " in result.output
    assert len(tool.ran) == 4
    CliRunner().invoke(false_alarms.main, ["4", str(tmp_path), "--rounds", "24"])
    assert len(tool.ran) == 8
