# SPDX-License-Identifier: GPL-2.0-only
"""The BPF programs that write a trace for ``lightsleep record``.

The kernel's own tracing serves all who trace. A program that runs at the same tracepoint, and does
what a recording needs and no more, slows the workload less (the experiment record-cost). It writes
the event into a page that user space maps, in the layout of the kernel's ring buffer
(include/linux/ring_buffer.h). So the keeper copies whole pages into a trace.dat (see pages.py).

An event has a time stamp that stands for itself, a header, common fields, and its own. What these
are is said in the text that a trace.dat has for each event. Readers take fields by their names from
there, so offsets are ours to choose.

The programs of a CPU take room at its head. Where one is interrupted by another between reading the
head and moving it, it reads the clock again: events are in the order of their times. An event that
does not fit on a page goes to the next one, and padding takes its place. Where no page is free, it
is lost and counted, and then the page is closed, too. Only an interrupt at that very moment can
still write there. Each page begins with the count as it was, so the keeper finds where events are
missing.

Registers: 6 is the context; 7 is the head, then where the event is on its page; 8 is the time; 9 is
the CPU's line of the control map, then the page, from where the event is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightsleep.errors import LightsleepError
from lightsleep.record.bpf import btf
from lightsleep.record.bpf.pages import (
    CHOSEN,
    DATA,
    FIRST,
    FLAGS,
    HEAD,
    LAST_NS,
    LINE,
    LOST,
    LOST_BEFORE,
    OFF,
    PADDING,
    PAGE,
    PAGE_HEADER,
    QUARTERS,
    STAMP,
    TAIL,
    TIME_BITS,
    TIME_STAMP,
    TYPE_BITS,
    WRITTEN,
)
from lightsleep.record.bpf.program import Program
from lightsleep.record.tracing import Event

KTIME_GET_NS, GET_SMP_PROCESSOR_ID, GET_CURRENT_PID_TGID = 5, 8, 14
PROBE_READ_KERNEL, PROBE_READ_KERNEL_STR, RINGBUF_OUTPUT = 113, 115, 130
"""Numbers of the kernel's helpers."""

FORCE_WAKEUP = 2

EVENT_HEADER, COMMON = 4, 8
"""Bytes between the time stamp and the event's own fields: its header, and common fields."""

ATTEMPTS = 3
"""A program that was interrupted so often while it read the clock counts its event as lost."""

OLD_PAGE, OLD_OFFSET, NEW_PAGE, NEW_OFFSET, NEW_HEAD, SEEN_LOST, POINTER, KEY = range(-8, -72, -8)
"""Where on the stack are: the page of the head and how much of it is taken; where the event goes;
the head behind it; how many events were lost; the address of its page; and the key of a page."""

PAGE_BITS = PAGE.bit_length() - 1

MACHINES = ("x86_64", "aarch64", "ppc64le")
"""On others, a program may have to keep to addresses that its numbers are aligned to."""

COMM, NAME = 16, 16
MASK_WORDS = 6
MOST_CPUS = 64 * MASK_WORDS
"""Of a machine: the mask of an IPI has no more room in an event."""

SLEEP_LENGTH = "lightsleep:sleep_length"
FUNCTION = "tick_nohz_get_sleep_length"


@dataclass(frozen=True)
class Field:
    """A field of an event: its type in C, its bytes, and where its value comes from.

    ``arg`` is which argument of the tracepoint. With ``struct`` and ``member``, that points to a
    structure. ``how`` is "number" by default; "comm" is the name of a task, "string" what a pointer
    leads to, "mask" the words of a cpumask, and "value" a number of 64 bits behind a pointer.
    "time" is such a number, or a pointer to one, as the tracepoint's type says.
    """

    ctype: str
    name: str
    size: int
    arg: int
    struct: str = ""
    member: str = ""
    how: str = "number"

    @property
    def signed(self) -> bool:
        """Whether a reader has to take it for a signed number."""
        return self.ctype in ("int", "pid_t", "s64", "long")

    def declared(self, offset: int) -> str:
        """Return its line in the text that describes the event."""
        size, ctype, name = self.size, self.ctype, self.name
        if self.how in ("comm", "string"):
            name = f"{name}[{size}]"
        elif self.how == "mask":
            size = 4
        return (
            f"\tfield:{ctype} {name};\toffset:{offset};\tsize:{size};\tsigned:{int(self.signed)};\n"
        )


