# SPDX-License-Identifier: GPL-2.0-only
"""Traces of Perfetto: where a file has the kernel's events, and these as lines in order of time.

A trace is a row of packets: the byte 0x0a, a length, and a message. The kernel's events are in
bundles of one CPU each. The bundles of a CPU are in order of time, those of different CPUs are not.
A packet may hold other packets, compressed.

The file is read twice. First come all packets, of which little is kept: for each bundle, where it
is, and what is not in it but belongs to it. Then the bundles of each CPU are read side by side.

perfetto_events.py says what is in a bundle. The package perfetto knows the messages.
"""

from __future__ import annotations

import contextlib
import heapq
import zlib
from array import array
from collections import defaultdict
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from lightsleep.errors import LightsleepError
from lightsleep.periods import perfetto_events as events
from lightsleep.periods.lines import TICKS
from lightsleep.periods.model import MAX_CPUS
from lightsleep.periods.wire import DELIMITED, LONGEST, Damaged, Field, fields, tag, varint

PACKET = 0x0A
"""How each packet begins: field 1 of the file, with a length."""

MOST = 64 << 20
"""Bytes of a packet at most, also of all that one holds compressed."""

MOST_OF_A_BUNDLE = 16 << 20
"""Perfetto writes a bundle for 128 KiB of the kernel's buffer."""

STEP = 1 << 20
"""So much is unpacked at a time."""

# Fields of a packet.
BUNDLE, SEQUENCE, INTERNED, FLAGS, CLEARED, DROPPED, MACHINE = 1, 10, 12, 13, 41, 42, 98
COMPRESSED = {50: "zlib", 133: "zstd"}

TICK_NAMES = tuple(name.encode() for name in TICKS)

SEVERAL = (
    "two data sources linux.ftrace recorded CPU {cpu} at the same time, and only one is read: name "
    "all events in one data source, and record again"
)

OTHERS = "the trace holds events of other machines, too, which are left out"


