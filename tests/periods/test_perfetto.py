# SPDX-License-Identifier: GPL-2.0-only
"""Traces of Perfetto: the same events give the same rows as from the kernel's own trace."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from recordings import PIPE, RECORDINGS, rows_of

pytest.importorskip("perfetto")

from perfetto_traces import (
    Style,
    compressed,
    delimited,
    descriptors,
    event,
    packet,
    pb,
    traced,
    varint,
    without_message,
)

from lightsleep.cli import main
from lightsleep.errors import LightsleepError
from lightsleep.periods import formats, perfetto
from lightsleep.periods.formats import is_recording
from lightsleep.replay.cli import replay_command
from lightsleep.report.cli import report

EXIT = 4294967295
STYLES = (
    Style(),
    Style(compact=True),
    Style(described=False, codec="zlib"),
    Style(compact=True, codec="zstd", events=7),
    Style(events=100_000),
)


@pytest.fixture
def rows(tmp_path: Path) -> Any:
    """Return a function that reads packets as a trace and returns its rows."""

    def read(*packets: bytes) -> list[dict[str, Any]]:
        path = tmp_path / "x.pftrace"
        path.write_bytes(b"".join(packets))
        assert is_recording(path)
        return rows_of(path)[0]

    return read


def idle(at_us: int, cpu: int, state: int) -> Any:
    return event(1000 * at_us, 0, cpu_idle=pb.CpuIdleFtraceEvent(state=state, cpu_id=cpu))


def left(at_us: int, cpu: int) -> Any:
    return idle(at_us, cpu, EXIT)


def switched(at_us: int, comm: str, pid: int, before: int = 0) -> Any:
    said = {"prev_comm": "was", "prev_pid": before, "next_comm": comm, "next_pid": pid}
    return event(1000 * at_us, before, sched_switch=pb.SchedSwitchFtraceEvent(**said))


def waking(at_us: int, pid: int, waker: int) -> Any:
    said = pb.SchedWakingFtraceEvent(comm="wakee", pid=pid)
    return event(1000 * at_us, waker, sched_waking=said)


def bundle(cpu: int, *events: Any, **more: Any) -> bytes:
    return packet(pb.FtraceEventBundle(cpu=cpu, event=events, **more))


@pytest.mark.parametrize("style", STYLES, ids=str)
@pytest.mark.parametrize("name", ["pipe.txt.gz", "ftrace.txt.gz"])
def test_the_same_events_give_the_same_rows(name: str, style: Style, tmp_path: Path) -> None:
    # lightsleep record leaves out switches between tasks. Until line 5000, there was none.
    lines = gzip.decompress((RECORDINGS / name).read_bytes()).decode().splitlines()[:5000]
    plain, trace = tmp_path / "plain.txt", tmp_path / "x.pftrace"
    plain.write_text("".join(f"{x}\n" for x in lines))
    trace.write_bytes(traced(lines, style))
    assert is_recording(trace)
    wanted, _ = rows_of(plain)
    found, metadata = rows_of(trace)
    assert len(wanted) > 100
    assert metadata.lost == {}
    named = False
    for before, after in zip(wanted, found, strict=True):
        # Before a task has been named for the first time, the text has the kernel's table.
        named |= after["waker_comm"] not in (None, "<...>", "<idle>")
        if after["waker_comm"] == "<...>" or not named:
            before["waker_comm"] = after["waker_comm"]
        # A compact event does not say what wakes; in the beginning, nothing else does.
        if style.compact and after["waker_pid"] is None and not named:
            before |= {x: after[x] for x in ("waker_pid", "waker_cpu", "waking_to_running_ns")}
        assert before == after
    assert named


def test_the_verbs_read_it(tmp_path: Path) -> None:
    trace, page = tmp_path / "x.pftrace", tmp_path / "report.html"
    trace.write_bytes(traced(gzip.decompress(PIPE.read_bytes()).decode().splitlines(), Style()))
    done = CliRunner().invoke(report, [str(trace), "-o", str(page)])
    assert done.exit_code == 0, done.output
    assert "wakeups found their CPU in an idle state" in " ".join(done.output.split())
    done = CliRunner().invoke(replay_command, [str(trace)])
    assert done.exit_code == 0, done.output


def test_cpus_are_merged_by_time(rows: Any) -> None:
    """The wakeup is in the last packet, and belongs between the events of the first two."""
    packets = (
        bundle(1, idle(0, 1, 2), left(150, 1), switched(160, "wakee", 42)),
        bundle(3, idle(0, 3, 1), left(400, 3), switched(420, "other", 43)),
        bundle(0, waking(100, 42, waker=7), waking(390, 43, waker=7)),
    )
    first, second = rows(*packets)
    assert (first["cpu"], first["wakee_comm"], first["waking_to_running_ns"]) == (
        1,
        "wakee",
        60_000,
    )
    assert (second["cpu"], second["waker_pid"], second["waking_to_running_ns"]) == (3, 7, 30_000)
    assert first["waker_comm"] == "<...>"  # nothing has named it


def test_compact_and_other_events_are_merged_by_time(rows: Any) -> None:
    compact = pb.FtraceEventBundle.CompactSched(
        intern_table=["swapper/1", "wakee"],
        switch_timestamp=[5_000, 155_000],
        switch_next_pid=[0, 42],
        switch_next_comm_index=[0, 1],
        waking_timestamp=[170_000],
        waking_pid=[43],
        waking_comm_index=[0],
    )
    other = pb.FtraceEventBundle.CompactSched(
        intern_table=["seven", "wakee"],
        switch_timestamp=[1_000],
        switch_next_pid=[7],
        switch_next_comm_index=[0],
        waking_timestamp=[100_000],
        waking_pid=[42],
        waking_comm_index=[1],
    )
    (row,) = rows(
        bundle(1, idle(10, 1, 2), left(150, 1), compact_sched=compact),
        bundle(0, compact_sched=other),
    )
    assert (row["entered_ns"], row["length_ns"], row["state"]) == (10_000, 140_000, 2)
    assert (row["waker_comm"], row["waker_pid"]) == ("seven", 7)
    assert (row["wakee_comm"], row["waking_to_running_ns"]) == ("wakee", 60_000)


def compact(cpu: int, **columns: list[int]) -> bytes:
    return bundle(
        cpu, compact_sched=pb.FtraceEventBundle.CompactSched(intern_table=["x"], **columns)
    )


def test_the_first_compact_switch_has_no_task_before_it(rows: Any) -> None:
    """It counts as one between tasks. What wakes before it is not known."""
    first = compact(
        0,
        switch_timestamp=[2_000],
        switch_next_pid=[9],
        switch_next_comm_index=[0],
        waking_timestamp=[1_000, 48_000],
        waking_pid=[41, 42],
        waking_comm_index=[0, 0],
    )
    events = idle(20, 1, 1), left(90, 1), switched(95, "y", 42), waking(99, 1, 42)
    (row,) = rows(first, bundle(1, *events))
    assert (row["waker_pid"], row["waking_to_running_ns"]) == (9, 46_000)
    # A CPU that has left a state runs its idle task, whatever the switch does not say.
    alone = compact(1, switch_timestamp=[95_000], switch_next_pid=[42], switch_next_comm_index=[0])
    nobody = [
        pb.FtraceEvent.FromString(x.SerializeToString()) for x in (idle(20, 1, 1), left(90, 1))
    ]
    for each in nobody:
        each.ClearField("pid")
    (row,) = rows(bundle(1, *nobody), alone)
    assert row["wakee_pid"] == 42


@pytest.mark.parametrize(
    ("evidence", "cause"),
    [
        (
            event(40_000, 0, irq_handler_entry=pb.IrqHandlerEntryFtraceEvent(irq=3, name="nic")),
            "device",
        ),
        (
            event(40_000, 0, irq_handler_entry=pb.IrqHandlerEntryFtraceEvent(irq=3, name="IPI")),
            "ipi",
        ),
        (
            event(40_000, 0, ipi_entry=pb.IpiEntryFtraceEvent(reason="Rescheduling interrupts")),
            "ipi",
        ),
        (event(40_000, 0, ipi_entry=pb.IpiEntryFtraceEvent(reason="Timer broadcast")), "unknown"),
        (
            event(40_000, 0, hrtimer_expire_entry=pb.HrtimerExpireEntryFtraceEvent(function=1)),
            "tick",
        ),
        (
            event(40_000, 0, hrtimer_expire_entry=pb.HrtimerExpireEntryFtraceEvent(function=2)),
            "timer",
        ),
        (event(40_000, 0, hrtimer_expire_entry=pb.HrtimerExpireEntryFtraceEvent()), "timer"),
        (event(40_000, 0, print=pb.PrintFtraceEvent(buf="x")), "unknown"),
    ],
)
def test_what_ended_a_period(rows: Any, evidence: Any, cause: str) -> None:
    names = [
        pb.InternedString(iid=1, str=b"tick_nohz_handler"),
        pb.InternedString(iid=2, str=b"hrtimer_wakeup"),
    ]
    named = packet(interned_data=pb.InternedData(kernel_symbols=names))
    (row,) = rows(named, bundle(1, idle(0, 1, 1), evidence, left(50, 1)))
    assert row["ended_by"] == cause


def test_names_of_functions_hold_until_the_table_is_cleared(rows: Any) -> None:
    def named(number: int, name: bytes, first_us: int, **more: Any) -> bytes:
        timer = pb.HrtimerExpireEntryFtraceEvent(function=1)
        expired = event(1000 * first_us + 9, 0, hrtimer_expire_entry=timer)
        events = idle(first_us, 1, 1), expired, left(first_us + 5, 1)
        names = [pb.InternedString(iid=number, str=name)]
        interned = pb.InternedData(kernel_symbols=names)
        return packet(pb.FtraceEventBundle(cpu=1, event=events), interned_data=interned, **more)

    found = rows(
        named(1, b"tick_sched_timer", 0),
        named(2, b"hrtimer_wakeup", 10),
        named(3, b"tick_x", 20, sequence_flags=pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED),
        named(1, b"tick_sched_timer", 30),
        named(1, b"hrtimer_wakeup", 40),
        named(1, b"tick_sched_timer", 50, incremental_state_cleared=True),
    )
    assert [x["ended_by"] for x in found] == ["tick", "tick", "timer", "tick", "timer", "tick"]


@pytest.mark.parametrize("described", [True, False])
def test_events_without_a_message(rows: Any, described: bool) -> None:
    style = Style(described=described)

    def other(at_us: int, name: str, **values: int) -> Any:
        return without_message(1000 * at_us, 7, name, values, style)

    sent = other(40, "ipi_send_cpu", cpu=1), other(90, "sched_wake_idle_without_ipi", cpu=1)
    missed = other(51, "cpu_idle_miss", cpu_id=1, state=1, below=1)
    told = other(101, "cpu_idle_miss", cpu_id=1, state=1, below=0)
    found = rows(
        bundle(0, *sent),
        bundle(1, idle(0, 1, 1), left(50, 1), missed, idle(60, 1, 1), left(100, 1), told),
        # Perfetto writes descriptors behind the first events that they describe.
        bundle(1, idle(110, 1, 1), generic_event_descriptors=descriptors()),
    )
    assert [x["ended_by"] for x in found] == ["ipi", "store"]
    assert [x["miss"] for x in found] == ["below", "above"]


def test_lost_events_make_no_periods(tmp_path: Path) -> None:
    path = tmp_path / "x.pftrace"
    first, rest = bundle(1, idle(0, 1, 1)), (left(50, 1), idle(60, 1, 1), left(61, 1))
    other = bundle(0, idle(0, 0, 1)), bundle(0, left(70, 0), idle(80, 0, 1), left(90, 0))
    path.write_bytes(other[0] + first + bundle(1, *rest, lost_events=True) + other[1])
    found, metadata = rows_of(path)
    assert len(found) == 3
    assert (metadata.lost, metadata.incomplete) == ({1: 1}, 1)
    # Perfetto could not read a page of the kernel's buffer.
    unread = [pb.FtraceEventBundle.FtraceError(status=1)]
    path.write_bytes(first + bundle(1, *rest, error=unread) + bundle(1, idle(99, 1, 1)))
    found, metadata = rows_of(path)
    assert (found, metadata.lost) == ([], {1: 1})
    # A task that was woken meanwhile may have been woken again since.
    woken, ran = waking(20, 42, 0), switched(9010, "t", 42)
    period = bundle(1, idle(0, 1, 1), left(9000, 1), ran)
    others = bundle(0, woken) + period
    path.write_bytes(bundle(2, idle(5, 2, 1)) + bundle(2, left(8000, 2)) + others)
    assert [x["waking_to_running_ns"] for x in rows_of(path)[0]] == [8_990_000, None]
    gap = bundle(2, idle(5, 2, 1)) + bundle(2, left(8000, 2), lost_events=True)
    path.write_bytes(gap + others)
    assert [x["waking_to_running_ns"] for x in rows_of(path)[0]] == [None]
    # Packets were dropped: of which CPU they were is not known.
    dropped = pb.FtraceEventBundle(cpu=1, event=rest)
    path.write_bytes(other[0] + first + packet(dropped, previous_packet_dropped=1) + other[1])
    found, metadata = rows_of(path)
    assert len(found) == 2
    assert metadata.lost == {0: 1, 1: 1}
    # Before the first packet of a ring buffer, nothing is missed.
    path.write_bytes(packet(pb.FtraceEventBundle(cpu=1, event=rest), previous_packet_dropped=1))
    found, metadata = rows_of(path)
    assert (len(found), metadata.lost) == (1, {})


@pytest.mark.parametrize("name", ["a\nb", " pid=3 prio=", "x" * 15, "ends-in-8", ""])
def test_odd_names(rows: Any, name: str) -> None:
    events = idle(0, 1, 1), waking(5, 42, 0), left(9, 1), switched(10, name, 42)
    (row,) = rows(bundle(1, *events))
    assert (row["wakee_comm"], row["wakee_pid"]) == (name, 42)


def test_a_name_that_is_cut_inside_of_a_character(rows: Any) -> None:
    switch = delimited(5, "schläfe".encode()[:5]) + varint(2 << 3) + varint(0)
    switch += varint(6 << 3) + varint(42) + delimited(1, b"swapper")
    data = event(10_000, 0).SerializeToString() + delimited(4, switch)
    made = pb.FtraceEvent.FromString(data)
    (row,) = rows(bundle(1, idle(0, 1, 1), left(9, 1), made))
    assert row["wakee_comm"] == "schl\ufffd"


def test_unknown_fields_and_packets_are_ignored(rows: Any) -> None:
    unknown = b"".join(
        varint(number << 3 | kind) + data
        for number, kind, data in (
            (3000, 0, varint(1 << 63)),
            (3001, 1, bytes(8)),
            (3002, 2, b"\x03abc"),
            (3003, 5, bytes(4)),
        )
    )
    made = pb.FtraceEventBundle(cpu=1, event=(idle(0, 1, 1), left(9, 1))).SerializeToString()
    inside = delimited(1, unknown + delimited(1, made + unknown) + unknown)
    track = packet(track_event=pb.TrackEvent(name="x"))
    assert len(rows(delimited(1, unknown), track, inside)) == 1


def test_events_of_other_machines_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x.pftrace"
    events = idle(0, 1, 1), left(9, 1)
    theirs = packet(pb.FtraceEventBundle(cpu=1, event=events), machine_id=5)
    path.write_bytes(bundle(1, *events) + theirs + theirs)
    found, metadata = rows_of(path)
    assert len(found) == 1
    assert sum("other machines" in note for note in metadata.notes) == 1


def test_progress_has_an_end(tmp_path: Path) -> None:
    path = tmp_path / "x.pftrace"
    path.write_bytes(bundle(1, idle(10, 1, 1), left(60, 1)) + bundle(0, idle(5, 0, 1)))
    assert rows_of(path)[1].expected_ns == 55_000


def test_our_own_export_holds_no_events(tmp_path: Path) -> None:
    trace = tmp_path / "own.pftrace"
    done = CliRunner().invoke(report, [str(PIPE), "--json", "--perfetto", str(trace)])
    assert done.exit_code == 0, done.output
    assert is_recording(trace)
    with pytest.raises(LightsleepError) as raised:
        rows_of(trace)
    said = raised.value.message
    assert said.startswith(f"{trace}: no recording, or a damaged one")
    assert "no events of the kernel" in said


def test_a_trace_without_our_events(tmp_path: Path) -> None:
    path = tmp_path / "x.pftrace"
    path.write_bytes(bundle(1, event(5, 3, print=pb.PrintFtraceEvent(buf="x"))))
    with pytest.raises(LightsleepError, match="no recording, or a damaged one"):
        rows_of(path)


def test_the_package_that_is_missing_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "x.pftrace"
    path.write_bytes(bundle(1, idle(0, 1, 1), left(9, 1)))
    monkeypatch.setitem(sys.modules, "perfetto.protos.perfetto.trace", None)
    done = CliRunner().invoke(main, ["report", str(path)])
    assert done.exit_code == 1
    assert "needs the Python package perfetto, which is not installed" in done.output


MADE = packet(trace_uuid=pb.TraceUuid(msb=1)) + bundle(1, idle(0, 1, 1), left(9, 1))
LATE = pb.FtraceEvent(timestamp=(1 << 64) - 1, cpu_idle=pb.CpuIdleFtraceEvent(state=1, cpu_id=1))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (MADE + b"\x0b", f"damaged at byte {len(MADE)}: a packet begins with 0x0a, not with 0x0b"),
        (MADE + b"\x0a", f"damaged at byte {len(MADE)}: a number has no end"),
        (MADE + b"\x0a" + b"\xff" * 11, f"damaged at byte {len(MADE)}: a number has no end"),
        (MADE + b"\x0a\x05abc", "of a packet of 5 bytes, 3 are there"),
        (MADE + b"\x0a" + varint(1 << 40), "a packet of 1099511627776 bytes is longer"),
        (MADE + b"\x0a\x02\x0a\x7f", f"damaged at byte {len(MADE)}: no TracePacket"),
        (MADE + b"\x0a\x01\x0b", f"damaged at byte {len(MADE)}: no TracePacket"),
        (MADE + b"\x0a\x02\x00\x00", f"damaged at byte {len(MADE)}: no TracePacket"),
        (MADE + delimited(1, delimited(1, b"\x12\x05\x08")), "no TracePacket"),
        (MADE + packet(pb.FtraceEventBundle(cpu=70_000, lost_events=True)), "a CPU 70000"),
        (MADE + packet(pb.FtraceEventBundle(lost_events=True)), "events without a CPU"),
        (MADE + packet(compressed_packets=b"x" * 9), "cannot be unpacked by zlib"),
        (MADE + packet(zstd_compressed_packets=b"x" * 9), "cannot be unpacked by zstd"),
        (MADE + compressed(compressed(MADE, "zlib"), "zlib"), "a packet is compressed twice"),
        (MADE + compressed(bytes(65 << 20), "zlib"), "it unpacks to more than"),
        (MADE + compressed(bytes(65 << 20), "zstd"), "it unpacks to more than"),
        (MADE + compressed(b"\x0a\x05abc", "zlib"), "in what it holds compressed"),
        (MADE + compressed(b"\x12\x01a", "zlib"), "compressed: a packet begins with 0x0a"),
        (MADE + bundle(1, idle(5, 1, 1)), "time runs backwards on CPU 1"),
        (MADE + bundle(1, idle(20, 1, 300)), "no kernel has an idle state 300"),
        (MADE + bundle(1, idle(20, 2, 1)), "CPU 1 cannot enter a state for CPU 2"),
        (MADE + bundle(1, event(20_000, 0, cpu_idle=pb.CpuIdleFtraceEvent(state=1))), "cpu_id"),
        (MADE + bundle(1, LATE), "no clock of the kernel says"),
        (MADE + bundle(1, switched(20, "x" * 300, 4)), "no kernel has a name of 300 characters"),
        (
            MADE + bundle(1, pb.FtraceEvent(cpu_idle=pb.CpuIdleFtraceEvent())),
            "cpu_idle lacks a time",
        ),
        (MADE + compact(1, switch_timestamp=[20_000]), "differ in length: 1, 0, 0"),
        (
            MADE + compact(1, waking_timestamp=[20_000], waking_pid=[1], waking_comm_index=[1]),
            "no name has the number 1",
        ),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_damaged_files(data: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pftrace"
    path.write_bytes(data)
    with pytest.raises(LightsleepError) as raised:
        rows_of(path)
    assert said in raised.value.message
    assert raised.value.message.startswith(str(path))
    assert " byte " in raised.value.message


@pytest.mark.parametrize("style", STYLES[:4], ids=str)
def test_damage_at_each_seventh_byte_is_an_error_or_rows(style: Style, tmp_path: Path) -> None:
    lines = gzip.decompress(PIPE.read_bytes()).decode().splitlines()[4:40]
    whole, path, errors = traced(lines, style), tmp_path / "x.pftrace", list[str]()
    for at in range(0, len(whole), 7):
        for data in (whole[:at], whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]):
            path.write_bytes(data)
            try:
                rows_of(path)
            except LightsleepError as error:
                errors.append(error.message)
    assert len(errors) > len(whole) / 7
    assert all(str(path) in error for error in errors)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (MADE, True),
        (MADE[:20], True),
        (delimited(1, delimited(1, bytes(9))) + MADE, True),
        (delimited(1, delimited(1, bytes(9))) + b"x", False),
        (delimited(1, varint(1 << 3 | 2) + varint(99)) + MADE, False),
        (b"", False),
        (b"\n", False),
        (b"\n\n\n\n", False),
        (b"\n{" + b" " * 200, False),
        (b"\n# tracer: nop\n#\n" * 9, False),
        (b"\n\x16          <idle>-0 [000] 1.000001: cpu_idle: state=1 cpu_id=0\n", False),
        # It could be a packet of 32 bytes, and is an event.
        (b"\n     <idle>-0 [000] 1.000001: cpu_idle: state=1 cpu_id=0\n", False),
    ],
)
def test_text_is_told_from_packets(head: bytes, expected: bool) -> None:
    assert (formats.of_head(head) is formats.PERFETTO) == expected


def test_a_text_that_begins_like_a_packet_is_text(tmp_path: Path) -> None:
    """An empty line, and one of spaces: as a packet of 32 bytes, and then another."""
    path = tmp_path / "trace.txt"
    entered = b"<idle>-0 [000] 1.000001: cpu_idle: state=1 cpu_id=0\n"
    text = b"\n" + b" " * 33 + b"\n" + entered
    assert perfetto.is_trace(text)
    path.write_bytes(text + entered.replace(b"state=1", b"state=4294967295"))
    assert len(rows_of(path)[0]) == 1


def test_a_compressed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pftrace.gz"
    path.write_bytes(gzip.compress(MADE))
    with pytest.raises(LightsleepError, match="unpack it first, with gunzip"):
        rows_of(path)


@pytest.mark.parametrize(
    ("name", "causes"),
    [
        ("perfetto-compact.pftrace", {"ipi", "device", "tick", "timer", "unknown"}),
        # No functions were named, so the tick is any timer.
        ("perfetto-plain.pftrace", {"ipi", "timer"}),
    ],
)
def test_what_perfetto_writes(name: str, causes: set[str]) -> None:
    """Perfetto 56, while perf bench sched pipe ran on two CPUs. Leaving state 1 takes 300 us."""
    found, metadata = rows_of(RECORDINGS / name)
    assert len(found) > 200
    assert (metadata.seen, metadata.lost) == ({0, 1}, {})
    assert metadata.incomplete <= 2
    assert {x["ended_by"] for x in found} == causes
    assert any("counts as a timer" in x for x in metadata.notes) == ("tick" not in causes)
    assert {x["state"] for x in found} - {-1} == {0, 1}
    assert {x["miss"] for x in found} == {None, "above", "below"}
    assert min(x["length_ns"] for x in found if x["state"] == 1) > 300_000
    waits = [x for x in found if x["waking_to_running_ns"] is not None]
    assert len(waits) > 0.7 * len(found)
    assert all(0 < x["waking_to_running_ns"] < 10_000_000 for x in waits)
    by_tasks = [x for x in waits if x["waker_pid"] and x["state"] >= 0]
    assert len(by_tasks) > 30
    assert {x["ended_by"] for x in by_tasks} == {"ipi"}
    assert sum(x["waker_comm"] == "<...>" for x in waits) <= 2


def test_of_two_data_sources_the_trace_says_that_one_is_read(tmp_path: Path) -> None:
    """Each writes all events that it was asked for, in a sequence of its own."""

    def of(sequence: int, at_us: int, cpu: int) -> bytes:
        events = [idle(at_us, cpu, 1), left(at_us + 5, cpu)]
        made = pb.TracePacket(trusted_packet_sequence_id=sequence)
        made.ftrace_events.CopyFrom(pb.FtraceEventBundle(cpu=cpu, event=events))
        return delimited(1, made.SerializeToString())

    path = tmp_path / "x.pftrace"
    path.write_bytes(of(3, 10, 0) + of(3, 20, 1) + of(4, 21, 1) + of(4, 10, 0))
    for command in (report, replay_command):
        done = CliRunner().invoke(command, [str(path)])
        assert done.exit_code == 1
        said = " ".join(done.output.split())
        assert "two data sources linux.ftrace recorded CPU 1 at the same time" in said
        assert "name all events in one data source, and record again" in said
    # One that began when another had ended, or that recorded other CPUs, is read.
    path.write_bytes(of(3, 10, 0) + of(3, 20, 1) + of(4, 30, 1) + of(4, 10, 2))
    assert sorted(x["cpu"] for x in rows_of(path)[0]) == [0, 1, 1, 2]
