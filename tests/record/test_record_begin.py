# SPDX-License-Identifier: GPL-2.0-only
"""Begin and end of ``lightsleep record``: signals before COMMAND, a terminal that is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from paths import ROOT
from recorders import OF_THIS_ONE, Gone

from lightsleep.record import cli, run, sidecar

pytest_plugins = "recorders"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("of_command", [False, True])
def test_a_signal_before_the_command_leaves_the_last_recording(
    of_command: bool,
    number: signal.Signals,
    traced: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def count(root: Path, cpus: Iterable[str]) -> sidecar.Count:
        os.kill(os.getpid(), number)
        return real(root, cpus)

    real = sidecar.count
    monkeypatch.setattr(sidecar, "count", count)
    output, ran = tmp_path / "x", tmp_path / "ran"
    described = '{"schema": "lightsleep.recording", "version": 1}'
    output.write_text("the last one")
    sidecar.beside(output).write_text(described)
    words = ("--", "touch", str(ran)) if of_command else ("--for", "1h")
    arguments = ["--recorder", "trace-cmd", "-o", str(output), *words]
    done = CliRunner().invoke(cli.record, arguments)
    assert done.exit_code == (1 if number == signal.SIGINT else 128 + number), done.output
    assert not ran.exists()
    assert output.read_text() == "the last one"
    assert sidecar.beside(output).read_text() == described
    assert not list((traced / "instances").iterdir())
    assert not list(tmp_path.glob(".lightsleep-*"))


def test_killed_before_the_command_it_leaves_the_last_recording(
    tracefs: Path, tmp_path: Path
) -> None:
    output = tmp_path / "trace.dat"
    output.write_text("the last one")
    program = (
        "import os, signal, sys\nfrom pathlib import Path\nsys.path.insert(0, sys.argv[3])\n"
        "from lightsleep.record import run, tracing\n"
        "scratch = run.scratch_for(Path(sys.argv[2]))\n"
        "words = tracing.command(tracing.EVENTS, None, 64)\n"
        f"document = {OF_THIS_ONE}\n"
        "with run.recording(\n"
        "    Path(sys.argv[1]), words, [], scratch, Path(sys.argv[2]), document\n"
        "):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    arguments = [sys.executable, "-c", program, str(tracefs), str(output), str(ROOT)]
    done = subprocess.run(arguments, check=False)
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while list(tmp_path.glob(".lightsleep-*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not list(tmp_path.glob(".lightsleep-*"))
    assert output.read_text() == "the last one"


@pytest.mark.parametrize("begun", [False, True])
def test_of_a_killed_keeper_a_file_is_made_once_the_command_has_begun(
    begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BPF programs write events from the start, of which a file could be made."""

    def finish(_order: dict[str, Any], wanted: bool) -> dict[str, Any]:
        asked.append(wanted)
        return {"status": 0, "failed": None}

    asked = list[bool]()
    monkeypatch.setattr(run, "_send_order", lambda *_arguments: None)
    monkeypatch.setattr(run, "_finish_for", finish)
    order = {"buffers": {}, "pages": 1, "formats": {}}
    with run.tracing_by_bpf(order, tmp_path / "x", OF_THIS_ONE) as running:
        if begun:
            running.begin()
        running.process.kill()
    assert asked == [begun]


@pytest.mark.parametrize("stderr", [Gone(), None])
def test_a_terminal_that_is_gone_leaves_the_exit_status(
    stderr: Gone | None,
    traced: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    arguments = ["--recorder", "trace-cmd", "-o", str(tmp_path / "x"), "--", "sh", "-c", "exit 7"]
    with pytest.raises(SystemExit) as ended:
        cli.record(arguments, standalone_mode=False)
    assert ended.value.code == 7
    assert capsys.readouterr().out == ""
    assert (tmp_path / "x").exists()
    assert not list((traced / "instances").iterdir())
