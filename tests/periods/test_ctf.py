# SPDX-License-Identifier: GPL-2.0-only
"""Traces in the Common Trace Format: the same events give the same rows as from trace-cmd."""

from __future__ import annotations

import gzip
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
from lightsleep.periods import ctf
from lightsleep.periods.formats import is_recording
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


def test_what_babeltrace_prints() -> None:
    waking = '[1.000000002] host sched_waking: { cpu_id = 1 }, { comm = "y", tid = 9, prio = 20 }'
    switch = (
        '[1.000000001] host sched_switch: { cpu_id = 1 }, { prev_comm = "swapper/1", prev_tid = 0, '
        'prev_state = ( "TASK_RUNNING" : container = 0 ), next_comm = "a \\"b", next_tid = 0x7 }'
    )
    of_perf = (
        "[1.000000003] power:cpu_idle: { cpu_id = 1 }, { perf_tid = 0, state = 1, cpu_id = 1 }"
    )
    assert list(ctf.lines([waking, switch, waking, of_perf])) == [
        "",  # nobody knows who that was
        "<idle>-0 [001] 1.000000001: sched_switch: prev_comm=swapper/1 prev_pid=0 prev_prio=0 "
        'prev_state=S ==> next_comm=a \\"b next_pid=7 next_prio=0',
        'a \\"b-7 [001] 1.000000002: sched_waking: comm=y pid=9 prio=0',
        'a \\"b-7 [001] 1.000000003: cpu_idle: state=1 cpu_id=1',
    ]
    with pytest.raises(ValueError, match="line 1 of what babeltrace2 prints is no event"):
        list(ctf.lines(["rubbish"]))
    with pytest.raises(ValueError, match="line 2 of what babeltrace2 prints lacks the field state"):
        list(ctf.lines([switch, "[1.000000003] power_cpu_idle: { cpu_id = 1 }, { cpu_id = 1 }"]))


def test_without_babeltrace(
    lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = made(tmp_path / "trace", lines)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LightsleepError, match="install the package babeltrace2"):
        rows_of(trace)
