# SPDX-License-Identifier: GPL-2.0-only
"""The BPF programs that count for ``lightsleep record --histogram``.

No event is kept, or reaches user space: four small programs at tracepoints do all of it, so a
recording of days is as large as one of a second. The keeper loads them, and the kernel drops them
with the keeper.

- ``sched_waking`` notes for the woken task when that was, and whether an interrupt of an idle CPU
  woke it.
- ``sched_migrate_task`` takes that note away: the task has not waited for the CPU that it is moved
  to. A wakeup may move its task itself, but that of the last task that a CPU woke is kept, until
  that CPU enters a state: what moves it later is no part of its wakeup.
- ``cpu_idle`` notes for its CPU the state, and when the CPU entered it. At the end of the state, it
  counts the period.
- ``sched_switch`` to the idle task notes that the CPU is in no state yet. From the idle task to one
  that was woken since the CPU last entered a state, it counts the wakeup under the CPU's state.
  From another task, it only takes the note of the waking away.

A task is known by its address, so that no layout of a kernel's structures is needed. The idle task
of a CPU is the one that enters states.

A note of a waking is one 64-bit word: 23 bits of the task's address, one that tells a waking by an
interrupt, 40 bits of the time. Another 16 bits of the address are its place. Two tasks may have the
same place: then the first one is not counted.

A bucket is as wide as an eighth of the power of two in which it begins, and at least 128 ns wide.
Each CPU counts in memory of its own, which the keeper maps. No program that counts interrupts
another one: neither ``sched_switch`` nor ``cpu_idle`` happens in an interrupt.

Whatever such a program does, it does several times in every idle period. So it reads the clock only
where it needs the time, calls as little as it can, and has a table for the buckets.
"""

from __future__ import annotations

import sys
from typing import Any

from lightsleep.errors import LightsleepError
from lightsleep.record.bpf.program import Program

MOST_CPUS = 2048
"""The kernel lets a program reach 512 MiB of a map."""

STATES = 16
"""The kernel has at most 10 (CPUIDLE_STATE_MAX)."""

AWAKE = STATES - 1
"""Stands for no state."""

EXIT = -1
"""The state of the cpu_idle event at the end of a period, as a signed number of 32 bits."""

UNIT_BITS = 7
"""The narrowest bucket is 128 ns wide."""

BUCKET_BITS = 8
BUCKETS = 1 << BUCKET_BITS
KINDS = ("wake", "interrupt", "idle")
"""Times from waking to running, woken by a task, or by an interrupt of an idle CPU; and lengths of
periods."""

NUMBER_BITS, TOTAL = 4, 8
"""A counter takes 16 bytes: how many times were counted, and their sum, in ns."""

STATE_AT = NUMBER_BITS + BUCKET_BITS
KIND_AT = STATE_AT + (STATES - 1).bit_length()
CPU_AT = KIND_AT + len(KINDS).bit_length()
"""Where a counter's address has its state, its kind and its CPU. The kinds have numbers from 1; the
notes of a CPU are where those of kind 0 would be."""

PLACES = 1 << 16
"""Notes of wakings."""

TIME_BITS = 40
"""Of a note: 18 minutes."""

IDLE_TASK, SINCE, STATE, ASLEEP, WOKE, WAKES = 0, 8, 16, 24, 32, 40
"""Where the notes of a CPU are: its idle task, when it last entered a state, which state it is or
was in since it is idle, whether that has not ended, which task it woke last, and what the note of a
waking says beside its time (the bit that tells of an interrupt, while the CPU runs its idle
task)."""

NEAR_BITS, NEARER_BITS, LONGEST = 11, 7, 3
"""A table has the buckets of short times, in units: those below 2^11. A longer one is divided by
2^7 until it is short, at most 3 times. That leaves it at least 4 bits, which tell its bucket."""

KTIME_GET_NS, GET_SMP_PROCESSOR_ID, GET_CURRENT_PID_TGID, GET_CURRENT_TASK = 5, 8, 14, 35
"""Numbers of the kernel's helpers."""


