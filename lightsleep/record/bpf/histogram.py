# SPDX-License-Identifier: GPL-2.0-only
"""The BPF programs that count for ``lightsleep record --histogram``.

No event is kept, or reaches user space: four small programs at tracepoints do all of it, so a
recording of days is as large as one of a second. The keeper loads them, and the kernel drops them
with the keeper.

- ``sched_waking`` notes for the woken task when that was, and whether an interrupt of an idle CPU
  woke it.
- ``sched_migrate_task`` takes that note away: the task has not waited for the CPU that it is moved
  to. A wakeup may move its task itself, but that of the last task that a CPU woke is kept.
- ``cpu_idle`` notes for its CPU the state, and when the CPU entered it. At the end of the state, it
  counts the period.
- ``sched_switch`` to the idle task notes that the CPU is in no state yet. From the idle task to one
  that was woken since, it counts the wakeup under the CPU's state. From another task, it only takes
  the note of the waking away.

A task is known by its address, so that no layout of a kernel's structures is needed. The idle task
of a CPU is the one that enters states.

A note of a waking is one 64-bit word: 23 bits of the task's address, one that tells a waking by an
interrupt, 40 bits of the time. Another 16 bits of the address are its place. Two tasks may have the
same place: then the first one is not counted.

A bucket is as wide as an eighth of the power of two in which it begins, and at least 128 ns wide.
The map of counts is per CPU; interrupts are off at both tracepoints that write to it.
"""

from __future__ import annotations

from typing import Any

from lightsleep.record.bpf.program import Program

STATES = 16
"""The kernel has at most 10 (CPUIDLE_STATE_MAX)."""

AWAKE = STATES - 1
"""Stands for no state."""

EXIT = -1
"""The state of the cpu_idle event at the end of a period, as a signed number of 32 bits."""

UNIT_BITS = 7
"""The narrowest bucket is 128 ns wide."""

BUCKETS = 256
KINDS = ("idle", "wake", "interrupt")
"""Lengths of periods, and times from waking to running: woken by a task, or by an interrupt of an
idle CPU."""

PLACES = 1 << 16
"""Notes of wakings."""

TIME_BITS = 40
"""Of a note: 18 minutes."""

CPU_BITS = 6
"""The notes of a CPU take a cache line."""

IDLE_TASK, SINCE, STATE, ASLEEP, WOKE = 0, 8, 16, 24, 32
"""Where the notes of a CPU are: its idle task, since when it is idle or in its state, which one,
whether that has not ended, and which task it woke last."""

KTIME_GET_NS, GET_SMP_PROCESSOR_ID, GET_CURRENT_PID_TGID, GET_CURRENT_TASK = 5, 8, 14, 35
"""Numbers of the kernel's helpers."""


def order(cpus: list[int], possible: list[int]) -> dict[str, Any]:
    """Return what the keeper has to do: count on ``cpus``; ``possible`` ones may come and go."""
    room = 1 << max(possible).bit_length()
    return {
        "maps": {
            "cpus": {"per_cpu": False, "bytes": room << CPU_BITS, "entries": 1},
            "wakings": {"per_cpu": False, "bytes": PLACES * 8, "entries": 1},
            "counts": {"per_cpu": True, "bytes": 16, "entries": len(KINDS) * STATES * BUCKETS},
        },
        "programs": {
            "sched_waking": _waking(room).to_json(),
            "sched_migrate_task": _migrate(room).to_json(),
            "sched_switch": _switch(room).to_json(),
            "cpu_idle": _idle(room).to_json(),
        },
        "counts": "counts",
        "possible": sorted(possible),
        "cpus": cpus,
        "kinds": KINDS,
        "states": STATES,
        "names": [*range(AWAKE), -1],
        "ranges": [bounds(number) for number in range(BUCKETS)],
    }


def bounds(number: int) -> tuple[int, int]:
    """Return the shortest and the longest time that a bucket holds, in ns."""
    exponent, eighth = divmod(number, 8)
    low, width = (eighth, 1) if not exponent else ((8 + eighth) << exponent - 1, 1 << exponent - 1)
    return low << UNIT_BITS, ((low + width) << UNIT_BITS) - 1


def _waking(room: int) -> Program:
    p = Program()
    p.load(6, 1, 0)  # the task
    _cpu(p, room)
    p.store(8, WOKE, 6)
    p.call(GET_CURRENT_TASK)
    p.copy(7, 0)
    p.call(KTIME_GET_NS)
    p.shift_left(0, 64 - TIME_BITS)
    p.shift_right(0, 64 - TIME_BITS)
    p.load(1, 8, IDLE_TASK)
    p.if_other(7, 1, "by a task")
    p.number(2, 1)
    p.shift_left(2, TIME_BITS)
    p.combine(0, 2)
    p.label("by a task")
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
    p.shift_right(2, TIME_BITS + 1)
    p.shift_left(2, TIME_BITS + 1)
    p.if_other(2, 1, "end")  # another task's note
    p.store_number(3, 0, 0)
    p.label("end")
    p.end()
    return p


