# SPDX-License-Identifier: GPL-2.0-only
"""``lightsleep record``: its words, what it prints, what it refuses."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
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
from recorders import fake

from lightsleep.cli import main
from lightsleep.errors import LightsleepError
from lightsleep.record import cli, keeper, recorder, run, sidecar, trace_file, tracing
from lightsleep.record.bpf import pages, trace

pytest_plugins = "recorders"

BY_TRACE_CMD = ("--recorder", "trace-cmd")


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


def test_a_histogram_has_one_recorder() -> None:
    done = command("--histogram", *BY_TRACE_CMD)
    assert done.exit_code == 2
    assert "leave out --recorder" in done.output


NO_TYPES = "cannot read /sys/kernel/btf/vmlinux: No such file"


@pytest.fixture
def untyped(tracefs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tracefs of a machine whose kernel does not tell its types."""
    real, begin, count = cli.ROOT, sidecar.begin, sidecar.count
    (tmp_path / "root/sys/kernel").mkdir(parents=True)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    here = os.uname()
    common = os.uname_result((*here[:3], "#1 SMP", here.machine))  # not PREEMPT_RT
    monkeypatch.setattr(os, "uname", lambda: common)
    monkeypatch.setattr(recorder, "TRIED", (here.machine,))
    monkeypatch.setattr(tracing, "tracing_folder", lambda _root: tracefs)
    monkeypatch.setattr(sidecar, "begin", lambda _root, settings: begin(real, settings))
    monkeypatch.setattr(sidecar, "count", lambda _root, states: count(real, states))
    monkeypatch.setattr(cli, "ROOT", tmp_path / "root")
    return tracefs


def test_trace_cmd_records_where_bpf_programs_cannot(untyped: Path, tmp_path: Path) -> None:
    output = tmp_path / "trace.dat"
    done = command("-o", str(output), "--", "true")
    assert done.exit_code == 0, done.output
    assert f"note: trace-cmd records, and not BPF programs: {NO_TYPES}" in done.output
    document = json.loads(sidecar.beside(output).read_text())
    assert document["settings"]["recorder"] == "trace-cmd"
    said = f"recorded by trace-cmd, and not by BPF programs: {NO_TYPES}"
    assert document["recorded"]["notes"][0].startswith(said)
    assert done.output.count(NO_TYPES) == 1
    assert output.exists()
    assert not list((untyped / "instances").iterdir())


def test_who_asks_for_bpf_programs_gets_no_other(untyped: Path, tmp_path: Path) -> None:
    output = tmp_path / "trace.dat"
    done = command("--recorder", "bpf", "-o", str(output), "--", "true")
    assert done.exit_code == 1
    assert NO_TYPES in done.output
    assert "record without --recorder bpf" in done.output
    assert not output.exists()
    assert not list((untyped / "instances").iterdir())


