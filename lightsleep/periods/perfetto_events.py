# SPDX-License-Identifier: GPL-2.0-only
"""The kernel's events in a bundle of a Perfetto trace, as lines of the kernel's trace.

A bundle holds events of one CPU, in up to three lists, each in the order of time:

- Events with a message of their own, such as cpu_idle.
- Events that Perfetto has no message for. Until its version 53 they were a list of names and
  values. Since then, a descriptor in a bundle says what their fields are called.
- Compact events: sched_switch and sched_waking, as columns. Times are differences, and names are
  places in a table of the bundle. The task that is switched out, or that wakes, is not there: it is
  the one that the CPU has switched to last, or that the last event with a message happened in.

Functions are numbers, for which a table of the packet may have names. Of those, only whether they
are the kernel's tick matters here, and whether any is there.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from operator import itemgetter
from typing import Any

from lightsleep.periods.lines import NO_NAME, TICKS, WORDS

COMPACT_SWITCH = (
    "prev_pid={prev_pid} prev_prio=0 prev_state=S ==> "
    "next_comm={next_comm} next_pid={next_pid} next_prio=0"
)

UNKNOWN = (1 << 31) - 1
"""In place of a task that nothing tells: above the numbers that the kernel gives."""

OTHER = "another"
"""In place of the name of a function that is not the kernel's tick."""

IPIS = ("Rescheduling", "Function call", "CPU stop", "IRQ work", "CPU wake-up")
"""How the reasons of ipi_entry begin. The kernel has it on Arm, where a timer may be one, too."""

NAME = 255
"""Characters of a name at most. That of a task has 15; that of an interrupt may be longer."""

ENDLESS_NS = 10_000_000_000 * 1_000_000_000
"""Later than any clock of the kernel."""


@dataclass(slots=True)
class Cpu:
    """What is known of a CPU: the task that it runs, None if nothing tells, and the last time.

    ``lost`` says that events are missing between that time and the next event.
    """

    number: int
    task: int | None = None
    last_ns: int = 0
    lost: bool = False


@dataclass(slots=True)
class Descriptors:
    """Events without a message of their own: by number, their names and those of their fields."""

    known: dict[int, tuple[str, dict[int, str]]] = field(default_factory=dict)

    def learn(self, number: int, descriptor: Any) -> None:
        """Take a descriptor. It holds for the whole trace, also for events before it."""
        if descriptor.name in WORDS:
            names = {x.number: x.name for x in descriptor.field}
            self.known[number] = (descriptor.name, names)

    def read(self, event: Any) -> tuple[str, dict[str, Any]] | None:
        """Return the name and the fields of an event; None if it is none of ours."""
        from google.protobuf.empty_pb2 import Empty  # which perfetto brings
        from google.protobuf.message import DecodeError
        from google.protobuf.unknown_fields import UnknownFieldSet

        for unknown in UnknownFieldSet(event):
            if isinstance(unknown.data, bytes) and unknown.field_number in self.known:
                name, names = self.known[unknown.field_number]
                try:
                    inside = UnknownFieldSet(Empty.FromString(unknown.data))
                except DecodeError as error:
                    raise ValueError(f"no {name}: {error}") from error
                return name, {names.get(x.field_number, ""): x.data for x in inside}
        return None


class _Message(Mapping[str, Any]):
    """The fields that a message has."""

    def __init__(self, message: Any) -> None:
        self._message = message

    def __getitem__(self, name: str) -> Any:
        if not self._message.HasField(name):
            raise KeyError(name)
        value = getattr(self._message, name)
        return _text(value) if isinstance(value, (str, bytes)) else value

    def __iter__(self) -> Iterator[str]:
        return (x.name for x, _ in self._message.ListFields())

    def __len__(self) -> int:
        return len(self._message.ListFields())


@dataclass(slots=True)
class _Event:
    """What happened, and in which task, if the event says so."""

    name: str
    fields: Mapping[str, Any]
    task: int | None = None
    compact: bool = False


def lines(
    bundle: Any, cpu: Cpu, descriptors: Descriptors, ticks: frozenset[int] | None, lost: bool
) -> Iterator[tuple[int, str]]:
    """Yield the time and the line of each event of ours in a bundle.

    ``ticks`` are the numbers of functions that are the kernel's tick; None where no function has a
    name. Of a bundle that Perfetto could not read to its end, nothing but the loss is told. Raises
    ValueError where an event lacks a field, or has one that no kernel writes.
    """
    if lost or bundle.lost_events or bundle.error:
        cpu.task, cpu.lost = None, True
        yield cpu.last_ns, f"CPU:{cpu.number} [LOST EVENTS]"
        if bundle.error:
            return
    lists = (
        _with_messages(bundle, descriptors, ticks),
        _switches(bundle.compact_sched),
        _wakings(bundle.compact_sched),
    )
    for now_ns, event in heapq.merge(*lists, key=itemgetter(0)):
        if now_ns >= ENDLESS_NS:
            raise ValueError(f"no clock of the kernel says {now_ns} ns")
        if cpu.lost:  # who was woken meanwhile has been woken again, maybe
            cpu.lost = False
            yield now_ns, f"CPU:{cpu.number} [LOST 0 EVENTS]"
        if event.task is not None:
            cpu.task = event.task
        task, cpu.last_ns = cpu.task, now_ns
        if event.name == "sched_waking" and task is None:
            continue
        try:
            if event.name == "sched_switch":
                cpu.task = event.fields["next_pid"]
            elif event.name == "cpu_idle":
                cpu.task = 0
            words = _words(event, task)
        except KeyError as error:
            raise ValueError(f"{event.name} lacks the field {error.args[0]}") from error
        running = f"<...>-{task}" if task else "<idle>-0"
        at = f"{now_ns // 1_000_000_000}.{now_ns % 1_000_000_000:09}"
        yield now_ns, f"{running} [{cpu.number:03}] {at}: {event.name}: {words}"


