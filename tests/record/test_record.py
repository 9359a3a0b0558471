# SPDX-License-Identifier: GPL-2.0-only
"""Recording, without a kernel to trace: what is asked of it, and what is left when it has ended."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from paths import ROOT

from lightsleep import options, terminal
from lightsleep.compare.analysis import analyse
from lightsleep.compare.result import FORMAT
from lightsleep.document import load
from lightsleep.ending import orderly_end
from lightsleep.errors import LightsleepError
from lightsleep.files import write_json
from lightsleep.record import cli, histogram, keeper, run, sidecar, tracing

OF_THIS_ONE = {"schema": "of this one"}
"""The document beside a trace."""

# Does with a folder what trace-cmd does with tracefs; "broken" in its name makes it fail,
# "late" keeps it from tracing, and with "slow" it takes its time at the end.
FAKE = """#!{python}
import os, shutil, signal, sys, time
words = sys.argv[1:]
if "broken" in {name!r}:
    sys.exit("no such event")
output = words[words.index("-o") + 1]
instance = {tracing!r} + "/instances/" + words[words.index("-B") + 1]
os.makedirs(instance + "/events/power/cpu_idle")
os.makedirs(instance + "/per_cpu/cpu1")
open(instance + "/per_cpu/cpu1/stats", "w").write("entries: 1\\noverrun: 5\\ndropped events: 2\\n")
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
open(output + ".cpu0", "w").write("events")
open(instance + "/events/power/cpu_idle/enable", "w").write("1\\n")
open(instance + "/tracing_on", "w").write("0\\n" if "late" in {name!r} else "1\\n")
signal.sigwait([signal.SIGINT])
time.sleep(1 if "slow" in {name!r} else 0)
shutil.rmtree(instance)
open(output, "w").write(" ".join(words))
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like tracefs, and programs that take it for one."""
    folder = tmp_path / "tracing"
    (folder / "instances").mkdir(parents=True)
    for event in tracing.EVENTS:
        (folder / "events" / event.name.replace(":", "/")).mkdir(parents=True)
    (folder / "kprobe_events").touch()
    programs = tmp_path / "bin"
    programs.mkdir()
    fake(programs, folder, "trace-cmd")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return folder


def fake(programs: Path, folder: Path, name: str) -> None:
    program = programs / "trace-cmd"
    program.write_text(FAKE.format(python=sys.executable, tracing=str(folder), name=name))
    program.chmod(0o755)


def record(folder: Path, output: Path) -> run.Recording:
    """Record for a moment."""
    scratch = run.scratch_for(output)
    words = tracing.command(tracing.EVENTS, None, 64, scratch)
    options = tracing.probe_options(None)
    with run.recording(folder, words, options, scratch, output, OF_THIS_ONE) as running:
        assert list((folder / "instances").iterdir())
    return running


def test_a_recording_leaves_its_file_and_nothing_else(machine: Path, tmp_path: Path) -> None:
    output = tmp_path / "out" / "trace.dat"
    output.parent.mkdir()
    running = record(machine, output)
    assert sorted(x.name for x in output.parent.iterdir()) == ["trace.dat", "trace.dat.json"]
    assert running.lost == {"1": 7}
    assert running.notes == []
    assert not list((machine / "instances").iterdir())
    words = output.read_text().split()
    assert words[words.index("-C") + 1] == "mono"
    assert words[words.index("-b") + 1] == "64"
    assert "prev_pid==0||next_pid==0" in output.read_text()


def test_a_probe_of_each_recording_has_a_name_of_its_own(machine: Path, tmp_path: Path) -> None:
    output = tmp_path / "trace.dat"
    record(machine, output)
    added, removed = (machine / "kprobe_events").read_text().splitlines()
    group = added.partition(":")[2].partition("/")[0]
    assert group.startswith("lightsleep_")
    assert "tick_nohz_get_sleep_length ret=$retval:s64" in added
    assert removed == f"-:{group}/sleep_length"
    assert f"-e {group}:sleep_length" in output.read_text()


def test_why_a_kernel_has_no_probe_is_known(machine: Path, tmp_path: Path) -> None:
    (machine / "kprobe_events").unlink()
    (machine / "kprobe_events").mkdir()  # the only file that root cannot write
    output = tmp_path / "trace.dat"
    assert record(machine, output).probe_refused == "Is a directory"
    assert "sleep_length" not in output.read_text()


def test_what_trace_cmd_says_of_a_failure_is_passed_on(machine: Path, tmp_path: Path) -> None:
    fake(tmp_path / "bin", machine, "broken")
    with pytest.raises(LightsleepError, match="trace-cmd failed: no such event"):
        record(machine, tmp_path / "trace.dat")
    assert not (tmp_path / "trace.dat").exists()


def test_a_killed_recording_still_ends_in_good_order(machine: Path, tmp_path: Path) -> None:
    output = tmp_path / "trace.dat"
    program = (
        "import sys, time\nfrom pathlib import Path\nsys.path.insert(0, sys.argv[3])\n"
        "from lightsleep.record import run, tracing\n"
        "scratch = run.scratch_for(Path(sys.argv[2]))\n"
        "words = tracing.command(tracing.EVENTS, None, 64, scratch)\n"
        f"document = {OF_THIS_ONE}\n"
        "with run.recording(Path(sys.argv[1]), words, [], scratch, Path(sys.argv[2]), document):\n"
        "    print('on', flush=True)\n    time.sleep(60)\n"
    )
    sidecar.beside(output).write_text("of an older one")
    arguments = [sys.executable, "-c", program, str(machine), str(output), str(ROOT)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "on\n"
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while not output.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert output.exists()
    assert json.loads(sidecar.beside(output).read_text()) == OF_THIS_ONE
    while list((machine / "instances").iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not list((machine / "instances").iterdir())


def test_what_could_not_begin_leaves_the_last_recording(machine: Path, tmp_path: Path) -> None:
    output = tmp_path / "trace.dat"
    output.write_text("the last one")
    scratch = run.scratch_for(output)
    words = tracing.command(tracing.EVENTS, None, 64, scratch)
    no_program = tmp_path / "no-program"
    no_program.write_text("no head that says who reads this")
    no_program.chmod(0o755)

    def record_it() -> None:
        with run.recording(machine, words, [], scratch, output, OF_THIS_ONE) as running:
            run.wait((str(no_program),), None, running, lambda _: None)

    with pytest.raises(LightsleepError, match=f"cannot run {no_program}: Exec format error"):
        record_it()
    assert output.read_text() == "the last one"
    assert not sidecar.beside(output).exists()
    assert not list(tmp_path.glob(".lightsleep-*"))
    assert not list((machine / "instances").iterdir())


def order_for(folder: Path, output: Path) -> dict[str, Any]:
    """Return what the keeper is asked for."""
    scratch = run.scratch_for(output)
    return {
        "tracing": str(folder),
        "command": tracing.command(tracing.EVENTS, None, 64, scratch),
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


def removed_probes(folder: Path) -> list[str]:
    """Return the probes that were added, all of which must have been removed."""
    lines = (folder / "kprobe_events").read_text().splitlines()
    added = [x.split()[0].partition(":")[2] for x in lines if not x.startswith("-:")]
    assert sorted(added) == sorted(x.removeprefix("-:") for x in lines if x.startswith("-:"))
    return added


def test_a_parent_that_is_killed_before_the_answer_leaves_nothing(
    machine: Path, tmp_path: Path
) -> None:
    output = tmp_path / "trace.dat"
    output.write_text("the last one")
    keep_without_a_parent(order_for(machine, output))
    assert not list((machine / "instances").iterdir())
    assert len(removed_probes(machine)) == 1
    assert not list(tmp_path.glob(".lightsleep-*"))
    assert output.read_text() == "the last one"


def test_a_program_that_does_not_start_leaves_nothing(machine: Path, tmp_path: Path) -> None:
    output, scratch = tmp_path / "trace.dat", run.scratch_for(tmp_path / "trace.dat")
    with (
        pytest.raises(LightsleepError) as caught,
        run.recording(machine, ["/no/such"], [], scratch, output, OF_THIS_ONE),
    ):
        pass
    said = f"cannot record to {output}: /no/such: No such file or directory"
    assert caught.value.message == said
    assert len(removed_probes(machine)) == 1
    assert not list(tmp_path.glob(".lightsleep-*"))


def test_what_does_not_start_in_time_leaves_the_last_recording(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path / "bin", machine, "late")
    monkeypatch.setattr(run, "START_S", 3.0)
    output = tmp_path / "trace.dat"
    for path in (output, sidecar.beside(output)):
        path.write_text("the last one")
    with pytest.raises(LightsleepError):
        record(machine, output)
    assert output.read_text() == sidecar.beside(output).read_text() == "the last one"
    assert not list(tmp_path.glob(".lightsleep-*"))
    assert not list((machine / "instances").iterdir())


def test_a_document_of_another_trace_does_not_stay(tmp_path: Path) -> None:
    scratch, output = tmp_path / "scratch", tmp_path / "trace.dat"
    scratch.write_text("a trace")
    sidecar.beside(output).write_text("of an older one")
    assert keeper._take_places(scratch, output) is None
    assert [x.name for x in tmp_path.iterdir()] == ["trace.dat"]


def test_without_a_trace_the_old_pair_stays(tmp_path: Path) -> None:
    scratch, output = tmp_path / "scratch", tmp_path / "trace.dat"
    sidecar.beside(scratch).write_text("of this one")
    sidecar.beside(output).write_text("of an older one")
    said = keeper._take_places(scratch, output)
    assert said == f"cannot write {output}: No such file or directory"
    assert sidecar.beside(output).read_text() == "of an older one"


def test_only_the_owner_can_read_a_recording(machine: Path, tmp_path: Path) -> None:
    output, counts = tmp_path / "trace.dat", tmp_path / "counts.json"
    record(machine, output)
    assert keeper._write(run.scratch_for(counts), counts, OF_THIS_ONE) is None
    for path in (output, sidecar.beside(output), counts):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600  # the command may hold a password


def test_a_file_that_is_replaced_keeps_its_mode(machine: Path, tmp_path: Path) -> None:
    output = tmp_path / "trace.dat"
    files = (output, sidecar.beside(output))
    for path in files:
        path.touch()
        path.chmod(0o640)
    record(machine, output)
    assert [stat.S_IMODE(path.stat().st_mode) for path in files] == [0o640] * 2


def test_the_end_of_a_histogram_searches_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    class Possible(list[int]):
        def index(self, *_arguments: Any) -> int:
            raise AssertionError("a search for each bucket of each CPU")

    monkeypatch.setattr(keeper, "_bpf", lambda *_arguments: 0)
    order = histogram.order([0, 2], [0, 2])
    order["possible"] = Possible(order["possible"])
    assert keeper._counted(0, order) == dict.fromkeys(histogram.KINDS, "")


def test_both_files_of_a_recording_get_their_names(machine: Path, tmp_path: Path) -> None:
    output = tmp_path / "trace.dat"
    scratch = run.scratch_for(output)
    words = tracing.command(tracing.EVENTS, None, 64, scratch)
    with run.recording(machine, words, [], scratch, output, OF_THIS_ONE):
        assert not sidecar.beside(output).exists()
    assert json.loads(sidecar.beside(output).read_text()) == OF_THIS_ONE
    assert not list(tmp_path.glob(".lightsleep-*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_the_command(
    machine: Path, tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = []
    monkeypatch.setattr(run.Recording, "watch", lambda _self: watched.append(1))
    output, begun = tmp_path / "trace.dat", tmp_path / "begun"
    scratch = run.scratch_for(output)
    words = tracing.command(tracing.EVENTS, None, 64, scratch)
    # It takes its time: the disk is watched until it has ended.
    script = f"trap 'sleep 2.5; exit 7' TERM HUP; touch {begun}; while :; do sleep 0.1; done"
    deadline = time.monotonic() + 60

    def tick(_seconds: float) -> None:
        if begun.exists() and not watched[100:]:
            watched.extend([0] * 101)
            os.kill(os.getpid(), number)
        assert time.monotonic() < deadline

    with (
        orderly_end(run.Terminated),
        run.recording(machine, words, [], scratch, output, OF_THIS_ONE) as running,
    ):
        status = run.wait(("sh", "-c", script), None, running, tick)
    assert status == 7
    assert watched.count(1) >= 2


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


def test_a_keeper_of_another_installation_is_alive(tmp_path: Path) -> None:
    other = tmp_path / "lightsleep/record/keeper.py"
    other.parent.mkdir(parents=True)
    other.write_text("input()")
    with subprocess.Popen([sys.executable, str(other)], stdin=subprocess.PIPE) as process:
        deadline = time.monotonic() + 30
        while not tracing._alive(str(process.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
    assert not tracing._alive(str(os.getpid()))


def test_a_buffer_is_of_no_use_to_a_histogram() -> None:
    done = CliRunner().invoke(cli.record, ["--histogram", "--buffer-kb", "64"])
    assert done.exit_code == 2
    assert "--buffer-kb has no effect" in done.output


def test_leftovers_of_dead_keepers_are_removed_and_no_others(machine: Path) -> None:
    gone, alive, foreign = (
        machine / "instances" / name
        for name in ("lightsleep_4194304", f"lightsleep_{os.getpid()}", "somebody")
    )
    for folder in (gone, foreign):
        folder.mkdir()
    (machine / "kprobe_events").write_text(
        "r10:lightsleep_4194304/sleep_length f\np:other/probe g\n"
    )
    alive.mkdir()  # the number of a process that is no keeper
    assert tracing.remove_leftovers(machine) == []
    assert [x.name for x in (machine / "instances").iterdir()] == ["somebody"]
    lines = (machine / "kprobe_events").read_text().splitlines()
    assert lines[2:] == ["-:lightsleep_4194304/sleep_length"]


def test_only_these_cpus() -> None:
    filters = {event.name: event.filter_for([1, 3, 4, 5]) for event in tracing.EVENTS}
    assert filters["power:cpu_idle"] == "(cpu_id==1||(cpu_id>=3&&cpu_id<=5))"
    switch = "(prev_pid==0||next_pid==0)&&(CPU==1||(CPU>=3&&CPU<=5))"
    assert filters["sched:sched_switch"] == switch
    assert filters["sched:sched_waking"] == ""  # the waker may be anywhere


def test_events_that_a_kernel_lacks(machine: Path) -> None:
    events, missing = tracing.available(machine)
    assert not missing
    assert not [event for event in events if event.instead_of]
    (machine / "events/ipi/ipi_send_cpu").rmdir()
    events, missing = tracing.available(machine)
    assert missing == ["ipi:ipi_send_cpu"]
    assert "irq_vectors:reschedule_entry" in [event.name for event in events]
    (machine / "events/power/cpu_idle").rmdir()
    with pytest.raises(LightsleepError, match="no tracepoint power:cpu_idle"):
        tracing.available(machine)


def test_where_tracing_is_and_is_not_mounted(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/filesystems").write_text("nodev\ttracefs\n")
    with pytest.raises(LightsleepError, match=r"mount -t tracefs|run it with sudo"):
        tracing.tracing_folder(tmp_path)
    old = tmp_path / "sys/kernel/debug/tracing"
    (old / "instances").mkdir(parents=True)
    (old / "events").mkdir()
    assert tracing.tracing_folder(tmp_path) == old


def test_a_program_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LightsleepError, match="install the package trace-cmd"):
        run.need_programs()


def test_a_trace_cmd_that_dies_ends_the_recording_and_leaves_what_it_had(
    machine: Path, tmp_path: Path
) -> None:
    output = tmp_path / "trace.dat"
    scratch = run.scratch_for(output)
    words = tracing.command(tracing.EVENTS, None, 64, scratch)
    began = time.monotonic()

    def recorded() -> None:
        with run.recording(machine, words, [], scratch, output, OF_THIS_ONE) as running:
            children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children")
            os.kill(int(children.read_text()), signal.SIGKILL)
            assert run.wait((), 600, running, lambda _: None) == 0
            assert running.stopped == "trace-cmd ended before its time"

    with pytest.raises(LightsleepError) as caught:
        recorded()
    assert time.monotonic() - began < 60
    said = caught.value.message
    assert "trace-cmd was ended by signal 9; what it had recorded is in one file for" in said
    restore = f"trace-cmd restore -o trace.dat $(ls -v {scratch.name}*.cpu*)"
    move = f"mv {scratch.name}.json trace.dat.json"
    assert f"(cd {tmp_path} && {restore} && {move})" in said
    assert Path(f"{scratch}.cpu0").read_text() == "events"
    # What is beside an older trace stays with that.
    assert json.loads(sidecar.beside(scratch).read_text()) == OF_THIS_ONE
    assert not sidecar.beside(output).exists()


def test_a_command_that_runs_on_when_trace_cmd_dies(
    machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "trace.dat"
    scratch = run.scratch_for(output)
    words = tracing.command(tracing.EVENTS, None, 64, scratch)
    told = []

    def tick(_seconds: float) -> None:
        told.append("ended before its time" in capsys.readouterr().err)

    def recorded() -> None:
        with run.recording(machine, words, [], scratch, output, OF_THIS_ONE) as running:
            children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children")
            os.kill(int(children.read_text()), signal.SIGKILL)
            assert run.wait(("sleep", "3"), None, running, tick) == 0

    with pytest.raises(LightsleepError, match="was ended by signal 9"):
        recorded()
    assert told.count(True) == 1


def test_a_full_disk_ends_the_tracing_and_not_the_command(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "trace.dat"
    scratch = run.scratch_for(output)
    words = tracing.command(tracing.EVENTS, None, 64, scratch)
    began_s = time.monotonic()
    with run.recording(machine, words, [], scratch, output, OF_THIS_ONE) as running:
        running.watch()
        assert running.stopped is None
        stops: list[float] = []
        running.at_stop = lambda: stops.append(time.monotonic())
        monkeypatch.setattr(run, "SPARE_BYTES", 1 << 62)
        assert run.wait(("sh", "-c", "sleep 3; exit 3"), None, running, lambda _: None) == 3
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


@pytest.mark.parametrize("spare", [0, 1 << 62])
def test_an_instance_that_is_gone_is_said_and_the_command_goes_on(
    spare: int, machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "SPARE_BYTES", spare)
    if spare:  # it goes just after it was seen
        monkeypatch.setattr(Path, "is_dir", lambda _self: True)
    output = tmp_path / "trace.dat"
    scratch = run.scratch_for(output)
    words = tracing.command(tracing.EVENTS, None, 64, scratch)
    options = tracing.probe_options(None)

    def recorded() -> None:
        with run.recording(machine, words, options, scratch, output, OF_THIS_ONE) as running:
            assert running.instance
            shutil.rmtree(running.instance)
            assert run.wait(("sh", "-c", "sleep 1.2; exit 3"), None, running, lambda _: None) == 3

    # The fake trace-cmd fails, too.
    with pytest.raises(LightsleepError, match=r"the tracing instance .* is gone"):
        recorded()
    assert len(removed_probes(machine)) == 1


def test_counts_need_no_instance(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as process:
        running = run.Recording(None, tmp_path / "scratch", process)
        running.watch()
    assert running.stopped is None


def test_json_is_all_that_stdout_gets(
    machine: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(tracing, "tracing_folder", lambda _root: machine)
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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_new_file_belongs_to_who_called_sudo(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_UID", "1234")
    monkeypatch.setenv("SUDO_GID", "2345")
    output, counts = tmp_path / "trace.dat", tmp_path / "counts.json"
    files = (output, sidecar.beside(output), counts)
    for owner in ((1234, 2345), (3456, 4567)):
        record(machine, output)
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
    keeper._take_place(scratch, tmp_path / "linked")
    assert secret.stat().st_uid == 0
    scratch.symlink_to(secret)
    with pytest.raises(OSError, match="symbolic links"):
        keeper._take_place(scratch, tmp_path / "output")
    assert secret.stat().st_uid == 0


@pytest.mark.parametrize(("silent_s", "shown"), [(0.2, True), (30, False)])
def test_an_end_that_takes_long_is_shown(
    silent_s: float, shown: bool, machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []

    @contextlib.contextmanager
    def progress() -> Iterator[Callable[[str, int, int], None]]:
        yield lambda *words: told.append(words)

    monkeypatch.setattr(terminal, "progress", progress)
    monkeypatch.setattr(run, "SILENT_S", silent_s)
    fake(tmp_path / "bin", machine, "slow")
    record(machine, tmp_path / "trace.dat")
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
        orderly_end(run.Terminated),
        run.recording(tmp_path, ["true"], [], scratch, output, OF_THIS_ONE),
    ):
        begun.append(1)
    with (
        pytest.raises(KeyboardInterrupt),
        orderly_end(run.Terminated),
        run.counting({}, OF_THIS_ONE, output),
    ):
        begun.append(1)
    assert not begun


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
    machine: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(tracing, "tracing_folder", lambda _root: machine)
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


def test_lost_events_are_counted_from_every_cpu(tmp_path: Path) -> None:
    for cpu, lost in enumerate((0, 3)):
        folder = tmp_path / f"per_cpu/cpu{cpu}"
        folder.mkdir(parents=True)
        text = f"entries: 9\noverrun: {lost}\ncommit overrun: 0\nnow ts:  12.5\ndropped events: 1\n"
        (folder / "stats").write_text(text)
    assert keeper.lost_events(tmp_path) == {"0": 1, "1": 4}


def test_the_keeper_ends_without_an_order() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", keeper.__file__], input=b'{"cut off', capture_output=True
    )
    assert done.returncode == 0
    assert done.stdout == b""


def test_help_says_what_the_experiment_found() -> None:
    result = load(ROOT / "docs/results/record-cost-x86_64.json", FORMAT)
    found = {x.name: {arm.name: arm.baseline for arm in x.arms} for x in analyse(result)}
    said = " ".join(CliRunner().invoke(cli.record, ["--help"]).output.split())

    def percent(factor: float | None) -> str:
        assert factor
        return f"{factor - 1:.0%}".replace("%", " %")

    fast, slow = found["period_100k_us"], found["period_10k_us"]
    assert fast["on"]
    assert fast["on"].ratio
    assert fast["histogram"]
    assert fast["histogram"].ratio
    assert f"is {percent(fast['on'].ratio.value)} slower" in said
    assert f"and {percent(fast['histogram'].ratio.value)} with --histogram" in said
    assert fast["least"]
    assert fast["least"].ratio
    assert f"makes it {percent(fast['least'].ratio.value)} slower with the three" in said
    missed = []
    for arm in ("on", "histogram"):
        shown = slow[arm]
        assert shown
        assert not shown.verdict.differs
        missed.append(percent(shown.detectable))
    assert f"no cost was shown: one of {missed[0]}, or of {missed[1]} with --histogram" in said
