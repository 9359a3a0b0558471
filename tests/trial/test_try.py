# SPDX-License-Identifier: GPL-2.0-only
"""try on a machine in a folder: commands that tell under which setting they run."""

import contextlib
import errno
import json
import os
import random
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_modules
import journals
import pytest
from click.testing import CliRunner
from pages import Page
from scan_trees import plant, unfold
from trials import CPU, EXECUTE, MODULE, attempt, machine, prepare, runs, runs_on, teller, tried

from lightsleep.cli import main
from lightsleep.compare.result import FORMAT, CompareResult, MetricResult
from lightsleep.document import load
from lightsleep.ending import orderly_end
from lightsleep.errors import LightsleepError
from lightsleep.trial import cli, process, reading, run
from lightsleep.trial.verdict import judge

READ = reading.read


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return machine(tmp_path, monkeypatch)


def test_the_help_says_how_often_the_command_runs() -> None:
    said = " ".join((cli.try_settings.help or "").split())
    arms = ["as-is", "lightsleep", "as-is-again"]
    runs = sum(map(len, run.schedule(arms, cli.ROUNDS, random.Random(1))))
    assert f"by default, {runs} runs in all, as root" in said


def test_the_setting_holds_during_the_command_and_never_else(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fake_modules.snapshot(root)
    file = tmp_path / "result.json"
    options = ["-n", "6", "-m", r"t_ms=t (\d+)", "-o", str(file), "-s", "lightsleep,haltpoll"]
    monkeypatch.setenv("SUDO_UID", "12")
    monkeypatch.setenv("SUDO_GID", "34")
    document = tried(*options, "--", *teller(root))
    assert document["arms"] == ["as-is", "lightsleep", "haltpoll", "as-is-again"]
    first = next(iter(document["metrics"]))
    assert first == "t_ms"
    samples = document["metrics"][first]["samples"]
    assert samples["lightsleep"] == [1.0] * 6
    assert samples["as-is"] == samples["haltpoll"] == samples["as-is-again"] == [10.0] * 6
    assert document["metrics"][first]["unit"] == "ms"
    assert len(document["protocol"]["order"]) == 6 + document["protocol"]["warmup"]
    assert fake_modules.snapshot(root) == before
    assert json.loads(file.read_text()) == document
    assert load(file, FORMAT).document() == document
    assert stat.S_IMODE(file.stat().st_mode) == 0o600  # the command may hold a password
    if os.geteuid() == 0:
        assert (file.stat().st_uid, file.stat().st_gid) == (12, 34)


@pytest.mark.parametrize("settings", ["lightsleep", "haltpoll,lightsleep"])
def test_its_result_has_the_page_of_every_comparison(
    settings: str, root: Path, tmp_path: Path
) -> None:
    """It begins with what came of all settings, and not with one that is named first."""
    file, page = tmp_path / "result.json", tmp_path / "report.html"
    words = ["-n", "6", "-s", settings, "-m", r"t_ms=t (\d+)", "-o", str(file)]
    outcome = tried(*words, "--", *teller(root))["outcome"]
    result = CliRunner().invoke(main, ["report", str(file), "-o", str(page)])
    assert result.exit_code == 0, result.output
    shown = Page(page.read_text()).text
    assert "Idle settings for sh -c" in shown
    assert "as-is-again" in shown
    assert outcome["sentence"] in shown.replace("\N{NO-BREAK SPACE}", " ")
    assert "Measured, 6 rounds" not in shown


def test_the_last_line_names_the_winner(root: Path) -> None:
    result = attempt("-n", "10", "-m", r"t=t (\d+):lower", "--", *teller(root))
    assert result.exit_code == 0
    last = " ".join(result.stdout.split("\n\n")[-1].split())
    assert "lightsleep has 10.0 times fewer than as-is" in last
    assert "It costs:" in last


def test_no_winner_where_nothing_differs() -> None:
    noise = random.Random(3)
    samples = {
        arm: [1.45 + noise.gauss(0, 0.01) for _ in range(10)] for arm in ("as-is", "haltpoll")
    }
    outcome = judge(of_times(samples))
    assert outcome.winner is None
    assert "no setting was shown to be better than as-is" in outcome.sentence
    assert "Keep as-is" in outcome.sentence


@pytest.mark.parametrize("value", [0.0, 5.0])
@pytest.mark.parametrize("sample", ["run", "period"])
def test_a_number_that_never_moves_is_no_finding(sample: str, value: float) -> None:
    trial = of_times(dict.fromkeys(("as-is", "haltpoll"), [value] * 10))
    if sample == "period":
        trial.protocol["switchback_s"] = 10.0
    outcome = judge(trial)
    assert outcome.winner is None
    assert f"in every {sample}, so it cannot tell settings apart" in outcome.sentence
    assert "shown" not in outcome.sentence


def test_no_winner_where_the_control_cannot_be_judged(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "execute", EXECUTE)  # times that differ, too few to tell
    result = attempt("-n", "6", "-m", r"t=t (\d+):lower", "--", *teller(root))
    assert result.exit_code == 0
    said = " ".join(result.stdout.split())
    assert "lightsleep has 10.0 times fewer than as-is" in said
    assert re.search(r"But 6 rounds are too few to judge the control: \d+ are needed", said)
    assert not (root / "sys/module/cpuidle_lightsleep").exists()


def of_times(samples: dict[str, list[float]]) -> CompareResult:
    """Return a trial of these wall times, by setting and round; the first setting is as-is."""
    as_is, *settings = samples
    return CompareResult(
        experiment="try",
        title="t",
        hypothesis="h",
        created="2026-11-25T00:00:00+00:00",
        environment={},
        protocol={"runs": len(samples[as_is]), "warmup": 1, "seed": 1, "order": []},
        arms=list(samples),
        roles={as_is: "baseline", **dict.fromkeys(settings, "treatment")},
        metrics={"wall_s": MetricResult("s", "lower", "Wall time", "", samples)},
    )


def test_of_many_settings_that_do_nothing_one_wins_in_1_of_20_trials() -> None:
    chance, rounds, trials = random.Random(8), 10, 200
    settings = [f"setting{number}" for number in range(8)]
    winners = alone = 0
    for _ in range(trials):
        samples = {
            arm: [chance.lognormvariate(0, 0.1) for _ in range(rounds)]
            for arm in ("as-is", *settings)
        }
        outcome = judge(of_times(samples))
        winners += outcome.winner is not None
        alone += "may do so by chance" in outcome.sentence
    assert winners <= 18  # of 200 at 5 %: more in 1 of 100 tests
    assert alone >= 5


def test_a_setting_that_reaches_0_is_ranked_by_its_difference_as_all_are() -> None:
    samples = {
        "as-is": [1.5 + n / 1000 for n in range(10)],
        "halves": [0.7 + n / 1000 for n in range(10)],
        "ends": [0.0, 0.01] * 5,
    }
    assert judge(of_times(samples)).winner == "ends"


@pytest.mark.parametrize(
    ("setting", "took_s", "told"),
    [
        ("lightsleep", 1.45, True),
        ("lightsleep:weight=20", 1.45, True),
        ("lightsleep+governor:menu", 1.45, True),
        ("governor:menu+lightsleep:300us", 1.45, True),
        ("lightsleep", 5.5, False),
        ("lightsleep:fixed:100us", 1.45, False),
        ("qos:10us+lightsleep:off", 1.45, False),
        ("haltpoll", 1.45, False),
        ("haltpoll+governor:menu", 1.45, False),
    ],
)
def test_runs_in_which_the_driver_still_learns_are_told(
    setting: str, took_s: float, told: bool
) -> None:
    noise = random.Random(3)
    samples = {
        arm: [took_s + noise.gauss(0, 0.01) for _ in range(10)] for arm in ("as-is", setting)
    }
    outcome = judge(of_times(samples))
    assert outcome.winner is None
    assert ("A run took 1.4" in outcome.sentence) == told
    assert ("runs of 5 s or more may show a gain" in outcome.sentence) == told


@pytest.mark.parametrize(("period_s", "told"), [(2.0, True), (10.0, False)])
def test_periods_in_which_the_driver_still_learns_are_told(period_s: float, told: bool) -> None:
    """A switchback has no wall time."""
    noise = random.Random(3)
    samples = {arm: [5 + noise.gauss(0, 1) for _ in range(10)] for arm in ("as-is", "lightsleep")}
    trial = replace(
        of_times(samples),
        protocol={"runs": 10, "warmup": 1, "seed": 1, "order": [], "switchback_s": period_s},
        metrics={"p99_us": MetricResult("us", "lower", "p99", "", samples)},
    )
    sentence = judge(trial).sentence
    assert "no setting was shown to be better" in sentence
    assert ("A period took 2.00 s." in sentence) == told
    assert ("periods of 5 s or more may show a gain" in sentence) == told


def test_a_driver_that_is_there_follows_new_parameters_slowly() -> None:
    """It is not loaded for each run, and the runs side by side share what it learns."""
    setting = "lightsleep:weight=20"
    noise = random.Random(3)
    samples = {arm: [1.45 + noise.gauss(0, 0.01) for _ in range(10)] for arm in ("as-is", setting)}
    active = replace(of_times(samples), environment={"host": {"cpuidle_driver": "lightsleep"}})
    sentence = judge(active).sentence
    assert "lightsleep's driver stays loaded" in sentence
    assert "runs of 5 s or more may show a gain" in sentence
    assert "loaded for each" not in sentence


def test_two_settings_need_a_round_more_than_one(root: Path) -> None:
    words = ["--no-control", "-s", "lightsleep,lightsleep:fixed:100us", "-m", r"t=t (\d+):lower"]
    said = " ".join(attempt("-n", "6", *words, "--", *teller(root)).stdout.split())
    assert "of 2 settings one may do so by chance" in said
    assert "try again with 7 or more rounds" in said
    assert "times fewer" not in said
    said = " ".join(attempt("-n", "7", *words, "--", *teller(root)).stdout.split())
    assert "has 10.0 times fewer than as-is" in said


@pytest.mark.parametrize(("control", "needed"), [("--control", 10), ("--no-control", 6)])
def test_too_few_rounds_give_no_verdict(control: str, needed: int, root: Path) -> None:
    words = [control, "-m", r"t=t (\d+):lower", "--", *teller(root)]
    said = " ".join(attempt("-n", "2", *words).stdout.split())
    assert f"too few rounds to tell. Keep as-is, or try again with {needed} or more." in said


@pytest.mark.parametrize(
    ("control", "settings", "needed"),
    [
        ("--control", "lightsleep", 10),
        ("--no-control", "lightsleep", 6),
        ("--no-control", "lightsleep,lightsleep:fixed:50us", 7),
    ],
)
def test_too_few_rounds_to_enable_anything_are_refused_first(
    control: str, settings: str, needed: int, root: Path, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    words = ["--enable", control, "-s", settings, "--", "touch", str(seen)]
    refused = attempt("-n", str(needed - 1), *words)
    assert refused.exit_code == 2
    assert f"--enable needs --rounds {needed} or more" in refused.output
    assert not seen.exists()
    assert attempt("-n", str(needed), *words).exit_code == 4


def test_the_winner_is_enabled(root: Path) -> None:
    options = ["-n", "10", "--enable", "-s", "lightsleep:fixed:50us", "-m", r"t=t (\d+):lower"]
    result = attempt(*options, "--", *teller(root))
    assert result.exit_code == 0
    assert "lightsleep disable" in result.output
    parameters = root / "sys/module/cpuidle_lightsleep/parameters"
    assert (parameters / "poll_limit_us").read_text() == "50\n"


def test_without_a_winner_nothing_is_enabled_and_the_status_says_so(root: Path) -> None:
    before = fake_modules.snapshot(root)
    result = attempt("-n", "10", "--enable", "--json", "--", "true")
    assert result.exit_code == 4
    assert "no setting won, so nothing is enabled" in result.stderr
    outcome = json.loads(result.stdout)["outcome"]
    assert outcome["winner"] is None
    assert "in every run" in outcome["sentence"]
    assert fake_modules.snapshot(root) == before


def test_the_document_names_the_winner(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    document = tried("-n", "10", "-m", r"t=t (\d+):lower", "-o", str(file), "--", *teller(root))
    assert document["outcome"]["winner"] == "lightsleep"
    assert json.loads(file.read_text())["outcome"] == document["outcome"]


def test_options_after_the_command_are_its_own(root: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    script = tmp_path / "script"
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {seen}\n')
    script.chmod(0o755)
    tried("-n", "1", "--no-control", str(script), "-n", "7", "-o", "out", "--seed", "x")
    assert set(seen.read_text().splitlines()) == {"-n 7 -o out --seed x"}


def test_a_winner_that_could_not_be_enabled_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "dev/cpu_dma_latency: 2000000000"
    root = plant(unfold("intel-laptop", tmp_path / "machine"), text)
    prepare(root, monkeypatch)
    seen = tmp_path / "seen"
    result = attempt("--enable", "-s", "governor:teo,qos:10us", "--", "touch", str(seen))
    assert result.exit_code == 2
    assert "qos:10us cannot be enabled" in " ".join(result.output.split())
    assert not seen.exists()


def test_the_file_that_was_tried_is_enabled(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / MODULE).unlink()
    built = plant(tmp_path / "kernel", "cpuidle_lightsleep.ko: vermagic=6.12.0 SMP")
    monkeypatch.setattr("lightsleep.scan.loading.KERNEL", built)
    result = attempt("-n", "10", "--enable", "-m", r"t=t (\d+):lower", "--", *teller(root))
    assert result.exit_code == 0, result.output
    assert f"insmod {built / 'cpuidle_lightsleep.ko'}" in result.output.replace("\n", " ")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["false"], "exit status 1"),
        (["sh", "-c", "kill -9 $$"], "signal SIGKILL"),
        (["sh", "-c", "kill -62 $$"], "signal 62"),
        (["echo", "nothing"], "nothing in the output matches"),
        (["echo", "t 1e999"], "is not a number"),
    ],
)
def test_a_command_that_fails(command: list[str], said: str, root: Path) -> None:
    before = fake_modules.snapshot(root)
    result = attempt("-m", r"t=t (\S+):lower", "--", *command)
    assert result.exit_code == 1
    assert said in " ".join(result.output.split())
    assert "warm-up" in result.output
    assert fake_modules.snapshot(root) == before


def test_what_cannot_be_set_back_fails_a_trial_that_is_shown(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = journals.refuse_to_set_back(monkeypatch)
    result = attempt("--json", "-n", "1", "--no-control", "--", "true")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["environment"]["notes"] == [refused]
    assert f"Error: tried, but not set back: {refused}" in " ".join(result.stderr.split())


@pytest.mark.parametrize("end", ["true", "false"])
@pytest.mark.parametrize(
    "leaves",
    [
        "sleep 1000 & echo $!",
        "trap '' TERM; sleep 1000 & echo $!",
        # In a process group of its own, but in the session.
        "set -m; sleep 1000 & echo $!",
        "timeout 1000 sh -c 'echo $$; exec sleep 1000' & sleep 0.2",
    ],
)
def test_what_a_command_leaves_running_is_ended(
    leaves: str, end: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "END_S", 0.1)
    left = tmp_path / "left"
    script = f"exec 3>&1 >>{left}; {leaves}; {end}"
    result = attempt("-n", "1", "--no-control", "--", "sh", "-c", script)
    assert result.exit_code == (0 if end == "true" else 1), result.output
    processes = [int(word) for word in left.read_text().split()]
    assert len(processes) == (4 if end == "true" else 1)
    assert not [process for process in processes if runs_on(process)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_a_command_starts_leaves_nothing_running(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, popen = [], subprocess.Popen

    def signalled(*words: Any, **named: Any) -> Any:
        started.append(popen(*words, **named))
        os.kill(os.getpid(), number)
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", signalled)
    with pytest.raises((KeyboardInterrupt, SystemExit)), orderly_end():
        EXECUTE(["sleep", "1000"])
    assert not runs_on(started[0].pid)


def test_what_nothing_ends_ends_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be freeing much memory; it is of another session here, so no signal reaches it."""
    for name in ("END_S", "KILLED_S"):
        monkeypatch.setattr(process, name, 0.05)
    monkeypatch.setattr(process, "_members", lambda _: iter([os.getpid()]))
    with pytest.raises(LightsleepError, match=rf"next setting: process {os.getpid()} \(\w+"):
        EXECUTE(["true"])


def test_ctrl_c_while_a_command_is_ended_leaves_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    left = tmp_path / "left"
    monkeypatch.setattr(time, "sleep", interrupted)  # while the command is given time to end
    with pytest.raises(KeyboardInterrupt):
        EXECUTE(["sh", "-c", f"trap '' TERM; echo $$ >{left}; sleep 1000 & sleep 1000"], 0.5)
    assert not runs_on(int(left.read_text()))


def test_a_daemon_that_a_command_starts_runs_on(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "daemon"
    begins = f"setsid sh -c 'echo $$ >{file}; exec sleep 1000' &"
    script = f"[ -e {file} ] || {{ {begins} while [ ! -s {file} ]; do sleep 0.1; done; }}"
    assert attempt("-n", "1", "--no-control", "--", "sh", "-c", script).exit_code == 0
    daemon = int(file.read_text())
    assert runs(daemon)
    os.kill(daemon, signal.SIGKILL)


@pytest.mark.parametrize("reopens", ["> /dev/stderr", "> /dev/stdout", "| tee /dev/stderr"])
def test_a_script_may_open_its_output_anew(reopens: str) -> None:
    script = f"echo 'p99: 123.4'; echo between {reopens}; echo end"
    text = EXECUTE(["sh", "-c", script])[2].splitlines()
    assert (text[0], set(text[1:-1]), text[-1]) == ("p99: 123.4", {"between"}, "end")


def test_the_end_of_much_output_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MOST_OUTPUT", 100_000)
    text = EXECUTE(["seq", "500000"])[2]
    assert (len(text), text[-8:]) == (100_000, "\n500000\n")


def test_a_command_that_prints_much_is_not_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "PAUSE_S", 0.5)
    wall_s, _, text = EXECUTE(["head", "-c", "40M", "/dev/zero"])
    assert wall_s < 8  # a pipe of 1 MiB that is emptied twice a second: 20 s
    assert len(text) == process.MOST_OUTPUT


def test_a_command_that_prints_little_is_read_at_long_intervals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses, end = [], tmp_path / "end"
    pause_s = process._pause_s

    def noted(*words: Any) -> float:
        pauses.append(pause_s(*words))
        if len(pauses) == 3:
            end.touch()
        return pauses[-1]

    monkeypatch.setattr(process, "_pause_s", noted)
    EXECUTE(["sh", "-c", f"until [ -e {end} ]; do echo x; sleep 0.05; done"], 60)
    assert set(pauses) == {process.PAUSE_S}


def test_a_command_that_prints_without_end_has_its_limit() -> None:
    with pytest.raises(LightsleepError, match=r"has not ended after 0\.5 s"):
        EXECUTE(["yes"], 0.5)


def test_a_daemon_that_prints_without_end_is_not_waited_for(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    _, _, text = EXECUTE(["sh", "-c", f"echo t 5; setsid yes & echo $! >{pid}; sleep 0.2"])
    with contextlib.suppress(ProcessLookupError):  # nobody reads what it prints
        os.kill(int(pid.read_text()), signal.SIGKILL)
    assert set(text.splitlines()) <= {"t 5", "y"}


def test_what_was_complete_before_a_failure_is_kept(root: Path, tmp_path: Path) -> None:
    count, file = tmp_path / "count", tmp_path / "result.json"
    script = f"echo x >>{count}; [ $(wc -l <{count}) -lt 12 ]"
    result = attempt("-n", "6", "-o", str(file), "--", "sh", "-c", script)
    assert result.exit_code == 1
    assert "ended after 2 of 6 rounds" in " ".join(result.output.split())
    kept = load(file, FORMAT)
    assert kept.protocol["runs"] == 2
    (note,) = kept.environment["notes"]
    assert re.match(r"ended after 2 of 6 rounds: [a-z-]+, round 3: the command failed", note)
    assert "note: " not in result.output  # it is the error
    assert kept.outcome
    said = r" The trial ended after 2 of 6 rounds \([a-z-]+, round 3\): what happened then is in no"
    assert re.search(said, kept.outcome.sentence)


def test_what_was_complete_before_the_machine_refuses_is_kept(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, file, counts = fake_modules.snapshot(root), tmp_path / "result.json", iter(range(99))

    def read(where: Path) -> reading.Reading:
        if next(counts) == 22:  # before the twelfth run
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/proc/stat")
        return READ(where)

    monkeypatch.setattr(reading, "read", read)
    result = attempt("-n", "6", "-o", str(file), "--", "true")
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert re.search(r"ended after 2 of 6 rounds: [a-z-]+, round 3: /proc/stat: Too many", said)
    assert load(file, FORMAT).protocol["runs"] == 2
    assert fake_modules.snapshot(root) == before


def test_no_temporary_folder_is_needed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    document = tried("-n", "1", "--no-control", "-m", r"t=t (\d+):lower", "--", *teller(root))
    assert document["metrics"]["t"]["samples"] == {"as-is": [10.0], "lightsleep": [1.0]}


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_what_was_complete_before_a_signal_is_kept(
    number: signal.Signals, status: int, root: Path, tmp_path: Path
) -> None:
    before = fake_modules.snapshot(root)
    count, file = tmp_path / "count", tmp_path / "result.json"
    script = f"echo x >>{count}; [ $(wc -l <{count}) -lt 12 ] || kill -{number:d} {os.getpid()}"
    result = attempt("-n", "50", "-o", str(file), "--", "sh", "-c", f"{script}; sleep 0.2")
    assert result.exit_code == status
    said = " ".join(result.output.split())
    assert re.search(r"ended after [23] of 50 rounds: [a-z-]+, round [34]: interrupted", said)
    kept = load(file, FORMAT)
    assert kept.protocol["runs"] in (2, 3)
    assert all(len(x) == kept.protocol["runs"] for x in kept.metrics["wall_s"].samples.values())
    assert len(kept.protocol["order"]) == kept.protocol["runs"] + 1
    assert kept.environment["notes"][0].endswith(": interrupted")
    assert fake_modules.snapshot(root) == before


def test_a_signal_before_the_first_round_has_its_status_too(root: Path) -> None:
    before = fake_modules.snapshot(root)
    result = attempt("-n", "5", "--", "sh", "-c", f"kill -2 {os.getpid()}; sleep 0.2")
    assert (result.exit_code, result.output.splitlines()[-1]) == (130, "interrupted")
    assert fake_modules.snapshot(root) == before


def test_the_last_match_of_a_long_output_counts(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MOST_OUTPUT", 1000)
    script = "i=0; while [ $i -lt 500 ]; do echo t 1; i=$((i + 1)); done; echo t 5"
    document = tried("-n", "1", "--no-control", "-m", r"t=t (\d+):lower", "--", "sh", "-c", script)
    assert document["metrics"]["t"]["samples"]["as-is"] == [5.0]


def test_interrupts_between_cpus_stand_behind_many_others(root: Path, tmp_path: Path) -> None:
    cpus = 256
    header = " ".join(f"CPU{number}" for number in range(cpus))
    devices = "".join(f"{irq}: {'0000000001 ' * cpus}PCI-MSI x\n" for irq in range(500))
    file = root / "proc/interrupts"
    own = f"RES: {'7 ' * cpus}Rescheduling interrupts\n"
    file.write_text(f"{header}\n{devices}{own}")
    assert file.stat().st_size > 1 << 20
    assert reading.read(root).ipis == dict.fromkeys(range(cpus), 7)


def test_a_change_by_somebody_else_ends_it_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = unfold("intel-laptop", tmp_path / "machine")
    prepare(root, monkeypatch)
    governor = root / CPU / "cpuidle/current_governor"
    script = f"[ $(cat {governor}) = teo ] && echo ladder >{governor}; true"
    result = attempt("-s", "governor:teo", "--", "sh", "-c", script)
    assert result.exit_code == 1
    assert "set to ladder by somebody else" in " ".join(result.output.split())
    assert governor.read_text() == "ladder\n"


def test_a_command_that_sets_back_what_is_tried_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = unfold("intel-laptop", tmp_path / "machine")
    prepare(root, monkeypatch)
    governor = root / CPU / "cpuidle/current_governor"
    found = governor.read_text()
    result = attempt("-s", "governor:teo", "--", "sh", "-c", f"echo {found.strip()} >{governor}")
    assert result.exit_code == 1
    assert f"set to {found.strip()} by somebody else" in " ".join(result.output.split())
    assert governor.read_text() == found


def test_a_command_that_unloads_the_module_ends_it(root: Path) -> None:
    before = fake_modules.snapshot(root)
    result = attempt("-n", "1", "--", "sh", "-c", "rmmod cpuidle_lightsleep || true")
    assert result.exit_code == 1
    assert "cpuidle_lightsleep was unloaded by somebody else" in " ".join(result.output.split())
    assert fake_modules.snapshot(root) == before


@pytest.mark.parametrize(
    "change",
    [
        "echo off >MODULE/parameters/mode",
        "rmmod cpuidle_lightsleep; modprobe cpuidle_lightsleep wait_weight=9",
    ],
)
def test_a_command_that_changes_a_parameter_of_the_module_ends_it(change: str, root: Path) -> None:
    before = fake_modules.snapshot(root)
    module = root / "sys/module/cpuidle_lightsleep"
    script = f"[ ! -e {module} ] || {{ {change.replace('MODULE', str(module))}; }}"
    result = attempt("-n", "1", "-s", "lightsleep:fixed:100us", "--", "sh", "-c", script)
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert re.search(r"parameters/\w+ was set to \w+ by somebody else meanwhile", said)
    assert fake_modules.snapshot(root) == before


def test_a_change_to_a_value_of_an_earlier_setting_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = unfold("intel-laptop", tmp_path / "machine")
    prepare(root, monkeypatch)
    governor, seen = root / CPU / "cpuidle/current_governor", tmp_path / "seen"
    found = governor.read_text().strip()
    settings = sorted({"teo", "ladder", "menu"} - {found})
    script = f"""
        now=$(cat {governor}); echo $now >>{seen}
        [ $now = {found} ] && [ $(sort -u {seen} | wc -l) = 3 ] && echo {settings[0]} >{governor}
        true
    """
    words = ["-s", ",".join(f"governor:{name}" for name in settings), "--", "sh", "-c", script]
    result = attempt(*words)
    assert result.exit_code == 1
    assert f"set to {settings[0]} by somebody else" in " ".join(result.output.split())
    assert governor.read_text() == f"{settings[0]}\n"


def test_the_command_gets_its_words_as_they_are(root: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    script = "import sys; open(sys.argv[1], 'w').write(repr(sys.argv[2:]))"
    words = ["$(reboot)", "a b", "--json", "-n", "*", ";"]
    attempt("-n", "1", "--no-control", "--", sys.executable, "-c", script, str(seen), *words)
    assert seen.read_text() == repr(words)


def test_a_result_whose_command_cannot_be_shown_can_be_read(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    words = (
        "-n",
        "1",
        "-m",
        r"t=t (\d+):lower",
        "-o",
        str(file),
        "--",
        *teller(root),
        "\x1b[31m",
        "\udc80",
    )
    tried(*words)
    command = load(file, FORMAT).environment["command"]
    assert "\\x1b[31m" in command
    assert "\\udc80" in command


def test_every_round_runs_each_once_and_orders_differ() -> None:
    order = run.schedule(["a", "b", "c"], 20, random.Random(1))
    assert all(sorted(names) == ["a", "b", "c"] for names in order)
    assert len({tuple(names) for names in order}) == 6


def test_needs_neither_numpy_nor_jsonschema() -> None:
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['numpy', 'scipy', 'jsonschema']))\n"
        "import lightsleep.trial.cli, lightsleep.enable.cli"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no-such-program", "there is no such program"),
        ("/etc/passwd", "this is no executable file"),
    ],
)
def test_a_program_that_is_not_there_is_told_before_anything_is_changed(
    name: str, said: str, root: Path
) -> None:
    result = attempt("--", name)
    assert result.exit_code == 1
    assert f"cannot run {name}: {said}" in result.output
    assert not (root / "run/lightsleep").exists()
