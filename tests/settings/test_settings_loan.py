# SPDX-License-Identifier: GPL-2.0-only
"""Borrowed knobs come back on every end of the borrower: real processes, real signals."""

import contextlib
import dataclasses
import io
import json
import os
import pty
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lightsleep.errors import LightsleepError
from lightsleep.settings import guardian, loan

# Borrows two knobs, one of them twice, says so, and ends as it is told.
BORROWER = """
import os, subprocess, sys, time
from pathlib import Path
from lightsleep.settings import loan
root, end = Path(sys.argv[1]), sys.argv[2]
with loan.borrow(root) as borrowed:
    borrowed.set(root / "sys/cpu0/disable", "1")
    borrowed.set(root / "sys/cpu1/disable", "1")
    borrowed.set(root / "sys/cpu1/disable", "2")
    if end == "children":
        if not os.fork():
            time.sleep(1000)
        subprocess.Popen(["sleep", "1000"], close_fds=False)
    print(borrowed._keeper.pid, flush=True)
    if end == "raise":
        raise RuntimeError
    if end == "exit":
        sys.exit(3)
    if end != "return":
        time.sleep(1000)
"""


class Machine:
    """A tree of knobs, and where the borrowers keep their journal."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.run_dir = folder / "run/lightsleep"
        for cpu in range(3):
            self.knob(cpu).parent.mkdir(parents=True)
            self.knob(cpu).write_text("0\n")

    def knob(self, cpu: int) -> Path:
        return self.root / f"sys/cpu{cpu}/disable"

    @property
    def journal(self) -> Path:
        return self.run_dir / "journal"

    def values(self) -> list[str]:
        return [self.knob(cpu).read_text().strip() for cpu in range(3)]

    def command(self, end: str) -> list[str]:
        return [sys.executable, "-c", BORROWER, str(self.root), end]

    @contextlib.contextmanager
    def borrower(self, end: str = "wait") -> Iterator[tuple[subprocess.Popen[str], int]]:
        """A process that has borrowed the knobs, and the process ID of its guardian."""
        with subprocess.Popen(
            self.command(end),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        ) as process:
            assert process.stdout
            line = process.stdout.readline()
            assert line, "the borrower did not start"
            try:
                yield process, int(line)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def borrow(self) -> contextlib.AbstractContextManager[loan.Borrowed]:
        return loan.borrow(self.root)

    def plant(self, *changes: object, boot: str | None = None) -> None:
        """Leave a journal behind."""
        self.run_dir.mkdir(mode=0o700, parents=True)
        lines = [{"boot_id": boot or guardian.boot_id()}, *changes]
        self.journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    def change(self, cpu: int, old: str, new: str) -> dict[str, str]:
        return {"knob": str(self.knob(cpu)), "old": old, "new": new}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what must happen; a machine may be slow."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def runs(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


# Every end.


def test_a_knob_is_set_until_the_end(machine: Machine) -> None:
    with machine.borrow() as borrowed:
        borrowed.set(machine.knob(1), "1")
        assert machine.values() == ["0", "1", "0"]
    assert machine.values() == ["0", "0", "0"]
    assert borrowed.notes == []
    assert not machine.journal.exists()


def test_the_first_value_comes_back(machine: Machine) -> None:
    with machine.borrow() as borrowed:
        for value in ("1", "2", "1"):
            borrowed.set(machine.knob(1), value)
        assert guardian.read(machine.journal, machine.root)[1] == {
            ("knob", str(machine.knob(1))): guardian.Loan("0", {"1", "2"})
        }
    assert machine.values() == ["0", "0", "0"]


def test_the_last_comes_back_first(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    monkeypatch.setattr(guardian, "give_back", lambda setting, *_: order.append(setting[1]))
    machine.plant(*(machine.change(cpu, "0", "1") for cpu in (2, 0, 2, 1)))
    guardian.restore(machine.journal, machine.root)
    assert order == [str(machine.knob(cpu)) for cpu in (1, 0, 2)]


@pytest.mark.parametrize(("end", "status"), [("return", 0), ("raise", 1), ("exit", 3)])
def test_own_end(machine: Machine, end: str, status: int) -> None:
    with machine.borrower(end) as (process, keeper):
        assert process.wait(60) == status
        # The borrower has waited for its guardian.
        assert machine.values() == ["0", "0", "0"]
        assert not machine.journal.exists()
        assert not runs(keeper)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_ended_by_a_signal(machine: Machine, number: signal.Signals) -> None:
    with machine.borrower() as (process, keeper):
        assert machine.values() == ["1", "2", "0"]
        # The whole group gets it, as from the keyboard; the guardian is not in it.
        os.killpg(process.pid, number)
        process.wait(60)
        eventually(lambda: not runs(keeper))
        assert machine.values() == ["0", "0", "0"]
        assert not machine.journal.exists()


def test_terminal_lost(machine: Machine) -> None:
    pid, terminal = pty.fork()
    if not pid:
        os.execv(sys.executable, machine.command("wait"))
    keeper = int(os.read(terminal, 100).split()[0])
    assert machine.values() == ["1", "2", "0"]
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGHUP
    eventually(lambda: not runs(keeper))
    assert machine.values() == ["0", "0", "0"]


@pytest.mark.parametrize("number", guardian.DEAF_TO)
def test_the_guardian_is_deaf(machine: Machine, number: signal.Signals) -> None:
    with machine.borrower() as (process, keeper):
        os.kill(keeper, number)
        assert machine.values() == ["1", "2", "0"]
        process.kill()
        eventually(lambda: not runs(keeper))
        assert machine.values() == ["0", "0", "0"]


def test_the_guardian_has_a_session_and_no_terminal(machine: Machine) -> None:
    with machine.borrower() as (_, keeper):
        assert os.getsid(keeper) == keeper
        assert Path(f"/proc/{keeper}/cwd").resolve() == Path("/")
        targets = [str(Path(f"/proc/{keeper}/fd/{fd}").readlink()) for fd in range(3)]
        assert [target.split(":")[0] for target in targets] == ["pipe", "pipe", "/dev/null"]


def test_children_do_not_delay_the_end(machine: Machine) -> None:
    with machine.borrower("children") as (process, keeper):
        process.kill()
        eventually(lambda: not runs(keeper))
        assert machine.values() == ["0", "0", "0"]
        # Nor do they keep the lock.
        with machine.borrow():
            pass


# Without the guardian.


def test_guardian_killed_and_borrower_ends(machine: Machine) -> None:
    with machine.borrow() as borrowed:
        borrowed.set(machine.knob(0), "1")
        borrowed._keeper.kill()
        borrowed._keeper.wait()
        with pytest.raises(LightsleepError, match="was killed"):
            borrowed.set(machine.knob(1), "1")
    assert machine.values() == ["0", "0", "0"]
    assert "was killed" in borrowed.notes[0]
    assert not machine.journal.exists()


@pytest.mark.parametrize("guardian_first", [True, False])
def test_both_killed_and_the_next_gives_back(machine: Machine, guardian_first: bool) -> None:
    with machine.borrower() as (process, keeper):
        if not guardian_first:
            # It cannot act before it is dead, too.
            os.kill(keeper, signal.SIGSTOP)
            process.kill()
            process.wait()
        os.kill(keeper, signal.SIGKILL)
        eventually(lambda: not runs(keeper))
    assert machine.values() == ["1", "2", "0"]
    with machine.borrow() as borrowed:
        assert machine.values() == ["0", "0", "0"]
        assert "an earlier lightsleep measure was killed" in borrowed.notes[0]
    assert not machine.journal.exists()


def test_the_last_gasp_is_no_garbage(machine: Machine) -> None:
    machine.plant(machine.change(0, "0", "1"))
    with machine.journal.open("a") as file:
        file.write('{"knob": "/sys/dev')
    machine.knob(0).write_text("1\n")
    with machine.borrow():
        assert machine.values() == ["0", "0", "0"]


def test_an_empty_journal_is_no_garbage(machine: Machine) -> None:
    machine.plant()
    machine.journal.write_text("")
    with machine.borrow() as borrowed:
        assert borrowed.notes == []


# Two at once.


def test_two_at_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loan, "LOCK_PATIENCE_S", 0.1)
    with machine.borrower() as (process, keeper):
        with pytest.raises(LightsleepError, match=f"process {process.pid}"), machine.borrow():
            pass
        assert machine.values() == ["1", "2", "0"]
        assert runs(keeper)


def test_the_lock_lasts_as_long_as_the_guardian(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loan, "LOCK_PATIENCE_S", 0.1)
    with machine.borrower() as (process, keeper):
        os.kill(keeper, signal.SIGSTOP)
        process.kill()
        process.wait()
        with pytest.raises(LightsleepError, match="has borrowed"), machine.borrow():
            pass
        os.kill(keeper, signal.SIGCONT)
        eventually(lambda: not runs(keeper))
    assert machine.values() == ["0", "0", "0"]


# What others do to the knobs meanwhile.


def test_a_knob_that_vanished_is_noted(machine: Machine) -> None:
    with machine.borrow() as borrowed:
        borrowed.set(machine.knob(0), "1")
        borrowed.set(machine.knob(1), "1")
        machine.knob(1).unlink()
    assert machine.knob(0).read_text() == "0\n"
    assert not machine.knob(1).exists()
    assert borrowed.notes == [f"{machine.knob(1)} is gone: nothing to set back"]


def test_what_somebody_else_set_stays(machine: Machine) -> None:
    with machine.borrow() as borrowed:
        borrowed.set(machine.knob(0), "1")
        borrowed.set(machine.knob(1), "1")
        machine.knob(1).write_text("7\n")
    assert machine.values() == ["0", "7", "0"]
    assert "set to 7 by somebody else" in borrowed.notes[0]


def test_a_change_by_somebody_else_is_not_overwritten(machine: Machine) -> None:
    with machine.borrow() as borrowed:
        borrowed.set(machine.knob(1), "1")
        machine.knob(1).write_text("7\n")
        with pytest.raises(loan.ChangedMeanwhile, match="set to 7 by somebody else"):
            borrowed.set(machine.knob(1), "2")
        assert machine.values() == ["0", "7", "0"]
    assert machine.values() == ["0", "7", "0"]


@pytest.mark.parametrize("damage", ["", "garbage\n"])
def test_a_journal_that_somebody_else_damages(machine: Machine, damage: str) -> None:
    with machine.borrow() as borrowed:
        borrowed.set(machine.knob(1), "1")
        if damage:
            with machine.journal.open("a") as file:
                file.write(damage)
        else:
            machine.journal.unlink()
        for act in (borrowed.check, borrowed.restore):
            with pytest.raises(LightsleepError, match=f"by hand .* {machine.knob(1)}"):
                act()
    assert machine.values() == ["0", "1", "0"]


def test_what_was_set_back_between_may_be_set_again(machine: Machine) -> None:
    with machine.borrow() as borrowed:
        for value in ("1", "2"):
            borrowed.set(machine.knob(1), value)
            assert borrowed.restore() == []
            assert machine.values() == ["0", "0", "0"]
        machine.knob(1).write_text("7\n")
        with pytest.raises(loan.ChangedMeanwhile):
            borrowed.set(machine.knob(1), "1")
    assert machine.values() == ["0", "7", "0"]


def test_what_was_set_back_is_forgotten(machine: Machine) -> None:
    """A value that was written before restore() is somebody else's when it is found after it."""
    with machine.borrow() as borrowed:
        first_line = machine.journal.read_text()
        for value in ("1", "2"):
            borrowed.set(machine.knob(1), value)
            assert borrowed.restore() == []
            assert machine.journal.read_text() == first_line
        machine.knob(1).write_text("1\n")
        assert borrowed.restore() == []
        with pytest.raises(loan.ChangedMeanwhile, match="set to 1 by somebody else"):
            borrowed.set(machine.knob(1), "2")
        borrowed.set(machine.knob(0), "1")
        assert guardian.read(machine.journal, machine.root)[1] == {
            ("knob", str(machine.knob(0))): guardian.Loan("0", {"1"})
        }
    assert machine.values() == ["0", "1", "0"]