def span_ns(bundle: Any) -> list[int]:
    """Return times between which the events of a bundle are, in any order; none if it has none."""
    times = [x.timestamp for x in (*bundle.event[:1], *bundle.event[-1:])]
    compact = bundle.compact_sched
    for deltas in (compact.switch_timestamp, compact.waking_timestamp):
        times += [*deltas[:1], sum(deltas)] if deltas else []
    return times


def _words(event: _Event, task: int | None) -> str:
    """Return what a line says of an event. Raises KeyError where a field is missing."""
    if event.compact and event.name == "sched_switch":
        before = UNKNOWN if task is None else task
        return COMPACT_SWITCH.format_map({"prev_pid": before, **event.fields})
    return WORDS[event.name].format_map(event.fields)


def _with_messages(
    bundle: Any, descriptors: Descriptors, ticks: frozenset[int] | None
) -> Iterator[tuple[int, _Event]]:
    for event in bundle.event:
        named = _named(event, descriptors, ticks)
        if named is None:
            continue
        if not event.HasField("timestamp"):
            raise ValueError(f"{named.name} lacks a time")
        named.task = event.pid if event.HasField("pid") else None
        yield event.timestamp, named


def _named(event: Any, descriptors: Descriptors, ticks: frozenset[int] | None) -> _Event | None:
    """Return what happened, without the task; None if it is nothing of ours."""
    kind = event.WhichOneof("event")
    if kind == "ipi_entry":
        is_ipi = _text(event.ipi_entry.reason).startswith(IPIS)
        return _Event("reschedule_entry", {}) if is_ipi else None
    if kind == "hrtimer_expire_entry":
        if ticks is None:
            return _Event(kind, {"function": NO_NAME})
        tick = event.hrtimer_expire_entry.function in ticks
        return _Event(kind, {"function": TICKS[0] if tick else OTHER})
    if kind == "generic":
        name = event.generic.event_name
        if name not in WORDS:
            return None
        values = [(x.name, x.WhichOneof("value"), x) for x in event.generic.field]
        return _Event(name, _told({x: getattr(field, y) for x, y, field in values if y}))
    if kind is None:
        found = descriptors.read(event)
        return _Event(found[0], _told(found[1])) if found else None
    return _Event(kind, _Message(getattr(event, kind))) if kind in WORDS else None


def _told(values: dict[str, Any]) -> dict[str, Any]:
    """Return fields as the kernel's trace prints them."""
    if "below" in values:
        values["type"] = "below" if values["below"] else "above"
    return {x: _text(y) if isinstance(y, (str, bytes)) else y for x, y in values.items()}


def _switches(compact: Any) -> Iterator[tuple[int, _Event]]:
    pids, names = compact.switch_next_pid, compact.switch_next_comm_index
    _same_length("switch", compact.switch_timestamp, pids, names)
    for now_ns, pid, name in zip(accumulate(compact.switch_timestamp), pids, names, strict=True):
        said = {"next_pid": pid, "next_comm": _interned(compact, name)}
        yield now_ns, _Event("sched_switch", said, compact=True)


def _wakings(compact: Any) -> Iterator[tuple[int, _Event]]:
    pids, names = compact.waking_pid, compact.waking_comm_index
    _same_length("waking", compact.waking_timestamp, pids, names)
    for now_ns, pid, name in zip(accumulate(compact.waking_timestamp), pids, names, strict=True):
        said = {"pid": pid, "comm": _interned(compact, name)}
        yield now_ns, _Event("sched_waking", said, compact=True)


def _same_length(what: str, *columns: Any) -> None:
    if len({len(x) for x in columns}) > 1:
        raise ValueError(
            f"the columns of compact sched_{what} differ in length: "
            + ", ".join(str(len(x)) for x in columns)
        )


def _interned(compact: Any, place: int) -> str:
    if place >= len(compact.intern_table):
        raise ValueError(f"no name has the number {place}")
    return _text(compact.intern_table[place])


def _text(value: str | bytes) -> str:
    """Return a name. One that was cut inside of a character is in bytes."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    if len(text) > NAME:
        raise ValueError(f"no kernel has a name of {len(text)} characters")
    return text
