# SPDX-License-Identifier: GPL-2.0-only
"""Reading events from text: of the kernel's trace file, trace-cmd report and perf script.

All three print an event as a line: the task, the CPU, the time, the event, and its fields. Perf may
print pid/tid: the second is what others call pid.

    <idle>-0     [001] d..1.    23.372244491: cpu_idle: state=1 cpu_id=1     trace, trace-cmd
    swapper     0 [001]    23.372244491: power:cpu_idle: state=1 cpu_id=1    perf script

Events of other kinds are skipped. A line that is no event is an error unless a tool is known to
print it, and so is an event of ours that lacks a field: text that is damaged must not become
figures.

A task's name may contain a newline, which splits the line of an event: in the name of the task that
it happened in, or in a name among its fields. Such lines are put together again, and no others: the
first one has to end where a name of at most 15 bytes can go on.

The kernel and trace-cmd take the name of the task that an event happened in from a table. By
default it has 128 names, and one for each number. Names in the fields of events come first.

Perf has the number of that task from the kernel, as the namespace counts in which perf runs, while
the numbers in fields are those of the machine. Of a task that has been reaped and still runs, it
has -1. In both cases, the task is the one that the CPU has switched to last, if that is recorded.
Of a task that ends, Linux before 4.14 has 0, as of those outside of the namespace: 0 shows nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

from lightsleep import cpulist
from lightsleep.document import shortened
from lightsleep.errors import LightsleepError
from lightsleep.interrupts import IPI_HANDLER, TIMER_HANDLERS
from lightsleep.periods.build import EXIT, Builder

CHUNK = 1 << 16
"""Bytes that are read at a time. Text with more than that between two line ends is no trace."""

LINE = re.compile(
    r"(?:\S+:\s{1,64})?\s{0,64}(?P<comm>(?:\S.{0,30}?)?)(?:-|\s{1,64})"
    r"(?:(?:\d{1,10}|-1)/)?(?P<pid>\d{1,10}|(?<=[\s/])-1)\s+"
    r"(?:\(\s*[\d-]+\)\s+)?\[(?P<cpu>\d{1,5})\]\s+(?:[^\s\d]\S{3,7}\s+)?"
    r"(?P<s>\d{1,10})\.(?P<fraction>\d{6}|\d{9}):\s+(?:\d+\s+)?(?:[\w-]+:)?(?P<event>\w+):",
    re.DOTALL,
)
# What our readers of other formats write of a loss that goes on: MORE.
LOST = re.compile(r"CPU:(\d{1,5}) \[(?:LOST )?(?:(\d{1,18}|MORE) )?EVENTS(?: DROPPED)?\]")
PERF_LOST = re.compile(
    r".*\[(\d{1,5})\]\s+\d{1,10}\.\d{6,9}:\s+PERF_RECORD_LOST lost (\d{1,18})\s*$"
)
WRITTEN = re.compile(r"\s*# entries-in-buffer/entries-written: (\d{1,18})/(\d{1,18})\b")
# Headers, empty lines, stack traces, what trace-cmd says first, what tracers write that are no
# events: functions, and where a stack begins; and what perf calls by names that no tracepoint has.
HARMLESS = re.compile(
    r"(?:#.*|=>.*|<stack trace>.*|[0-9a-f]{8,16} .*|[0-9a-f]{1,7} \S.* \(.*\)"
    r"|cpus=\d+|version = .*|CPU \d+ is empty"
    r"|.{1,40}-\d{1,10} .*\[\d{1,5}\] .*\d{1,10}\.\d{6,9}: (?:\S+ <-\S+|<stack trace>)"
    r"|.{1,60} \[\d{1,5}\] [^:]*\d\.\d{6,9}: +(?:\d+ +)?[\w/=.,-]*[/-][\w/=.,:-]*:.*)?"
)

CPU_IDLE = re.compile(r"state=(\d{1,10}) cpu_id=(\d{1,5})\b")
CPU_IDLE_MISS = re.compile(r"cpu_id=(\d{1,5}) state=\d+ type=(above|below)")
SWITCH = re.compile(
    r" *(?:"
    r"(?:prev_comm=(.*) )?prev_pid=(\d{1,10}) .*next_comm=(.*) next_pid=(\d{1,10}) next_prio="
    r"|(.*):(\d{1,10}) \[-?\d+\] \S+ ==> (.*):(\d{1,10}) \[)",
    re.DOTALL,
)
WAKING = re.compile(r" *(?:comm=(.*) pid=(\d{1,10}) prio=|(.*):(\d{1,10}) \[-?\d+\])", re.DOTALL)
MIGRATE = re.compile(r"comm=.* pid=(\d{1,10}) prio=", re.DOTALL)
ON_CPU = re.compile(r"cpu=(\d{1,5})\b")
MASK = re.compile(r"cpumask=([0-9a-f,-]+)")
EXPIRE = re.compile(r"\bfunction=(\S+)")
HANDLER = re.compile(r"irq=\d+ name=(.*)")
LENGTH = re.compile(r"ret=(-?\d{1,19}|0x[0-9a-f]{1,16})\b(?:.*\bnext=(-?\d{1,19})\b)?")

# How readers of other formats write an event: what follows its name.
WORDS = {
    "cpu_idle": "state={state} cpu_id={cpu_id}",
    "cpu_idle_miss": "cpu_id={cpu_id} state={state} type={type}",
    "sched_switch": "prev_comm={prev_comm} prev_pid={prev_pid} prev_prio=0 prev_state=S ==> "
    "next_comm={next_comm} next_pid={next_pid} next_prio=0",
    "sched_waking": "comm={comm} pid={pid} prio=0",
    "sched_migrate_task": "comm={comm} pid={pid} prio=0 orig_cpu=0 dest_cpu=0",
    "sched_wake_idle_without_ipi": "cpu={cpu}",
    "ipi_send_cpu": "cpu={cpu}",
    "reschedule_entry": "vector=0",
    "call_function_single_entry": "vector=0",
    "call_function_entry": "vector=0",
    "irq_handler_entry": "irq={irq} name={name}",
    "hrtimer_expire_entry": "function={function}",
}

NAME = 15
"""Bytes of a task's name."""