def test_what_could_not_be_set_back_is_not_forgotten(machine: Machine) -> None:
    with machine.borrow() as borrowed:
        borrowed.set(machine.knob(0), "1")
        machine.knob(0).rename(machine.root / "offline")
        assert "is gone" in borrowed.restore()[0]
        (machine.root / "offline").rename(machine.knob(0))
        assert machine.values() == ["1", "0", "0"]
    assert machine.values() == ["0", "0", "0"]


# Sets knobs, sets them back, and so again; ends by SIGKILL before the given line of loan.py.
KILLED_AT = """
import os, signal, sys
from pathlib import Path
from lightsleep.settings import loan
root, left = Path(sys.argv[1]), int(sys.argv[2])

def trace(frame, event, _):
    global left
    if frame.f_code.co_name not in ("restore", "_change", "_append"):
        return None
    if event == "line" or event == "return":
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return trace

with loan.borrow(root) as borrowed:
    borrowed.set(root / "sys/cpu0/disable", "1")
    borrowed.set(root / "sys/cpu1/disable", "1")
    sys.settrace(trace)
    borrowed.restore()
    borrowed.set(root / "sys/cpu1/disable", "2")
    sys.settrace(None)
"""


@pytest.mark.slow
def test_killed_before_each_line_of_restore_and_the_next_change(machine: Machine) -> None:
    for moment in range(200):
        script = [sys.executable, "-c", KILLED_AT, str(machine.root), str(moment)]
        status = subprocess.run(script, check=False).returncode
        with machine.borrow() as borrowed:  # as soon as the guardian has ended
            assert borrowed.notes == []
            assert machine.values() == ["0", "0", "0"], moment
        if status != -signal.SIGKILL:
            break
    assert status == 0
    assert moment > 20