def is_trace(head: bytes) -> bool:
    """Whether a file may be a trace, by its first bytes: there is no mark, and text may look so."""
    try:
        if head[0] != PACKET:
            return False
        size, begin = varint(head, 1)
        end = begin + size
        _, kind, at = tag(head, begin)
        fits = at + varint(head, at)[0] <= end if kind == DELIMITED else at < end
    except (Damaged, IndexError):
        return False
    return size <= MOST and fits and head[end : end + 1] in (b"", bytes([PACKET]))


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Trace]:
    """Lend a trace. Raises LightsleepError where it is damaged, or cannot be read."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos  # isort: skip
    from google.protobuf.message import DecodeError  # which perfetto brings

    with path.open("rb") as file:
        trace = Trace(file, _Messages(protos, DecodeError))
        try:
            trace.find()
        except Damaged as error:
            raise LightsleepError(f"{path}: damaged at byte {error.at}: {error}") from error
        except OSError as error:
            raise LightsleepError(f"cannot read {path}: {error.strerror}") from error
        if trace.doubled is not None:
            raise LightsleepError(f"{path}: {SEVERAL.format(cpu=trace.doubled)}")
        yield trace


class _Messages(NamedTuple):
    """What the package perfetto knows of the messages that are read here."""

    protos: Any
    error: type[Exception]

    def read(self, name: str, data: bytes, at: int) -> Any:
        """Return a message of that name. Raises Damaged, at ``at``."""
        try:
            return getattr(self.protos, name).FromString(data)
        except self.error as error:
            raise Damaged(at, f"no {name}: {error}") from error


class Place(NamedTuple):
    """Where a bundle is: its packet in the file, and itself in that, or in what that unpacks to.

    ``lost`` says that events may be missing before it. ``ticks`` is a number of Trace's sets.
    """

    packet: int
    size: int
    compressed: int
    begin: int
    end: int
    lost: int
    ticks: int


class Trace:
    """A trace that is being read. Iterating over it yields lines of the kernel's trace.

    ``notes`` say what is not read of it. ``doubled`` is a CPU that two data sources recorded at the
    same time, each with a sequence of packets of its own; None where there is no such CPU.
    """

    def __init__(self, file: BinaryIO, messages: _Messages) -> None:
        """Read ``file``: find() comes first."""
        self.notes: list[str] = []
        self.doubled: int | None = None
        self._ends_ns: defaultdict[int, dict[int, int]] = defaultdict(dict)  # by CPU and sequence
        self._file, self._messages = file, messages
        self._first_ns: int | None = None
        self._last_ns = 0
        self._places: dict[int, array[int]] = {}
        self._descriptors = events.Descriptors()
        self._at = 0
        # Of each sequence of packets: which functions are ticks; each set of them, and its number.
        self._ticks: defaultdict[int, frozenset[int]] = defaultdict(frozenset)
        self._sets: dict[frozenset[int], int] = {}
        self._sequences = set[int]()
        self._missing = set[int]()
        self._unpacked: dict[int, bytes] = {}

    @property
    def has_events(self) -> bool:
        """Whether there are events of the kernel, of whatever kind."""
        return bool(self._places)

    @property
    def span_ns(self) -> int:
        """The time from the first event to the last."""
        return self._last_ns - (self._first_ns or 0)

    def place(self) -> str:
        """Say where the line is that was yielded last."""
        return f"packet at byte {self._at}"

    def find(self) -> None:
        """Read all packets, and remember where bundles are. Raises Damaged."""
        begin = 0
        while first := self._file.read(1):
            try:
                begin = self._next(first[0], begin)
            except Damaged as error:
                raise Damaged(begin + error.at, str(error)) from error

    def _next(self, first: int, begin: int) -> int:
        """Read the packet that begins there with a byte that is read; return where it ends."""
        if first != PACKET:
            raise Damaged(0, f"a packet begins with 0x0a, not with 0x{first:02x}")
        head = bytearray([first])
        while (more := self._file.read(1)) and more[0] >= 0x80 and len(head) < LONGEST:
            head += more
        size, at = varint(bytes(head + more), 1)
        if size > MOST:
            raise Damaged(0, f"a packet of {size} bytes is longer than {MOST}")
        packet = self._file.read(size)
        if len(packet) < size:
            raise Damaged(0, f"of a packet of {size} bytes, {len(packet)} are there")
        try:
            self._packet(packet, Place(begin + at, size, 0, 0, 0, 0, 0))
        except Damaged as error:
            raise Damaged(at + error.at, str(error)) from error
        return begin + at + size

    def __iter__(self) -> Iterator[str]:
        """Yield lines, in the order of time. Raises ValueError where an event is damaged."""
        streams = [self._lines(cpu) for cpu in sorted(self._places)]
        for _, at, line in heapq.merge(*streams, key=itemgetter(0)):
            self._at = at
            yield line

    def _packet(self, packet: bytes, place: Place) -> None:
        """Take what is in a packet. Where it is damaged, Damaged says so by its offset in it."""
        found = {field.number: field for field in fields(packet)}
        if (field := _compressed(found)) is not None:
            self._compressed(packet, field, place)
        if MACHINE in found and found[MACHINE].value:
            if BUNDLE in found and OTHERS not in self.notes:
                self.notes.append(OTHERS)
            return
        sequence = found[SEQUENCE].value if SEQUENCE in found else 0
        if DROPPED in found and found[DROPPED].value and sequence in self._sequences:
            self._missing.update(self._places)
        self._names(packet, found, sequence)
        if BUNDLE in found:
            self._sequences.add(sequence)
            self._found(packet, found[BUNDLE], place, sequence)

    def _compressed(self, packet: bytes, field: Field, place: Place) -> None:
        """Take what is in the packets that one holds."""
        if place.compressed:
            raise Damaged(field.begin, "a packet is compressed twice")
        data = _unpacked(packet, field)
        try:
            for inner in fields(data):
                if inner.number != 1:
                    raise Damaged(inner.begin, f"field {inner.number} is no packet")
                moved = place._replace(compressed=1, begin=inner.begin)
                self._packet(data[inner.begin : inner.end], moved)
        except Damaged as error:
            raise Damaged(field.begin, f"in what it holds compressed: {error}") from error

    def _names(self, packet: bytes, found: dict[int, Field], sequence: int) -> None:
        """Take the names of functions: those of a packet hold for its own events, too."""
        cleared = FLAGS in found and found[FLAGS].value & 1
        if cleared or (CLEARED in found and found[CLEARED].value):
            self._ticks.pop(sequence, None)
        if INTERNED not in found:
            return
        field = found[INTERNED]
        data = packet[field.begin : field.end]
        for name in self._messages.read("InternedData", data, field.begin).kernel_symbols:
            one = frozenset([name.iid])
            known = self._ticks[sequence]
            is_tick = name.str.startswith(TICK_NAMES)
            self._ticks[sequence] = known | one if is_tick else known - one

    def _found(self, packet: bytes, field: Field, place: Place, sequence: int) -> None:
        """Remember a bundle."""
        if field.end - field.begin > MOST_OF_A_BUNDLE:
            raise Damaged(field.begin, f"a bundle of {field.end - field.begin} bytes is too long")
        read = self._messages.read
        bundle = read("FtraceEventBundle", packet[field.begin : field.end], field.begin)
        for each in bundle.generic_event_descriptors:
            descriptor = read("DescriptorProto", each.event_descriptor, field.begin)
            self._descriptors.learn(each.field_id, descriptor)
        cpu, times = bundle.cpu, events.span_ns(bundle)
        if not (times or bundle.lost_events or bundle.error):
            return
        if not bundle.HasField("cpu") or cpu >= MAX_CPUS:
            what = f"a CPU {cpu}" if bundle.HasField("cpu") else "events without a CPU"
            raise Damaged(field.begin, f"no kernel has {what}")
        if times:
            self._first_ns = min(*times, times[0] if self._first_ns is None else self._first_ns)
            self._last_ns = max(*times, self._last_ns)
            ends_ns = self._ends_ns[cpu]
            if any(x != sequence and min(times) < end for x, end in ends_ns.items()):
                self.doubled = cpu if self.doubled is None else self.doubled
            ends_ns[sequence] = max(*times, ends_ns.get(sequence, 0))
        ticks = self._sets.setdefault(self._ticks[sequence], len(self._sets))
        begin, end = place.begin + field.begin, place.begin + field.end
        lost = int(cpu in self._missing)
        self._missing.discard(cpu)
        whole = place._replace(begin=begin, end=end, lost=lost, ticks=ticks)
        self._places.setdefault(cpu, array("Q")).extend(whole)

    def _lines(self, number: int) -> Iterator[tuple[int, int, str]]:
        """Yield the time, the packet and the line of each event of a CPU."""
        cpu, sets = events.Cpu(number), list(self._sets)
        places, width = self._places[number], len(Place._fields)
        for first in range(0, len(places), width):
            place = Place(*places[first : first + width])
            try:
                bundle = self._messages.read("FtraceEventBundle", self._read(place), 0)
                for now_ns, line in events.lines(
                    bundle, cpu, self._descriptors, sets[place.ticks], bool(place.lost)
                ):
                    yield now_ns, place.packet, line
            except ValueError:
                self._at = place.packet
                raise

    def _read(self, place: Place) -> bytes:
        """Return the bytes of a bundle."""
        if not place.compressed:
            self._file.seek(place.packet + place.begin)
            return self._file.read(place.end - place.begin)
        data = self._unpacked.get(place.packet)
        if data is None:
            self._file.seek(place.packet)
            packet = self._file.read(place.size)
            field = _compressed({x.number: x for x in fields(packet)})
            assert field
            self._unpacked[place.packet] = data = _unpacked(packet, field)
            # CPUs read what is near each other in time, and so in the file.
            while sum(len(x) for x in self._unpacked.values()) > MOST and len(self._unpacked) > 1:
                del self._unpacked[next(iter(self._unpacked))]
        return data[place.begin : place.end]


def _compressed(found: dict[int, Field]) -> Field | None:
    """Return the field of a packet that holds others."""
    return next((found[number] for number in COMPRESSED if number in found), None)


def _unpacked(packet: bytes, field: Field) -> bytes:
    """Return what a field holds compressed. Raises Damaged."""
    codec, data = COMPRESSED[field.number], packet[field.begin : field.end]
    parts, size = [], 0
    unpacked = _inflated(data) if codec == "zlib" else _read_zstd(data)
    try:
        for part in unpacked:
            size += len(part)
            if size > MOST:
                raise Damaged(field.begin, f"it unpacks to more than {MOST} bytes")
            parts.append(part)
    except (zlib.error, OSError, EOFError) as error:
        raise Damaged(field.begin, f"it cannot be unpacked by {codec}: {error}") from error
    return b"".join(parts)


def _inflated(data: bytes) -> Iterator[bytes]:
    unpacker = zlib.decompressobj()
    while not unpacker.eof:
        part = unpacker.decompress(data, STEP)
        data = unpacker.unconsumed_tail
        if not part and not data and not unpacker.eof:
            raise EOFError("it is cut off")
        yield part


def _read_zstd(data: bytes) -> Iterator[bytes]:
    import pyarrow as pa  # whoever asks whether a file is a trace may not have it

    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        while part := stream.read(STEP):
            yield part
