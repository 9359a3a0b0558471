# SPDX-License-Identifier: GPL-2.0-only
"""try: whatever ends it, the machine is as it was, and what was complete is kept."""

import contextlib
import errno
import json
import os
import pty
import random
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import fake_modules
import journals
import pytest
from scan_trees import unfold
from trials import CPU, attempt, prepare, runs_on

from lightsleep.compare.result import FORMAT
from lightsleep.document import load
from lightsleep.trial import reading

READ = reading.read


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
    wait_until_there(root / "sys/module/cpuidle_lightsleep")


def wait_until_there(file: Path) -> None:
    deadline = time.monotonic() + 60
    while not file.exists():
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


def test_what_a_reboot_in_the_middle_leaves(root: Path, tmp_path: Path) -> None:
    """It empties /run and resets sysfs; a journal that outlived it, as in a container, is void."""
    before, runs_now = fake_modules.snapshot(root), tmp_path / "runs"
    module = root / "sys/module/cpuidle_lightsleep"
    lasts = f"test ! -e {module} || {{ touch {runs_now}; exec sleep 5; }}"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(root), "--", "sh", "-c", lasts],
        stderr=subprocess.DEVNULL,
        process_group=0,
    ) as process:
        wait_until_there(runs_now)
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


def test_what_cannot_be_set_back_fails_a_trial_that_is_shown(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = journals.refuse_to_set_back(monkeypatch)
    result = attempt("--json", "-n", "1", "--no-control", "--", "true")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["environment"]["notes"] == [refused]
    assert f"Error: tried, but not set back: {refused}" in " ".join(result.stderr.split())


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


@pytest.fixture
def governor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file with the governor of a machine that has several."""
    root = unfold("intel-laptop", tmp_path / "machine")
    prepare(root, monkeypatch)
    return root / CPU / "cpuidle/current_governor"


def test_a_change_by_somebody_else_ends_it_and_stays(governor: Path) -> None:
    script = f"[ $(cat {governor}) = teo ] && echo ladder >{governor}; true"
    result = attempt("-s", "governor:teo", "--", "sh", "-c", script)
    assert result.exit_code == 1
    assert "set to ladder by somebody else" in " ".join(result.output.split())
    assert governor.read_text() == "ladder\n"


def test_a_command_that_sets_back_what_is_tried_ends_it(governor: Path) -> None:
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


def test_a_change_to_a_value_of_an_earlier_setting_stays(governor: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
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
