# SPDX-License-Identifier: GPL-2.0-only
"""Traces in the Common Trace Format, as LTTng and ``perf data convert --to-ctf`` make them.

Such a trace is a folder. babeltrace2 reads it, and prints a line for each event:

    [24.954962632] host power_cpu_idle: { cpu_id = 1 }, { state = 1, cpu_id = 1 }

Here these lines become the lines that lines.py knows. LTTng gives some events and fields names of
its own. Which task an event happened in is what the CPU has switched to last, or what a context of
the trace says (procname, tid). A wakeup by a task that nobody has named yet is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

METADATA = ("metadata", "kernel/metadata")
HEADS = (b"/* CTF 1", b"\x57\x1d\xd1\x75", b"\x75\xd1\x1d\x57")
"""Of metadata: as text, and in packets of either byte order."""

COMMAND = ("babeltrace2", "--clock-seconds", "--no-delta")

LINE = re.compile(
    r"\[(?P<s>\d{1,10})\.(?P<ns>\d{9})\] (?:\S{1,64} )?(?P<event>[\w:]{1,64}): (?P<fields>\{.*)"
)
FIELD = re.compile(r'[{,] (\w+) = (?:"((?:[^"\\]|\\.)*)"|(0x[0-9A-Fa-f]+|-?\d+))')

# An event's last words, by its name: fields of the first name that it has.
EVENTS = {
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
    "hrtimer_expire_entry": "function=unknown",
}
OF_LTTNG = ("power_", "x86_irq_vectors_", "timer_")
FIELDS_OF_LTTNG = {"tid": "pid", "prev_tid": "prev_pid", "next_tid": "next_pid"}


def is_trace(path: Path) -> bool:
    """Whether a folder holds a trace."""
    for name in METADATA:
        file = path / name
        if file.is_file():
            with file.open("rb") as opened:
                return opened.read(16).startswith(HEADS)
    return False


def lines(printed: Iterable[str]) -> Iterator[str]:
    """Turn what babeltrace2 prints into lines of a kernel's trace; a line for each line.

    Raises ValueError where a line is none of its own, or lacks a field.
    """
    tasks: dict[int, tuple[str, int]] = {}
    for number, line in enumerate(printed, 1):
        match = LINE.fullmatch(line)
        if not match:
            raise ValueError(
                f"line {number} of what babeltrace2 prints is no event: {line[:200]!r}"
            )
        try:
            yield _event(match, tasks)
        except KeyError as error:
            raise ValueError(
                f"line {number} of what babeltrace2 prints lacks the field {error.args[0]}"
            ) from error


def _event(match: re.Match[str], tasks: dict[int, tuple[str, int]]) -> str:
    name = match["event"].rpartition(":")[2]
    for prefix in OF_LTTNG:
        name = name.removeprefix(prefix)
    words = EVENTS.get(name)
    if words is None:
        return ""
    head, _, body = match["fields"].rpartition("}, {")
    context, fields = _fields(head), _fields("{" + body if head else match["fields"])
    cpu = int(context.get("cpu_id") or fields["cpu_id"], 0)
    if "procname" in context and "pid" in context:
        tasks[cpu] = (context["procname"], int(context["pid"]))
    comm, pid = tasks.get(cpu, ("", 0))
    if name == "sched_switch":
        tasks[cpu] = (fields["next_comm"], int(fields["next_pid"]))
    elif name == "sched_waking" and not comm:
        return ""
    at = f"{match['s']}.{match['ns']}"
    return f"{comm or '<idle>'}-{pid} [{cpu:03}] {at}: {name}: {words.format_map(fields)}"


def _fields(text: str) -> dict[str, str]:
    found = {}
    for name, quoted, number in FIELD.findall(text):
        value = quoted if quoted or not number else str(int(number, 0))
        found[FIELDS_OF_LTTNG.get(name, name)] = value
    return found
