# SPDX-License-Identifier: GPL-2.0-only
"""Text of traces, of whatever tool: read as it is meant, refused where it is damaged."""

from __future__ import annotations

import gzip
import os
import shutil
import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from recordings import PIPE, RECORDINGS, page_of, rows_of
from traces import SWITCH, event, idle, left, switched, waking

from lightsleep.errors import LightsleepError
from lightsleep.periods import lines, systrace
from lightsleep.periods.formats import is_recording
from lightsleep.periods.lost import NAMELESS, time_lost
from lightsleep.periods.paths import expanded
from lightsleep.periods.source import open_recording
from lightsleep.replay.cli import replay_command
from lightsleep.report.cli import report

pytest_plugins = "traces"

PERF = (b"PERFILE2", b"2ELIFREP")
"""How a perf.data begins, by the byte order of the machine that recorded it."""

LINES_WITHOUT_EVENTS = (
    "    46c8e3 runtime.futex+0x23 (/usr/bin/dockerd)\n",
    "         0 [unknown] ([unknown])\n",
    "CPU 1 is empty\n",
    "          <idle>-0       [000] d.h.. 10.000001: schedule <-do_idle\n",
    "          <idle>-0       [000] d.h.. 10.000001: <stack trace>\n",
    "            perf 12744 [001] 15614.477315:     250000 cpu-clock: \n",
    "            perf 12744 [001] 15614.477315:     1 cpu_core/cycles/P:  ffffffff81 f+0x0 (x)\n",
    "    kworker/u8:1 44/12 [001] 15614.477315661:          1 cpu/event=0x3c,umask=1/u: \n",
    "            perf 12744 [001] 15614.477315:  intel_pt//:  psb: 0 pt: 0\n",
)


def test_lines_of_tracers_that_are_no_events_are_skipped(trace: Any) -> None:
    period = idle(0, 1, 2), waking(20, 0, 42), left(90, 1), switched(95, 1, "t", 42)
    assert trace(*(x for line in period for x in (line, *LINES_WITHOUT_EVENTS))) == trace(*period)


def test_a_task_with_a_deadline_has_no_priority_to_show(trace: Any) -> None:
    """trace-cmd and perf print -1."""
    (row,) = trace(
        event(
            0, 1, "sched_switch:         sugov:0:123 [-1] S ==> swapper/1:0 [120]", "sugov:0-123"
        ),
        idle(1, 1, 2),
        event(20, 0, "sched_waking:         sugov:0:123 [-1] CPU:001", "waker-7"),
        left(90, 1),
        event(95, 1, "sched_switch:         swapper/1:0 [120] R ==> sugov:0:123 [-1]"),
    )
    assert (row["wakee_comm"], row["wakee_pid"], row["waking_to_running_ns"]) == (
        "sugov:0",
        123,
        75_000,
    )


@pytest.mark.parametrize("text", [" " * 65536, "a: " + " " * 65536, "a:" * 32768, "- " * 32768])
def test_a_long_line_takes_no_long_time(text: str) -> None:
    begin_s = time.process_time()
    assert not lines.LINE.match(text)
    assert not lines._known(f"{text}x")
    assert time.process_time() - begin_s < 2


def test_cpus_of_a_list_are_no_mask(trace: Any) -> None:
    assert lines._cpus_of("100-1023") == list(range(100, 1024))
    assert lines._cpus_of("00000001,00000003") == [0, 1, 32]


