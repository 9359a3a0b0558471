# SPDX-License-Identifier: GPL-2.0-only
"""``lightsleep record``: its words, what it prints, what it refuses."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from paths import ROOT

from lightsleep import options
from lightsleep.compare.analysis import analyse
from lightsleep.compare.result import FORMAT
from lightsleep.document import load
from lightsleep.errors import LightsleepError
from lightsleep.record import cli, run, sidecar, tracing

pytest_plugins = "recorders"


def test_what_nohup_has_made_deaf_stays_so() -> None:
    program = (
        "import os, signal, sys\nsys.path.insert(0, sys.argv[1])\n"
        "from lightsleep.ending import orderly_end\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "with orderly_end():\n    os.kill(os.getpid(), signal.SIGHUP)\n    print('goes on')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(ROOT)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("goes on\n", 0), done.stderr


def test_any_bytes_of_a_command_can_be_read_back() -> None:
    words = ("grep", "\x1b[", os.fsdecode(b"\xff"), "plain")
    assert cli.said(words) == ["grep", "?[", "?", "plain"]


def test_a_buffer_is_of_no_use_to_a_histogram() -> None:
    done = CliRunner().invoke(cli.record, ["--histogram", "--buffer-kb", "64"])
    assert done.exit_code == 2
    assert "--buffer-kb has no effect" in done.output


def test_a_program_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LightsleepError, match="install the package trace-cmd"):
        run.need_programs()


def test_json_is_all_that_stdout_gets(
    tracefs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(tracing, "tracing_folder", lambda _root: tracefs)
    words = ["--json", "-o", str(tmp_path / "trace.dat"), "--", "echo", "of the command"]
    cli.record(words, standalone_mode=False)
    said = capfd.readouterr()
    assert json.loads(said.out)["schema"] == "lightsleep.record"
    assert "of the command" in said.err
    described = sidecar.beside(tmp_path / "trace.dat")
    assert json.loads(described.read_text())["recorded"]
    assert stat.S_IMODE(described.stat().st_mode) == 0o600
    cli.record(words[1:], standalone_mode=False)
    assert capfd.readouterr().out == "of the command\n"


@pytest.mark.parametrize(
    ("beside", "replaced"),
    [
        ('{"schema": "lightsleep.measure", "version": 3}', False),
        ('{"schema": "lightsleep.recording", "cut off', False),
        ("[" * 100_000, False),
        ("\0\1\2", False),
        ('{"schema": "lightsleep.recording", "version": 1}', True),
        ("", True),
    ],
)
def test_a_file_that_is_no_description_is_not_overwritten(
    beside: str,
    replaced: bool,
    tracefs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(tracing, "tracing_folder", lambda _root: tracefs)
    output, document = tmp_path / "web", tmp_path / "web.json"
    document.write_text(beside)
    done = command("-o", str(output), "--", "true")
    assert output.exists() == replaced, done.output
    if replaced:
        assert json.loads(document.read_text())["recorded"]
        return
    assert done.exit_code == 1
    said = f"{document} is there, and describes no recording: this one would overwrite it. Name"
    assert said in done.output
    assert document.read_text() == beside


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("5min", 300), ("1.5h", 5400)]
)
def test_times(text: str, seconds: float) -> None:
    assert options.seconds(None, None, text) == seconds  # type: ignore[arg-type]


def command(*words: str) -> Result:
    return CliRunner().invoke(cli.record, words)


@pytest.mark.parametrize("text", ["30", "0s", "-1s", "s", "1e9s", "1 week"])
def test_what_is_no_time(text: str) -> None:
    done = command("--for", text)
    assert done.exit_code == 2
    assert "is no time" in done.output


def test_a_command_and_a_time_contradict_each_other() -> None:
    done = command("--for", "1s", "--", "true")
    assert done.exit_code == 2
    assert "not both" in done.output


def test_help_says_what_the_experiment_found() -> None:
    result = load(ROOT / "docs/results/record-cost-x86_64.json", FORMAT)
    found = {x.name: {arm.name: arm.baseline for arm in x.arms} for x in analyse(result)}
    said = " ".join(CliRunner().invoke(cli.record, ["--help"]).output.split())

    def slower(metric: str, arm: str) -> str:
        shown = found[metric][arm]
        assert shown
        assert shown.ratio
        assert shown.verdict.differs
        return f"{(shown.ratio.value - 1) * 100:.1f} %"

    for metric, words in (
        ("period_100k_us", "is {} slower while it is recorded, {} with --bpf, and {} with --h"),
        ("period_10k_us", "With 10,000 periods, it is {} slower, {} with --bpf, and {} with --h"),
    ):
        each = (slower(metric, arm) for arm in ("on", "bpf", "histogram"))
        assert words.format(*each) in said
    assert f"makes it {slower('period_100k_us', 'least')} slower with the three" in said
