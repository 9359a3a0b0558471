# SPDX-License-Identifier: GPL-2.0-only
"""CPUs whose BPF programs write events to rings, and the trace.dat that is made of these.

The programs are run by bpf_machine.py.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from bpf_machine import Machine, Pointer, Struct

from lightsleep.periods import trace_dat
from lightsleep.record import keeper, trace_file, tracing
from lightsleep.record.bpf import btf, pages, trace

NUMBERS = {x.name: number for number, x in enumerate(tracing.EVENTS, trace.FIRST_TYPE)}
NUMBERS[trace.SLEEP_LENGTH] = trace.SLEEP_TYPE
TICK = 0xFFFFFFFF81000000
KALLSYMS = b"%x T tick_nohz_handler\n" % TICK
PAGES = 4

OFFSETS = {"pid": 8, "comm": 16, "prio": 40, "name": 8, "function": 24}
"""Of the members of a kernel's structures."""


class Types(btf.Types):
    """What a kernel might say of its types."""

    def __init__(self) -> None:
        """Know all of them."""

    def number(self, kind: int, name: str) -> int:
        return kind + len(name)

    def hands_pointer(self, tracepoint: str, arg: int) -> bool:
        return (tracepoint, arg) == ("btf_trace_hrtimer_expire_entry", 1)

    def offset(self, structure: str, member: str) -> int:
        assert structure
        return OFFSETS[member]


EVENTS = {x.name: x for x in tracing.EVENTS}
LAYOUT = trace.Layout(Types(), room=1, pages=PAGES, words=1, all_chosen=True)
CODE = {name: LAYOUT.program(NUMBERS[name], event) for name, event in EVENTS.items()}
CODE[trace.SLEEP_LENGTH] = cast(dict[str, Any], LAYOUT.sleep_length())


def size_of(name: str) -> int:
    """Return how much room an event takes."""
    return pages.STAMP + trace.EVENT_HEADER + trace.payload(trace.FIELDS[name][0])


def words_of(text: str) -> list[int]:
    """Return a task's name as a kernel has it."""
    return list(struct.unpack("=QQ", text.encode().ljust(trace.COMM, b"\0")))


def context_of(name: str, values: dict[str, Any]) -> Struct:
    """Return what a tracepoint hands to its program."""
    context = Struct()
    for each in trace.FIELDS[name][0]:
        value = values.get(each.name, "" if each.how in ("comm", "string") else 0)
        at = 8 * each.arg
        if each.how == "comm":
            first, second = words_of(value)
            begin = OFFSETS[each.member]
            cast(Struct, context.setdefault(at, Struct())).update({begin: first, begin + 8: second})
        elif each.how == "string":
            text = Pointer(memoryview(bytes(value.encode().ljust(each.size, b"\0"))))
            context[at] = Struct({OFFSETS[each.member]: text})
        elif each.how == "mask":
            context[at] = Struct({0: value})
        elif each.how in ("value", "time"):
            context[at] = Pointer(memoryview(struct.pack("=q", value)))
        elif each.struct:
            of = context.get(at)
            of = of if isinstance(of, Struct) else Struct()
            context[at] = of
            of[OFFSETS[each.member]] = value
        else:
            context.setdefault(at, value & (1 << 64) - 1)
    return context


OPENED = set[int]()
"""The descriptors of all CPUs of a test."""


@pytest.fixture
def closed() -> Iterator[None]:
    """A worker of pytest runs thousands of tests, and may have few descriptors."""
    yield
    while OPENED:
        os.close(OPENED.pop())


class Cpu:
    """A CPU whose programs write events to its ring, and the keeper who empties that."""

    def __init__(self, folder: Path) -> None:
        """Begin with empty pages."""
        memory = memoryview(bytearray(PAGES * pages.PAGE))
        self.line = memoryview(bytearray(pages.LINE))
        self.line.cast("Q")[pages.FLAGS // 8] = pages.CHOSEN
        self.now_ns = 0
        self.machine = Machine({"control": self.line, "pages": memory}, lambda: self.now_ns)
        self.memory, self.file = memory, folder / "pages"
        self.descriptor = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        OPENED.add(self.descriptor)
        self.ring = pages.Ring(memory, self.line, self.descriptor)

    def copied(self) -> Cpu:
        """Return a CPU to which all the same has happened, with a file of its own."""
        OPENED.remove(self.descriptor)
        os.close(self.descriptor)
        self.file.unlink()
        other = Cpu(self.file.parent)
        self.descriptor = other.descriptor
        other.memory[:], other.line[:] = self.memory, self.line
        other.ring.done, other.ring.lost = self.ring.done, self.ring.lost
        other.now_ns = self.now_ns
        return other

    def word(self, at: int) -> int:
        """Return a word of the control map."""
        return int(self.line.cast("Q")[at // 8])

    def write(
        self,
        name: str,
        at_ns: int,
        /,
        current: int = 0,
        before: Callable[[], None] = lambda: None,
        **values: Any,
    ) -> None:
        """Have an event's program run; ``current`` is the task that it happens in."""
        self.now_ns, self.machine.current = at_ns, current
        self.machine.run(CODE[name], context_of(name, values), before)

    def copy(self) -> None:
        """Do what the keeper does when it is woken."""
        self.ring.copy()
        self.ring.free()


IPI = "ipi:ipi_send_cpu"
ROOM = pages.DATA // size_of(IPI)
"""So many of these events are on a page."""


def whole(folder: Path, files: Sequence[Path], names: dict[int, bytes] | None = None) -> Path:
    """Make a trace.dat of the pages of CPUs."""
    formats = {name: trace.described(number, name) for name, number in NUMBERS.items()}
    begin = trace_file.header(formats, KALLSYMS, names or {})
    with (folder / "trace.dat").open("wb") as file:
        trace_file.assemble(file, begin, dict(enumerate(files)), keeper.CLOCK)
    return folder / "trace.dat"


def idle(program: Cpu, at_ns: int) -> None:
    """Write a period of 500 ns, its wakeup included."""
    program.write("sched:sched_switch", at_ns, prev_pid=9, prev_comm="x", next_pid=0)
    program.write("power:cpu_idle", at_ns + 100, state=1)
    program.write("sched:sched_waking", at_ns + 500, pid=9, comm="x")
    program.write("power:cpu_idle", at_ns + 600, state=0xFFFFFFFF)
    program.write("sched:sched_switch", at_ns + 700, prev_pid=0, next_pid=9, next_comm="x")


@pytest.fixture(params=["library", "text"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to read a trace.dat."""
    if request.param == "text":
        monkeypatch.setattr(trace_dat, "program", lambda: "not here")
    elif isinstance(why := trace_dat.program(), str):
        pytest.skip(why)
    return str(request.param)