@pytest.mark.parametrize("event", ["tracing_mark_write", "print"])
def test_a_program_may_write_any_text_into_a_trace(event: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    mark = f"          python3-77      [000] .....     0.000010: {event}: first line\n"
    text = "second line of the marker, which is longer than a name and its padding\n\nthe third\n"
    path.write_text(idle(0, 1, 1) + mark + text + left(50, 1) + idle(60, 1, 1) + left(61, 1))
    assert len(rows_of(path)[0]) == 2
    path.write_text(idle(0, 1, 1) + mark + text + 50 * f"{'x' * 99}\n" + left(50, 1))
    with pytest.raises(LightsleepError, match="no event: 'xxx"):
        rows_of(path)
    path.write_text(idle(0, 1, 1) + text + left(50, 1))
    with pytest.raises(LightsleepError, match="no event: 'second line"):
        rows_of(path)


def test_lost_events_make_no_periods(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    lost = "CPU:1 [LOST 12 EVENTS]\n", "CPU:1 [3 EVENTS DROPPED]\n", "CPU:1 [EVENTS DROPPED]\n"
    path.write_text(idle(0, 1, 1) + lost[0] + left(50, 1) + idle(60, 1, 1) + left(61, 1))
    rows, metadata = rows_of(path)
    assert len(rows) == 1
    assert metadata.lost == {1: 12}
    assert metadata.incomplete == 1
    path.write_text(idle(0, 1, 1) + "".join(lost))
    assert rows_of(path)[1].lost == {1: 16}
    path.write_text(idle(0, 1, 1) + "CPU:1 [LOST EVENTS]\n")  # the kernel may not know how many
    assert rows_of(path)[1].lost == {1: 1}
    perf = "ld-linux 12744 [001] 15614.477315661: PERF_RECORD_LOST lost 4\n"
    path.write_text(idle(0, 1, 1) + perf)
    assert rows_of(path)[1].lost == {1: 4}


@pytest.mark.parametrize(("written", "told"), [(2, False), (1202, True)])
def test_events_that_the_kernel_has_overwritten_are_told(
    written: int, told: bool, tmp_path: Path
) -> None:
    path = tmp_path / "trace.txt"
    header = f"# tracer: nop\n#\n# entries-in-buffer/entries-written: 2/{written}   #P:2\n#\n"
    path.write_text(header + idle(0, 1, 1) + left(50, 1))
    rows, metadata = rows_of(path)
    assert len(rows) == 1
    assert ("the kernel had overwritten 1,200 events, the oldest" in str(metadata.notes)) == told


def test_a_task_may_have_no_name(trace: Any) -> None:
    nameless = waking(10, 0, 9, "-77"), switched(20, 1, "", 9)
    (row,) = trace(idle(0, 1, 1), nameless[0], left(15, 1), nameless[1])
    assert (row["waker_comm"], row["waker_pid"], row["wakee_pid"]) == ("", 77, 9)
    (row,) = trace(
        "swapper     0 [001]    10.000000001: power:cpu_idle: state=1 cpu_id=1\n",
        "           77 [000]    10.000010001: sched:sched_waking: comm= pid=9 prio=120\n",
        left(15, 1),
        switched(20, 1, "x", 9),
    )
    assert (row["waker_comm"], row["waker_pid"]) == ("", 77)


def padded(us: int, cpu: int, text: str, comm: str, pid: int) -> str:
    """Return an event as the kernel and perf pad it."""
    return f"{comm:>16}-{pid:<7} [{cpu:03}] d..1. 10.{us:06}: {text}\n"


def as_trace_cmd_pads_it(us: int, cpu: int, text: str, comm: str, pid: int) -> str:
    name, _, fields = text.partition(" ")
    return "buffer_1: " + padded(us, cpu, f"{name:<20} {fields}", comm, pid)


@pytest.mark.parametrize("name", ["a\nb", "a\n\n\nb", "\nb", "a\n", "a b\n# c d\n e", "\n" * 15])
@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("padded", [padded, as_trace_cmd_pads_it])
def test_names_with_newlines(trace: Any, name: str, old: bool, padded: Any) -> None:
    def switch(us: int, before: tuple[str, int], after: tuple[str, int]) -> str:
        text = (
            f"sched_switch: {before[0]}:{before[1]} [120] S ==> {after[0]}:{after[1]} [120]"
            if old
            else SWITCH.format(*before, *after)
        )
        return str(padded(us, 1, text, *before))

    wakes = f"sched_waking: {name}:42 [120] CPU:001" if old else f"sched_waking: comm={name} pid=42"
    wakes += "" if old else " prio=120 target_cpu=001"
    other = f"sched_stat_runtime: comm={name} pid=42 runtime=5 [ns]"
    lines = [
        switch(0, (name, 42), ("swapper/1", 0)),
        idle(1, 1, 2),
        padded(10, 0, other, name, 7),
        padded(11, 0, wakes, name, 7),
        left(15, 1),
        switch(20, ("swapper/1", 0), (name, 42)),
        switch(25, (name, 42), (name, 43)),
    ]
    (row,) = trace(*lines)
    assert (row["wakee_comm"], row["wakee_pid"], row["waker_pid"]) == (name, 42, 7)
    assert row["waking_to_running_ns"] == 9000
    # Of blank lines before it, nobody can say that they belong to the name.
    assert row["waker_comm"] == (name.strip() and name.lstrip("\n"))


def test_a_name_with_a_newline_at_the_end_of_the_file(trace: Any) -> None:
    with pytest.raises(LightsleepError, match=r"line 4: fields missing in 'comm=a'"):
        trace(idle(0, 1, 1), padded(11, 0, "sched_waking: comm=a", "b", 7))


@pytest.mark.parametrize(
    ("named", "waker"),
    [
        ("", "<...>"),
        (event(1, 0, SWITCH.format("swapper/0", 0, "old", 7)), "old"),
        (event(1, 0, SWITCH.format("old", 7, "swapper/0", 0), "old-7"), "old"),
        (event(1, 0, SWITCH.format("old", 7, "new", 7), "old-7"), "new"),
        (event(1, 0, "sched_switch: old:7 [120] S ==> swapper/0:0 [120]", "<...>-7"), "old"),
        (event(1, 0, "sched_waking: comm=old pid=7 prio=120 target_cpu=0", "x-8"), "old"),
        (event(1, 0, "sched_waking: old:7 [120] CPU:000", "x-8"), "old"),
        (event(1, 0, "sched_waking: comm=old pid=9 prio=120 target_cpu=0", "x-8"), "<...>"),
    ],
)
def test_names_that_the_kernel_has_not_kept(trace: Any, named: str, waker: str) -> None:
    woken = waking(10, 0, 42, "<...>-7"), left(15, 1), switched(20, 1, "x", 42)
    rows = trace(idle(0, 1, 1), named, *woken)
    assert [x["waker_comm"] for x in rows if x["cpu"] == 1] == [waker]


def test_perf_knows_what_a_task_is_called_now(trace: Any) -> None:
    old = "x 0 [000] 10.000001001: sched:sched_switch: " + SWITCH[14:].format("y", 0, "old", 7)
    for comm, waker in (("new", "new"), (":7", "old")):
        (row,) = trace(
            "swapper 0 [001] 10.000000001: power:cpu_idle: state=1 cpu_id=1\n",
            f"{old}\n",
            f"{comm} 7 [000] 10.000010001: sched:sched_waking: comm=x pid=42 prio=120\n",
            left(15, 1),
            switched(20, 1, "x", 42),
        )
        assert row["waker_comm"] == waker


def by_perf(us: int, cpu: int, text: str, task: str) -> str:
    return f"{task} [{cpu:03}] 10.{us:06}: {text}\n"


def switched_by_perf(us: int, before: tuple[str, int], after: tuple[str, int], task: str) -> str:
    return by_perf(us, 0, f"sched:{SWITCH.format(*before, *after)}", task)


IDLE, HOSTS, OURS = ("swapper/0", 0), ("w", 4711), ("v", 4712)


@pytest.mark.parametrize(
    ("task", "waker"),
    [
        ("swapper 0", HOSTS),  # of the host, which perf does not know in a container
        ("v 17", OURS),  # of the container, where it has another number
        ("v 17/18", OURS),
        (":-1    -1", OURS),
        (":-1 -1/-1", OURS),
    ],
)
def test_who_wakes_is_who_runs_where_perf_knows_other_numbers(
    trace: Any, task: str, waker: tuple[str, int]
) -> None:
    wakes = by_perf(10, 0, "sched:sched_waking: comm=x pid=42 prio=120 target_cpu=001", task)
    (row,) = trace(
        switched_by_perf(1, IDLE, OURS, "swapper 0"),
        switched_by_perf(2, OURS, HOSTS, "v 17"),
        *([switched_by_perf(3, HOSTS, OURS, "swapper 0")] if waker == OURS else []),
        idle(4, 1, 1),
        wakes,
        left(15, 1),
        switched(20, 1, "x", 42),
    )
    assert (row["waker_comm"], row["waker_pid"]) == waker
    assert row["waking_to_running_ns"] == 10_000
    lost = "v 17 [000] 10.000005: PERF_RECORD_LOST lost 3\n"
    (row,) = trace(
        switched_by_perf(1, OURS, HOSTS, "v 17"),
        idle(4, 1, 1),
        lost,
        wakes,
        left(15, 1),
        switched(20, 1, "x", 42),
    )
    assert (row["wakee_pid"], row["waker_comm"], row["waker_pid"]) == (42, None, None)
    assert (row["waker_cpu"], row["waking_to_running_ns"]) == (0, 10_000)


@pytest.mark.parametrize("task", ["v 17", "swapper 0", ":-1 -1"])
def test_a_wakeup_counts_where_nobody_knows_who_wakes(task: str, tmp_path: Path) -> None:
    """A CPU that runs one task all the time does not switch."""
    path = tmp_path / "perf.txt"
    wakes = by_perf(10, 2, "sched:sched_waking: comm=x pid=42 prio=120 target_cpu=001", task)
    text = switched_by_perf(1, OURS, HOSTS, "v 17"), idle(4, 1, 1), wakes, left(15, 1)
    path.write_text("".join([*text, switched(20, 1, "x", 42)]))
    (row,), metadata = rows_of(path)
    assert (row["waker_comm"], row["waker_pid"], row["waker_cpu"]) == (None, None, 2)
    assert row["waking_to_running_ns"] == 10_000
    assert not any("sched_waking" in note for note in metadata.notes)
    lost = time_lost(metadata, open_recording(path).batches)
    assert lost.all.count == 1
    assert list(lost.groups["waker"]) == [NAMELESS]


@pytest.mark.parametrize(
    ("task", "waker"),
    [("b 78", ("b", 78)), ("swapper 0", ("swapper", 0)), (":-1 -1", ("a", 77))],
)
@pytest.mark.parametrize("ended", [":-1 -1", "swapper 0"])  # the latter before Linux 4.14
def test_perf_is_right_about_who_wakes_in_its_own_namespace(
    trace: Any, ended: str, task: str, waker: tuple[str, int]
) -> None:
    """A filter, or a loss that is told later, may hide switches."""
    (row,) = trace(
        switched_by_perf(1, ("c", 79), IDLE, ended),
        switched_by_perf(2, IDLE, ("a", 77), "swapper 0"),
        idle(4, 1, 1),
        by_perf(10, 0, "sched:sched_waking: comm=x pid=42 prio=120 target_cpu=001", task),
        left(15, 1),
        switched(20, 1, "x", 42),
    )
    assert (row["waker_comm"], row["waker_pid"]) == waker


def test_perf_tells_threads_and_what_it_has_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, path = tmp_path / "perf", tmp_path / "perf.data"
    path.write_bytes(b"PERFILE2" + bytes(100))
    program.write_text(
        "#!/bin/sh\n"
        'case "$*" in *"comm,tid,cpu,time"*--show-lost-events*) ;; *) exit 1 ;; esac\n'
        'echo "x 5 [001] 9.000020001: PERF_RECORD_LOST lost 3"\n'
        'echo "swapper 0 [001] 10.000000001: power:cpu_idle: state=1 cpu_id=1"\n'
        'echo "swapper 0 [001] 10.000010001: power:cpu_idle: state=4294967295 cpu_id=1"\n'
        """echo "'trace' not valid for hardware events. Ignoring." >&2\n"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    rows, metadata = rows_of(path)
    assert len(rows) == 1
    assert metadata.lost == {1: 3}
    assert not any("says" in note for note in metadata.notes)


def test_a_folder_that_perf_made_is_read_by_perf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As perf record --threads makes one, which has the samples in further files."""
    program, path = tmp_path / "perf", tmp_path / "of threads" / "perf.data"
    path.mkdir(parents=True)
    (path / "data").write_bytes(b"PERFILE2" + bytes(100))
    program.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *"-i {path}") ;; *) exit 1 ;; esac\n'
        'echo "swapper 0 [001] 10.000000001: power:cpu_idle: state=1 cpu_id=1"\n'
        'echo "swapper 0 [001] 10.000010001: power:cpu_idle: state=4294967295 cpu_id=1"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert list(expanded([path])) == [path]
    rows, _ = rows_of(path)
    assert len(rows) == 1
    (path / "data").write_text("no file of perf")
    with pytest.raises(LightsleepError, match="no tables of idle periods below"):
        list(expanded([path]))


def test_a_file_that_is_too_new_for_this_perf_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, path = tmp_path / "perf", tmp_path / "perf.data"
    path.write_bytes(b"PERFILE2" + bytes(100))
    said = "incompatible file format (rerun with -v to learn more)"
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 255\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(LightsleepError, match="perf ended with status 255") as caught:
        rows_of(path)
    assert "older than the one that recorded: there, run perf script -F comm,tid,cpu," in (
        caught.value.format_message()
    )


@pytest.mark.parametrize("inside", [b"\x17\x08\x44tracing6\0", *PERF, b"PAR1"])
def test_only_text_is_read_compressed(inside: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(inside + bytes(1000)))
    with pytest.raises(LightsleepError, match="unpack it first, with gunzip"):
        rows_of(path)


def test_text_of_perf_script_and_of_older_tools(trace: Any) -> None:
    (row,) = trace(
        "swapper     0 [001]    10.000000001: power:cpu_idle: state=1 cpu_id=1\n",
        "a b  77/78 [000]    10.000010001: sched:sched_waking: y:9 [120] CPU:001\n",
        "\tffffffff81234567 try_to_wake_up+0x1 ([kernel.kallsyms])\n",
        "lightsleep_1: <idle>-0 [001] dN.1. 10.000020001: cpu_idle: state=4294967295 cpu_id=1\n",
        "  <idle>-0  (-----) [001] 10.000030001: sched_switch: swapper/1:0 [120] R ==> y:9 [120]\n",
    )
    assert (row["length_ns"], row["waker_comm"], row["waker_pid"]) == (20_000, "a b", 78)
    assert (row["wakee_comm"], row["waking_to_running_ns"]) == ("y", 20_000)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("rubbish\n", "line 4: no event: 'rubbish'"),
        ("rubbish\n" + idle(5, 1, 1), "line 4: no event: 'rubbish'"),
        ("rubbish\n\n" + idle(5, 1, 1), "line 4: no event: 'rubbish'"),
        ("rub: bish\n" + idle(5, 1, 1), "line 4: no event: 'rub: bish'"),
        ("rub\nbish\n" + idle(5, 1, 1), "line 4: no event: 'rub"),
        ("much more rubbish\n" + idle(5, 1, 1), "line 4: no event: 'much more rubbish'"),
        (idle(5, 1, 1)[:-12] + "\n state=1 cpu_id=1\n", "line 4: fields missing"),
        (waking(5, 0, 3)[:-30] + "\nrubbish\n", "line 4: fields missing"),
        (idle(5, 1, 1)[:-12] + "\n", "line 4: fields missing"),
        (event(5, 1, "cpu_idle: state=77777 cpu_id=1"), "no kernel has an idle state 77777"),
        (event(5, 1, "cpu_idle: state=1 cpu_id=2"), "CPU 1 cannot enter a state for CPU 2"),
        (idle(5, 1, 1)[:-1], "line 4 is cut off"),
        (event(5, 1, "ipi_send_cpumask: cpumask=9-2 callsite=a"), "runs backwards"),
        (left(5, 1).replace(" 10.", " 9."), "time runs backwards on CPU 1"),
        (waking(5, 0, 3, "x-9999999999"), "no kernel has a process 9999999999"),
    ],
)
def test_damaged_text(trace: Any, line: str, said: str) -> None:
    with pytest.raises(LightsleepError, match=r"trace\.txt: line 4") as caught:
        trace(idle(1, 1, 1), line)
    assert said in caught.value.message
    assert caught.value.message.count("line ") == 1