def _task(arg: int, prefix: str = "") -> tuple[Field, ...]:
    """Return what the kernel's events say of a task."""
    return (
        Field("char", f"{prefix}comm", COMM, arg, "task_struct", "comm", "comm"),
        Field("pid_t", f"{prefix}pid", 4, arg, "task_struct", "pid"),
        Field("int", f"{prefix}prio", 4, arg, "task_struct", "prio"),
    )


VECTOR = (Field("int", "vector", 4, 0),)
OF_VECTOR = '"vector=%d", REC->vector'
OF_TASK = '"comm=%s pid=%d prio=%d", REC->comm, REC->pid, REC->prio'
OF_IPI = "callsite=%pS callback=%pS"

FIELDS: dict[str, tuple[tuple[Field, ...], str]] = {
    "power:cpu_idle": (
        (Field("u32", "state", 4, 0), Field("u32", "cpu_id", 4, 1)),
        '"state=%lu cpu_id=%lu", (unsigned long)REC->state, (unsigned long)REC->cpu_id',
    ),
    "power:cpu_idle_miss": (
        (Field("u32", "cpu_id", 4, 0), Field("u32", "state", 4, 1), Field("u32", "below", 4, 2)),
        '"cpu_id=%lu state=%lu type=%s", (unsigned long)REC->cpu_id, (unsigned long)REC->state, '
        '(REC->below) ? "below" : "above"',
    ),
    "sched:sched_waking": (_task(0), OF_TASK),
    "sched:sched_switch": (
        (
            *_task(1, "prev_"),
            Field("long", "prev_state", 8, 3),
            *_task(2, "next_"),
        ),
        '"prev_comm=%s prev_pid=%d prev_prio=%d prev_state=%s ==> next_comm=%s next_pid=%d '
        'next_prio=%d", REC->prev_comm, REC->prev_pid, REC->prev_prio, '
        '(REC->prev_state & 2) ? "D" : (REC->prev_state & 1) ? "S" : "R", '
        "REC->next_comm, REC->next_pid, REC->next_prio",
    ),
    "sched:sched_migrate_task": (
        (*_task(0), Field("int", "dest_cpu", 4, 1)),
        '"comm=%s pid=%d prio=%d dest_cpu=%d", REC->comm, REC->pid, REC->prio, REC->dest_cpu',
    ),
    "sched:sched_wake_idle_without_ipi": ((Field("int", "cpu", 4, 0),), '"cpu=%d", REC->cpu'),
    "ipi:ipi_send_cpu": (
        (
            Field("unsigned int", "cpu", 4, 0),
            Field("void *", "callsite", 8, 1),
            Field("void *", "callback", 8, 2),
        ),
        f'"cpu=%u {OF_IPI}", REC->cpu, REC->callsite, REC->callback',
    ),
    "ipi:ipi_send_cpumask": (
        (Field("__data_loc cpumask_t", "cpumask", 8 * MASK_WORDS, 0, how="mask"),),
        '"cpumask=%s", __get_bitmask(cpumask)',
    ),
    "timer:hrtimer_expire_entry": (
        (
            Field("void *", "hrtimer", 8, 0),
            Field("s64", "now", 8, 1, how="time"),
            Field("void *", "function", 8, 0, "hrtimer", "function"),
        ),
        '"hrtimer=%p function=%ps now=%lld", REC->hrtimer, REC->function, REC->now',
    ),
    "irq:irq_handler_entry": (
        (Field("int", "irq", 4, 0), Field("char", "name", NAME, 1, "irqaction", "name", "string")),
        '"irq=%d name=%s", REC->irq, REC->name',
    ),
    "irq_vectors:reschedule_entry": (VECTOR, OF_VECTOR),
    "irq_vectors:call_function_single_entry": (VECTOR, OF_VECTOR),
    "irq_vectors:call_function_entry": (VECTOR, OF_VECTOR),
    SLEEP_LENGTH: (
        (Field("s64", "ret", 8, 1), Field("s64", "next", 8, 0, how="value")),
        '"ret=%lld next=%lld", REC->ret, REC->next',
    ),
}
"""The fields of each event of tracing.EVENTS, in the order of their place, and how to print it."""