def _idle(room: int) -> Program:
    p = Program()
    p.load(6, 1, 0)
    p.call(KTIME_GET_NS)
    p.copy(7, 0)
    _cpu(p, room)
    p.if_equal32(6, EXIT, "exit")
    p.if_above(6, AWAKE - 1, "end")  # no state, but a bug
    p.store(8, SINCE, 7)
    p.store(8, STATE, 6)
    p.store_number(8, ASLEEP, 1)
    p.load(1, 8, IDLE_TASK)
    p.if_not_equal(1, 0, "end")
    p.call(GET_CURRENT_PID_TGID)
    p.if_not_equal(0, 0, "end")  # a thread that injects idle time enters states, too
    p.call(GET_CURRENT_TASK)
    p.store(8, IDLE_TASK, 0)
    p.jump("end")
    p.label("exit")
    p.load(1, 8, ASLEEP)
    p.if_equal(1, 0, "end")  # it began before the program did
    p.store_number(8, ASLEEP, 0)
    p.load(1, 8, SINCE)
    p.subtract(7, 1)
    p.number(9, KINDS.index("idle"))
    _count(p)
    return p


def _switch(room: int) -> Program:
    p = Program()
    p.load(6, 1, 8)  # from this task
    p.load(7, 1, 16)  # to this one
    _cpu(p, room)
    p.load(9, 8, IDLE_TASK)
    p.if_equal(9, 0, "end")  # not known yet
    p.if_same(7, 9, "to idle")
    p.copy(9, 6)
    _place(p, task=7)
    p.load(6, 3, 0)
    p.if_equal(6, 0, "end")
    p.copy(2, 6)
    p.shift_right(2, TIME_BITS + 1)
    p.shift_left(2, TIME_BITS + 1)
    p.if_other(2, 1, "end")  # another task's note
    p.store_number(3, 0, 0)
    p.load(1, 8, IDLE_TASK)
    p.if_other(9, 1, "end")  # no CPU had to wake for it
    p.copy(9, 6)
    p.shift_right(9, TIME_BITS)
    p.mask(9, 1)
    p.add_number(9, KINDS.index("wake"))
    p.call(KTIME_GET_NS)
    p.copy(7, 0)
    p.subtract(7, 6)
    p.shift_left(7, 64 - TIME_BITS)
    p.shift_right(7, 64 - TIME_BITS)
    p.load(1, 8, SINCE)
    p.subtract(0, 1)
    p.if_more(7, 0, "end")  # woken before the CPU became idle: it has waited for something else
    _count(p)
    p.label("to idle")
    p.call(KTIME_GET_NS)
    p.store(8, SINCE, 0)
    p.store_number(8, STATE, AWAKE)
    p.store_number(8, ASLEEP, 0)
    p.end()
    return p


def _cpu(p: Program, room: int) -> None:
    """Point register 8 to the notes of this CPU."""
    p.call(GET_SMP_PROCESSOR_ID)
    p.mask(0, room - 1)
    p.shift_left(0, CPU_BITS)
    p.value(8, "cpus")
    p.add(8, 0)


def _place(p: Program, task: int) -> None:
    """Point register 3 to the note of a task; register 1 takes what the note has of the address."""
    p.copy(1, task)
    p.shift_right(1, 6)  # tasks begin at cache lines
    p.copy(2, 1)
    p.mask(2, PLACES - 1)
    p.shift_left(2, 3)
    p.value(3, "wakings")
    p.add(3, 2)
    p.shift_right(1, 16)
    p.shift_left(1, TIME_BITS + 1)


def _count(p: Program) -> None:
    """Count the time in register 7, of the kind in register 9, under the CPU's state, and end."""
    p.load(6, 8, STATE)
    p.shift_left(9, (STATES - 1).bit_length())
    p.add(6, 9)
    p.shift_left(6, (BUCKETS - 1).bit_length())
    p.copy(1, 7)
    p.shift_right(1, UNIT_BITS)
    p.copy(2, 1)
    p.shift_right(2, 32)
    p.if_equal(2, 0, "fits")
    p.number32(1, -1)  # the last bucket takes all that is longer
    p.label("fits")
    p.number(3, 0)
    p.copy(4, 1)
    for bits in (16, 8, 4, 2, 1):  # register 3 becomes the highest bit of register 1
        p.copy(2, 4)
        p.shift_right(2, bits)
        p.if_equal(2, 0, f"below {bits}")
        p.copy(4, 2)
        p.add_number(3, bits)
        p.label(f"below {bits}")
    p.if_below(3, 3, "narrow")
    p.add_number(3, -3)
    p.shift_right_by(1, 3)
    p.mask(1, 7)
    p.add_number(3, 1)
    p.shift_left(3, 3)
    p.add(1, 3)
    p.label("narrow")
    p.add(6, 1)
    p.store32(10, -4, 6)
    p.lookup("counts", -4)
    p.if_equal(0, 0, "end")
    p.load(1, 0, 0)
    p.add_number(1, 1)
    p.store(0, 0, 1)
    p.load(1, 0, 8)
    p.add(1, 7)
    p.store(0, 8, 1)
    p.label("end")
    p.end()
