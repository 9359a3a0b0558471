# SPDX-License-Identifier: GPL-2.0-only
"""Idle periods from traces: right where the trace is whole, an error where it is damaged."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from recordings import PIPE, RECORDINGS, page_of, rows_of

from lightsleep.errors import LightsleepError
from lightsleep.periods import systrace
from lightsleep.periods.columns import COLUMNS
from lightsleep.periods.formats import is_recording
from lightsleep.periods.lost import BUCKETS_PER_OCTAVE, Wakes, time_lost
from lightsleep.periods.model import Metadata
from lightsleep.periods.source import open_recording
from lightsleep.periods.table import METADATA, ROWS, write_parquet
from lightsleep.record import sidecar
from lightsleep.replay.cli import replay_command
from lightsleep.report.cli import report

SWITCH = (
    "sched_switch: prev_comm={} prev_pid={} prev_prio=120 prev_state=S ==> "
    "next_comm={} next_pid={} next_prio=120"
)


def event(us: int, cpu: int, text: str, task: str = "<idle>-0") -> str:
    return f"{task:>20}     [{cpu:03}] d..1. {10 + us // 1_000_000}.{us % 1_000_000:06}: {text}\n"


def idle(us: int, cpu: int, state: int) -> str:
    return event(us, cpu, f"cpu_idle: state={state} cpu_id={cpu}")


def left(us: int, cpu: int) -> str:
    return idle(us, cpu, 4294967295)


def switched(us: int, cpu: int, comm: str, pid: int) -> str:
    return event(us, cpu, SWITCH.format(f"swapper/{cpu}", 0, comm, pid))


def waking(us: int, cpu: int, pid: int, task: str = "waker-7") -> str:
    return event(us, cpu, f"sched_waking: comm=x pid={pid} prio=120 target_cpu=001", task)


@pytest.fixture
def trace(tmp_path: Path) -> Any:
    """Return a function that reads lines as a trace and returns its rows."""

    def read(*lines: str) -> list[dict[str, Any]]:
        path = tmp_path / "trace.txt"
        path.write_text("# tracer: nop\n#\n" + "".join(lines))
        assert is_recording(path)
        return rows_of(path)[0]

    return read


def test_who_woke_whom_and_how_long_it_took(trace: Any) -> None:
    (row,) = trace(
        idle(0, 1, 2),
        waking(100, 0, 42),
        event(101, 0, "ipi_send_cpu: cpu=1 callsite=f+0x1/0x2 callback=0x0", "waker-7"),
        left(150, 1),
        switched(160, 1, "a b-c", 42),
    )
    assert row == {
        "host": "unknown",
        "cpu": 1,
        "entered_ns": 10_000_000_000,
        "length_ns": 150_000,
        "state": 2,
        "sleep_length_ns": None,
        "ended_by": "ipi",
        "waker_comm": "waker",
        "waker_pid": 7,
        "wakee_comm": "a b-c",
        "wakee_pid": 42,
        "waking_to_running_ns": 60_000,
        "miss": None,
        "next_event_ns": None,
    }


@pytest.mark.parametrize(
    ("evidence", "cause"),
    [
        (event(50, 0, "ipi_send_cpu: cpu=1 callsite=a callback=b", "w-7"), "ipi"),
        (event(50, 0, "ipi_send_cpumask: cpumask=0-1,8 callsite=a callback=b", "w-7"), "ipi"),
        (event(50, 0, "ipi_send_cpumask: cpumask=2-3 callsite=a callback=b", "w-7"), "unknown"),
        (event(50, 0, "ipi_send_cpumask: cpumask=00000000,00000002 callsite=a", "w-7"), "ipi"),
        (event(50, 0, "ipi_send_cpumask: cpumask=00000002,00000001 callsite=a", "w-7"), "unknown"),
        (event(50, 0, "ipi_send_cpumask: cpumask=ffffffff callsite=a", "w-7"), "ipi"),
        (event(50, 0, "ipi_send_cpumask: cpumask=f0000000 callsite=a", "w-7"), "unknown"),
        (event(50, 0, "ipi_send_cpu: cpu=0 callsite=a callback=b", "w-7"), "unknown"),
        (event(50, 1, "reschedule_entry: vector=253"), "ipi"),
        (event(50, 0, "sched_wake_idle_without_ipi: cpu=1", "w-7"), "store"),
        (
            event(50, 1, "hrtimer_expire_entry: hrtimer=0xf function=tick_nohz_handler now=1"),
            "tick",
        ),
        (event(50, 1, "hrtimer_expire_entry: hrtimer=0xf function=hrtimer_wakeup now=1"), "timer"),
        (event(110, 1, "hrtimer_expire_entry: hrtimer=0xf function=hrtimer_wakeup now=1"), "timer"),
        (event(50, 1, "irq_handler_entry: irq=28 name=virtio0-req.1"), "device"),
        (event(50, 1, "irq_handler_entry: irq=12 name=arch_timer"), "unknown"),
        (event(50, 1, "irq_handler_entry: irq=5 name=riscv-timer"), "unknown"),
        (event(50, 1, "irq_handler_entry: irq=5 name=clint-timer"), "unknown"),
        (event(50, 1, "irq_handler_entry: irq=1 name=EXT"), "unknown"),
        (event(50, 1, "irq_handler_entry: irq=2 name=I/O"), "device"),
        (event(50, 1, "irq_handler_entry: irq=2 name=ext4-timer"), "device"),
        (event(50, 1, "irq_handler_entry: irq=3 name=IPI"), "ipi"),
        (event(50, 1, "irq_handler_entry: irq=3 name=IPI-12"), "ipi"),
        (event(50, 1, "irq_handler_entry: irq=3 name=IPI-x"), "device"),
        (event(50, 1, "irq_handler_entry: irq=3 name=ipi call function"), "ipi"),
        (event(110, 0, "ipi_send_cpu: cpu=1 callsite=a callback=b", "w-7"), "unknown"),
        ("", "unknown"),
    ],
)
def test_what_ended_a_period(trace: Any, evidence: str, cause: str) -> None:
    late = evidence.split(" 10.000110")[1:]
    lines = (
        [idle(0, 1, 1), left(100, 1), evidence] if late else [idle(0, 1, 1), evidence, left(100, 1)]
    )
    assert [row["ended_by"] for row in trace(*lines, switched(120, 1, "x", 9))] == [cause]


def test_the_first_evidence_counts(trace: Any) -> None:
    (row,) = trace(
        idle(0, 1, 1),
        event(10, 1, "hrtimer_expire_entry: hrtimer=0xf function=tick_sched_timer now=1"),
        event(11, 0, "ipi_send_cpu: cpu=1 callsite=a callback=b", "w-7"),
        left(12, 1),
        switched(13, 1, "x", 9),
    )
    assert row["ended_by"] == "tick"


def test_periods_without_a_wakeup_between(trace: Any) -> None:
    rows = trace(idle(0, 1, 0), left(10, 1), idle(12, 1, 1), left(99, 1), switched(100, 1, "x", 9))
    assert [(x["state"], x["length_ns"], x["wakee_pid"]) for x in rows] == [
        (0, 10_000, None),
        (1, 87_000, 9),
    ]


def test_a_task_that_waited_for_something_else_did_not_wait_for_the_cpu(trace: Any) -> None:
    (row,) = trace(waking(0, 0, 42), idle(10, 1, 1), left(20, 1), switched(21, 1, "x", 42))
    assert row["wakee_pid"] == 42
    assert row["waking_to_running_ns"] is None


def test_a_cpu_that_is_found_awake(trace: Any) -> None:
    (row,) = trace(
        event(0, 1, SWITCH.format("y", 3, "swapper/1", 0), "y-3"),
        waking(5, 0, 42),
        switched(9, 1, "x", 42),
    )
    assert (row["state"], row["length_ns"], row["waking_to_running_ns"]) == (-1, 0, 4000)


def test_what_the_governor_knew_and_how_it_chose(trace: Any) -> None:
    rows = trace(
        event(0, 1, "sleep_length: (ffffffff81 <- ffffffff82) ret=1234567"),
        idle(1, 1, 1),
        left(2, 1),
        event(3, 1, "cpu_idle_miss: cpu_id=1 state=1 type=above"),
        idle(4, 1, 0),
        left(5, 1),
    )
    assert [(x["sleep_length_ns"], x["miss"]) for x in rows] == [(1234567, "above"), (None, None)]


def between(us: int, cpu: int) -> str:
    return event(us, cpu, SWITCH.format("t", 9, "x", 42), "t-9")


def moved(us: int, cpu: int, task: str = "t-9") -> str:
    return event(us, cpu, "sched_migrate_task: comm=x pid=42 prio=120 orig_cpu=0 dest_cpu=1", task)


@pytest.mark.parametrize(
    ("after_waking", "waited_us"),
    [
        ([], 150),
        ([moved(11, 0)], 150),  # part of the wakeup
        ([moved(11, 2)], None),
        ([waking(11, 0, 43), moved(12, 0)], None),
        ([between(11, 0), moved(99, 0)], None),
        ([between(11, 0)], None),  # of foreign tools, which record every switch
        ([between(11, 0), waking(100, 0, 42), moved(101, 0)], 60),
    ],
)
def test_a_task_that_is_moved_here_has_not_waited_since_its_wakeup(
    trace: Any, after_waking: list[str], waited_us: int | None
) -> None:
    (row,) = trace(
        idle(0, 1, 2),
        waking(10, 0, 42),
        *after_waking,
        left(150, 1),
        switched(160, 1, "x", 42),
    )
    assert row["waking_to_running_ns"] == (None if waited_us is None else waited_us * 1000)


def test_idle_time_that_a_thread_injects_is_idle_time(trace: Any) -> None:
    injected = event(300, 1, SWITCH.format("idle_inject/1", 90, "swapper/1", 0), "idle_inject/1-90")
    first, second = trace(idle(0, 1, 2), left(90, 1), idle(95, 1, 2), left(290, 1), injected)
    assert (first["length_ns"], second["length_ns"]) == (90_000, 195_000)
    assert second["wakee_pid"] is None


def test_a_task_that_was_woken_before_events_were_lost_was_woken_again_maybe(trace: Any) -> None:
    begin, end = idle(0, 1, 2) + waking(20, 0, 42), left(9000, 1) + switched(9010, 1, "t", 42)
    (row,) = trace(begin, end)
    assert (row["wakee_pid"], row["waking_to_running_ns"]) == (42, 8_990_000)
    (row,) = trace(begin, "CPU:0 [50000 EVENTS DROPPED]\n", end)
    assert (row["wakee_pid"], row["waker_pid"], row["waking_to_running_ns"]) == (42, None, None)


LINES_WITHOUT_EVENTS = (
    "    46c8e3 runtime.futex+0x23 (/usr/bin/dockerd)\n",
    "         0 [unknown] ([unknown])\n",
    "CPU 1 is empty\n",
    "          <idle>-0       [000] d.h.. 10.000001: schedule <-do_idle\n",
    "          <idle>-0       [000] d.h.. 10.000001: <stack trace>\n",
)


def test_lines_of_tracers_that_are_no_events_are_skipped(trace: Any) -> None:
    period = idle(0, 1, 2), waking(20, 0, 42), left(90, 1), switched(95, 1, "t", 42)
    assert trace(*(x for line in period for x in (line, *LINES_WITHOUT_EVENTS))) == trace(*period)


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


def test_a_cpu_without_any_event_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text(idle(0, 1, 1) + left(50, 1) + "CPU:4 [LOST 2 EVENTS]\n")
    document = json.loads(sidecar.beside(PIPE).read_text())
    document["states"] = {str(cpu): [] for cpu in range(8)}
    said = "no event is recorded of CPU {}, which slept or ran a single task all the time"
    for cpus, silent in ((None, "0,2-3,5-7"), ("1-2,4,9", "2"), ("1", ""), ("odd", "")):
        document["settings"]["cpus"] = cpus
        sidecar.beside(path).write_text(json.dumps(document))
        notes = [x for x in rows_of(path)[1].notes if "no event is recorded" in x]
        assert notes == ([said.format(silent)] if silent else [])


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


@pytest.mark.parametrize("inside", [b"\x17\x08\x44tracing6\0", b"PERFILE2", b"PAR1"])
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


@pytest.mark.parametrize("data", [b"PAR1", b"\x17\x08\x44tracing6\0", b"PERFILE2" + bytes(200)])
def test_files_with_a_head_and_nothing_else(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "head"
    path.write_bytes(data)
    assert is_recording(path)
    if data.startswith(b"PERF") and not shutil.which("perf"):
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


# What a real guest recorded: perf bench sched pipe between two CPUs.


def test_a_real_recording_adds_up() -> None:
    rows, metadata = rows_of(PIPE)
    assert metadata.states == {0: {1: "default"}, 1: {1: "default"}}
    text = gzip.decompress(PIPE.read_bytes()).decode()
    entered = text.count(" cpu_idle:") - text.count("state=4294967295")
    asleep = [row for row in rows if row["state"] != -1]
    assert len(asleep) + metadata.incomplete >= entered - 2
    for cpu in (0, 1):
        mine = [row for row in asleep if row["cpu"] == cpu]
        assert all(
            a["entered_ns"] + a["length_ns"] <= b["entered_ns"] for a, b in itertools.pairwise(mine)
        )
    by_ipi = [x for x in rows if x["ended_by"] == "ipi" and x["wakee_comm"] == "sched-pipe"]
    by_ipi = [x for x in by_ipi if x["waking_to_running_ns"] is not None]
    assert len(by_ipi) > 100
    assert {x["waker_comm"] for x in by_ipi} == {"sched-pipe"}


def test_parquet_holds_all_of_it(tmp_path: Path) -> None:
    rows, metadata = rows_of(PIPE)
    target = tmp_path / "pipe.parquet"
    for _ in write_parquet(open_recording(PIPE), target):
        pass
    again, described = rows_of(target)
    for cpu in (0, 1):
        assert [x for x in again if x["cpu"] == cpu] == [x for x in rows if x["cpu"] == cpu]
    assert len(again) == len(rows)
    assert again[0] == rows[0], "groups are in the order in which they begin"
    assert described.to_json() == metadata.to_json()
    assert [x.name for x in tmp_path.iterdir()] == ["pipe.parquet"]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("environment", [], r"environment is \[\]"),
        ("notes", "x", "notes is 'x'"),
        ("first_ns", 0.5, "first_ns is 0.5"),
        ("last_ns", True, "last_ns is True"),
    ],
)
def test_odd_metadata_of_a_table_is_an_error(
    tmp_path: Path, key: str, value: object, said: str
) -> None:
    path = tmp_path / "odd.parquet"
    list(write_parquet(open_recording(PIPE), path))
    document = json.loads(pq.ParquetFile(path).metadata.metadata[METADATA]) | {key: value}
    with pq.ParquetWriter(path, COLUMNS) as writer:
        writer.add_key_value_metadata({METADATA: json.dumps(document).encode()})
    with pytest.raises(LightsleepError, match=said):
        open_recording(path)


def test_a_recording_by_another_name_is_described(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    real, link = tmp_path / "real/trace.txt", tmp_path / "link.txt"
    real.write_text(idle(0, 1, 1))
    sidecar.beside(real).write_text("{")
    link.symlink_to(real)
    with pytest.raises(LightsleepError, match=r"real/trace\.txt\.json: "):
        open_recording(link)


def test_a_parquet_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.txt"
    damaged.write_text(idle(0, 1, 1) + left(1, 1) + "rubbish\n")
    with pytest.raises(LightsleepError):
        list(write_parquet(open_recording(damaged), tmp_path / "x.parquet"))
    assert [x.name for x in tmp_path.iterdir()] == ["damaged.txt"]


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


# What is made of the rows.


def test_a_driver_in_mode_off_hides_no_polls() -> None:
    ours = {"cpuidle_driver": "lightsleep"}
    for environment, hides in (
        (ours, True),
        ({**ours, "driver_mode": "adaptive"}, True),
        ({**ours, "driver_mode": "off"}, False),
        ({"cpuidle_driver": "intel_idle"}, False),
    ):
        metadata = Metadata("host", "x", environment=environment, polling={(0, 0)})
        assert metadata.hides_polls is hides
        # In its state POLL our driver halts as well, in mode off, too.
        assert metadata.polls(0, 0) is (environment["cpuidle_driver"] != "lightsleep")


def test_time_lost_is_the_sum_of_the_waits() -> None:
    rows, _ = rows_of(PIPE)
    recording = open_recording(PIPE)
    lost = time_lost(recording.metadata, recording.batches)
    waits = [x["waking_to_running_ns"] for x in rows if x["state"] != -1]
    waits = sorted(x for x in waits if x is not None)
    assert lost.all.count == len(waits)
    assert lost.all.total_ns == sum(waits)
    for groups in lost.groups.values():
        assert sum(x.count for x in groups.values()) == len(waits)
        assert sum(x.total_ns for x in groups.values()) == sum(waits)
    for share in (0.5, 0.99):
        exact = waits[int(share * len(waits))]
        assert lost.all.percentile_ns(share) == pytest.approx(exact, rel=0.05)
    (name,) = lost.states
    assert lost.states[name].total_ns == sum(x["length_ns"] for x in rows)
    assert lost.reference.count == sum(x["state"] == -1 and x["waker_pid"] != 0 for x in rows)
    drawn = sum(bins.sum() for states in lost.timeline.idle_ns.values() for bins in states.values())
    assert drawn == pytest.approx(lost.states[name].total_ns)
    assert json.dumps(lost.to_json())


def test_wakeups_of_a_polling_cpu_are_the_reference(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    lines = []
    for number in range(40):
        us = 1000 * number
        state, wait = number % 2, (5, 105)[number % 2]
        lines += [idle(us, 1, state), waking(us + 100, 0, 42), left(us + 100 + wait, 1)]
        lines += [switched(us + 100 + wait, 1, "x", 42)]
    path.write_text("".join(lines * 1))
    known_states = [
        {"index": i, "name": n, "latency_us": 0, "residency_us": 0, "polls": i == 0}
        for i, n in enumerate(("POLL", "C1"))
    ]
    document = json.loads(sidecar.beside(PIPE).read_text()) | {"states": {"1": known_states}}
    sidecar.beside(path).write_text(json.dumps(document))
    recording = open_recording(path)
    lost = time_lost(recording.metadata, recording.batches)
    assert lost.reference.count == 20
    assert lost.reference_ns is None  # too few to compare with
    assert dict(lost.groups["state"]).keys() == {"C1"}
    assert lost.all.total_ns == 20 * 105_000


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=200), st.floats(0.01, 1))
def test_percentiles_are_near(waits: list[int], share: float) -> None:
    wakes = Wakes()
    wakes.add(np.array(waits, np.int64))
    exact = sorted(waits)[max(0, int(np.ceil(share * len(waits))) - 1)]
    found = wakes.percentile_ns(share)
    assert found <= max(1, max(waits))
    assert found == pytest.approx(exact, rel=2 ** (1 / BUCKETS_PER_OCTAVE) - 1, abs=1.1)


def test_memory_does_not_grow_with_the_recording(tmp_path: Path) -> None:
    metadata = Metadata("host", "x")
    batch = next(iter(open_recording(PIPE).batches))
    many = time_lost(metadata, (batch for _ in range(50)))
    once = time_lost(Metadata("host", "x"), [batch])
    assert many.all.count == 50 * once.all.count
    assert many.all.histogram.keys() == once.all.histogram.keys()


PEAK = """\
import re, sys
from pathlib import Path
from lightsleep.periods.source import open_recording
for _ in open_recording(Path(sys.argv[1])).batches:
    pass
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_table(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    batch = next(iter(open_recording(PIPE).batches))
    rows = pa.concat_batches([batch] * (ROWS // len(batch)))
    peaks, sizes = [], []
    for count in (4, 40):
        path = tmp_path / f"{count}.parquet"
        metadata = Metadata("host", "x", first_ns=0, last_ns=1)
        with pq.ParquetWriter(path, COLUMNS, compression="none", use_dictionary=False) as writer:
            for _ in range(count):  # of noise, which no encoding makes smaller
                noise = pa.array(rng.integers(0, 1 << 60, len(rows)))
                writer.write_batch(rows.set_column(2, COLUMNS.field(2), noise))
            writer.add_key_value_metadata({METADATA: json.dumps(metadata.to_json()).encode()})
        done = subprocess.run(
            [sys.executable, "-c", PEAK, str(path)], check=True, capture_output=True, text=True
        )
        peaks.append(1024 * int(done.stdout))
        sizes.append(path.stat().st_size)
    assert sizes[1] - sizes[0] > 100e6
    assert peaks[1] - peaks[0] < 50e6


@pytest.mark.parametrize("name", ["ftrace.txt.gz", "perf-script.txt.gz"])
def test_what_other_tools_write(name: str) -> None:
    rows, metadata = rows_of(RECORDINGS / name)
    assert "is missing" in metadata.notes[0]
    assert {row["ended_by"] for row in rows} >= {"ipi", "tick"}
    assert [x for x in rows if x["wakee_comm"] == "sched-pipe" and x["waking_to_running_ns"]]


def test_a_trace_that_ends_too_early_is_doubted(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text(idle(0, 1, 1) + left(50, 1))
    for end_ns, doubted in ((10_500_000_000, False), (12_000_000_000, True)):
        document = json.loads(sidecar.beside(PIPE).read_text()) | {"window_ns": [0, end_ns]}
        sidecar.beside(path).write_text(json.dumps(document))
        _, metadata = rows_of(path)
        assert any("the file may be damaged" in note for note in metadata.notes) == doubted


@pytest.mark.parametrize("periods", [0, 1])
@pytest.mark.parametrize(
    ("window_s", "ours"), [((9, 12), True), ((11, 12), True), ((12, 13), False), ((7, 8), False)]
)
def test_a_description_of_another_recording_is_refused(
    window_s: tuple[int, int], ours: bool, periods: int, tmp_path: Path
) -> None:
    path = tmp_path / "trace.txt"
    path.write_text(idle(0, 1, 1) + left(50, 1) * periods)
    window_ns = [x * 10**9 for x in window_s]
    document = json.loads(sidecar.beside(PIPE).read_text()) | {"window_ns": window_ns}
    sidecar.beside(path).write_text(json.dumps(document))
    if ours:
        assert len(rows_of(path)[0]) == periods
        return
    read: list[pa.RecordBatch] = []
    with pytest.raises(LightsleepError) as caught:
        read.extend(open_recording(path).batches)
    assert not any(map(len, read))  # nothing is made of a wrong name
    assert caught.value.message == (
        f"{path}.json describes another recording, from {window_s[0]} s to {window_s[1]} s: "
        "trace.txt begins at 10 s. Remove that description, or put the right one there"
    )


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
