# SPDX-License-Identifier: GPL-2.0-only
"""The keeper of a recording: whose file it is, and what is left when its parent has gone."""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from recorders import OF_THIS_ONE, record, removed_probes

from lightsleep import place
from lightsleep.errors import LightsleepError
from lightsleep.files import write_json
from lightsleep.record import keeper, run, scratch_files, sidecar, tracefs, tracing
from lightsleep.record.bpf import calls

pytest_plugins = "recorders"


def order_for(folder: Path, output: Path) -> dict[str, Any]:
    """Return what the keeper is asked for."""
    scratch = run.scratch_for(output)
    return {
        "tracing": str(folder),
        "command": tracing.command(tracing.EVENTS, None, 64),
        "probes": tracing.PROBES,
        "probe_options": tracing.probe_options(None),
        "scratch": str(scratch),
        "output": str(output),
        "document": OF_THIS_ONE,
    }


def keep_without_a_parent(order: dict[str, Any]) -> None:
    """Have a keeper carry out an order of a process that was killed before the answer."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-I", "-S", keeper.__file__]
    line = json.dumps(order).encode() + b"\n"
    try:
        subprocess.run(command, input=line, stdout=writer, timeout=60, check=True)
    finally:
        os.close(writer)


def test_a_parent_that_is_killed_before_the_answer_leaves_nothing(
    tracefs: Path, tmp_path: Path
) -> None:
    output = tmp_path / "trace.dat"
    output.write_text("the last one")
    keep_without_a_parent(order_for(tracefs, output))
    assert not list((tracefs / "instances").iterdir())
    assert len(removed_probes(tracefs)) == 1
    assert not list(tmp_path.glob(".lightsleep-*"))
    assert output.read_text() == "the last one"


def test_what_is_unmounted_meanwhile_is_tidied_up_all_the_same(
    tracefs: Path, tmp_path: Path
) -> None:
    """A folder of another name stands for one that has none any more, as after umount -l."""
    moved, scratch = tmp_path / "moved", run.scratch_for(tmp_path / "trace.dat")
    words, options = tracing.command(tracing.EVENTS, None, 64), tracing.probe_options(None)
    begun = list[run.Recording]()

    def recorded() -> None:
        with run.recording(
            tracefs, words, options, scratch, tmp_path / "trace.dat", OF_THIS_ONE
        ) as running:
            assert running.instance
            begun.append(running)
            tracefs.rename(moved)
            running.watch()

    with pytest.raises(LightsleepError, match="is gone, or tracing was unmounted"):
        recorded()
    assert len(removed_probes(moved)) == 1
    (instance,) = (moved / "instances").iterdir()  # not empty, unlike one of tracefs
    assert (instance / "tracing_on").read_text() == "0"
    assert [x.partition(":")[0] for x in begun[0].notes] == [f"cannot remove {begun[0].instance}"]


def test_a_document_of_another_trace_does_not_stay(tmp_path: Path) -> None:
    scratch, output = tmp_path / "scratch", tmp_path / "trace.dat"
    scratch.write_text("a trace")
    sidecar.beside(output).write_text("of an older one")
    assert scratch_files.take_places(scratch, output) is None
    assert [x.name for x in tmp_path.iterdir()] == ["trace.dat"]


def test_without_a_trace_the_old_pair_stays(tmp_path: Path) -> None:
    scratch, output = tmp_path / "scratch", tmp_path / "trace.dat"
    sidecar.beside(scratch).write_text("of this one")
    sidecar.beside(output).write_text("of an older one")
    said = scratch_files.take_places(scratch, output)
    assert said == f"cannot write {output}: No such file or directory"
    assert sidecar.beside(output).read_text() == "of an older one"


def test_only_the_owner_can_read_a_recording(tracefs: Path, tmp_path: Path) -> None:
    output, counts = tmp_path / "trace.dat", tmp_path / "counts.json"
    record(tracefs, output)
    assert keeper._write(run.scratch_for(counts), counts, OF_THIS_ONE) is None
    for path in (output, sidecar.beside(output), counts):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600  # the command may hold a password


def test_a_file_that_is_replaced_keeps_its_mode(tracefs: Path, tmp_path: Path) -> None:
    output = tmp_path / "trace.dat"
    files = (output, sidecar.beside(output))
    for path in files:
        path.touch()
        path.chmod(0o640)
    record(tracefs, output)
    assert [stat.S_IMODE(path.stat().st_mode) for path in files] == [0o640] * 2


def test_what_was_counted_for_days_survives_a_full_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refuge, output = tmp_path / "refuge", tmp_path / "out.json"
    refuge.mkdir()
    monkeypatch.setattr(keeper, "ELSEWHERE", (str(tmp_path / "gone"), str(refuge)))
    real = scratch_files.write_new

    def full(path: Path, document: dict[str, Any]) -> None:
        if path.parent != refuge:
            path.touch()
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, document)

    monkeypatch.setattr(scratch_files, "write_new", full)
    (tmp_path / "gone").mkdir()
    said = keeper._write(run.scratch_for(output), output, {"counted": 1})
    (kept,) = refuge.iterdir()
    assert said == (
        f"cannot write {output}: No space left on device; what was counted is in {kept}"
    )
    assert json.loads(kept.read_text()) == {"counted": 1}
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert not list((tmp_path / "gone").iterdir())
    assert sorted(x.name for x in tmp_path.iterdir()) == ["gone", "refuge"]


def test_both_files_of_a_recording_get_their_names(tracefs: Path, tmp_path: Path) -> None:
    output = tmp_path / "trace.dat"
    scratch = run.scratch_for(output)
    words = tracing.command(tracing.EVENTS, None, 64)
    with run.recording(tracefs, words, [], scratch, output, OF_THIS_ONE) as running:
        running.begin()
        assert not sidecar.beside(output).exists()
    assert json.loads(sidecar.beside(output).read_text()) == OF_THIS_ONE
    assert not list(tmp_path.glob(".lightsleep-*"))


def test_a_recording_that_does_not_get_its_place_is_kept(tracefs: Path, tmp_path: Path) -> None:
    output = tmp_path / "trace.dat"
    scratch = run.scratch_for(output)
    words = tracing.command(tracing.EVENTS, None, 64)

    def recorded() -> None:
        with run.recording(tracefs, words, [], scratch, output, OF_THIS_ONE) as running:
            running.begin()
            output.mkdir()

    with pytest.raises(LightsleepError, match=f"Is a directory; what was recorded is in {scratch}"):
        recorded()
    assert scratch.stat().st_size


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_new_file_belongs_to_who_called_sudo(
    tracefs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_UID", "1234")
    monkeypatch.setenv("SUDO_GID", "2345")
    output, counts = tmp_path / "trace.dat", tmp_path / "counts.json"
    files = (output, sidecar.beside(output), counts)
    for owner in ((1234, 2345), (3456, 4567)):
        record(tracefs, output)
        assert keeper._write(run.scratch_for(counts), counts, OF_THIS_ONE) is None
        write_json(counts, OF_THIS_ONE)  # as the command does with the document at its end
        found = [path.stat() for path in files]
        assert [(x.st_uid, x.st_gid) for x in found] == [owner] * 3
        assert [stat.S_IMODE(x.st_mode) for x in found] == [0o600] * 3
        for path in files:  # one that is replaced keeps its owner
            os.chown(path, 3456, 4567)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_is_not_ours_alone_is_not_given_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_UID", "1234")
    monkeypatch.setenv("SUDO_GID", "2345")
    secret, scratch = tmp_path / "secret", tmp_path / "scratch"
    secret.touch()
    scratch.hardlink_to(secret)
    scratch_files.take_place(scratch, tmp_path / "linked")
    assert secret.stat().st_uid == 0
    scratch.symlink_to(secret)
    with pytest.raises(OSError, match="symbolic links"):
        scratch_files.take_place(scratch, tmp_path / "output")
    assert secret.stat().st_uid == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize(
    ("uid", "mode", "linked", "caller", "found"),
    [
        (1234, 0o1777, False, None, (0, 0o600)),
        (1234, 0o1777, False, "4321", (4321, 0o600)),
        (1234, 0o1777, False, "1234", (1234, 0o666)),
        (0, 0o1777, False, None, (0, 0o666)),
        (1234, 0o775, False, None, (0, 0o600)),
        (1234, 0o755, False, None, (1234, 0o666)),
        (1234, 0o755, True, None, (0, 0o600)),
    ],
)
def test_no_file_of_another_user_gets_what_root_records(
    uid: int,
    mode: int,
    linked: bool,
    caller: str | None,
    found: tuple[int, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("SUDO_UID", "SUDO_GID"):
        monkeypatch.setenv(name, caller or "")
    folder, victim = tmp_path / "shared", tmp_path / "victim"
    folder.mkdir()
    folder.chmod(mode)
    counts, document = folder / "counts.json", folder / "document.json"
    for path in (counts, document):
        planted = victim if linked else path
        planted.touch()
        planted.chmod(0o666)
        os.chown(planted, uid, uid)
    if linked:
        counts.symlink_to(victim)
    assert keeper._write(run.scratch_for(counts), counts, OF_THIS_ONE) is None
    write_json(document, OF_THIS_ONE, scratch_files.PRIVATE, place.caller())
    for path in (counts, document):
        status = path.stat()
        assert (status.st_uid, stat.S_IMODE(status.st_mode)) == found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_no_place_for_their_files(tmp_path: Path) -> None:
    output = tmp_path / "theirs/counts.json"
    output.parent.mkdir()
    output.touch(0o666)
    for path in (output, output.parent):
        os.chown(path, 1234, 1234)
    assert keeper._write(run.scratch_for(output), output, OF_THIS_ONE) is None
    assert (output.stat().st_uid, stat.S_IMODE(output.stat().st_mode)) == (0, 0o600)


def test_who_owns_the_folder_cannot_lead_a_recording_elsewhere(
    tracefs: Path, tmp_path: Path
) -> None:
    victim, output = tmp_path / "victim", tmp_path / "trace.dat"
    victim.mkdir()
    for name in ("trace", "trace.cpu0", "trace.json"):
        (victim / name).write_text("root's")
    scratch = run.scratch_for(output)
    words = tracing.command(tracing.EVENTS, None, 64)
    with run.recording(tracefs, words, [], scratch, output, OF_THIS_ONE) as running:
        running.begin()
        assert stat.S_IMODE(scratch.parent.stat().st_mode) == 0o700
        scratch.parent.rename(tmp_path / "moved")
        scratch.parent.symlink_to(victim)
    assert "prev_pid==0" in output.read_text()
    assert json.loads(sidecar.beside(output).read_text()) == OF_THIS_ONE
    assert {x.read_text() for x in victim.iterdir()} == {"root's"}
    assert len(list(victim.iterdir())) == 3
    assert not (tmp_path / "moved").exists()


@pytest.mark.parametrize("put", ["a link", "a folder of another user", "a folder with files"])
def test_a_folder_that_was_replaced_at_once_is_refused(
    put: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if put == "a folder of another user" and os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    real, scratch = Path.mkdir, run.scratch_for(tmp_path / "trace.dat")

    def replaced(path: Path, mode: int) -> None:
        real(tmp_path / "other", mode)
        if put == "a link":
            path.symlink_to(tmp_path / "other")
            return
        if put == "a folder with files":
            (tmp_path / "other" / "trace").symlink_to(tmp_path / "victim")
        else:
            os.chown(tmp_path / "other", 1234, 2345)
        (tmp_path / "other").rename(path)

    monkeypatch.setattr(Path, "mkdir", replaced)
    with pytest.raises(OSError, match=r"Not a directory|was replaced|not empty"):
        scratch_files.make_folder(scratch)
    assert keeper._write(run.scratch_for(tmp_path / "x"), tmp_path / "x", {})
    assert not (tmp_path / "victim").exists()


# Ends at SIGINT as trace-cmd does, whose copy of the data grows for longer than it may stand still.
COPIES = """import signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
print(flush=True)
signal.sigwait([signal.SIGINT])
for _ in range(10):
    with open(sys.argv[1], "a") as file:
        file.write("data")
    time.sleep(0.2)
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize(("hangs_s", "status"), [(0, 0), (600, -signal.SIGKILL)])
def test_a_trace_cmd_that_copies_for_long_is_not_killed(
    hangs_s: int, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "FINISH_S", 1.2)
    monkeypatch.setattr(keeper, "LOOK_S", 0.1)
    scratch = tmp_path / ".lightsleep-1"
    words = [sys.executable, "-c", COPIES, str(scratch), str(hangs_s)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as tracer:
        assert tracer.stdout
        tracer.stdout.readline()
        keeper.end(tracer, scratch)
    assert tracer.returncode == status
    assert scratch.read_text() == "data" * 10


def test_lost_events_are_counted_from_every_cpu(tmp_path: Path) -> None:
    for cpu, lost in enumerate((0, 3)):
        folder = tmp_path / f"per_cpu/cpu{cpu}"
        folder.mkdir(parents=True)
        text = f"entries: 9\noverrun: {lost}\ncommit overrun: 0\nnow ts:  12.5\ndropped events: 1\n"
        (folder / "stats").write_text(text)
    assert tracefs.lost_events(tmp_path) == {"0": 1, "1": 4}


def test_what_ends_a_service_does_not_end_trace_cmd(tmp_path: Path) -> None:
    asked = "import signal as s; print(*(s.getsignal(x) is s.SIG_IGN for x in (1, 2, 3, 15)))"
    before = [signal.getsignal(x) for x in keeper.DEAF_TO]
    with (tmp_path / "log").open("w+b") as log:
        started = keeper._start([sys.executable, "-c", asked], log.fileno(), log.fileno())
        assert started.wait() == 0
        log.seek(0)
        assert log.read().split() == [b"True", b"False", b"True", b"True"]
    assert [signal.getsignal(x) for x in keeper.DEAF_TO] == before


def test_a_keeper_that_does_not_start_is_said_whatever_the_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(keeper, "__file__", str(tmp_path / "gone.py"))
    for size in (1, 1 << 20):  # the second does not fit into a pipe
        process = run._keeper()
        with pytest.raises(LightsleepError, match=r"cannot start the process .*gone\.py"):
            run._send_order(process, {"x": "x" * size})
        process.communicate()


def test_a_keeper_that_the_machine_has_no_room_for_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", full)
    with pytest.raises(LightsleepError, match=r"cannot start the process .*: Resource temporarily"):
        run._keeper()


def test_who_has_no_right_to_bpf_programs_is_told_which(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_arguments: object) -> int:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(calls, "create", forbidden)
    monkeypatch.setattr(keeper, "_tell", lambda _answer: None)
    counts = {"document": {}, "maps": {"cpus": {"bytes": 1}}}
    events = {"pages": 16, "room": 1, "buffers": {}, "programs": {}}
    for report in (keeper.count(counts), keeper.trace(events)):
        assert "Operation not permitted; th" in report["failed"]
        assert f"{keeper.RIGHTS}" in report["failed"]


@pytest.mark.parametrize("allowed", [True, False])
def test_the_memory_of_bpf_programs_has_no_limit(
    allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limited(which: int, limits: tuple[int, int]) -> None:
        asked.append((which, *limits))
        if not allowed:
            raise ValueError("not allowed to raise maximum limit")

    asked, told = list[tuple[int, ...]](), list[object]()
    order = io.TextIOWrapper(io.BytesIO(b'{"maps": {}}\n'))
    monkeypatch.setattr(sys, "stdin", order)
    monkeypatch.setattr(signal, "signal", lambda *_arguments: None)
    monkeypatch.setattr(resource, "setrlimit", limited)
    monkeypatch.setattr(keeper, "count", lambda _order: bool(asked))
    monkeypatch.setattr(keeper, "_tell", told.append)
    keeper.main()
    assert asked == [(resource.RLIMIT_MEMLOCK, resource.RLIM_INFINITY, resource.RLIM_INFINITY)]
    assert told == [True]


def test_the_keeper_ends_without_an_order() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", keeper.__file__], input=b'{"cut off', capture_output=True
    )
    assert done.returncode == 0
    assert done.stdout == b""