@pytest.mark.parametrize(
    "data", [b"PAR1", b"\x17\x08\x44tracing6\0", *(head + bytes(200) for head in PERF)]
)
def test_files_with_a_head_and_nothing_else(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "head"
    path.write_bytes(data)
    assert is_recording(path)
    if data.startswith(PERF) and not shutil.which("perf"):
        pytest.skip("perf is not installed")
    if data.startswith(b"\x17") and not shutil.which("trace-cmd"):
        pytest.skip("trace-cmd is not installed")
    with pytest.raises(LightsleepError, match="head"):
        rows_of(path)


def test_a_trace_without_our_events(trace: Any) -> None:
    with pytest.raises(LightsleepError, match="none of the events"):
        trace(event(0, 1, "sched_stat_runtime: comm=x pid=1 runtime=5"))


def test_a_result_is_no_recording(tmp_path: Path) -> None:
    for text in ("", "{}", '{"schema": "lightsleep.compare"}', "not JSON at all"):
        path = tmp_path / "result.json"
        path.write_text(text)
        assert not is_recording(path)


def test_the_trace_of_a_systrace_page(tmp_path: Path) -> None:
    text = gzip.decompress(PIPE.read_bytes())
    (tmp_path / "x.txt").write_bytes(text)
    (tmp_path / "x.html").write_bytes(page_of(text))
    assert is_recording(tmp_path / "x.html")
    plain, _ = rows_of(tmp_path / "x.txt")
    assert rows_of(tmp_path / "x.html")[0] == plain
    assert len(plain) > 100
    # In whatever pieces it comes.
    for size in (1, 7, 65_536):
        # Its tags are indented, which belongs to no line; other blanks do.
        for trace in (text[:20_000], b" \t\n" * 9, b"x" + b" " * 999 + b"\n"):
            page = page_of(trace)[299_000:]
            pieces = [page[n : n + size] for n in range(0, len(page), size)]
            assert b"".join(systrace.traces(pieces)) == b"# tracer: nop\n#\n" + trace
    (tmp_path / "y.html").write_bytes(b"<!DOCTYPE html><html><body>A page.</body></html>")
    with pytest.raises(LightsleepError, match="none of the events"):
        rows_of(tmp_path / "y.html")


@pytest.mark.parametrize("name", ["ftrace.txt.gz", "perf-script.txt.gz"])
def test_what_other_tools_write(name: str) -> None:
    rows, metadata = rows_of(RECORDINGS / name)
    assert "is missing" in metadata.notes[0]
    assert {row["ended_by"] for row in rows} >= {"ipi", "tick"}
    assert [x for x in rows if x["wakee_comm"] == "sched-pipe" and x["waking_to_running_ns"]]


@pytest.mark.parametrize("command", [report, replay_command])
def test_what_is_no_file_is_refused_before_it_is_read(
    command: click.Command, tmp_path: Path
) -> None:
    text = gzip.decompress(PIPE.read_bytes())[:4000]
    reader, writer = os.pipe()
    os.write(writer, text)
    os.close(writer)
    for path, what in ((f"/dev/fd/{reader}", "pipe"), ("/dev/null", "device")):
        done = CliRunner().invoke(command, [path, "-o", str(tmp_path / "page.html")])
        assert done.exit_code == 1
        assert (
            f"{path} is a {what}, and this command reads a file more than once: "
            "save it to a file first" in done.output
        )
    assert os.read(reader, len(text)) == text
    os.close(reader)
