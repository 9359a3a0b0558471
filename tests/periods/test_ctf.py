# SPDX-License-Identifier: GPL-2.0-only
"""Traces in the Common Trace Format: the same events give the same rows as from trace-cmd."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import random
import re
import shutil
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from recordings import PIPE

from lightsleep.errors import LightsleepError
from lightsleep.periods import ctf, formats, programs
from lightsleep.periods.build import Builder
from lightsleep.periods.formats import is_recording
from lightsleep.periods.lines import feed
from lightsleep.periods.model import Metadata
from lightsleep.periods.source import open_recording
from lightsleep.replay.cli import replay_command
from lightsleep.report.cli import report

needs_babeltrace = pytest.mark.skipif(
    not shutil.which("babeltrace2"), reason="babeltrace2 is not installed"
)

# As LTTng describes a kernel's trace, without what is not needed here.
METADATA = """\
/* CTF 1.8 */
typealias integer { size = 32; align = 8; signed = false; } := u32;
typealias integer { size = 64; align = 8; signed = false; } := u64;
trace {
    major = 1; minor = 8; byte_order = le;
    packet.header := struct { u32 magic; u32 stream_id; };
};
env { hostname = "somebody"; domain = "kernel"; tracer_name = "lttng-modules"; };
clock { name = "monotonic"; freq = 1000000000; offset = OFFSET; };
typealias integer { size = 64; align = 8; signed = false; map = clock.monotonic.value; } := now;
stream {
    id = 0;
    packet.context := struct {
        now timestamp_begin; now timestamp_end; u64 content_size; u64 packet_size; u32 cpu_id;
    };
    event.header := struct { u32 id; now timestamp; };
};
event { id = 0; stream_id = 0; name = "power_cpu_idle"; fields := struct {
    u32 state; u32 cpu_id; }; };
event { id = 1; stream_id = 0; name = "sched_switch"; fields := struct {
    string prev_comm; u32 prev_tid; string next_comm; u32 next_tid; }; };
event { id = 2; stream_id = 0; name = "sched_waking"; fields := struct {
    string comm; u32 tid; u32 prio; u32 target_cpu; }; };
event { id = 3; stream_id = 0; name = "irq_handler_entry"; fields := struct {
    u32 irq; string name; }; };
