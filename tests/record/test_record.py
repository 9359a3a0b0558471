# SPDX-License-Identifier: GPL-2.0-only
"""Recording, without a kernel to trace: what is left when it has ended, however that was."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from paths import ROOT
from recorders import OF_THIS_ONE, Gone, fake, record, removed_probes

from lightsleep import terminal
from lightsleep.ending import orderly_end
from lightsleep.errors import LightsleepError
from lightsleep.record import keeper, run, sidecar, tracing, waiting

pytest_plugins = "recorders"


def test_a_recording_leaves_its_file_and_nothing_else(tracefs: Path, tmp_path: Path) -> None:
    output = tmp_path / "out" / "trace.dat"
    output.parent.mkdir()
    running = record(tracefs, output)
    assert sorted(x.name for x in output.parent.iterdir()) == ["trace.dat", "trace.dat.json"]
    assert running.lost == {"1": 7}
    assert running.notes == []
    assert not list((tracefs / "instances").iterdir())
    words = output.read_text().split()
    assert words[words.index("-C") + 1] == "mono"
    assert words[words.index("-b") + 1] == "64"
    assert "prev_pid==0||next_pid==0" in output.read_text()


def test_a_probe_of_each_recording_has_a_name_of_its_own(tracefs: Path, tmp_path: Path) -> None:
    output = tmp_path / "trace.dat"
    record(tracefs, output)
    added, removed = (tracefs / "kprobe_events").read_text().splitlines()
    group = added.partition(":")[2].partition("/")[0]
    assert group.startswith("lightsleep_")
    assert "tick_nohz_get_sleep_length ret=$retval:s64" in added
    assert removed == f"-:{group}/sleep_length"
    assert f"-e {group}:sleep_length" in output.read_text()


def test_why_a_kernel_has_no_probe_is_known(tracefs: Path, tmp_path: Path) -> None:
    (tracefs / "kprobe_events").unlink()
    (tracefs / "kprobe_events").mkdir()  # the only file that root cannot write
    output = tmp_path / "trace.dat"
    assert record(tracefs, output).probe_refused == "Is a directory"
    assert "sleep_length" not in output.read_text()


def test_what_trace_cmd_says_of_a_failure_is_passed_on(tracefs: Path, tmp_path: Path) -> None:
    fake(tmp_path / "bin", tracefs, "broken")
    with pytest.raises(LightsleepError, match="trace-cmd failed: no such event"):
        record(tracefs, tmp_path / "trace.dat")
    assert not (tmp_path / "trace.dat").exists()


def test_a_killed_recording_still_ends_in_good_order(tracefs: Path, tmp_path: Path) -> None:
    output = tmp_path / "trace.dat"
    program = (
        "import sys, time\nfrom pathlib import Path\nsys.path.insert(0, sys.argv[3])\n"
        "from lightsleep.record import run, tracing\n"
        "scratch = run.scratch_for(Path(sys.argv[2]))\n"
        "words = tracing.command(tracing.EVENTS, None, 64)\n"
        f"document = {OF_THIS_ONE}\n"
        "traced = Path(sys.argv[1])\n"
        "with run.recording(traced, words, [], scratch, Path(sys.argv[2]), document) as it:\n"
        "    it.begin()\n    print('on', flush=True)\n    time.sleep(60)\n"
    )
    sidecar.beside(output).write_text("of an older one")
    arguments = [sys.executable, "-c", program, str(tracefs), str(output), str(ROOT)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "on\n"
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while not output.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert output.exists()
    assert json.loads(sidecar.beside(output).read_text()) == OF_THIS_ONE
    while list((tracefs / "instances").iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not list((tracefs / "instances").iterdir())


def test_what_could_not_begin_leaves_the_last_recording(tracefs: Path, tmp_path: Path) -> None:
    output = tmp_path / "trace.dat"
    output.write_text("the last one")
    scratch = run.scratch_for(output)
    words = tracing.command(tracing.EVENTS, None, 64)
    no_program = tmp_path / "no-program"
    no_program.write_text("no head that says who reads this")
    no_program.chmod(0o755)

    def record_it() -> None:
        with run.recording(tracefs, words, [], scratch, output, OF_THIS_ONE) as running:
            waiting.wait((str(no_program),), None, running, lambda _: None)

    with pytest.raises(LightsleepError, match=f"cannot run {no_program}: Exec format error"):
        record_it()
    assert output.read_text() == "the last one"
    assert not sidecar.beside(output).exists()
    assert not list(tmp_path.glob(".lightsleep-*"))
    assert not list((tracefs / "instances").iterdir())


def test_a_program_that_does_not_start_leaves_nothing(tracefs: Path, tmp_path: Path) -> None:
    output, scratch = tmp_path / "trace.dat", run.scratch_for(tmp_path / "trace.dat")
    with (
        pytest.raises(LightsleepError) as caught,
        run.recording(tracefs, ["/no/such"], [], scratch, output, OF_THIS_ONE),
    ):
        pass
    said = f"cannot record to {output}: /no/such: No such file or directory"
    assert caught.value.message == said
    assert len(removed_probes(tracefs)) == 1
    assert not list(tmp_path.glob(".lightsleep-*"))


def test_files_may_go_while_they_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    files = scratch, tmp_path / "scratch.cpu0"
    for file, text in zip(files, ("whole", "whole but"), strict=True):
        file.write_text(text)
    assert run._written(scratch) == (5, 9)

    def gone_by_then(folder: Path, pattern: str) -> list[Path]:
        found = list(folder.glob(pattern))
        for file in found:
            file.unlink()
        return found

    monkeypatch.setattr(run, "matches", gone_by_then)
    assert run._written(scratch) == (0, 1)


def test_what_does_not_start_in_time_leaves_the_last_recording(
    tracefs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path / "bin", tracefs, "late")
    monkeypatch.setattr(run, "START_S", 3.0)
    output = tmp_path / "trace.dat"
    for path in (output, sidecar.beside(output)):
        path.write_text("the last one")
    with pytest.raises(LightsleepError):
        record(tracefs, output)
    assert output.read_text() == sidecar.beside(output).read_text() == "the last one"
    assert not list(tmp_path.glob(".lightsleep-*"))
    assert not list((tracefs / "instances").iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_reaches_the_command(
    tracefs: Path, tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = []
    monkeypatch.setattr(waiting, "_in_foreground", lambda: False)
    monkeypatch.setattr(run.Recording, "watch", lambda _self: watched.append(1))
    output, begun = tmp_path / "trace.dat", tmp_path / "begun"
    scratch = run.scratch_for(output)
    words = tracing.command(tracing.EVENTS, None, 64)
    # It takes its time: the disk is watched until it has ended.
    script = f"trap 'sleep 2.5; exit 7' TERM HUP INT; touch {begun}; while :; do sleep 0.1; done"
    deadline = time.monotonic() + 60

    def tick(_seconds: float) -> None:
        if begun.exists() and not watched[100:]:
            watched.extend([0] * 101)
            os.kill(os.getpid(), number)
        assert time.monotonic() < deadline

    with (
        orderly_end(waiting.Terminated) as signals,
        run.recording(tracefs, words, [], scratch, output, OF_THIS_ONE) as running,
    ):
        status = waiting.wait(("sh", "-c", script), None, running, tick, signals=signals)
    assert status == 7
    assert watched.count(1) >= 2


def test_two_signals_in_a_row_leave_the_command_recorded(tmp_path: Path) -> None:
    """As systemd ends a session: the second one comes where the first one is handled."""
    begun, script = tmp_path / "begun", tmp_path / "script.sh"
    script.write_text(
        f"trap 'echo got >> {begun}' TERM HUP; echo begun > {begun}\n"
        "for _ in 1 2 3 4; do sleep 0.5; done; exit 7"
    )

    def tick(_seconds: float) -> None:
        if begun.exists() and begun.read_text() == "begun\n":
            both = f"kill -TERM {os.getpid()}; kill -HUP {os.getpid()}"
            subprocess.run(["sh", "-c", both], check=True)

    with (
        subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE) as keeper_of_it,
        orderly_end(waiting.Terminated, repeated=True) as signals,
    ):
        running = run.Recording(None, run.scratch_for(tmp_path / "x"), keeper_of_it)
        status = waiting.wait(("sh", str(script)), None, running, tick, signals=signals)
        signals.ignore()
        keeper_of_it.kill()
    assert status == 7
    assert "got" in begun.read_text()


def test_a_signal_before_the_command_is_there_reaches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(command: tuple[str, ...], aside: bool) -> subprocess.Popen[bytes]:
        os.kill(os.getpid(), signal.SIGTERM)
        return before(command, aside)

    before = waiting._start
    monkeypatch.setattr(waiting, "_start", start)
    with (
        subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE) as keeper_of_it,
        orderly_end(waiting.Terminated) as signals,
    ):
        running = run.Recording(None, run.scratch_for(tmp_path / "x"), keeper_of_it)
        command = ("sleep", "50")
        status = waiting.wait(command, None, running, lambda _: None, signals=signals)
        keeper_of_it.kill()
    assert status == 128 + signal.SIGTERM


def test_a_terminal_that_is_gone_ends_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", Gone())
    with (
        subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE) as keeper_of_it,
        orderly_end(waiting.Terminated),
    ):
        running = run.Recording(None, run.scratch_for(tmp_path / "x"), keeper_of_it, lambda: None)
        hang_up = lambda _: os.kill(os.getpid(), signal.SIGHUP)  # noqa: E731
        assert waiting.wait((), 600, running, hang_up) == 128 + signal.SIGHUP
        running.stopped = "the disk is full"
        stops = lambda _: setattr(running, "stopped", "the disk is full, still")  # noqa: E731
        assert waiting.wait(("sh", "-c", "sleep 1.5; exit 5"), None, running, stops) == 5
        keeper_of_it.kill()


def test_a_terminal_sends_the_first_ctrl_c_to_the_command_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "_in_foreground", lambda: True)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        messenger = waiting._Messenger(child)
        messenger.tell(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.2)
        messenger.tell(signal.SIGINT)
        assert child.wait(60) == -signal.SIGINT


@pytest.mark.parametrize("there", [True, False])
def test_whether_a_terminal_is_there_is_known(there: bool) -> None:
    asks = "from lightsleep.record import waiting; print(waiting._in_foreground())"
    words = [sys.executable, "-c", asks]
    if there:
        words = [sys.executable, "-c", f"import pty; pty.spawn({words!r})"]
    done = subprocess.run(
        words, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, start_new_session=True
    )
    assert done.stdout.split()[-1:] == [str(there).encode()], done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("seconds", [600, None])
def test_a_signal_before_the_time_is_over_shows(
    seconds: float | None,
    number: signal.Signals,
    tracefs: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "trace.dat"
    words = tracing.command(tracing.EVENTS, None, 64)
    with (
        orderly_end(waiting.Terminated),
        run.recording(tracefs, words, [], run.scratch_for(output), output, OF_THIS_ONE) as running,
    ):
        status = waiting.wait((), seconds, running, lambda _: os.kill(os.getpid(), number))
    assert output.exists()
    assert status == (128 + number if seconds else 0)
    said = r"ended after \d+\.\d s of 600 s\n" if seconds else ""
    assert re.fullmatch(said, capfd.readouterr().err)


def test_a_trace_cmd_that_dies_ends_the_recording_and_leaves_what_it_had(
    tracefs: Path, tmp_path: Path
) -> None:
    output = tmp_path / "trace.dat"
    scratch = run.scratch_for(output)
    words = tracing.command(tracing.EVENTS, None, 64)
    began = time.monotonic()

    def recorded() -> None:
        with run.recording(tracefs, words, [], scratch, output, OF_THIS_ONE) as running:
            children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children")
            os.kill(int(children.read_text()), signal.SIGKILL)
            assert waiting.wait((), 600, running, lambda _: None) == 0
            assert running.stopped == "trace-cmd ended before its time"

    with pytest.raises(LightsleepError) as caught:
        recorded()
    assert time.monotonic() - began < 60
    said = caught.value.message
    assert "trace-cmd was ended by signal 9; what was recorded is in one file for" in said
    ours = f"{scratch.parent.name}/trace"
    restore = f"trace-cmd restore -o trace.dat $(ls -v {ours}*.cpu*)"
    move = f"mv {ours}.json trace.dat.json"
    assert f"(cd {tmp_path} && {restore} && {move})" in said
    assert Path(f"{scratch}.cpu0").read_text() == "events"
    # What is beside an older trace stays with that.
    assert json.loads(sidecar.beside(scratch).read_text()) == OF_THIS_ONE
    assert not sidecar.beside(output).exists()


def test_a_command_that_runs_on_when_trace_cmd_dies(
    tracefs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "trace.dat"
    scratch = run.scratch_for(output)
    words = tracing.command(tracing.EVENTS, None, 64)
    told = []

    def tick(_seconds: float) -> None:
        told.append("ended before its time" in capsys.readouterr().err)

    def recorded() -> None:
        with run.recording(tracefs, words, [], scratch, output, OF_THIS_ONE) as running:
            children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children")
            os.kill(int(children.read_text()), signal.SIGKILL)
            assert waiting.wait(("sleep", "3"), None, running, tick) == 0

    with pytest.raises(LightsleepError, match="was ended by signal 9"):
        recorded()
    assert told.count(True) == 1


def test_a_folder_that_is_gone_ends_the_tracing_and_not_the_command(tmp_path: Path) -> None:
    folder, stops = tmp_path / "build", []
    folder.mkdir()
    with subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE) as keeper_of_it:
        scratch = run.scratch_for(folder / "x")
        running = run.Recording(None, scratch, keeper_of_it, lambda: stops.append(True))
        running.watch()
        assert running.stopped is None
        folder.rmdir()
        assert waiting.wait(("sh", "-c", "sleep 1.5; exit 3"), None, running, lambda _: None) == 3
        keeper_of_it.kill()
    assert stops == [True]
    assert running.stopped
    assert "build cannot be written to any more: No such file or directory" in running.stopped


def test_the_end_of_a_killed_keeper_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE) as keeper_of_it:
        running = run.Recording(None, run.scratch_for(tmp_path / "x"), keeper_of_it, lambda: None)
        assert waiting.wait(("sleep", "2"), None, running, lambda _: keeper_of_it.kill()) == 0
    assert capsys.readouterr().err.count(f"note: {run.KILLED}") == 1


def test_the_end_of_a_killed_keeper_of_counts_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[str]()
    monkeypatch.setattr(waiting, "remark", told.append)
    with subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE) as keeper_of_it:
        running = run.Recording(None, run.scratch_for(tmp_path / "x"), keeper_of_it)
        assert waiting.wait(("sleep", "2"), None, running, lambda _: keeper_of_it.kill()) == 0
    assert told == [f"note: {waiting.COUNTER_KILLED}"]


def test_what_the_disk_cannot_take_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_keeper", lambda: pytest.fail("it began"))
    order = {"buffers": dict.fromkeys(map(str, range(8)), 1), "pages": 1 << 30}
    with (
        pytest.raises(LightsleepError, match=r"8 CPUs hold .* try a smaller --buffer-kb"),
        run.tracing_by_bpf(order, tmp_path / "x.dat", {}),
    ):
        pass


def test_a_full_disk_ends_the_tracing_and_not_the_command(
    tracefs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "trace.dat"
    scratch = run.scratch_for(output)
    words = tracing.command(tracing.EVENTS, None, 64)
    began_s = time.monotonic()
    with run.recording(tracefs, words, [], scratch, output, OF_THIS_ONE) as running:
        running.watch()
        assert running.stopped is None
        stops: list[float] = []
        running.at_stop = lambda: stops.append(time.monotonic())
        monkeypatch.setattr(run, "SPARE_BYTES", 1 << 62)
        assert waiting.wait(("sh", "-c", "sleep 3; exit 3"), None, running, lambda _: None) == 3
        ended_s = time.monotonic()
        assert running.instance
        assert (running.instance / "tracing_on").read_text().strip() == "0"
    assert running.stopped
    assert "nearly full" in running.stopped
    assert output.exists()
    # What is told of the recording ends with the tracing, not with the command.
    assert len(stops) == 1
    assert stops[0] < ended_s
    assert running.elapsed_s < stops[0] - began_s


def test_what_buffers_hold_has_to_fit_on_the_disk(
    tracefs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "trace.dat"
    scratch = run.scratch_for(output)
    words = tracing.command(tracing.EVENTS, None, 64)
    free = run.SPARE_BYTES + (3 << 20)
    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    for buffer_kb, stops in ((512, False), (1024, True)):
        recording = run.recording(tracefs, words, [], scratch, output, OF_THIS_ONE, buffer_kb)
        with recording as running:
            running.watch()
            assert bool(running.stopped) == stops


@pytest.mark.parametrize("spare", [0, 1 << 62])
def test_an_instance_that_is_gone_is_said_and_the_command_goes_on(
    spare: int, tracefs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "SPARE_BYTES", spare)
    if spare:  # it goes just after it was seen
        monkeypatch.setattr(Path, "is_dir", lambda _self: True)
    output = tmp_path / "trace.dat"
    scratch = run.scratch_for(output)
    words = tracing.command(tracing.EVENTS, None, 64)
    options = tracing.probe_options(None)

    def recorded() -> None:
        with run.recording(tracefs, words, options, scratch, output, OF_THIS_ONE) as running:
            assert running.instance
            shutil.rmtree(running.instance)
            assert (
                waiting.wait(("sh", "-c", "sleep 1.2; exit 3"), None, running, lambda _: None) == 3
            )

    # The fake trace-cmd fails, too.
    with pytest.raises(LightsleepError, match=r"the tracing instance .* is gone"):
        recorded()
    assert len(removed_probes(tracefs)) == 1


def test_a_keeper_of_trace_cmd_that_was_killed_is_said(tracefs: Path, tmp_path: Path) -> None:
    scratch = run.scratch_for(tmp_path / "trace.dat")
    words = tracing.command(tracing.EVENTS, None, 64)

    def recorded() -> None:
        with run.recording(
            tracefs, words, [], scratch, tmp_path / "trace.dat", OF_THIS_ONE
        ) as running:
            children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children")
            child = int(children.read_text())
            running.process.kill()
            running.process.wait()
            os.kill(child, signal.SIGINT)

    with pytest.raises(LightsleepError, match="the process that ends a recording was killed"):
        recorded()


def test_counts_need_no_instance(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as process:
        running = run.Recording(None, tmp_path / "scratch", process)
        running.watch()
    assert running.stopped is None


@pytest.mark.parametrize(("silent_s", "shown"), [(0.2, True), (30, False)])
def test_an_end_that_takes_long_is_shown(
    silent_s: float, shown: bool, tracefs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []

    @contextlib.contextmanager
    def progress() -> Iterator[Callable[[str, int, int], None]]:
        yield lambda *words: told.append(words)

    monkeypatch.setattr(terminal, "progress", progress)
    monkeypatch.setattr(run, "SILENT_S", silent_s)
    fake(tmp_path / "bin", tracefs, "slow")
    record(tracefs, tmp_path / "trace.dat")
    assert (("writing the file", 0, len("events")) in told) == bool(told) == shown


KEEPER = """\
import json, os, signal, sys, time
order = json.loads(sys.stdin.readline())
os.kill(os.getppid(), signal.{number})
time.sleep(0.3)  # the one that waits for the answer has left
print("null", flush=True)
sys.stdin.read()
if {reports}:
    print(json.dumps(dict(status=0, said="", failed=None, kept=0, lost={{}}, notes=["well"])))