TYPED = "btf_trace_"
"""Before the name of a tracepoint, the name of its type."""


def kernel_types(root: Path) -> btf.Types:
    """Return the kernel's types that programs need. Raises LightsleepError where it has none."""
    structures = {field.struct for fields, _ in FIELDS.values() for field in fields if field.struct}
    tracepoints = {TYPED + name.partition(":")[2] for name in FIELDS}
    return btf.of_kernel(root, structures | tracepoints | {FUNCTION})


def tracepoints(types: btf.Types) -> set[str]:
    """Return the names of the tracepoints in FIELDS that the kernel has."""
    return {x for x in FIELDS if types.number(btf.TYPEDEF, TYPED + x.partition(":")[2])}


def order(
    events: Iterable[Event],
    cpus: Sequence[int] | None,
    present: Sequence[int],
    possible: Sequence[int],
    buffer_kb: int,
    types: btf.Types,
) -> dict[str, Any]:
    """Return what the keeper has to do: trace on ``cpus``; those that are present may come and go.

    Others that are ``possible`` take part in nothing. Raises LightsleepError where BPF programs
    cannot record on this machine; the message is why.
    """
    if (machine := os.uname().machine) not in MACHINES:
        raise LightsleepError(f"lightsleep has no programs for machines of type {machine}")
    if max(present) >= MOST_CPUS:
        raise LightsleepError(
            f"they know CPUs below {MOST_CPUS}, and this machine has a CPU {max(present)}"
        )
    pages = 1 << (-(-buffer_kb * 1024 // PAGE) - 1).bit_length()
    room = 1 << max(possible).bit_length()
    layout = Layout(types, room, pages, words=max(present) // 64 + 1, all_chosen=cpus is None)
    chosen = set(present if cpus is None else cpus)
    return {
        "pages": pages,
        "room": room,
        "buffers": {str(cpu): CHOSEN if cpu in chosen else CHOSEN - 1 for cpu in present},
        "programs": {
            event.name.partition(":")[2]: layout.program(number, event)
            for number, event in enumerate(events, FIRST_TYPE)
        },
        "probes": {FUNCTION: layout.sleep_length()},
        "formats": {
            event.name: described(number, event.name)
            for number, event in enumerate(events, FIRST_TYPE)
        }
        | {SLEEP_LENGTH: described(SLEEP_TYPE, SLEEP_LENGTH)},
    }


FIRST_TYPE, SLEEP_TYPE = 101, 100
"""Numbers of the events in the file. The kernel keeps the low ones for its tracers."""


def described(number: int, event: str) -> str:
    """Return the text that describes an event, as in the file ``format`` of the kernel."""
    fields, printed = FIELDS[event]
    common = (
        Field("unsigned short", "common_type", 2, 0),
        Field("unsigned char", "common_flags", 1, 0),
        Field("unsigned char", "common_preempt_count", 1, 0),
        Field("int", "common_pid", 4, 0),
    )
    lines, offset = [], 0
    for field in common:
        lines.append(field.declared(offset))
        offset += field.size
    lines.append("\n")
    lines += [field.declared(at) for field, at in placed(fields)]
    name = event.partition(":")[2]
    return f"name: {name}\nID: {number}\nformat:\n{''.join(lines)}\nprint fmt: {printed}\n"


def placed(fields: Iterable[Field]) -> list[tuple[Field, int]]:
    """Return fields with their offsets in the event."""
    found, offset = [], COMMON
    for field in fields:
        found.append((field, offset))
        offset += field.size + (8 if field.how == "mask" else 0)
    return found


def payload(fields: Iterable[Field]) -> int:
    """Return the bytes of an event behind its header: all that take room are multiples of 8."""
    field, offset = placed(fields)[-1]
    end = offset + field.size + (8 if field.how == "mask" else 0)
    return -(-(end + EVENT_HEADER) // 8) * 8 - EVENT_HEADER


@dataclass(frozen=True)
class Layout:
    """What all programs of a recording have in common.

    ``room`` is a power of two above all numbers of CPUs, ``pages`` one of the pages of each, and
    ``words`` how many of 64 bits a mask of CPUs has.
    """

    types: btf.Types
    room: int
    pages: int
    words: int
    all_chosen: bool

    def program(self, number: int, event: Event) -> dict[str, Any]:
        """Return the program of a tracepoint. Raises LightsleepError where types do not tell."""
        name = event.name.partition(":")[2]
        kind = self.types.number(btf.TYPEDEF, TYPED + name)
        if kind is None:
            raise LightsleepError(f"the kernel's BTF knows no tracepoint {name}")
        p = Program()
        p.copy(6, 1)
        if event.name == "sched:sched_switch":
            self._one_is_idle(p)
        about = None
        if not self.all_chosen and event.cpu not in ("", "CPU"):
            fields, _ = FIELDS[event.name]
            about = next(field.arg for field in fields if field.name == event.cpu)
        self._record(p, number, event.name, chosen_only=event.cpu == "CPU", about=about)
        return p.to_json() | {"type": kind}

    def sleep_length(self) -> dict[str, Any] | None:
        """Return the program at the end of FUNCTION; None where the kernel's types lack that."""
        kind = self.types.number(btf.FUNC, FUNCTION)
        if kind is None:
            return None
        p = Program()
        p.copy(6, 1)
        self._record(p, SLEEP_TYPE, SLEEP_LENGTH, chosen_only=True, about=None)
        return p.to_json() | {"type": kind}

    def _one_is_idle(self, p: Program) -> None:
        """Go on only where a task is switched to or from the idle task."""
        offset = self.types.offset("task_struct", "pid")
        for arg in (1, 2):
            p.load(1, 6, 8 * arg)
            p.load32(1, 1, offset)
            p.if_equal(1, 0, "wanted")
        p.end()
        p.label("wanted")

    def _record(
        self, p: Program, number: int, name: str, chosen_only: bool, about: int | None
    ) -> None:
        """Write an event, if it is wanted, and end.

        With ``chosen_only``, it is only if this CPU is recorded; ``about`` is the argument of the
        tracepoint that names a CPU which has to be.
        """
        fields = placed(FIELDS[name][0])
        length = payload(FIELDS[name][0])
        size = STAMP + EVENT_HEADER + length
        least = OFF + 1
        if about is not None:  # another CPU, which was chosen or not
            p.load(1, 6, 8 * about)
            p.mask(1, self.room - 1)
            self._line(p, 2, 1)
            p.load(1, 2, FLAGS)
            p.if_below(1, CHOSEN, "end")
        elif chosen_only and not self.all_chosen:
            least = CHOSEN
        p.call(GET_SMP_PROCESSOR_ID)
        p.mask(0, self.room - 1)
        self._line(p, 9, 0)
        p.load(1, 9, FLAGS)
        p.if_below(1, least, "end")
        self._take(p, size)
        self._find(p, size)
        p.store_number32(9, _at(0), number)
        p.call(GET_CURRENT_PID_TGID)
        p.store32(9, _at(4), 0)
        for field, offset in fields:
            self._write(p, name, field, offset)
        p.store_number32(9, PAGE_HEADER + STAMP, length // 4)
        p.copy(1, 8)
        p.shift_left(1, 32 + TYPE_BITS)
        p.shift_right(1, 32)
        p.add_number(1, TIME_STAMP)
        p.shift_right(8, TIME_BITS)
        p.shift_left(8, 32)
        p.combine(1, 8)
        p.store(9, PAGE_HEADER, 1)
        p.load(2, 10, POINTER)
        p.number(1, size)
        p.increase(2, WRITTEN, 1)
        # The first event of each quarter wakes the keeper.
        p.if_not_equal(7, 0, "end")
        p.load(1, 10, NEW_PAGE)
        p.mask(1, self.pages // QUARTERS - 1)
        p.if_not_equal(1, 0, "end")
        p.map(1, "wake")
        p.copy(2, 10)
        p.add_number(2, NEW_PAGE)
        p.number(3, 8)
        p.number(4, FORCE_WAKEUP)
        p.call(RINGBUF_OUTPUT)
        p.label("end")
        p.end()

    @staticmethod
    def _line(p: Program, dst: int, cpu: int) -> None:
        """Point to the line of a CPU, whose number a register holds, and destroy that."""
        p.shift_left(cpu, LINE.bit_length() - 1)
        p.value(dst, "control")
        p.add(dst, cpu)

    def _take(self, p: Program, size: int) -> None:
        """Take room for an event, and the time with it, or count it as lost."""
        for attempt in range(ATTEMPTS):
            begin, swap, later = (f"{x} {attempt}" for x in ("begin a page", "swap", "later"))
            p.load(3, 9, TAIL)  # first: else it might be beyond the head
            p.load(7, 9, HEAD)
            p.copy(1, 7)
            p.shift_right(1, PAGE_BITS)
            p.store(10, OLD_PAGE, 1)
            p.copy(0, 7)
            p.mask(0, PAGE - 1)
            p.store(10, OLD_OFFSET, 0)
            p.load(2, 9, LOST)
            p.store(10, SEEN_LOST, 2)
            p.if_equal(0, 0, begin)
            p.add_number(1, 1)
            p.if_above(0, DATA - size, begin)
            p.add_number(1, -1)
            p.store(10, NEW_PAGE, 1)
            p.store(10, NEW_OFFSET, 0)
            p.copy(1, 7)
            p.add_number(1, size)
            p.jump(swap)
            p.label(begin)
            p.store(10, NEW_PAGE, 1)
            p.store_number(10, NEW_OFFSET, 0)
            p.copy(2, 1)
            p.subtract(2, 3)
            p.if_above(2, self.pages - 1, "lost")
            p.shift_left(1, PAGE_BITS)
            p.add_number(1, size)
            p.label(swap)
            p.store(10, NEW_HEAD, 1)
            p.call(KTIME_GET_NS)
            p.copy(8, 0)
            p.load(1, 9, LAST_NS)
            p.if_more(8, 1, later)
            p.copy(8, 1)  # as the kernel adjusts its clock, that may step back a little
            p.label(later)
            p.copy(0, 7)
            p.load(1, 10, NEW_HEAD)
            p.exchange(9, HEAD, 1)
            p.if_same(0, 7, "taken")
        p.label("lost")
        p.number(1, 1)
        p.increase(9, LOST, 1)
        self._close(p)
        p.label("taken")
        p.store(9, LAST_NS, 8)

    def _close(self, p: Program) -> None:
        """Let nothing follow on the page of the head, and end."""
        for _ in range(ATTEMPTS):
            p.load(7, 9, HEAD)
            p.copy(1, 7)
            p.mask(1, PAGE - 1)
            p.if_equal(1, 0, "closed")
            p.store(10, OLD_OFFSET, 1)
            p.copy(1, 7)
            p.shift_right(1, PAGE_BITS)
            p.store(10, OLD_PAGE, 1)
            p.add_number(1, 1)
            p.shift_left(1, PAGE_BITS)
            p.copy(0, 7)
            p.exchange(9, HEAD, 1)
            p.if_same(0, 7, "close")
        p.jump("closed")
        p.label("close")
        self._pad(p, otherwise="closed")
        p.label("closed")
        p.end()

    def _find(self, p: Program, size: int) -> None:
        """Point register 9 to where a page would begin whose first event this is."""
        p.load(1, 10, NEW_PAGE)
        p.load(2, 10, OLD_PAGE)
        p.if_same(1, 2, "padded")
        self._pad(p, otherwise="padded")
        p.label("padded")
        p.load(1, 10, NEW_PAGE)
        self._page(p, otherwise="end")
        p.store(10, POINTER, 0)
        p.load(7, 10, NEW_OFFSET)
        p.if_not_equal(7, 0, "not the first")
        p.store(0, 0, 8)  # when the page begins
        p.load(1, 10, SEEN_LOST)
        p.store32(0, LOST_BEFORE, 1)
        p.label("not the first")
        p.if_above(7, DATA - size, "end")  # for the verifier
        p.copy(9, 0)
        p.add(9, 7)

    def _pad(self, p: Program, otherwise: str) -> None:
        """Fill what is left of the old page, if anything: with an event that readers skip."""
        p.load(1, 10, OLD_PAGE)
        self._page(p, otherwise)
        p.copy(2, 0)
        p.load(1, 10, OLD_OFFSET)
        p.if_above(1, DATA - 8, otherwise)
        p.add(2, 1)
        p.number(3, DATA)
        p.subtract(3, 1)
        p.copy(1, 3)
        p.add_number(1, -EVENT_HEADER)
        p.store_number32(2, PAGE_HEADER, PADDING | 1 << TYPE_BITS)
        p.store32(2, PAGE_HEADER + EVENT_HEADER, 1)
        p.increase(0, WRITTEN, 3)

    def _page(self, p: Program, otherwise: str) -> None:
        """Point register 0 to the page whose number is in register 1; there is always one."""
        p.mask(1, self.pages - 1)
        p.load(2, 9, FIRST)
        p.add(1, 2)
        p.store32(10, KEY, 1)
        p.lookup("pages", KEY)
        p.if_equal(0, 0, otherwise)

    def _write(self, p: Program, event: str, field: Field, offset: int) -> None:
        p.load(1, 6, 8 * field.arg)
        at, how = _at(offset), field.how
        member = self.types.offset(field.struct, field.member) if field.struct else 0
        if how == "time" and self.types.hands_pointer(TYPED + event.partition(":")[2], field.arg):
            how = "value"
        if how == "comm":
            for word in range(0, field.size, 8):
                p.load(2, 1, member + word)
                p.store(9, at + word, 2)
        elif how == "string":
            p.load(3, 1, member)
            p.copy(1, 9)
            p.add_number(1, at)
            p.number(2, field.size)
            p.call(PROBE_READ_KERNEL_STR)
        elif how == "value":
            p.copy(3, 1)
            p.copy(1, 9)
            p.add_number(1, at)
            p.number(2, field.size)
            p.call(PROBE_READ_KERNEL)
        elif how == "mask":
            p.store_number32(9, at, 8 * self.words << 16 | offset + 8)
            for word in range(self.words):
                p.load(2, 1, 8 * word)
                p.store(9, at + 8 + 8 * word, 2)
        elif field.size == 4:
            if field.struct:
                p.load32(1, 1, member)
            p.store32(9, at, 1)
        else:
            if field.struct:
                p.load(1, 1, member)
            p.store(9, at, 1)


def _at(offset: int) -> int:
    """Return where a field is, from where register 9 points."""
    return PAGE_HEADER + STAMP + EVENT_HEADER + offset