event { id = 4; stream_id = 0; name = "sched_stat_runtime"; fields := struct { u32 tid; }; };
"""
EVENT = re.compile(r"\s*\S+-\d+\s+\[(\d+)\]\s+(\d+)\.(\d{9}): (\w+):\s+(.*)")
SWITCH = re.compile(r"prev_comm=(.*) prev_pid=(\d+) .* next_comm=(.*) next_pid=(\d+) ")


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def packed(name: str, words: str) -> bytes | None:
    """Return an event as a stream has it, but for its time."""
    if name == "cpu_idle":
        state, cpu = re.findall(r"=(\d+)", words)
        return struct.pack("<II", int(state), int(cpu))
    if name == "sched_switch":
        prev_comm, prev, next_comm, next_ = SWITCH.match(words).groups()  # type: ignore[union-attr]
        return (
            text(prev_comm)
            + struct.pack("<I", int(prev))
            + text(next_comm)
            + struct.pack("<I", int(next_))
        )
    if name == "sched_waking":
        comm, pid = re.match(r"comm=(.*) pid=(\d+)", words).groups()  # type: ignore[union-attr]
        return text(comm) + struct.pack("<III", int(pid), 120, 0)
    return None


IDS = {"cpu_idle": 0, "sched_switch": 1, "sched_waking": 2}


def made(folder: Path, lines: list[str], offset_ns: int = 0) -> Path:
    """Write lines of a trace as a trace of LTTng: a stream for each CPU."""
    streams: dict[int, list[bytes]] = {}
    times: dict[int, list[int]] = {}
    for line in lines:
        cpu_text, s, ns, name, words = EVENT.match(line).groups()  # type: ignore[union-attr]
        if (body := packed(name, words)) is None:
            continue
        at = int(s) * 10**9 + int(ns)
        streams.setdefault(int(cpu_text), []).append(struct.pack("<IQ", IDS[name], at) + body)
        times.setdefault(int(cpu_text), []).append(at)
    (folder / "kernel").mkdir(parents=True)
    (folder / "kernel/metadata").write_text(METADATA.replace("OFFSET", str(offset_ns)))
    for cpu, events in streams.items():
        body = b"".join(events)
        size = 8 * (8 + 36 + len(body))
        head = struct.pack("<II", 0xC1FC1FC1, 0)
        head += struct.pack("<QQQQI", times[cpu][0], times[cpu][-1], size, size, cpu)
        (folder / f"kernel/stream_{cpu}").write_bytes(head + body)
    return folder


def rows_of(path: Path) -> list[dict[str, Any]]:
    recording = open_recording(path)
    rows: list[dict[str, Any]] = pa.Table.from_batches(list(recording.batches)).to_pylist()
    return rows


@pytest.fixture
def lines() -> list[str]:
    known = gzip.decompress(PIPE.read_bytes()).decode().splitlines()
    # From where the task of each CPU is known: the events are those of two CPUs.
    return [x for x in known if EVENT.match(x) and EVENT.match(x)[4] in IDS][4:2000]  # type: ignore[index]


@needs_babeltrace
@pytest.mark.parametrize("offset_ns", [0, 1_700_000_000 * 10**9])
def test_the_same_events_give_the_same_rows(
    lines: list[str], offset_ns: int, tmp_path: Path
) -> None:
    plain = tmp_path / "plain.txt"
    plain.write_text("".join(f"{x}\n" for x in lines))
    trace = made(tmp_path / "trace", lines, offset_ns)
    assert is_recording(trace)
    wanted, found = rows_of(plain), rows_of(trace)
    assert len(wanted) > 300
    for row in wanted:
        row["entered_ns"] += offset_ns
    for row in (*wanted, *found):
        if row["waker_pid"] == 0:  # trace-cmd knows two names of the idle task
            row["waker_comm"] = "idle"
    assert found == wanted


@pytest.mark.parametrize(
    ("head", "known"),
    [
        (b"/* CTF 1.8 */\n", True),
        (b"\xc1\x1f\xfc\xc1", False),
        (b"\x57\x1d\xd1\x75", True),
        (b'\x1e{"type":"preamble","version":2}\n', True),
        (b'{"type":"preamble","version":2}\n', False),
    ],
)
def test_by_what_a_trace_is_recognised(head: bytes, known: bool, tmp_path: Path) -> None:
    for folder in (tmp_path / "session/kernel", tmp_path / "trace"):
        folder.mkdir(parents=True)
        (folder / "metadata").write_bytes(head)
    assert is_recording(tmp_path / "session") == is_recording(tmp_path / "trace") == known


@needs_babeltrace
def test_the_verbs_read_it(lines: list[str], tmp_path: Path) -> None:
    trace = made(tmp_path / "trace", lines)
    page = tmp_path / "report.html"
    done = CliRunner().invoke(report, [str(trace), "-o", str(page)])
    assert done.exit_code == 0, done.output
    assert "wakeups found their CPU in an idle state" in " ".join(done.output.split())
    done = CliRunner().invoke(replay_command, [str(trace)])
    assert done.exit_code == 0, done.output


@needs_babeltrace
def test_damaged_traces(lines: list[str], tmp_path: Path) -> None:
    trace = made(tmp_path / "trace", lines)
    chance, errors = random.Random(6), 0
    for name in ("stream_0", "metadata"):
        file = trace / "kernel" / name
        whole = file.read_bytes()
        for _ in range(10):
            copy = bytearray(whole)
            copy[chance.randrange(len(copy))] ^= 1 << chance.randrange(8)
            file.write_bytes(copy[: chance.choice((len(copy), chance.randrange(len(copy))))])
            try:
                rows_of(trace)
            except LightsleepError:
                errors += 1
        file.write_bytes(whole)
    assert errors > 5


def turned(*printed: str) -> list[str]:
    return list(ctf.lines(printed, ctf.Losses()))


def test_what_babeltrace_prints() -> None:
    waking = '[1.000000002] host sched_waking: { cpu_id = 1 }, { comm = "y", tid = 9, prio = 20 }'
    switch = (
        '[1.000000001] host sched_switch: { cpu_id = 1 }, { prev_comm = "swapper/1", prev_tid = 0, '
        'prev_state = ( "TASK_RUNNING" : container = 0 ), next_comm = "a \\"b", next_tid = 0x7 }'
    )
    of_perf = (
        "[1.000000003] power:cpu_idle: { cpu_id = 1 }, { perf_tid = 0, state = 1, cpu_id = 1 }"
    )
    assert turned(waking, switch, waking, of_perf) == [
        "",  # nobody knows who that was
        "<idle> 0 [001] 1.000000001: sched_switch: prev_comm=swapper/1 prev_pid=0 prev_prio=0 "
        'prev_state=S ==> next_comm=a "b next_pid=7 next_prio=0',
        'a "b 7 [001] 1.000000002: sched_waking: comm=y pid=9 prio=0',
        'a "b 7 [001] 1.000000003: cpu_idle: state=1 cpu_id=1',
    ]
    with pytest.raises(ValueError, match="line 1 of what babeltrace2 prints is no event"):
        turned("rubbish")
    with pytest.raises(ValueError, match="line 2 of what babeltrace2 prints lacks the field state"):
        turned(switch, "[1.000000003] power_cpu_idle: { cpu_id = 1 }, { cpu_id = 1 }")


def test_a_miss_as_the_kernel_tells_it() -> None:
    of_perf = "[1.000000003] power:cpu_idle_miss: {{ cpu_id = 1 }}, {{ {} }}"
    assert turned(
        of_perf.format("perf_tid = 0, cpu_id = 2, state = 1, below = 1"),
        of_perf.format("perf_tid = 0, cpu_id = 2, state = 3, below = 0x0"),
    ) == [
        "<idle> 0 [001] 1.000000003: cpu_idle_miss: cpu_id=2 state=1 type=below",
        "<idle> 0 [001] 1.000000003: cpu_idle_miss: cpu_id=2 state=3 type=above",
    ]
    with pytest.raises(ValueError, match="lacks the field below"):
        turned(of_perf.format("cpu_id = 2, state = 1, type = 1"))


@pytest.mark.parametrize("timers", [0, 2])
def test_that_a_tick_counts_as_a_timer_is_said_once(
    timers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expiry = (
        "[1.000000002] host timer_hrtimer_expire_entry: { cpu_id = 0 }, "
        "{ hrtimer = 1, function = 2, now = 3 }"
    )
    idle = "[1.00000000{}] host power_cpu_idle: {{ cpu_id = 0 }}, {{ state = {}, cpu_id = 0 }}"
    printed = [idle.format(1, 1), *[expiry] * timers, idle.format(3, 4294967295)]
    monkeypatch.setattr(formats, "printed_by", lambda *_: contextlib.nullcontext(printed))
    (tmp_path / "metadata").write_text(METADATA)
    recording = open_recording(tmp_path)
    list(recording.batches)
    notes = recording.metadata.notes
    assert ["counts as a timer" in x for x in notes].count(True) == bool(timers)


def test_names_with_all_that_babeltrace_escapes() -> None:
    name = r"}, {\'\?\n\x01\"\\, pid = 8, "
    printed = (
        f'[1.000000001] host sched_switch: {{ cpu_id = 1 }}, {{ prev_comm = "{name}", '
        f'prev_tid = 7, next_comm = "{name}", next_tid = 9 }}'
    )
    said = "}, {'?\n\x01\"\\, pid = 8, "
    assert turned(printed) == [
        f"<idle> 0 [001] 1.000000001: sched_switch: prev_comm={said} prev_pid=7 prev_prio=0 "
        f"prev_state=S ==> next_comm={said} next_pid=9 next_prio=0"
    ]


@pytest.mark.parametrize("ids", ["tid = 78, pid = 77", "pid = 77, tid = 78"])
def test_threads_and_not_processes_wake(ids: str) -> None:
    printed = (
        f'[1.000000002] host sched_waking: {{ cpu_id = 1 }}, {{ procname = "x", {ids} }}, '
        '{ comm = "y", tid = 9, prio = 20 }'
    )
    assert turned(printed) == ["x 78 [001] 1.000000002: sched_waking: comm=y pid=9 prio=0"]


def test_a_process_alone_tells_no_thread() -> None:
    switch = (
        '[1.000000001] host sched_switch: { cpu_id = 1 }, { prev_comm = "swapper/1", prev_tid = 0, '
        'prev_prio = 20, prev_state = 0, next_comm = "worker", next_tid = 501, next_prio = 20 }'
    )
    waking = (
        '[1.000000002] host sched_waking: { cpu_id = 1 }, { procname = "x", pid = 500 }, '
        '{ comm = "y", tid = 9, prio = 20 }'
    )
    _, told = turned(switch, waking)
    assert told == "worker 501 [001] 1.000000002: sched_waking: comm=y pid=9 prio=0"


WARNING = (
    "WARNING: Tracer discarded {} events between [{}] and [{}] in trace "
    '"somebody/kernel" (no UUID) within stream "{}" (stream class ID: 0, stream ID: 7).'
)


def slept(us: int, cpu: int) -> str:
    """Return what is printed of a period of 10 us."""
    line = "[1.{:09}] host power_cpu_idle: {{ cpu_id = {} }}, {{ state = {}, cpu_id = {} }}\n"
    begin = line.format(1000 * us, cpu, 1, cpu)
    return begin + line.format(1000 * us + 10_000, cpu, 0xFFFFFFFF, cpu)


@pytest.mark.parametrize(
    ("warning", "lost", "kept"),
    [
        (
            WARNING.format(5, "1.000025000", "1.000045000", "/x_9/kernel/channel0_1"),
            {1: 5},
            [0, 60],
        ),
        (WARNING.format(5, "1.000015000", "1.000016000", "channel0_1"), {1: 5}, [20, 40, 60]),
        (WARNING.format(5, "1.000075000", "1.000099000", "channel0_1"), {1: 5}, [0, 20, 40]),
        (WARNING.format(5, "1.000065000", "1.000066000", "channel0_1"), {1: 5}, [0, 20, 40]),
        (WARNING.format(5, "1.000025000", "1.000045000", "?"), {1: 5, 2: 0}, [0, 60]),
        (WARNING.format(5, "1.000025000", "1.000045000", "a_3_8"), {1: 5, 2: 0}, [0, 60]),
        (WARNING.format(5, "1.000025000", "1.000045000", "a_1_7"), {7: 5}, [0, 20, 40, 60]),
        (
            WARNING.format(5, "1.000025000", "1.000045000", "a_1_0").replace("ID: 7", "ID: 1"),
            {1: 5},
            [0, 60],
        ),
        (
            WARNING.format(5, "1.000025000", "1.000045000", "channel0_1").replace(
                "discarded 5", "may have discarded"
            ),
            {1: 1},
            [0, 60],
        ),
    ],
)
def test_discarded_events_are_counted_and_the_periods_around_left_out(
    warning: str,
    lost: dict[int, int],
    kept: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace, program = tmp_path / "trace", tmp_path / "babeltrace2"
    trace.mkdir()
    (trace / "metadata").write_text(METADATA)
    printed = "".join(slept(us, 1) for us in (0, 20, 40, 60)) + slept(80, 2)
    (tmp_path / "warning").write_text(f"{warning}\nsomething else\n")
    (tmp_path / "printed").write_text(slept(0, 2) + printed)
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/warning >&2\ncat {tmp_path}/printed\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    recording = open_recording(trace)
    rows = pa.Table.from_batches(list(recording.batches)).to_pylist()
    begins = [x["entered_ns"] // 1000 - 1_000_000 for x in rows if x["cpu"] == 1]
    assert (begins, recording.metadata.lost) == (kept, lost)
    assert recording.metadata.incomplete == 4 - len(kept) + (2 in lost)
    assert [x for x in recording.metadata.notes if "says" in x] == [
        "babeltrace2 says: something else"
    ]


@pytest.mark.parametrize("status", [0, 1])
def test_what_is_wrong_is_said_behind_any_number_of_losses(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, program = tmp_path / "trace", tmp_path / "babeltrace2"
    trace.mkdir()
    (trace / "metadata").write_text(METADATA)
    stream = f"/home/somebody/lttng-traces/{'session-' * 9}/kernel/channel0_1"
    warning = WARNING.format(5, "1.000025000", "1.000045000", stream)
    (tmp_path / "said").write_text(f"{warning}\n" * 400 + "ERROR: bad packet\n")
    (tmp_path / "printed").write_text(slept(0, 1))
    printed = f"cat {tmp_path}/said >&2\ncat {tmp_path}/printed"
    program.write_text(f"#!/bin/sh\n{printed}\nexit {status}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    recording = open_recording(trace)
    if status:
        with pytest.raises(LightsleepError, match=r"status 1 after line 2 .*: ERROR: bad packet$"):
            list(recording.batches)
    else:
        list(recording.batches)
        assert "babeltrace2 says: ERROR: bad packet" in recording.metadata.notes


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("a short line\n" * 2, "a short line\na short line"),
        (f"{'x' * 96}\n" * 100, "\n".join(["x" * 96] * 42)),
        ("a" * 5000, "a" * 4096),
        ("a" * 5000 + "\nb\n", "b"),
    ],
)
def test_what_is_kept_of_complaints_begins_with_a_line(said: str, kept: str) -> None:
    assert programs._complaints(io.BytesIO(said.encode())) == kept


def in_two_packets(folder: Path, lines: list[str], discarded: dict[int, int]) -> Path:
    """Write lines as a trace of two packets each stream; ``discarded``: events of a CPU between."""
    half = len(lines) // 2
    first, second = made(folder, lines[:half]), made(folder.with_suffix(".second"), lines[half:])
    described = first / "kernel/metadata"
    described.write_text(
        described.read_text().replace("u64 packet_size;", "u64 packet_size; u64 events_discarded;")
    )
    for file in first.glob("kernel/stream_*"):
        packets = b""
        for folder, is_last in ((first, False), (second, True)):
            data = (folder / "kernel" / file.name).read_bytes()
            magic, begin, end, size, _, cpu = struct.unpack("<QQQQQI", data[:44])
            lost = discarded.get(cpu, 0) * is_last
            packets += struct.pack("<QQQQQQI", magic, begin, end, size + 64, size + 64, lost, cpu)
            packets += data[44:]
        file.write_bytes(packets)
    return first


def test_who_runs_after_a_loss_is_not_who_ran_before() -> None:
    event = "[{}.000000000] host {}: {{ cpu_id = 1 }}, {{ {} }}"
    switch = 'prev_comm = "swapper/1", prev_tid = 0, next_comm = "busy", next_tid = 42'
    waking = 'comm = "sleeper", tid = 7, prio = 20, target_cpu = 0'
    printed = [
        event.format(1, "sched_switch", switch),
        event.format(3, "sched_waking", waking),
        event.format(4, "power_cpu_idle", "state = 1, cpu_id = 1"),
        event.format(5, "sched_waking", waking),
    ]
    _, told, _, _ = ctf.lines(printed, ctf.Losses())
    assert told.startswith("busy 42 [001] 3.000000000: sched_waking")
    losses = ctf.Losses()
    lines = ctf.lines(printed, losses)
    next(lines)
    warning = WARNING.format(5, "1.000000001", "2.000000000", "channel0_1")
    losses.hear(f"{warning}\n".encode())
    lost, unknown, _, told = lines
    assert (lost, unknown) == ("CPU:1 [LOST 5 EVENTS]", "")
    assert told.startswith("<idle> 0 [001] 5.000000000: sched_waking")


def test_a_loss_that_lasts_takes_no_long_waits_from_other_cpus() -> None:
    wanted = [us * 1000 for us in (20, 200, 20, 200)]
    printed = []
    for number, wait_ns in enumerate(wanted):
        begin = 500_000 * number
        events = [
            (0, 1, "power_cpu_idle", "state = 1, cpu_id = 1"),
            (1000, 0, "sched_waking", 'comm = "t", tid = 7, prio = 20, target_cpu = 1'),
            *((us * 1000, 3, "power_cpu_idle", f"state = {us % 2}, cpu_id = 3") for us in (45, 90)),
            (wait_ns, 1, "power_cpu_idle", "state = 4294967295, cpu_id = 1"),
            (
                1000 + wait_ns,
                1,
                "sched_switch",
                'prev_comm = "swapper/1", prev_tid = 0, next_comm = "t", next_tid = 7',
            ),
        ]
        context = '"waker", tid = 42'
        printed += [
            f"[1.{begin + at:09}] host {name}: {{ cpu_id = {cpu} }}, "
            f"{{ procname = {context}, pid = 42 }}, {{ {fields} }}"
            for at, cpu, name, fields in sorted(events)
        ]
    losses = ctf.Losses()
    losses.hear(f"{WARNING.format(5, '1.000000000', '2.000000000', 'channel0_3')}\n".encode())
    builder = Builder(metadata := Metadata("host", "x"))
    for _ in feed(builder, ctf.lines(printed, losses), "trace"):
        pass
    builder.finish()
    assert [row[10] for row in builder.rows if row[0] == 1] == wanted
    assert metadata.lost == {3: 5}
    assert not any(row[0] == 3 for row in builder.rows)


@needs_babeltrace
def test_what_the_real_one_says_of_discarded_events(lines: list[str], tmp_path: Path) -> None:
    whole = rows_of(in_two_packets(tmp_path / "whole", lines, {}))
    recording = open_recording(in_two_packets(tmp_path / "trace", lines, {1: 3}))
    rows = pa.Table.from_batches(list(recording.batches)).to_pylist()
    assert recording.metadata.lost == {1: 3}
    lengths, all_lengths = (
        [[(x["entered_ns"], x["length_ns"]) for x in each if x["cpu"] == cpu] for cpu in (0, 1)]
        for each in (rows, whole)
    )
    # Until it switches again, nobody knows which task of CPU 1 wakes one on CPU 0. Those that are
    # awake have rows of their own, without a length.
    missing = set(all_lengths[0]) - set(lengths[0])
    assert set(lengths[0]) <= set(all_lengths[0])
    assert not any(length for _, length in missing)
    assert 0 < len(lengths[1]) < len(all_lengths[1])
    assert not any("says" in x for x in recording.metadata.notes)


@needs_babeltrace
def test_what_programs_have_lost_is_no_loss_of_the_kernel(lines: list[str], tmp_path: Path) -> None:
    trace = made(tmp_path / "trace", lines)
    alone = rows_of(trace)
    programs = in_two_packets(tmp_path / "programs", lines, {1: 3})
    (trace / "ust/uid/0").mkdir(parents=True)
    (programs / "kernel").rename(trace / "ust/uid/0/64-bit")
    recording = open_recording(trace)
    assert pa.Table.from_batches(list(recording.batches)).to_pylist() == alone
    assert recording.metadata.lost == {}


def test_only_the_folder_of_the_kernel_is_read(
    lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, program = made(tmp_path / "trace", lines), tmp_path / "babeltrace2"
    (tmp_path / "printed").write_text(slept(0, 2))
    program.write_text(
        f'#!/bin/sh\nfor last; do :; done\n[ "$last" = {trace}/kernel ] && cat {tmp_path}/printed\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert len(rows_of(trace)) == 1


def test_without_babeltrace(
    lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = made(tmp_path / "trace", lines)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LightsleepError, match="install the package babeltrace2"):
        rows_of(trace)