"""


@pytest.mark.parametrize("reports", [True, False])
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_while_a_recording_starts(
    number: str, reports: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = tmp_path / "keeper.py"
    stub.write_text(KEEPER.format(number=number, reports=reports))
    monkeypatch.setattr(keeper, "__file__", str(stub))
    output, begun = tmp_path / "trace.dat", []
    scratch = run.scratch_for(output)
    with (
        pytest.raises(KeyboardInterrupt),
        orderly_end(waiting.Terminated),
        run.recording(tmp_path, ["true"], [], scratch, output, OF_THIS_ONE),
    ):
        begun.append(1)
    with (
        pytest.raises(KeyboardInterrupt),
        orderly_end(waiting.Terminated),
        run.counting({}, OF_THIS_ONE, output),
    ):
        begun.append(1)
    assert not begun


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSYS])
def test_a_command_is_waited_for_where_there_is_no_pidfd(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_pid: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    assert child.stdin
    assert not waiting._ended(child, 0.01)
    child.stdin.close()
    assert waiting._ended(child, 60)


def test_the_end_of_a_command_is_noticed_and_not_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        pytest.skip(f"no pidfd here: {error.strerror}")
    looked = []
    poll = subprocess.Popen.poll

    def counted(child: subprocess.Popen[bytes]) -> int | None:
        looked.append(child)
        return poll(child)

    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    assert child.stdin
    monkeypatch.setattr(subprocess.Popen, "poll", counted)
    monkeypatch.setattr(subprocess.Popen, "wait", None)
    assert not waiting._ended(child, 0.2)
    child.stdin.close()
    assert waiting._ended(child, 60)
    assert len(looked) <= 4
