# SPDX-License-Identifier: GPL-2.0-only
"""Traces of Perfetto: where a file has the kernel's events, and these as lines in order of time.

A trace is a row of packets: the byte 0x0a, a length, and a message. The kernel's events are in
bundles of one CPU each. The bundles of a CPU are in order of time, those of different CPUs are not.
A packet may hold other packets, compressed.

The file is read twice. First come all packets, of which little is kept: where each with a bundle
is, and what is not in it but belongs to it. Then the bundles of each CPU are read side by side.

perfetto_events.py says what is in a bundle. The package perfetto knows the messages.
"""

from __future__ import annotations

import contextlib
import heapq
import io
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

PACKET = b"\x0a"
"""How each packet begins: field 1 of the file, with a length."""

LONGEST = 10
"""Bytes of a number at most."""

DELIMITED = 2
KINDS = (0, 1, 5, DELIMITED)
"""How a field says what its bytes are; those of a delimited one begin with their number."""

MOST_FIELDS = 1 << 29

MOST = 64 << 20
"""Bytes of a packet at most, also of all that one holds compressed."""

MOST_WITH_A_BUNDLE = 16 << 20
"""Perfetto writes a bundle for 128 KiB of the kernel's buffer."""

STEP = 1 << 20
"""So much is unpacked at a time."""

BUNDLE = "ftrace_events"
COMPRESSED = {"compressed_packets": "zlib", "zstd_compressed_packets": "zstd"}
"""What a packet may hold: one of these fields, or others that are not read here."""

TICK_NAMES = tuple(name.encode() for name in TICKS)

SEVERAL = (
    "two data sources linux.ftrace recorded CPU {cpu} at the same time, and only one is read: name "
    "all events in one data source, and record again"
)

OTHERS = "the trace holds events of other machines, too, which are left out"


def is_trace(head: bytes) -> bool:
    """Whether a file may be a trace, by its first bytes: there is no mark, and text may look so."""
    file = io.BytesIO(head)
    try:
        if file.read(1) != PACKET:
            return False
        size = _number(file)
        end = file.tell() + size
        field = _number(file)
        rest = _number(file) if field & 7 == DELIMITED else 1
    except ValueError:
        return False
    fits = 0 < field >> 3 < MOST_FIELDS and field & 7 in KINDS and file.tell() + rest <= end
    return size <= MOST and fits and head[end : end + 1] in (b"", PACKET)


def _number(file: BinaryIO) -> int:
    """Return the number that begins where a file stands. Raises ValueError."""
    value = 0
    for shift in range(0, 7 * LONGEST, 7):
        if not (byte := file.read(1)):
            break
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise ValueError("a number has no end")