def order(cpus: list[int], possible: list[int]) -> dict[str, Any]:
    """Return what the keeper has to do: count on ``cpus``; ``possible`` ones may come and go.

    Raises LightsleepError where there are too many of them.
    """
    room = 1 << max(possible).bit_length()
    if room > MOST_CPUS:
        raise LightsleepError(
            f"a histogram counts on CPUs below {MOST_CPUS}, and this machine may have a CPU "
            f"{max(possible)}: record events instead, without --histogram"
        )
    return {
        "maps": {
            "cpus": {"bytes": room << CPU_AT},
            "wakings": {"bytes": PLACES * 8},
            "buckets": {"bytes": 1 << NEAR_BITS, "value": _table()},
        },
        "programs": {
            "sched_waking": _waking(room).to_json(),
            "sched_migrate_task": _migrate(room).to_json(),
            "sched_switch": _switch(room).to_json(),
            "cpu_idle": _idle(room).to_json(),
        },
        "counts": "cpus",
        "counters": {cpu: cpu << CPU_AT for cpu in cpus},
        "kinds": {name: number << KIND_AT for number, name in enumerate(KINDS, 1)},
        "states": {-1 if x == AWAKE else x: x << STATE_AT for x in range(STATES)},
        "ranges": [bounds(number) for number in range(BUCKETS)],
    }


def bounds(number: int) -> tuple[int, int]:
    """Return the shortest and the longest time that a bucket holds, in ns."""
    exponent, eighth = divmod(number, 8)
    low, width = (eighth, 1) if not exponent else ((8 + eighth) << exponent - 1, 1 << exponent - 1)
    return low << UNIT_BITS, ((low + width) << UNIT_BITS) - 1


def _table() -> str:
    """Return the buckets of all short times, one byte each, in hexadecimal."""
    found = bytearray()
    for number in range(BUCKETS):
        low, high = bounds(number)
        found += bytes([number]) * (high + 1 - low >> UNIT_BITS)
        if len(found) == 1 << NEAR_BITS:
            break
    return found.hex()


def _waking(room: int) -> Program:
    p = Program()
    p.load(6, 1, 0)  # the task
    _cpu(p, room)
    p.store(8, WOKE, 6)
    p.call(KTIME_GET_NS)
    p.shift_left(0, 64 - TIME_BITS)
    p.shift_right(0, 64 - TIME_BITS)
    p.load(1, 8, WAKES)
    p.combine(0, 1)
    _place(p, task=6)
    p.combine(0, 1)
    p.store(3, 0, 0)
    p.end()
    return p


def _migrate(room: int) -> Program:
    p = Program()
    p.load(6, 1, 0)  # the task
    _cpu(p, room)
    p.load(1, 8, WOKE)
    p.if_same(6, 1, "end")
    _place(p, task=6)
    p.load(2, 3, 0)
    _end_if_other(p)
    p.store_number(3, 0, 0)
    p.label("end")
    p.end()
    return p


def _idle(room: int) -> Program:
    p = Program()
    p.load(6, 1, 0)
    _cpu(p, room)
    p.call(KTIME_GET_NS)
    p.if_equal32(6, EXIT, "exit")
    p.if_above(6, AWAKE - 1, "end")  # no state, but a bug
    p.store(8, SINCE, 0)
    p.shift_left(6, STATE_AT)
    p.store(8, STATE, 6)
    p.store_number(8, WOKE, 0)
    p.store_number(8, ASLEEP, 1)
    p.load(1, 8, IDLE_TASK)
    p.if_not_equal(1, 0, "end")
    p.call(GET_CURRENT_PID_TGID)
    p.if_not_equal(0, 0, "end")  # a thread that injects idle time enters states, too
    p.call(GET_CURRENT_TASK)
    p.store(8, IDLE_TASK, 0)
    _idles(p)
    p.jump("end")
    p.label("exit")
    p.load(1, 8, ASLEEP)
    p.if_equal(1, 0, "end")  # it began before the program did
    p.store_number(8, ASLEEP, 0)
    p.copy(7, 0)
    p.load(1, 8, SINCE)
    p.if_more(1, 7, "end")  # as the kernel adjusts its clock, that may step back a little
    p.subtract(7, 1)
    p.number(6, 1 + KINDS.index("idle") << KIND_AT)
    _count(p)
    return p


