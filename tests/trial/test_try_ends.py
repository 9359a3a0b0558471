# SPDX-License-Identifier: GPL-2.0-only
"""try: whatever ends it, the machine is as it was."""

import contextlib
import json
import os
import pty
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import fake_modules
import pytest
from trials import CPU, attempt, machine, runs_on

from lightsleep.compare.result import FORMAT
from lightsleep.document import load


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return machine(tmp_path, monkeypatch)


KILLED = """
import signal
import sys
from pathlib import Path
from lightsleep.cli import main
from lightsleep.trial import cli
cli.ROOT = Path(sys.argv[1])
signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # shells ignore it for what is in the background
cli.need_root = lambda _: None
cli.switchback.LEAST_S = 0.1
main(["try", "-s", "lightsleep,haltpoll", *sys.argv[2:]])
"""


COMMAND = ["-n", "50", "--", "sleep", "0.02"]


SERVICE = ["--switchback", "100ms", "--for", "1m"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_killed_at_random_moments(root: Path, number: signal.Signals) -> None:
    kill_at_random_moments(root, number, COMMAND, 4 if number == signal.SIGKILL else 2)


@pytest.mark.more
def test_killed_at_a_hundred_random_moments(root: Path) -> None:
    kill_at_random_moments(root, signal.SIGKILL, COMMAND, 100)


def test_a_switchback_killed_at_random_moments(root: Path) -> None:
    kill_at_random_moments(root, signal.SIGKILL, SERVICE, 3)


def wait_until_loaded(root: Path) -> None:
    deadline = time.monotonic() + 60
    while not (root / "sys/module/cpuidle_lightsleep").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_terminal_that_is_lost(root: Path) -> None:
    before = fake_modules.snapshot(root)
    process, terminal = pty.fork()
    if not process:
        words = [sys.executable, "-c", KILLED, str(root), *COMMAND]
        os.execv(sys.executable, words)
    wait_until_loaded(root)
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    assert status != 0
    fake_modules.wait_for_the_restorer(root)
    assert fake_modules.snapshot(root) == before


def test_what_was_complete_before_a_terminal_was_lost_is_saved(root: Path, tmp_path: Path) -> None:
    """Nothing more can be drawn then, nor the table be shown."""
    before = fake_modules.snapshot(root)
    count, file = tmp_path / "count", tmp_path / "result.json"
    count.touch()
    script = f"echo x >>{count}; sleep 0.02"
    process, terminal = pty.fork()
    if not process:
        words = [sys.executable, "-c", KILLED, str(root), "-n", "50", "-o", str(file)]
        words += ["--", "sh", "-c", script]
        os.execve(sys.executable, words, os.environ | {"TERM": "xterm"})
    deadline = time.monotonic() + 60
    while len(count.read_text().split()) <= 8:  # a warm-up and a round of four settings
        assert time.monotonic() < deadline
        if select.select([terminal], [], [], 0.1)[0]:
            os.read(terminal, 4096)
    os.close(terminal)
    os.waitpid(process, 0)
    assert load(file, FORMAT).protocol["runs"] >= 1
    fake_modules.wait_for_the_restorer(root)
    assert fake_modules.snapshot(root) == before


def test_a_command_does_not_wait_for_the_terminal(root: Path) -> None:
    before = fake_modules.snapshot(root)
    process, terminal = pty.fork()
    if not process:
        words = [sys.executable, "-c", KILLED, str(root), "--", "head", "-c", "1", "/dev/tty"]
        os.execv(sys.executable, words)
    said = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while select.select([terminal], [], [], 60)[0]:
            said += os.read(terminal, 4096)
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    assert b"No such device" in said
    assert fake_modules.snapshot(root) == before


def signalling(root: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run try, in a group of processes of its own, with a command that may signal it."""
    words = [sys.executable, "-c", KILLED, str(root), "-n", "1", "--no-control"]
    return subprocess.run(
        [*words, "--", "sh", "-c", script],
        capture_output=True,
        text=True,
        process_group=0,
        timeout=120,
        check=False,
    )


def test_ctrl_z_does_not_stop_it(root: Path) -> None:
    """The command, in its own session, would go on, and the pause would count as its time."""
    done = signalling(root, "kill -TSTP $PPID; sleep 0.05")
    assert done.returncode == 0, done.stderr


def test_ctrl_backslash_ends_the_command_as_well(root: Path, tmp_path: Path) -> None:
    before, left = fake_modules.snapshot(root), tmp_path / "left"
    done = signalling(root, f"echo $$ >{left}; kill -QUIT $PPID; sleep 1000")
    assert done.returncode == 128 + signal.SIGQUIT, done.stderr
    assert not runs_on(int(left.read_text()))
    fake_modules.wait_for_the_restorer(root)
    assert fake_modules.snapshot(root) == before


def test_ctrl_backslash_after_ctrl_c_changes_nothing(root: Path, tmp_path: Path) -> None:
    before, left = fake_modules.snapshot(root), tmp_path / "left"
    script = f"trap 'kill -QUIT $PPID; exit' TERM; echo $$ >{left}; kill -INT $PPID"
    done = signalling(root, f"{script}; while :; do sleep 0.05; done")
    assert done.returncode == 128 + signal.SIGINT, done.stderr
    assert not runs_on(int(left.read_text()))
    assert fake_modules.snapshot(root) == before


def test_of_two_at_once_the_second_refuses(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightsleep.settings.lock.PATIENCE_S", 0.1)
    words = [sys.executable, "-c", KILLED, str(root), *COMMAND]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as first:
        wait_until_loaded(root)
        second = attempt("-s", f"sysfs:/{CPU}/cpuidle/available_governors=x", "--", "true")
        assert first.poll() is None
        first.terminate()
    assert second.exit_code == 1
    assert f"lightsleep try, process {first.pid}, is changing" in " ".join(second.output.split())
    fake_modules.wait_for_the_restorer(root)


def test_what_a_reboot_in_the_middle_leaves(root: Path) -> None:
    """It empties /run and resets sysfs; a journal that outlived it, as in a container, is void."""
    before = fake_modules.snapshot(root)
    lasts = f"test ! -e {root}/sys/module/cpuidle_lightsleep || exec sleep 5"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(root), "--", "sh", "-c", lasts],
        stderr=subprocess.DEVNULL,
        process_group=0,
    ) as process:
        wait_until_loaded(root)
        run_dir = root / "run/lightsleep"
        lines = (run_dir / "journal").read_text().splitlines(keepends=True)
        assert "cpuidle_lightsleep" in lines[-1]
        os.killpg(process.pid, signal.SIGKILL)
    fake_modules.wait_for_the_restorer(root)
    header = json.loads(lines[0]) | {"boot_id": "00000000-0000-0000-0000-000000000000"}
    (run_dir / "journal").write_text("".join([f"{json.dumps(header)}\n", *lines[1:]]))
    assert fake_modules.snapshot(root) == before  # as the kernel boots
    # What the new boot loads is its own, though the journal says that try loaded it.
    subprocess.run(["modprobe", "cpuidle_lightsleep"], check=True)
    booted = fake_modules.snapshot(root)
    assert attempt("-n", "1", "-s", "lightsleep:off", "--", "true").exit_code == 0
    assert fake_modules.snapshot(root) == booted
    assert not (run_dir / "journal").exists()


def kill_at_random_moments(
    root: Path, number: signal.Signals, words: list[str], times: int
) -> None:
    before = fake_modules.snapshot(root)
    rng = random.Random(number)
    for count in range(times):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(root), *words], stderr=subprocess.DEVNULL
        )
        if count % 2:  # at any moment at all, or at any after the first change
            wait_until_loaded(root)
            time.sleep(rng.uniform(0, 0.5))
        else:
            time.sleep(rng.uniform(0.3, 3.0))
        process.send_signal(number)
        assert process.wait(60) != 0
        fake_modules.wait_for_the_restorer(root)
        assert fake_modules.snapshot(root) == before