def test_a_knob_that_shows_a_boolean_its_own_way(machine: Machine) -> None:
    machine.knob(0).write_text("N\n")
    with machine.borrow() as borrowed:
        borrowed.set(machine.knob(0), "0")
        assert machine.knob(0).read_text() == "N\n"
    assert machine.knob(0).read_text() == "N\n"


def test_a_knob_that_refuses_stays_in_the_journal(machine: Machine) -> None:
    with machine.borrow() as borrowed:
        borrowed.set(machine.knob(0), "1")
        borrowed.set(machine.knob(1), "1")
        machine.knob(1).unlink()
        machine.knob(1).mkdir()
    assert machine.knob(0).read_text() == "0\n"
    assert f"cannot set {machine.knob(1)} to 0 again" in borrowed.notes[0]
    with pytest.raises(LightsleepError, match="by hand"), machine.borrow():
        pass
    machine.knob(1).rmdir()
    with machine.borrow():
        pass


def test_a_journal_that_cannot_grow_holds_whole_lines(machine: Machine) -> None:
    """A write that is cut short by a limit, as by a full disk, fails at the next attempt."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with machine.borrow() as borrowed:
        borrowed.set(machine.knob(0), "1")
        whole = machine.journal.read_text()
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 10, hard))
            with pytest.raises(LightsleepError, match="cannot set"):
                borrowed.set(machine.knob(1), "1")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert machine.journal.read_text() == whole
        borrowed.set(machine.knob(2), "1")
        assert machine.values() == ["1", "0", "1"]
    assert machine.values() == ["0", "0", "0"]
    assert borrowed.notes == []


def test_a_write_that_is_cut_short_goes_on(machine: Machine) -> None:
    class Narrow(io.FileIO):
        def write(self, data: Any) -> int:
            return super().write(memoryview(data)[:7])

    with machine.borrow() as borrowed:
        borrowed._journal = Narrow(machine.journal, "a+")
        borrowed.set(machine.knob(0), "1")
        assert len(machine.journal.read_text().splitlines()) == 2
        borrowed._journal.close()
    assert machine.values() == ["0", "0", "0"]
    assert borrowed.notes == []


# Journals not to be trusted.


@pytest.mark.parametrize(
    "changes",
    [
        ["garbage"],
        [{}],
        [{"knob": "/sys/x", "old": "0"}],
        [{"knob": 7, "old": "0", "new": "1"}],
        [{"knob": "cpu0/disable", "old": "0", "new": "1"}],
        [{"knob": "/etc/passwd", "old": "0", "new": "1"}],
        [{"knob": "/sys/devices/\0", "old": "0", "new": "1"}],
        [None],
    ],
)
def test_garbage_is_refused_and_kept(machine: Machine, changes: list[object]) -> None:
    machine.plant(machine.change(0, "5", "0"), *changes)
    before = machine.journal.read_text()
    with (
        pytest.raises(LightsleepError, match=r"cannot read.*by hand"),
        machine.borrow(),
    ):
        pass
    assert machine.values() == ["0", "0", "0"]
    assert machine.journal.read_text() == before


@pytest.mark.parametrize("content", [b"\xff\n", b"[]\n", b"\n", b"7\n", b"[" * 99999 + b"\n"])
def test_a_garbage_header_is_refused(machine: Machine, content: bytes) -> None:
    machine.plant()
    machine.journal.write_bytes(content)
    with pytest.raises(LightsleepError, match="cannot read the journal"), machine.borrow():
        pass


def test_a_way_out_of_the_tree_is_refused(machine: Machine, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("1\n")
    (machine.root / "sys/link").symlink_to(victim)
    for way in ("link", "../victim"):
        with machine.borrow() as borrowed, pytest.raises(ValueError, match="does not lie under"):
            borrowed.set(machine.root / "sys" / way, "0")
    machine.journal.unlink(missing_ok=True)
    machine.run_dir.joinpath("lock").unlink()
    machine.run_dir.rmdir()
    machine.plant({"knob": str(machine.root / "sys/link"), "old": "0", "new": "1"})
    with pytest.raises(LightsleepError, match="does not lie under"), machine.borrow():
        pass
    assert victim.read_text() == "1\n"


def test_another_boots_journal_is_not_replayed(machine: Machine) -> None:
    machine.plant(machine.change(0, "5", "0"), boot="00000000-0000-0000-0000-000000000000")
    with machine.borrow() as borrowed:
        assert machine.values() == ["0", "0", "0"]
        assert borrowed.notes == []


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_folder_others_can_write_to_is_refused(machine: Machine, mode: int) -> None:
    machine.run_dir.mkdir(parents=True)
    machine.run_dir.chmod(mode)
    with pytest.raises(LightsleepError, match="others can write"), machine.borrow():
        pass


# Knobs that cannot be set.


def test_a_knob_that_is_missing(machine: Machine) -> None:
    with machine.borrow() as borrowed, pytest.raises(LightsleepError, match="No such file"):
        borrowed.set(machine.root / "sys/cpu9/disable", "1")
    assert not (machine.root / "sys/cpu9").exists()


def test_a_value_that_does_not_stick(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    write_knob = guardian.write_knob

    def rounds_up(root: Path, knob: str, value: str | None, _held: Sequence[int] = ()) -> None:
        assert value
        write_knob(root, knob, "9" if value == "5" else value)

    kind = dataclasses.replace(guardian.KINDS["knob"], write=rounds_up)
    monkeypatch.setitem(guardian.KINDS, "knob", kind)
    with machine.borrow() as borrowed, pytest.raises(LightsleepError, match="it reads 9"):
        borrowed.set(machine.knob(0), "5")
    assert machine.values() == ["0", "0", "0"]


def test_no_folder_for_the_journal(machine: Machine) -> None:
    machine.run_dir.parent.mkdir()
    machine.run_dir.write_text("a file")
    with pytest.raises(LightsleepError, match="cannot keep a journal"), machine.borrow():
        pass


# Whatever surrounds the borrower.


def test_the_guardian_needs_no_environment(machine: Machine, tmp_path: Path) -> None:
    """A module named like one of the standard library, next to the user, is not imported."""
    (tmp_path / "json.py").write_text("raise SystemExit('not that json')")
    environment = {"PYTHONPATH": str(tmp_path), "PYTHONHOME": ""}
    script = f"""
import os, sys
from pathlib import Path
from lightsleep.settings import loan
os.chdir({str(tmp_path)!r})
os.environ.update({environment!r})
sys.path.insert(0, "")
with loan.borrow(Path({str(machine.root)!r})) as borrowed:
    borrowed.set(Path({str(machine.knob(0))!r}), "1")
assert borrowed.notes == [], borrowed.notes
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert machine.values() == ["0", "0", "0"]