def _switch(room: int) -> Program:
    p = Program()
    p.load(6, 1, 16)  # to this task
    p.load(7, 1, 8)  # from this one
    _cpu(p, room)
    p.load(4, 8, IDLE_TASK)  # 0: not known yet
    p.if_same(6, 4, "to idle")
    p.store_number(8, WAKES, 0)
    _place(p, task=6)
    p.load(6, 3, 0)
    p.copy(2, 6)
    _end_if_other(p)
    p.store_number(3, 0, 0)
    p.if_other(7, 4, "end")  # no CPU had to wake for it
    p.call(KTIME_GET_NS)
    p.copy(7, 0)
    p.subtract(7, 6)
    p.shift_left(7, 64 - TIME_BITS)
    p.shift_right(7, 64 - TIME_BITS)
    p.load(1, 8, SINCE)
    p.if_more(1, 0, "end")
    p.subtract(0, 1)
    # Woken before the CPU entered a state: it has waited for something else. Where the CPU has
    # entered none since it is idle, this is the last one of before.
    p.if_more(7, 0, "end")
    p.shift_right(6, TIME_BITS - KIND_AT)
    p.mask(6, 1 << KIND_AT)  # woken by an interrupt: the next kind
    p.add_number(6, 1 + KINDS.index("wake") << KIND_AT)
    _count(p)
    p.label("to idle")
    p.store_number(8, STATE, AWAKE << STATE_AT)
    _idles(p)
    p.end()
    return p


def _idles(p: Program) -> None:
    """Have the CPU's wakings say from now on that an interrupt of its idle task does them."""
    p.store_number32(8, WAKES + (4 if sys.byteorder == "little" else 0), 1 << TIME_BITS - 32)


def _cpu(p: Program, room: int) -> None:
    """Point register 8 to the notes of this CPU, and its counters."""
    p.call(GET_SMP_PROCESSOR_ID)
    p.mask(0, room - 1)
    p.shift_left(0, CPU_AT)
    p.value(8, "cpus")
    p.add(8, 0)


def _place(p: Program, task: int) -> None:
    """Point register 3 to the note of a task; register 1 takes what the note has of the address."""
    p.copy(1, task)
    p.copy(2, task)
    p.shift_right(2, 6 - 3)  # tasks begin at cache lines, and a note takes 8 bytes
    p.mask(2, PLACES - 1 << 3)
    p.value(3, "wakings")
    p.add(3, 2)
    p.shift_right(1, 6 + 16)
    p.shift_left(1, TIME_BITS + 1)


def _end_if_other(p: Program) -> None:
    """End where the note in register 2 is not that of the task whose address is in register 1."""
    p.differ(2, 1)
    p.shift_right(2, TIME_BITS + 1)
    p.if_not_equal(2, 0, "end")


def _count(p: Program) -> None:
    """Count the time in register 7, of the kind in register 6, under the CPU's state, and end."""
    p.load(1, 8, STATE)
    p.add(6, 1)
    p.copy(1, 7)
    p.shift_right(1, UNIT_BITS)
    p.if_below(1, 1 << NEAR_BITS, "near")
    for _ in range(LONGEST):
        p.shift_right(1, NEARER_BITS)
        p.add_number(6, NEARER_BITS << 3 + NUMBER_BITS)  # 8 buckets for each bit
        p.if_below(1, 1 << NEAR_BITS, "near")
    p.number(1, (1 << NEAR_BITS) - 1)  # the last bucket takes all that is longer
    p.label("near")
    p.value(2, "buckets")
    p.add(2, 1)
    p.load8(1, 2, 0)
    p.shift_left(1, NUMBER_BITS)
    p.add(6, 1)
    p.mask(
        6, (1 << CPU_AT) - (1 << NUMBER_BITS)
    )  # for the kernel, which does not know what a state is
    p.add(8, 6)
    p.load(1, 8, TOTAL)
    p.add(1, 7)
    p.store(8, TOTAL, 1)
    p.load(1, 8, 0)
    p.add_number(1, 1)
    p.store(8, 0, 1)  # the last, so that a sum is hardly ever too small for its number
    p.label("end")
    p.end()