PADDED = 16
"""The width to which tools pad it at the beginning of a line, with spaces before it."""

BUFFER = re.compile(r"\S+: ")
"""What trace-cmd prints before that: the buffer of the event."""

# Events with tasks' names, and what is in their fields once these are whole.
WITH_NAMES = {"sched_switch": SWITCH, "sched_waking": WAKING, "sched_migrate_task": MIGRATE}

TICKS = ("tick_",)
NO_NAME = "unknown"
"""What our readers of other formats write for a function that has no name."""
NAMELESS = re.compile(rf"0x[0-9a-f]{{1,16}}|[0-9a-f]{{6,20}}|{NO_NAME}")
"""That, or its address."""
ANYTHING = "EXT"
"""The handler of timers, IPIs and some devices on s390: it tells nothing."""

Handle = Callable[[Builder, int, int, str, int, str], None]


class Unreadable(LightsleepError):
    """No line can be read any more; the message names the file, and the place in it."""


def split(chunks: Iterable[bytes], path: Path) -> Iterator[str]:
    """Yield the lines of a text that comes in chunks.

    Raises Unreadable where one is endless or the last one cut off.
    """
    number, rest = 0, b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
        number += len(whole)
        if len(rest) > CHUNK:
            raise Unreadable(f"{path}: line {number + 1} has no end: no trace")
    if rest:
        raise Unreadable(f"{path}: line {number + 1} is cut off: the file is damaged")


def _found(pattern: re.Pattern[str], fields: str) -> re.Match[str]:
    match = pattern.search(fields)
    if not match:
        raise ValueError(f"fields missing in {shortened(fields.strip()) or 'an empty text'!r}")
    return match


def _cpu_idle(builder: Builder, _cpu: int, now_ns: int, _comm: str, _pid: int, text: str) -> None:
    match = _found(CPU_IDLE, text)
    state, number = int(match[1]), int(match[2])
    if state != EXIT and state > 255:
        raise ValueError(f"no kernel has an idle state {state}")
    if number != _cpu:
        raise ValueError(f"CPU {_cpu} cannot enter a state for CPU {number}")
    builder.cpu_idle(number, now_ns, state)


def _miss(builder: Builder, _cpu: int, _now: int, _comm: str, _pid: int, text: str) -> None:
    match = _found(CPU_IDLE_MISS, text)
    builder.miss(int(match[1]), match[2])