def _next_packet(file: BinaryIO) -> bytes | None:
    """Return the packet that begins where a file stands; None at its end. Raises ValueError."""
    if not (first := file.read(1)):
        return None
    if first != PACKET:
        raise ValueError(f"a packet begins with 0x0a, not with 0x{first.hex()}")
    size = _number(file)
    if size > MOST:
        raise ValueError(f"a packet of {size} bytes is longer than {MOST}")
    packet = file.read(size)
    if len(packet) < size:
        raise ValueError(f"of a packet of {size} bytes, {len(packet)} are there")
    return packet


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Trace]:
    """Lend a trace. Raises LightsleepError where it is damaged, or cannot be read."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos  # isort: skip
    from google.protobuf.message import DecodeError  # which perfetto brings

    with path.open("rb") as file:
        trace = Trace(file, _Messages(protos, DecodeError))
        try:
            trace.find()
        except ValueError as error:
            raise LightsleepError(f"{path}: damaged at byte {trace.at}: {error}") from error
        except OSError as error:
            raise LightsleepError(f"cannot read {path}: {error.strerror}") from error
        if trace.doubled is not None:
            raise LightsleepError(f"{path}: {SEVERAL.format(cpu=trace.doubled)}")
        yield trace


class _Messages(NamedTuple):
    """What the package perfetto knows of the messages that are read here."""

    protos: Any
    error: type[Exception]

    def read(self, name: str, data: bytes) -> Any:
        """Return a message of that name. Raises ValueError."""
        try:
            return getattr(self.protos, name).FromString(data)
        except self.error as error:
            raise ValueError(f"no {name}: {error}") from error


class Place(NamedTuple):
    """Where a packet with a bundle is: in the file or, from 0 on, in what one there unpacks to.

    ``lost`` says that events may be missing before it. ``ticks`` is a number of Trace's sets.
    """

    packet: int
    inside: int
    lost: int
    ticks: int


OUTSIDE = -1
"""In place of ``inside``, of a packet that is in no other."""


class Trace:
    """A trace that is being read. Iterating over it yields lines of the kernel's trace.

    ``notes`` say what is not read of it. ``at`` is where the packet begins that was read last.
    ``doubled`` is a CPU that two data sources recorded at the same time, each with a sequence of
    packets of its own; None where there is no such CPU.
    """

    def __init__(self, file: BinaryIO, messages: _Messages) -> None:
        """Read ``file``: find() comes first."""
        self.notes: list[str] = []
        self.at = 0
        self.doubled: int | None = None
        self._ends_ns: defaultdict[int, dict[int, int]] = defaultdict(dict)  # by CPU and sequence
        self._file, self._messages = file, messages
        self._first_ns: int | None = None
        self._last_ns = 0
        self._places: dict[int, array[int]] = {}
        self._descriptors = events.Descriptors()
        # Of each sequence of packets with names of functions: which are ticks. Each set of them, or
        # None where there are no names, and its number.
        self._ticks: dict[int, frozenset[int]] = {}
        self._sets: dict[frozenset[int] | None, int] = {}
        self._sequences = set[int]()
        self._missing = set[int]()
        self._unpacked: dict[int, io.BytesIO] = {}

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
        return f"packet at byte {self.at}"

    def find(self) -> None:
        """Read all packets, and remember where bundles are. Raises ValueError, at ``at``."""
        while (data := _next_packet(self._file)) is not None:
            self._take(data, OUTSIDE)
            self.at = self._file.tell()

    def __iter__(self) -> Iterator[str]:
        """Yield lines, in the order of time. Raises ValueError where an event is damaged."""
        streams = [self._lines(cpu) for cpu in sorted(self._places)]
        for _, at, line in heapq.merge(*streams, key=itemgetter(0)):
            self.at = at
            yield line

    def _take(self, data: bytes, inside: int) -> None:
        """Take what is in a packet. Raises ValueError."""
        packet = self._messages.read("TracePacket", data)
        kind = packet.WhichOneof("data")
        if kind in COMPRESSED:
            self._take_all(packet, inside)
        if packet.machine_id:
            if kind == BUNDLE and OTHERS not in self.notes:
                self.notes.append(OTHERS)
            return
        sequence = packet.trusted_packet_sequence_id
        if packet.previous_packet_dropped and sequence in self._sequences:
            self._missing.update(self._places)
        self._names(packet, sequence)
        if kind == BUNDLE:
            if len(data) > MOST_WITH_A_BUNDLE:
                raise ValueError(f"a packet with a bundle of {len(data)} bytes is too long")
            self._sequences.add(sequence)
            self._found(packet.ftrace_events, inside, sequence)

    def _take_all(self, packet: Any, inside: int) -> None:
        """Take what is in the packets that one holds compressed."""
        if inside != OUTSIDE:
            raise ValueError("a packet is compressed twice")
        file, begin = _unpacked(packet), 0
        try:
            while (data := _next_packet(file)) is not None:
                self._take(data, begin)
                begin = file.tell()
        except ValueError as error:
            raise ValueError(f"in what it holds compressed: {error}") from error

    def _names(self, packet: Any, sequence: int) -> None:
        """Take the names of functions: those of a packet hold for its own events, too."""
        cleared = packet.sequence_flags & packet.SEQ_INCREMENTAL_STATE_CLEARED
        if cleared or packet.incremental_state_cleared:
            self._ticks.pop(sequence, None)
        for name in packet.interned_data.kernel_symbols:
            one = frozenset([name.iid])
            known = self._ticks.get(sequence, frozenset())
            is_tick = name.str.startswith(TICK_NAMES)
            self._ticks[sequence] = known | one if is_tick else known - one

    def _found(self, bundle: Any, inside: int, sequence: int) -> None:
        """Remember a bundle."""
        for each in bundle.generic_event_descriptors:
            descriptor = self._messages.read("DescriptorProto", each.event_descriptor)
            self._descriptors.learn(each.field_id, descriptor)
        cpu, times = bundle.cpu, events.span_ns(bundle)
        if not (times or bundle.lost_events or bundle.error):
            return
        if not bundle.HasField("cpu") or cpu >= MAX_CPUS:
            what = f"a CPU {cpu}" if bundle.HasField("cpu") else "events without a CPU"
            raise ValueError(f"no kernel has {what}")
        if times:
            self._first_ns = min(*times, times[0] if self._first_ns is None else self._first_ns)
            self._last_ns = max(*times, self._last_ns)
            ends_ns = self._ends_ns[cpu]
            if any(x != sequence and min(times) < end for x, end in ends_ns.items()):
                self.doubled = cpu if self.doubled is None else self.doubled
            ends_ns[sequence] = max(*times, ends_ns.get(sequence, 0))
        ticks = self._sets.setdefault(self._ticks.get(sequence), len(self._sets))
        place = Place(self.at, inside, int(cpu in self._missing), ticks)
        self._missing.discard(cpu)
        self._places.setdefault(cpu, array("q")).extend(place)

    def _lines(self, number: int) -> Iterator[tuple[int, int, str]]:
        """Yield the time, the packet and the line of each event of a CPU."""
        cpu, sets = events.Cpu(number), list(self._sets)
        places, width = self._places[number], len(Place._fields)
        for first in range(0, len(places), width):
            place = Place(*places[first : first + width])
            try:
                for now_ns, line in events.lines(
                    self._bundle(place), cpu, self._descriptors, sets[place.ticks], bool(place.lost)
                ):
                    yield now_ns, place.packet, line
            except ValueError:
                self.at = place.packet
                raise

    def _bundle(self, place: Place) -> Any:
        """Return the bundle of a packet."""
        if place.inside == OUTSIDE:
            return self._packet_at(self._file, place.packet).ftrace_events
        kept = self._unpacked
        if place.packet not in kept:
            kept[place.packet] = _unpacked(self._packet_at(self._file, place.packet))
            # CPUs read what is near each other in time, and so in the file.
            while len(kept) > 1 and sum(len(x.getbuffer()) for x in kept.values()) > MOST:
                del kept[next(iter(kept))]
        return self._packet_at(kept[place.packet], place.inside).ftrace_events

    def _packet_at(self, file: BinaryIO, begin: int) -> Any:
        file.seek(begin)
        return self._messages.read("TracePacket", _next_packet(file) or b"")


def _unpacked(packet: Any) -> io.BytesIO:
    """Return what a packet holds compressed. Raises ValueError."""
    kind = packet.WhichOneof("data")
    codec, data = COMPRESSED[kind], getattr(packet, kind)
    file = io.BytesIO()
    try:
        for part in _inflated(data) if codec == "zlib" else _read_zstd(data):
            file.write(part)
            if file.tell() > MOST:
                raise ValueError(f"it unpacks to more than {MOST} bytes")
    except (zlib.error, OSError, EOFError) as error:
        raise ValueError(f"it cannot be unpacked by {codec}: {error}") from error
    file.seek(0)
    return file


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
