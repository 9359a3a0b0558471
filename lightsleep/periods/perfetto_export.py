# SPDX-License-Identifier: GPL-2.0-only
"""Idle periods as a Perfetto trace: ui.perfetto.dev shows it beside other traces.

Each CPU has two tracks. The first has a slice for each idle period, named by its state. The second
has one for each wakeup, as long as it took from waking to running, named by the woken task; its
category says whether the CPU had halted (``wakeup``) or was found polling or awake: by another CPU
(``reference``), or by an interrupt of its own (``interrupt``), which the report counts nowhere.
Sums of the other slices are the totals of lightsleep report. When the task began to run is not in
the table of idle periods: a slice of the second track ends where the period does, or later if it
has to, and never later than the task ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from lightsleep.files import streamed
from lightsleep.periods.model import AWAKE, Metadata

SEQUENCE = 1
COLUMNS = (
    *("cpu", "entered_ns", "length_ns", "state", "ended_by"),
    *("wakee_comm", "waker_comm", "waker_cpu", "waking_to_running_ns"),
)


def write_perfetto(
    metadata: Metadata, batches: Iterable[pa.RecordBatch], target: Path
) -> Iterator[pa.RecordBatch]:
    """Write idle periods to ``target`` while they pass by; the file is whole at the end.

    Raises LightsleepError where it cannot be written.
    """
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent
    from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

    with streamed(target) as file:
        out = _Writer(metadata, StreamingTraceProtoBuilder(file), TrackEvent)
        for batch in batches:
            for row in batch.select(COLUMNS).to_pylist():
                out.row(row)
            yield batch
        out.end()


class _Writer:
    def __init__(self, metadata: Metadata, builder: Any, events: Any) -> None:
        self._metadata, self._builder, self._events = metadata, builder, events
        self._described = set[int]()

    def row(self, row: dict[str, Any]) -> None:
        """Write the slices of one idle period."""
        cpu, state, begin_ns = row["cpu"], row["state"], row["entered_ns"]
        end_ns, wait_ns = begin_ns + row["length_ns"], row["waking_to_running_ns"]
        track = self._track(cpu, 0)
        if state != AWAKE:
            said = {"ended by": row["ended_by"]}
            self._slice(track, begin_ns, end_ns, self._metadata.name(cpu, state), "idle", said)
        if wait_ns is not None:
            halted = state != AWAKE and not self._metadata.polls(cpu, state)
            waking_ns = max(begin_ns, end_ns - wait_ns)
            said = {"woken by": row["waker_comm"], "state": self._metadata.name(cpu, state)}
            by_itself = row["waker_cpu"] == cpu
            kind = "wakeup" if halted else "interrupt" if by_itself else "reference"
            name = row["wakee_comm"] or "?"
            self._slice(self._track(cpu, 1), waking_ns, waking_ns + wait_ns, name, kind, said)

    def end(self) -> None:
        """Describe the tracks of all recorded CPUs, also of those that were never idle."""
        for cpu in sorted(self._metadata.cpus | self._metadata.seen):
            self._track(cpu, 0)
            self._track(cpu, 1)

    def _track(self, cpu: int, which: int) -> int:
        """Return the track of a CPU: 0 of its idle periods, 1 of its wakeups."""
        track: int = 2 * cpu + which + 1
        if track not in self._described:
            self._described.add(track)
            packet = self._builder.create_packet()
            packet.track_descriptor.uuid = track
            packet.track_descriptor.name = f"CPU {cpu} {('idle', 'wakeups')[which]}"
            self._builder.write_packet(packet)
        return track

    def _slice(
        self,
        track: int,
        begin_ns: int,
        end_ns: int,
        name: str,
        category: str,
        said: dict[str, str | None],
    ) -> None:
        for at_ns, kind in (
            (begin_ns, self._events.TYPE_SLICE_BEGIN),
            (end_ns, self._events.TYPE_SLICE_END),
        ):
            packet = self._builder.create_packet()
            packet.timestamp = at_ns
            packet.trusted_packet_sequence_id = SEQUENCE
            packet.track_event.type = kind
            packet.track_event.track_uuid = track
            if kind == self._events.TYPE_SLICE_BEGIN:
                packet.track_event.name = name
                packet.track_event.categories.append(category)
                for key, value in said.items():
                    if value is not None:
                        note = packet.track_event.debug_annotations.add()
                        note.name, note.string_value = key, value
            self._builder.write_packet(packet)