def _switch(builder: Builder, cpu: int, now_ns: int, _comm: str, pid: int, text: str) -> None:
    match = _found(SWITCH, text)
    prev_comm, prev, comm, next_ = match.groups()[:4] if match[2] else match.groups()[4:]
    before, after = int(prev), int(next_)
    builder.running[cpu] = comm, after
    if pid != before and pid > 0:
        builder.elsewhere = True
    if prev_comm is not None:
        builder.named(before, prev_comm)
    builder.named(after, comm)
    if before == 0:
        builder.switch_from_idle(cpu, now_ns, comm, after)
    elif after == 0:
        builder.switch_to_idle(cpu, now_ns)
    else:
        builder.switch_between_tasks(after)


def _waking(builder: Builder, cpu: int, now_ns: int, comm: str, pid: int, text: str) -> None:
    match = _found(WAKING, text)
    wakee_comm, wakee = match.groups()[:2] if match[2] else match.groups()[2:]
    builder.named(int(wakee), wakee_comm)
    if pid < 0:
        builder.waking(cpu, now_ns, int(wakee), None, None)
        return
    known = builder.name(pid)
    builder.waking(cpu, now_ns, int(wakee), comm if known is None else known, pid)


def _migrate(builder: Builder, cpu: int, now_ns: int, _comm: str, _pid: int, text: str) -> None:
    match = _found(MIGRATE, text)
    builder.migrated(cpu, now_ns, int(match[1]))


def _without_ipi(builder: Builder, _cpu: int, _now: int, _comm: str, _pid: int, text: str) -> None:
    builder.sent(int(_found(ON_CPU, text)[1]), "store")


def _ipi(builder: Builder, _cpu: int, _now: int, _comm: str, _pid: int, text: str) -> None:
    builder.sent(int(_found(ON_CPU, text)[1]), "ipi")


def _ipis(builder: Builder, _cpu: int, _now: int, _comm: str, _pid: int, text: str) -> None:
    for number in _cpus_of(_found(MASK, text)[1]):
        builder.sent(number, "ipi")


def _cpus_of(mask: str) -> list[int]:
    """Return the CPUs of a mask: a list, 0-1,8, or words of 32 bits, as the kernel writes it.

    It writes all eight digits of each word, the highest word first. No CPU has such a number.
    """
    words = mask.split(",")
    if all(re.fullmatch(r"[0-9a-f]{8}", word) for word in words):
        bits = int("".join(words), 16)
        return [cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1]
    return cpulist.parse(mask)


def _ipi_came(builder: Builder, cpu: int, _now: int, _comm: str, _pid: int, _text: str) -> None:
    builder.happened(cpu, "ipi")


def _expire(builder: Builder, cpu: int, _now: int, _comm: str, _pid: int, text: str) -> None:
    function = _found(EXPIRE, text)[1]
    builder.timer(cpu, not NAMELESS.fullmatch(function))
    builder.happened(cpu, "tick" if function.startswith(TICKS) else "timer")


def _handler(builder: Builder, cpu: int, _now: int, _comm: str, _pid: int, text: str) -> None:
    name = _found(HANDLER, text)[1].strip()
    if IPI_HANDLER.fullmatch(name):
        builder.happened(cpu, "ipi")
    elif name not in TIMER_HANDLERS and name != ANYTHING:
        builder.happened(cpu, "device")


def _sleep_length(builder: Builder, cpu: int, _now: int, _comm: str, _pid: int, text: str) -> None:
    match = _found(LENGTH, text)
    length, event = int(match[1], 0), int(match[2]) if match[2] else None
    for each in (length, event or 0):
        if not -(1 << 63) <= each < 1 << 63:
            raise ValueError(f"a sleep length of {each} ns")
    builder.sleep_length(cpu, length, event)


HANDLES: dict[str, Handle] = {
    "cpu_idle": _cpu_idle,
    "cpu_idle_miss": _miss,
    "sched_switch": _switch,
    "sched_waking": _waking,
    "sched_migrate_task": _migrate,
    "sched_wake_idle_without_ipi": _without_ipi,
    "ipi_send_cpu": _ipi,
    "ipi_send_cpumask": _ipis,
    "reschedule_entry": _ipi_came,
    "call_function_single_entry": _ipi_came,
    "call_function_entry": _ipi_came,
    "hrtimer_expire_entry": _expire,
    "irq_handler_entry": _handler,
    "sleep_length": _sleep_length,
}

MAX_PID = 1 << 31
NOBODY = "", -1
"""A task that nothing tells."""


@runtime_checkable
class Placed(Protocol):
    """Lines that a reader makes of something else; it says of what."""

    def place(self) -> str:
        """Return where in the file the last line comes from."""


