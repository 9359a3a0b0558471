# SPDX-License-Identifier: GPL-2.0-only
"""try: how its command is run, read, and ended with all that it started."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from processes import runs
from trials import EXECUTE, attempt, runs_on

from lightsleep.ending import orderly_end
from lightsleep.errors import LightsleepError
from lightsleep.trial import process


@pytest.mark.parametrize("end", ["true", "false"])
@pytest.mark.parametrize(
    "leaves",
    [
        "sleep 1000 & echo $!",
        "trap '' TERM; sleep 1000 & echo $!",
        # In a process group of its own, but in the session.
        "set -m; sleep 1000 & echo $!",
        # The command ends once it is told who is left, however late that is.
        "n=$(wc -l < LEFT); timeout 1000 sh -c 'echo $$; exec sleep 1000' & "
        "while [ $(wc -l < LEFT) = $n ]; do sleep 0.01; done",
    ],
)
def test_what_a_command_leaves_running_is_ended(
    leaves: str, end: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "END_S", 0.1)
    left = tmp_path / "left"
    script = f"exec 3>&1 >>{left}; {leaves.replace('LEFT', str(left))}; {end}"
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


def test_a_process_that_ends_while_others_are_looked_for_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel says ESRCH for it, not ENOENT: one of some 10,000 looks at a busy machine."""
    stat = Path.stat

    def gone(path: Path, **how: Any) -> os.stat_result:
        if path.match("/proc/[0-9]*/stat"):
            raise ProcessLookupError(3, "No such process", str(path))
        return stat(path, **how)

    monkeypatch.setattr(Path, "stat", gone)
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