def test_where_nothing_can_record_both_reasons_are_said(
    untyped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert untyped.is_dir()
    monkeypatch.setattr(run, "need_programs", missing)
    done = command("-o", str(tmp_path / "trace.dat"), "--", sys.executable)
    assert done.exit_code == 1
    assert "install it" in done.output
    assert NO_TYPES in done.output


def missing() -> None:
    raise LightsleepError("a program is missing: install it")


@pytest.mark.parametrize(
    ("release", "why"),
    [
        ("5.15.0-119", "on this machine they need Linux 5.18, and this is 5.15.0-119"),
        ("5.18.1", "the kernel refuses them: "),
    ],
)
def test_trace_cmd_records_where_the_kernel_refuses_programs(
    release: str, why: str, tracefs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    uname = os.uname_result(("Linux", "here", release, "#1", "x86_64"))
    monkeypatch.setattr(os, "uname", lambda: uname)
    monkeypatch.setattr(tracing, "tracing_folder", lambda _root: tracefs)
    order: dict[str, Any] = {"room": 1, "pages": 16, "buffers": {"0": 3}, "probes": {}}
    order |= {"programs": {"sched_waking": {"code": "", "maps": {}}}, "formats": {}}
    monkeypatch.setattr(trace, "kernel_types", lambda _root: None)
    monkeypatch.setattr(trace, "tracepoints", lambda _types: {x.name for x in tracing.EVENTS})
    monkeypatch.setattr(trace, "order", lambda *_arguments: order)  # no kernel takes an empty one
    output = tmp_path / "trace.dat"
    done = command("-o", str(output), "--", "true")
    assert done.exit_code == 0, done.output
    assert f"note: trace-cmd records, and not BPF programs: {why}" in done.output
    assert json.loads(sidecar.beside(output).read_text())["settings"]["recorder"] == "trace-cmd"
    assert not list(tmp_path.glob(".lightsleep-*"))


def test_a_histogram_removes_leftovers_as_well(
    untyped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begun(*_arguments: object) -> None:
        raise LightsleepError("enough")

    folders = list[Path]()

    def removed(folder: Path) -> list[str]:
        folders.append(folder)
        return []

    monkeypatch.setattr(cli, "ROOT", Path("/"))
    monkeypatch.setattr(tracing, "remove_leftovers", removed)
    monkeypatch.setattr(run, "counting", begun)
    done = command("--histogram", "-o", str(tmp_path / "x.json"), "--", "true")
    assert "enough" in done.output
    assert folders == [untyped]


def test_leftovers_that_cannot_be_looked_for_stop_no_recording(
    untyped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(folder: Path) -> list[str]:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(folder))

    assert untyped.is_dir()
    monkeypatch.setattr(tracing, "remove_leftovers", forbidden)
    done = command("-o", str(tmp_path / "trace.dat"), "--", "true")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("machine", "version", "first"),
    [
        ("x86_64", "#1 SMP PREEMPT_DYNAMIC Debian 6.12.117-1 (2026-11-20)", True),
        ("aarch64", "#1 SMP Debian 6.12.117-1 (2026-11-20)", True),
        ("x86_64", "#1 SMP PREEMPT_RT Debian 6.12.117-1 (2026-11-20)", False),
        ("ppc64le", "#1 SMP", False),
    ],
)
def test_bpf_programs_are_tried_first_where_tests_have_had_them_record(
    machine: str, version: str, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    uname = os.uname_result(("Linux", "here", "6.12", version, machine))
    monkeypatch.setattr(os, "uname", lambda: uname)
    assert recorder._bpf_first() == first


@pytest.mark.parametrize(
    ("release", "needs"),
    [("6.1.0-56-rt-amd64", True), ("6.11.10", True), ("6.12.117+deb13-rt", False), ("7.3", False)],
)
def test_programs_that_may_sleep_where_nothing_may_are_refused(
    release: str, needs: bool, untyped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert untyped.is_dir()
    uname = os.uname_result(("Linux", "here", release, "#1 SMP PREEMPT_RT", "x86_64"))
    monkeypatch.setattr(os, "uname", lambda: uname)
    done = command("--recorder", "bpf", "-o", str(tmp_path / "trace.dat"), "--", "true")
    assert done.exit_code == 1
    assert ("with PREEMPT_RT, they need Linux 6.12, and this is" in done.output) == needs


@pytest.mark.parametrize(("probes", "programs"), [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("who", ["auto", "bpf"])
def test_trace_cmd_has_more_only_where_it_can_record(
    probes: bool,
    programs: bool,
    who: str,
    tracefs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orders = []

    def stop(order: dict[str, Any], *_arguments: object) -> None:
        orders.append(order)
        raise LightsleepError("enough")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(recorder, "_bpf_first", lambda: True)
    monkeypatch.setattr(recorder, "_is_realtime", lambda: False)
    monkeypatch.setattr(tracing, "tracing_folder", lambda _root: tracefs)
    monkeypatch.setattr(trace, "kernel_types", lambda _root: None)
    monkeypatch.setattr(trace, "tracepoints", lambda _types: {x.name for x in tracing.EVENTS})
    monkeypatch.setattr(trace, "order", lambda *_arguments: {})
    monkeypatch.setattr(run, "tracing_by_bpf", stop)
    if not probes:
        (tracefs / "kprobe_events").unlink()
    if not programs:
        monkeypatch.setattr(run, "need_programs", missing)
    output = tmp_path / "trace.dat"
    done = command("--recorder", who, "-o", str(output), "--", "true")
    assert "enough" in done.output
    assert [x["all_probes"] for x in orders] == [who == "auto" and probes and programs]


@pytest.mark.parametrize(
    ("code", "all_probes", "refused"),
    [({"code": ""}, True, True), ({"code": ""}, False, False), (None, True, False)],
)
def test_programs_that_miss_what_trace_cmd_has_stand_aside(
    code: dict[str, str] | None,
    all_probes: bool,
    refused: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    class Rings:
        def __init__(self, _order: dict[str, Any]) -> None:
            pass

        def open(self, *_arguments: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pages, "Rings", Rings)
    monkeypatch.setattr(keeper, "_attached", lambda *_arguments: ([], [], "it cannot"))
    monkeypatch.setattr(keeper, "_tell", lambda _answer: None)
    monkeypatch.setattr(trace_file, "head", lambda *_arguments: b"")
    order = {"scratch": str(tmp_path / ".x/trace"), "output": str(tmp_path / "x"), "document": {}}
    report = keeper.trace(order | {"probes": {"sleep": code}, "all_probes": all_probes})
    assert report.get("refused", False) == refused
    assert report["failed"] == (
        "they would miss the governor's sleep length, as the kernel refuses that program: it cannot"
        if refused
        else f"cannot record to {tmp_path / 'x'}: No space left on device"
    )


@pytest.mark.parametrize("dashes", [(), ("--",)])
def test_options_after_the_command_are_its_own(
    dashes: tuple[str, ...], traced: Path, tmp_path: Path
) -> None:
    output, seen = tmp_path / "trace.dat", tmp_path / "seen"
    script = tmp_path / "script"
    script.write_text(f'#!/bin/sh\nprintf "%s" "$*" > {seen}\n')
    script.chmod(0o755)
    words = ("-c", "99", "-o", "out", "--for", "-x", "--", "--help")
    done = command(*BY_TRACE_CMD, "-c", "0", "-o", str(output), *dashes, str(script), *words)
    assert done.exit_code == 0, done.output
    assert seen.read_text() == " ".join(words)
    settings = json.loads(sidecar.beside(output).read_text())["settings"]
    assert (settings["cpus"], settings["command"]) == ("0", [str(script), *words])
    assert not list((traced / "instances").iterdir())


@pytest.mark.parametrize(
    ("words", "status"),
    [(("-c", "9999", "--", "true"), 2), (("--", "/no/such"), 1), (("--", "true"), 1)],
)
def test_a_recording_that_does_not_begin_leaves_no_folder(
    words: tuple[str, ...], status: int, traced: Path, tmp_path: Path
) -> None:
    fake(tmp_path / "bin", traced, "broken")
    done = command(*BY_TRACE_CMD, "-o", str(tmp_path / "new/deep/x"), *words)
    assert done.exit_code == status, done.output
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_new_folder_belongs_to_who_called_sudo(
    traced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert traced.is_dir()
    monkeypatch.setenv("SUDO_UID", "1234")
    monkeypatch.setenv("SUDO_GID", "2345")
    output = tmp_path / "new/deep/x"
    assert command(*BY_TRACE_CMD, "-o", str(output), "--", "true").exit_code == 0
    found = [path.stat() for path in (output, *output.parents[:3])]
    assert [(x.st_uid, x.st_gid) for x in found] == [(1234, 2345)] * 3 + [(0, 0)]


def test_a_folder_that_cannot_be_made_is_told(
    traced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    assert traced.is_dir()
    monkeypatch.setattr(Path, "mkdir", full)
    done = command(*BY_TRACE_CMD, "-o", str(tmp_path / "new/x"), "--", "true")
    assert done.exit_code == 1
    assert f"cannot write {tmp_path / 'new/x'}: No space left on device" in done.output


@pytest.mark.parametrize("kind", [("--histogram",), BY_TRACE_CMD])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_before_a_recording_has_begun_is_its_status(
    number: signal.Signals,
    status: int,
    kind: tuple[str, ...],
    traced: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert traced.is_dir()
    monkeypatch.setattr(run, "_keeper", lambda: os.kill(os.getpid(), number))
    done = command(*kind, "-o", str(tmp_path / "new/x"), "--", "true")
    assert done.exit_code == status
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("of_command", [False, True])
def test_a_signal_while_the_file_is_written_changes_nothing(
    of_command: bool,
    number: signal.Signals,
    traced: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextlib.contextmanager
    def progress(_seconds: float | None) -> Iterator[Callable[[float], None]]:
        yield lambda _passed: None if of_command else os.kill(os.getpid(), number)

    def written(_scratch: Path) -> tuple[int, int]:
        os.kill(os.getpid(), number)
        return 0, 1

    fake(tmp_path / "bin", traced, "slow")
    monkeypatch.setattr(cli, "_progress", progress)
    monkeypatch.setattr(run, "SILENT_S", 0.1)
    monkeypatch.setattr(run, "_written", written)
    words = ("--", "sh", "-c", "exit 7") if of_command else ("--for", "1h")
    done = command(*BY_TRACE_CMD, "-o", str(tmp_path / "x"), *words)
    assert done.exit_code == (7 if of_command else 128 + number), done.output
    assert "recorded" in done.output
    assert json.loads(sidecar.beside(tmp_path / "x").read_text())["window_ns"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", ["late, hangs", "hangs"])
def test_a_trace_cmd_that_hangs_can_be_left(
    name: str,
    number: signal.Signals,
    traced: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    @contextlib.contextmanager
    def progress(_seconds: float | None) -> Iterator[Callable[[float], None]]:
        yield lambda _passed: os.kill(os.getpid(), number)

    def written(_scratch: Path) -> tuple[int, int]:
        os.kill(os.getpid(), number)
        return 0, 1

    def started(_instance: Path, process: subprocess.Popen[bytes]) -> bool:
        while not list((traced / "instances").glob("*/tracing_on")):
            time.sleep(0.01)
        if name != "hangs":
            os.kill(os.getpid(), number)
        return process.poll() is None

    fake(tmp_path / "bin", traced, name)
    monkeypatch.setattr(cli, "_progress", progress)
    monkeypatch.setattr(run, "_await_start", started)
    monkeypatch.setattr(run, "SILENT_S", 0.1)
    monkeypatch.setattr(run, "HANGS_S", 0.3)
    monkeypatch.setattr(run, "_written", written)
    with pytest.raises(SystemExit) as ended:
        main([*("record", *BY_TRACE_CMD, "-o"), str(tmp_path / "x")], standalone_mode=False)
    assert ended.value.code == 128 + number
    said = capfd.readouterr().err
    assert ("nothing was written for 0 s; Ctrl-C ends the wait" in said) == (name == "hangs")
    found = re.search(r"process (\d+) goes on, finishes the file", said)
    assert found
    keeper_pid = int(found[1])
    children = Path(f"/proc/{keeper_pid}/task/{keeper_pid}/children").read_text()
    os.kill(int(children), signal.SIGKILL)
    assert os.waitpid(keeper_pid, 0)[1] == 0
    kept = list(tmp_path.glob(".lightsleep-*/*"))
    assert any(".cpu" in x.suffix for x in kept) if name == "hangs" else not kept


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
    words = ["--json", *BY_TRACE_CMD, "-o", str(tmp_path / "trace.dat")]
    words += ["--", "echo", "of the command"]
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
    done = command(*BY_TRACE_CMD, "-o", str(output), "--", "true")
    assert output.exists() == replaced, done.output
    if replaced:
        assert json.loads(document.read_text())["recorded"]
        return
    assert done.exit_code == 1
    said = f"{document} is there, and describes no recording: this one would overwrite it. Name"
    assert said in done.output
    assert document.read_text() == beside


def test_a_link_that_takes_the_place_of_the_document_leads_nowhere(
    traced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert traced.is_dir()
    output, victim, real = tmp_path / "web", tmp_path / "victim", sidecar.end
    victim.write_text("root's")

    def linked(*known: Any) -> dict[str, Any]:
        sidecar.beside(output).unlink()
        sidecar.beside(output).symlink_to(victim)
        return real(*known)

    monkeypatch.setattr(sidecar, "end", linked)
    done = command(*BY_TRACE_CMD, "-o", str(output), "--", "true")
    assert done.exit_code == 1
    assert f"cannot write {sidecar.beside(output)}: it is a link" in done.output
    assert victim.read_text() == "root's"


def command(*words: str) -> Result:
    return CliRunner().invoke(cli.record, words)


@pytest.mark.parametrize(
    ("name", "size", "said"),
    [
        (
            "a.dat",
            99_949,
            "recorded 1.0 s in a.dat (99.9 kB); see it with: lightsleep report a.dat",
        ),
        (
            "a.dat",
            100_000,
            "recorded 1.0 s in a.dat (0.1 MB); see it with: lightsleep report a.dat",
        ),
        (
            "a b\nc",
            0,
            "recorded 1.0 s in 'a b\nc' (0.0 kB); see it with: lightsleep report 'a b\nc'",
        ),
        (
            os.fsdecode(b"\xff"),
            1000,
            "recorded 1.0 s in '\ufffd' (1.0 kB); see it with: lightsleep report '\ufffd'",
        ),
    ],
)
def test_the_last_line_can_be_pasted(
    name: str, size: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cli._show(Path(name), {"elapsed_s": 1.0, "bytes": size, "notes": []}, False)
    assert capsys.readouterr().err == f"{said}\n"


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("/etc/passwd", 1, "cannot run /etc/passwd: this is no executable file"),
        ("./", 1, "cannot run ./: this is no executable file"),
        ("./nowhere", 1, "cannot run ./nowhere: there is no such program"),
        ("etc", 1, "cannot run etc: there is no such program"),
        ("", 2, "cannot run '': this names no program"),
    ],
)
def test_what_is_no_program(
    name: str, status: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "etc").mkdir()
    done = command("--", name)
    assert (done.exit_code, done.output) == (status, f"Error: {said}\n")


@pytest.mark.parametrize("text", ["30", "0s", "-1s", "s", "1e9s", "1 week"])
def test_what_is_no_time(text: str) -> None:
    done = command("--for", text)
    assert done.exit_code == 2
    assert "is no time" in done.output


def test_a_command_and_a_time_contradict_each_other() -> None:
    done = command("--for", "1s", "--", "true")
    assert done.exit_code == 2
    assert "not both" in done.output


ARMS = ("bpf", "trace-cmd", "histogram")


def test_help_says_what_the_experiment_found() -> None:
    name = "docs/results/record-cost-x86_64.md"
    short, long = (ROOT / name).read_text().split("\n### ")[:0:-1]
    said = " ".join(CliRunner().invoke(cli.record, ["--help"]).output.split())
    for period, words in (
        (short, "is {} times slower while BPF programs record it, {} times while trace-cmd does, "),
        (short, "trace-cmd does, and {2} times with --histogram. "),
        (long, "With 10,000 periods, it is {}, {}, and {} times slower."),
    ):
        each = [re.findall(rf"(?m)^\| {arm} \|.* ✘ (\S+) × slower", period) for arm in ARMS]
        assert words.format(*(figure for (figure,) in each)) in said
    assert name in said