def feed(builder: Builder, lines: Iterable[str], what: str) -> Iterable[None]:
    """Give the events of ``lines`` to ``builder``; yield after each.

    Raises LightsleepError that names ``what``, the line or its place, and what is wrong with it.
    """
    number = said = 0
    try:
        for whole in _whole(lines):
            number, line, match = whole
            if match:
                said = MARKER if match["event"] in MARKERS else 0
            elif said and not _known(line):
                said = max(0, said - len(line))
                continue
            _line(builder, line, match)
            yield
    except Unreadable:
        raise
    except (ValueError, LightsleepError) as error:
        text = error.message if isinstance(error, LightsleepError) else str(error)
        where = lines.place() if isinstance(lines, Placed) else f"line {number}"
        raise LightsleepError(f"{what}: {where}: {text}") from error


MARKERS = ("tracing_mark_write", "print", "bprint", "bputs")
MARKER = 4096
"""A program may write any text into a trace, with line breaks; so long it may be."""

Numbered = tuple[int, str, re.Match[str] | None]
"""A line, its number, and what makes it an event."""


def _whole(lines: Iterable[str]) -> Iterator[Numbered]:
    """Yield lines; those that a newline in a task's name has split, as one."""
    held: Numbered | None = None
    for number, line in enumerate(lines, 1):
        match = LINE.match(line)
        whole: Numbered = (number, line, match)
        if held:
            first, begin, event = held
            both = f"{begin}\n{line}"
            if event and not match:  # among the fields
                whole = (first, both, event)
            elif not event and match and (named := _named(both)):
                whole = (first, both, named)
            elif not event and not match and len(both) <= _padded(both):
                whole = (first, both, None)
            else:
                yield held
            held = None
        _, line, match = whole
        if _open(line, match) if match else len(line) < _padded(line) and not _known(line):
            held = whole
        else:
            yield whole
    if held:
        yield held


def _named(line: str) -> re.Match[str] | None:
    """Return what makes a line an event, if its first name is no longer than names are."""
    match = LINE.match(line)
    return match if match and match.end("comm") <= _padded(line) else None


def _padded(line: str) -> int:
    """Return where the name at the beginning of a line ends at the latest."""
    buffer = BUFFER.match(line)
    return PADDED + (buffer.end() if buffer else 0)


def _open(line: str, match: re.Match[str]) -> bool:
    """Whether an event ends in a task's name, as far as one can tell before the next line."""
    end = match.end()
    begin = max(line.rfind("comm=", end) + 5, line.rfind("==> ", end) + 4, end + 1)
    if len(line) - begin > NAME and len(line[begin:].lstrip(" ")) > NAME:
        return False
    event = match["event"]
    if pattern := WITH_NAMES.get(event):
        return not pattern.search(line, end)
    return event not in HANDLES and "comm=" in line[end:]


def _known(line: str) -> bool:
    """Whether a tool is known to print this line, which is no event."""
    return bool(_harmless(line) or LOST.search(line) or PERF_LOST.match(line))


def _harmless(line: str) -> bool:
    return bool(HARMLESS.fullmatch(line.strip()))


def _line(builder: Builder, line: str, match: re.Match[str] | None) -> None:
    if not match:
        if lost := LOST.search(line) or PERF_LOST.match(line):
            builder.lost(int(lost[1]), None if lost[2] == "MORE" else int(lost[2] or 1))
        elif (written := WRITTEN.match(line)) and int(written[1]) < int(written[2]):
            builder.overwritten(int(written[2]) - int(written[1]))
        elif not _harmless(line):
            raise ValueError(f"no event: {shortened(line.strip())!r}")
        return
    comm, pid, number, seconds, fraction, event = match.groups()
    handle = HANDLES.get(event)
    if handle is None:
        return
    cpu, task = int(number), int(pid)
    if task >= MAX_PID:
        raise ValueError(f"no kernel has a process {task}")
    now_ns = int(seconds) * 1_000_000_000 + int(fraction) * (1 if len(fraction) == 9 else 1000)
    builder.at(cpu, now_ns)
    text = line[match.end() :]
    if event == "sched_waking":
        if task < 0 or (builder.elsewhere and line[match.start("event") - 1] == ":"):  # of perf
            comm, task = builder.running.get(cpu, NOBODY)
        elif line[match.end("comm")] != "-" and comm != f":{task}":
            builder.named(task, comm)  # perf and babeltrace2 know what it is called now
    handle(builder, cpu, now_ns, comm, task, text)
