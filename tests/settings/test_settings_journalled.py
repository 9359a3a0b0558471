# SPDX-License-Identifier: GPL-2.0-only
"""Changed knobs are set back on every end of the session's owner: real processes, real signals."""

import io
import os
import pty
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import eventually, runs
from sessions import Machine

from lightsleep.errors import LightsleepError
from lightsleep.settings import journalled, lock, restorer

pytest_plugins = "sessions"


# Every end.


def test_a_knob_is_set_until_the_end(machine: Machine) -> None:
    with machine.session() as session:
        session.set(machine.knob(1), "1")
        assert machine.values() == ["0", "1", "0"]
    assert machine.values() == ["0", "0", "0"]
    assert session.notes == []
    assert not machine.journal.exists()


def test_the_first_value_comes_back(machine: Machine) -> None:
    with machine.session() as session:
        for value in ("1", "2", "1"):
            session.set(machine.knob(1), value)
        assert restorer.read(machine.journal, machine.root)[1] == {
            ("knob", str(machine.knob(1))): restorer.Undo("0", {"1", "2"})
        }
    assert machine.values() == ["0", "0", "0"]


def test_the_last_comes_back_first(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    monkeypatch.setattr(restorer, "set_back_one", lambda setting, *_: order.append(setting[1]))
    machine.plant(*(machine.change(cpu, "0", "1") for cpu in (2, 0, 2, 1)))
    restorer.restore(machine.journal, machine.root)
    assert order == [str(machine.knob(cpu)) for cpu in (1, 0, 2)]


@pytest.mark.parametrize(("end", "status"), [("return", 0), ("raise", 1), ("exit", 3)])
def test_own_end(machine: Machine, end: str, status: int) -> None:
    with machine.owner(end) as (process, restorer_pid):
        assert process.wait(60) == status
        # The owner has waited for its restorer.
        assert machine.values() == ["0", "0", "0"]
        assert not machine.journal.exists()
        assert not runs(restorer_pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_ended_by_a_signal(machine: Machine, number: signal.Signals) -> None:
    with machine.owner() as (process, restorer_pid):
        assert machine.values() == ["1", "2", "0"]
        # The whole group gets it, as from the keyboard; the restorer is not in it.
        os.killpg(process.pid, number)
        process.wait(60)
        eventually(lambda: not runs(restorer_pid))
        assert machine.values() == ["0", "0", "0"]
        assert not machine.journal.exists()


def test_terminal_lost(machine: Machine) -> None:
    pid, terminal = pty.fork()
    if not pid:
        os.execv(sys.executable, machine.command("wait"))
    restorer_pid = int(os.read(terminal, 100).split()[0])
    assert machine.values() == ["1", "2", "0"]
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGHUP
    eventually(lambda: not runs(restorer_pid))
    assert machine.values() == ["0", "0", "0"]


@pytest.mark.parametrize("number", restorer.DEAF_TO)
def test_the_restorer_is_deaf(machine: Machine, number: signal.Signals) -> None:
    with machine.owner() as (process, restorer_pid):
        os.kill(restorer_pid, number)
        assert machine.values() == ["1", "2", "0"]
        process.kill()
        eventually(lambda: not runs(restorer_pid))
        assert machine.values() == ["0", "0", "0"]


def test_the_restorer_has_a_session_and_no_terminal(machine: Machine) -> None:
    with machine.owner() as (_, restorer_pid):
        assert os.getsid(restorer_pid) == restorer_pid
        assert Path(f"/proc/{restorer_pid}/cwd").resolve() == Path("/")
        targets = [str(Path(f"/proc/{restorer_pid}/fd/{fd}").readlink()) for fd in range(3)]
        assert [target.split(":")[0] for target in targets] == ["pipe", "pipe", "/dev/null"]


def test_children_do_not_delay_the_end(machine: Machine) -> None:
    with machine.owner("children") as (process, restorer_pid):
        process.kill()
        eventually(lambda: not runs(restorer_pid))
        assert machine.values() == ["0", "0", "0"]
        # Nor do they keep the lock.
        with machine.session():
            pass


# Without the restorer.


def test_restorer_killed_and_owner_ends(machine: Machine) -> None:
    with machine.session() as session:
        session.set(machine.knob(0), "1")
        os.kill(session._restorer.pid, signal.SIGKILL)
        eventually(session._restorer.killed)
        with pytest.raises(LightsleepError, match="was killed"):
            session.set(machine.knob(1), "1")
    assert machine.values() == ["0", "0", "0"]
    assert "was killed" in session.notes[0]
    assert not machine.journal.exists()


@pytest.mark.parametrize("restorer_first", [True, False])
def test_both_killed_and_the_next_gives_back(machine: Machine, restorer_first: bool) -> None:
    with machine.owner() as (process, restorer_pid):
        if not restorer_first:
            # It cannot act before it is dead, too.
            os.kill(restorer_pid, signal.SIGSTOP)
            process.kill()
            process.wait()
        os.kill(restorer_pid, signal.SIGKILL)
        eventually(lambda: not runs(restorer_pid))
    assert machine.values() == ["1", "2", "0"]
    with machine.session() as session:
        assert machine.values() == ["0", "0", "0"]
        assert "an earlier lightsleep measure left settings changed" in session.notes[0]
    assert not machine.journal.exists()


def test_the_last_gasp_is_no_garbage(machine: Machine) -> None:
    machine.plant(machine.change(0, "0", "1"))
    with machine.journal.open("a") as file:
        file.write('{"knob": "/sys/dev')
    machine.knob(0).write_text("1\n")
    with machine.session():
        assert machine.values() == ["0", "0", "0"]


def test_an_empty_journal_is_no_garbage(machine: Machine) -> None:
    machine.plant()
    machine.journal.write_text("")
    with machine.session() as session:
        assert session.notes == []


# Two at once.


def test_two_at_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "PATIENCE_S", 0.1)
    with machine.owner() as (process, restorer_pid):
        with pytest.raises(LightsleepError, match=f"process {process.pid}"), machine.session():
            pass
        assert machine.values() == ["1", "2", "0"]
        assert runs(restorer_pid)


def test_the_lock_lasts_as_long_as_the_restorer(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "PATIENCE_S", 0.1)
    with machine.owner() as (process, restorer_pid):
        os.kill(restorer_pid, signal.SIGSTOP)
        process.kill()
        process.wait()
        with pytest.raises(LightsleepError, match="is changing"), machine.session():
            pass
        os.kill(restorer_pid, signal.SIGCONT)
        eventually(lambda: not runs(restorer_pid))
    assert machine.values() == ["0", "0", "0"]


# What others do to the knobs meanwhile.


def test_a_knob_that_changes_all_the_time_fills_no_journal(machine: Machine) -> None:
    with machine.session() as session:
        for value in ("1", "2", "0") * 3:
            session.set(machine.knob(0), value)
        first = machine.journal.stat().st_size
        for value in ("1", "2", "0") * 100:
            session.set(machine.knob(0), value)
        session.set(machine.knob(1), "1")
        assert machine.journal.stat().st_size < 2 * first
        session.restore()
        session.set(machine.knob(0), "2")  # of which the journal has forgotten everything
    assert machine.values() == ["0", "0", "0"]


def test_a_knob_that_vanished_is_noted(machine: Machine) -> None:
    with machine.session() as session:
        session.set(machine.knob(0), "1")
        session.set(machine.knob(1), "1")
        machine.knob(1).unlink()
    assert machine.knob(0).read_text() == "0\n"
    assert not machine.knob(1).exists()
    assert session.notes == [f"{machine.knob(1)} is gone: nothing to set back"]


def test_what_somebody_else_set_stays(machine: Machine) -> None:
    with machine.session() as session:
        session.set(machine.knob(0), "1")
        session.set(machine.knob(1), "1")
        machine.knob(1).write_text("7\n")
    assert machine.values() == ["0", "7", "0"]
    assert "set to 7 by somebody else" in session.notes[0]


def test_a_change_by_somebody_else_is_not_overwritten(machine: Machine) -> None:
    with machine.session() as session:
        session.set(machine.knob(1), "1")
        machine.knob(1).write_text("7\n")
        with pytest.raises(journalled.ChangedMeanwhile, match="set to 7 by somebody else"):
            session.set(machine.knob(1), "2")
        assert machine.values() == ["0", "7", "0"]
    assert machine.values() == ["0", "7", "0"]


@pytest.mark.parametrize("damage", ["", "garbage\n"])
def test_a_journal_that_somebody_else_damages(machine: Machine, damage: str) -> None:
    with machine.session() as session:
        session.set(machine.knob(1), "1")
        if damage:
            with machine.journal.open("a") as file:
                file.write(damage)
        else:
            machine.journal.unlink()
        for act in (session.check, session.restore):
            with pytest.raises(LightsleepError, match=f"by hand .* {machine.knob(1)}"):
                act()
    assert machine.values() == ["0", "1", "0"]


def test_what_was_set_back_between_may_be_set_again(machine: Machine) -> None:
    with machine.session() as session:
        for value in ("1", "2"):
            session.set(machine.knob(1), value)
            assert session.restore() == []
            assert machine.values() == ["0", "0", "0"]
        machine.knob(1).write_text("7\n")
        with pytest.raises(journalled.ChangedMeanwhile):
            session.set(machine.knob(1), "1")
    assert machine.values() == ["0", "7", "0"]


def test_what_was_set_back_is_forgotten(machine: Machine) -> None:
    """A value that was written before restore() is somebody else's when it is found after it."""
    with machine.session() as session:
        first_line = machine.journal.read_text()
        for value in ("1", "2"):
            session.set(machine.knob(1), value)
            assert session.restore() == []
            assert machine.journal.read_text() == first_line
        machine.knob(1).write_text("1\n")
        assert session.restore() == []
        with pytest.raises(journalled.ChangedMeanwhile, match="set to 1 by somebody else"):
            session.set(machine.knob(1), "2")
        session.set(machine.knob(0), "1")
        assert restorer.read(machine.journal, machine.root)[1] == {
            ("knob", str(machine.knob(0))): restorer.Undo("0", {"1"})
        }
    assert machine.values() == ["0", "1", "0"]


def test_what_could_not_be_set_back_is_not_forgotten(machine: Machine) -> None:
    with machine.session() as session:
        session.set(machine.knob(0), "1")
        machine.knob(0).rename(machine.root / "offline")
        assert "is gone" in session.restore()[0]
        (machine.root / "offline").rename(machine.knob(0))
        assert machine.values() == ["1", "0", "0"]
    assert machine.values() == ["0", "0", "0"]


# For each number that it reads, a fork sets knobs, sets them back, and so again, and ends by
# SIGKILL after so many lines of journalled.py, which it need not import. Prints how each ended.
KILLED_AT = """
import os, signal, sys, traceback
from pathlib import Path
from lightsleep.settings import journalled
root = Path(sys.argv[1])

def trace(frame, event, _):
    global left
    if frame.f_code.co_name not in ("restore", "_change", "_append"):
        return None
    if event == "line" or event == "return":
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return trace

def change():
    with journalled.session(root) as session:
        session.set(root / "sys/cpu0/disable", "1")
        session.set(root / "sys/cpu1/disable", "1")
        sys.settrace(trace)
        session.restore()
        session.set(root / "sys/cpu1/disable", "2")
        sys.settrace(None)

while line := sys.stdin.readline():
    left = int(line)
    if not (process := os.fork()):
        try:
            change()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""


def test_killed_before_each_line_of_restore_and_the_next_change(machine: Machine) -> None:
    script = [sys.executable, "-c", KILLED_AT, str(machine.root)]
    pipe = subprocess.PIPE
    with subprocess.Popen(script, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin
        assert process.stdout
        for moment in range(200):
            print(moment, file=process.stdin, flush=True)
            status = int(process.stdout.readline())
            with machine.session() as session:  # as soon as the restorer has ended
                assert session.notes == []
                assert machine.values() == ["0", "0", "0"], moment
            if status != -signal.SIGKILL:
                break
    assert status == 0
    assert moment > 20


def test_a_knob_that_shows_a_boolean_its_own_way(machine: Machine) -> None:
    machine.knob(0).write_text("N\n")
    with machine.session() as session:
        session.set(machine.knob(0), "0")
        assert machine.knob(0).read_text() == "N\n"
    assert machine.knob(0).read_text() == "N\n"


@pytest.mark.parametrize("place", ["container", "chroot"])
@pytest.mark.parametrize("verb", ["enable", "measure", "try"])
def test_only_enable_has_a_use_where_an_image_is_built(
    verb: str, place: str, machine: Machine
) -> None:
    if place == "container":
        (machine.root / ".dockerenv").touch()
    else:
        (machine.root / "proc/1").mkdir(parents=True)
        (machine.root / "proc/1/root").symlink_to(machine.root / "sys")
    with pytest.raises(LightsleepError, match=f"this is a {place}") as refused:
        journalled.set_back_left(machine.root, verb)
    assert ("boots: lightsleep enable --persist --later" in refused.value.message) == (
        verb == "enable"
    )


def test_a_container_is_no_place_to_change_settings(machine: Machine) -> None:
    (machine.root / ".dockerenv").touch()
    before = sorted(machine.root.rglob("*"))
    with pytest.raises(LightsleepError, match=r"container \(docker\).*run lightsleep on the host"):
        machine.session().__enter__()
    assert sorted(machine.root.rglob("*")) == before


def test_a_knob_that_refuses_stays_in_the_journal(machine: Machine) -> None:
    with machine.session() as session:
        session.set(machine.knob(0), "1")
        session.set(machine.knob(1), "1")
        machine.knob(1).unlink()
        machine.knob(1).mkdir()
    assert machine.knob(0).read_text() == "0\n"
    assert f"cannot set {machine.knob(1)} to 0 again" in session.notes[0]
    assert session.refused == session.notes
    said = str(journalled.unfinished(machine.root))
    assert "killed" not in said
    assert "disable sets back what it can, and says what refuses" in said
    with pytest.raises(LightsleepError, match="by hand") as refused, machine.session():
        pass
    assert "killed" not in refused.value.message
    machine.knob(1).rmdir()
    with machine.session():
        pass


def test_a_journal_that_cannot_grow_holds_whole_lines(machine: Machine) -> None:
    """A write that is cut short by a limit, as by a full disk, fails at the next attempt."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with machine.session() as session:
        session.set(machine.knob(0), "1")
        whole = machine.journal.read_text()
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 10, hard))
            with pytest.raises(LightsleepError, match="cannot set"):
                session.set(machine.knob(1), "1")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert machine.journal.read_text() == whole
        session.set(machine.knob(2), "1")
        assert machine.values() == ["1", "0", "1"]
    assert machine.values() == ["0", "0", "0"]
    assert session.notes == []


def test_a_write_that_is_cut_short_goes_on(machine: Machine) -> None:
    class Narrow(io.FileIO):
        def write(self, data: Any) -> int:
            return super().write(memoryview(data)[:7])

    with machine.session() as session:
        session._journal = Narrow(machine.journal, "a+")
        session.set(machine.knob(0), "1")
        assert len(machine.journal.read_text().splitlines()) == 2
        session._journal.close()
    assert machine.values() == ["0", "0", "0"]
    assert session.notes == []


# Whatever surrounds the owner.


def test_the_restorer_needs_no_environment(machine: Machine, tmp_path: Path) -> None:
    """A module named like one of the standard library, next to the user, is not imported."""
    (tmp_path / "json.py").write_text("raise SystemExit('not that json')")
    environment = {"PYTHONPATH": str(tmp_path), "PYTHONHOME": ""}
    script = f"""
import os, sys
from pathlib import Path
from lightsleep.settings import journalled
os.chdir({str(tmp_path)!r})
os.environ.update({environment!r})
sys.path.insert(0, "")
with journalled.session(Path({str(machine.root)!r})) as session:
    session.set(Path({str(machine.knob(0))!r}), "1")
assert session.notes == [], session.notes
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert machine.values() == ["0", "0", "0"]
