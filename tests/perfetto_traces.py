# SPDX-License-Identifier: GPL-2.0-only
"""Traces of Perfetto that tests make: of lines of the kernel's trace, or of single packets."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

pb: Any = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")

EVENT = re.compile(r"\s*\S.*-(\d+)\s+\[(\d+)\]\s+(?:\S+\s+)?(\d+)\.(\d{6,9}): (\w+):\s+(.*)")
SWITCH = re.compile(r"prev_comm=(.*) prev_pid=(\d+) .* next_comm=(.*) next_pid=(\d+) ")
TASK = re.compile(r"comm=(.*) pid=(\d+)")
NUMBER = re.compile(r"(\w+)=(\d+)")

SEQUENCE = 7
NUMBERS = {"sched_wake_idle_without_ipi": 65536, "ipi_send_cpu": 65537, "cpu_idle_miss": 65538}
"""Of events that Perfetto has no message for."""
FIELDS = ("cpu", "callsite", "cpu_id", "state", "below")


@dataclass
class Style:
    """How Perfetto writes a trace: its options, and how many events of a CPU a bundle has."""

    compact: bool = False
    described: bool = True
    codec: str = ""
    events: int = 40


def varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def delimited(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def packet(bundle: Any = None, **more: Any) -> bytes:
    """Return a packet as it stands in a file."""
    made = pb.TracePacket(trusted_packet_sequence_id=SEQUENCE, ftrace_events=bundle, **more)
    return delimited(1, made.SerializeToString())


def compressed(packets: bytes, codec: str) -> bytes:
    """Return a packet that holds others."""
    if codec == "zlib":
        return packet(compressed_packets=zlib.compress(packets))
    return packet(zstd_compressed_packets=pa.Codec("zstd").compress(packets, asbytes=True))


def event(at_ns: int, task: int, **message: Any) -> Any:
    return pb.FtraceEvent(timestamp=at_ns, pid=task, **message)


def without_message(at_ns: int, task: int, name: str, values: dict[str, int], style: Style) -> Any:
    """Return an event that Perfetto has no message for, as it is before and since version 53."""
    if not style.described:
        fields = [pb.GenericFtraceEvent.Field(name=x, uint_value=y) for x, y in values.items()]
        return event(at_ns, task, generic=pb.GenericFtraceEvent(event_name=name, field=fields))
    known = {x: y for x, y in values.items() if x in FIELDS}
    body = b"".join(varint(FIELDS.index(x) + 1 << 3) + varint(y) for x, y in known.items())
    data = event(at_ns, task).SerializeToString() + delimited(NUMBERS[name], body)
    return pb.FtraceEvent.FromString(data)


def descriptors() -> list[Any]:
    made = []
    for name, number in NUMBERS.items():
        names = [pb.FieldDescriptorProto(name=x, number=n) for n, x in enumerate(FIELDS, 1)]
        described = pb.DescriptorProto(name=name, field=names).SerializeToString()
        made.append(
            pb.FtraceEventBundle.GenericEventDescriptor(field_id=number, event_descriptor=described)
        )
    return made


@dataclass
class Columns:
    """The compact events of a bundle."""

    names: list[str] = field(default_factory=list)
    rows: dict[str, list[tuple[int, int, str]]] = field(
        default_factory=lambda: {"switch": [], "waking": []}
    )

    def put(self, kind: str, at_ns: int, pid: str, comm: str) -> None:
        self.rows[kind].append((at_ns, int(pid), comm))

    def message(self) -> Any:
        made = pb.FtraceEventBundle.CompactSched()
        columns = {
            "switch": (made.switch_timestamp, made.switch_next_pid, made.switch_next_comm_index),
            "waking": (made.waking_timestamp, made.waking_pid, made.waking_comm_index),
        }
        for kind, (times, pids, names) in columns.items():
            before = 0
            for at_ns, pid, comm in self.rows[kind]:
                if comm not in self.names:
                    self.names.append(comm)
                times.append(at_ns - before)
                pids.append(pid)
                names.append(self.names.index(comm))
                before = at_ns
        made.intern_table.extend(self.names)
        return made


def read(line: str) -> tuple[int, int, int, str, str] | None:
    """Return the task, the CPU, the time, the name and the words of an event."""
    match = EVENT.match(line)
    if not match:
        return None
    task, cpu, s, fraction, name, words = match.groups()
    return int(task), int(cpu), int(s) * 10**9 + int(fraction.ljust(9, "0")), name, words


class Writer:
    """Writes lines of the kernel's trace as Perfetto would."""

    def __init__(self, style: Style) -> None:
        self.style = style
        self.symbols: dict[str, int] = {}
        self.described = False

    def bundle(self, cpu: int, lines: Sequence[str]) -> bytes:
        """Return a packet with events of one CPU."""
        known = len(self.symbols)
        columns = Columns()
        events = [made for line in lines if (made := self.event(line, columns)) is not None]
        bundle = pb.FtraceEventBundle(cpu=cpu, event=events)
        if self.style.compact:
            bundle.compact_sched.CopyFrom(columns.message())
        if self.style.described and not self.described:
            bundle.generic_event_descriptors.extend(descriptors())
            self.described = True
        new = list(self.symbols.items())[known:]
        if not new:
            return packet(bundle)
        names = [pb.InternedString(iid=number, str=x.encode()) for x, number in new]
        # Perfetto clears its table with the first names of each of its rounds.
        flags = {} if known else {"sequence_flags": pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED}
        return packet(bundle, interned_data=pb.InternedData(kernel_symbols=names), **flags)

    def event(self, line: str, columns: Columns) -> Any:
        """Return the message of an event; None if it is compact, or Perfetto would not have it."""
        found = read(line)
        assert found
        task, _, at_ns, name, words = found
        if name == "sched_switch":
            comm, pid, next_comm, next_pid = SWITCH.match(words).groups()  # type: ignore[union-attr]
            if self.style.compact:
                return columns.put("switch", at_ns, next_pid, next_comm)
            names = {"prev_comm": comm, "next_comm": next_comm}
            said = pb.SchedSwitchFtraceEvent(prev_pid=int(pid), next_pid=int(next_pid), **names)
            return event(at_ns, task, sched_switch=said)
        if name == "sched_waking":
            comm, pid = TASK.match(words).groups()  # type: ignore[union-attr]
            if self.style.compact:
                return columns.put("waking", at_ns, pid, comm)
            said = pb.SchedWakingFtraceEvent(comm=comm, pid=int(pid), prio=120)
            return event(at_ns, task, sched_waking=said)
        if name == "hrtimer_expire_entry":
            function = words.partition("function=")[2].split()[0].split("/")[0]
            number = self.symbols.setdefault(function, len(self.symbols) + 1)
            said = pb.HrtimerExpireEntryFtraceEvent(function=number)
            return event(at_ns, task, hrtimer_expire_entry=said)
        numbers = {x: int(y) for x, y in NUMBER.findall(words)}
        if name == "cpu_idle":
            return event(at_ns, task, cpu_idle=pb.CpuIdleFtraceEvent(**numbers))
        if name in NUMBERS:
            return without_message(at_ns, task, name, numbers, self.style)
        return None


def traced(lines: Iterable[str], style: Style) -> bytes:
    """Return lines of the kernel's trace as a file of Perfetto.

    Of each stretch of time, the events of one CPU come after those of another.
    """
    writer = Writer(style)
    packets = [packet(trace_uuid=pb.TraceUuid(msb=1, lsb=2))]
    for stretch in _stretches([x for x in lines if read(x)], style.events):
        by_cpu: dict[int, list[str]] = {}
        for line in stretch:
            by_cpu.setdefault(read(line)[1], []).append(line)  # type: ignore[index]
        packets += [writer.bundle(cpu, by_cpu[cpu]) for cpu in sorted(by_cpu, reverse=True)]
    if not style.codec:
        return b"".join(packets)
    halves = packets[:1], packets[1 : len(packets) // 2], packets[len(packets) // 2 :]
    return packets[0] + b"".join(compressed(b"".join(x), style.codec) for x in halves[1:])


def _stretches(lines: list[str], events: int) -> Iterator[list[str]]:
    for first in range(0, len(lines), events):
        yield lines[first : first + events]
