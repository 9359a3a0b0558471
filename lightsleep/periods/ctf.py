# SPDX-License-Identifier: GPL-2.0-only
"""Traces in the Common Trace Format, as LTTng and ``perf data convert --to-ctf`` make them.

Such a trace is a folder. babeltrace2 reads it, and prints a line for each event:

    [24.954962632] host power_cpu_idle: { cpu_id = 1 }, { state = 1, cpu_id = 1 }

Here these lines become the lines that lines.py knows. LTTng gives some events and fields names of
its own. Which task an event happened in is what the CPU has switched to last, or what a context of
the trace says (procname, tid). A wakeup by a task that nobody has named yet is left out.

Of events that the tracer discarded, babeltrace2 prints a warning on standard error:

    WARNING: Tracer discarded 5 events between [1.000009999] and [2.000009999] in trace "kernel" (no
    UUID) within stream "kernel/channel0_3" (stream class ID: 0, stream ID: 3).

The name of a stream ends with its CPU. LTTng may add the number of a file: then the id of the
stream tells which of the two is the CPU. Where in this time the events are missing is not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lightsleep.errors import LightsleepError
from lightsleep.periods.lines import NO_NAME, WORDS

FOLDERS = (".", "kernel")
"""Where a trace has its metadata. Beside the kernel's trace, a session of LTTng may hold traces of
programs: what they lost, the kernel has not lost."""
HEADS = (b"/* CTF 1", b"\x57\x1d\xd1\x75", b"\x75\xd1\x1d\x57", b"\x1e")
"""Of metadata: as text, in packets of either byte order, and as the JSON texts of version 2."""

COMMAND = ("babeltrace2", "--clock-seconds", "--no-delta")

LINE = re.compile(
    r"\[(?P<s>\d{1,10})\.(?P<ns>\d{9})\] (?:\S{1,64} )?(?P<event>[\w:]{1,64}): (?P<fields>\{.*)"
)
# A field with its value, or the end of a group of fields. What is in a name is neither.
PART = re.compile(
    r'[{,}](?: (\w+) = (?:"((?:[^"\\]|\\.)*)"|(0x[0-9A-Fa-f]+|-?\d+))|(?<=\})(, )(?=\{))'
)
ESCAPED = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|(.))")
CONTROLS = dict(zip("0abefnrtv", "\0\a\b\x1b\f\n\r\t\v", strict=True))

LOST = re.compile(
    r"WARNING: Tracer (?:discarded (?P<count>\d{1,18})|may have discarded) (?:event|packet)s?\b"
    r"(?: between \[(?P<begin>\d{1,10}\.\d{9})\] and \[(?P<end>\d{1,10}\.\d{9})\])?"
    r"(?:.* within stream \"[^\"]*?_(?P<cpu>\d{1,5})(?:_(?P<more>\d{1,5}))?\" .*"
    r"\bstream ID: (?P<id>\d{1,5})\))?.*"
)

# The function of a timer is an address.
EVENTS = {**WORDS, "hrtimer_expire_entry": f"function={NO_NAME}"}
OF_LTTNG = ("power_", "x86_irq_vectors_", "timer_")
FIELDS_OF_LTTNG = {"tid": "pid", "prev_tid": "prev_pid", "next_tid": "next_pid"}


def folder_of(path: Path) -> Path | None:
    """Return the folder of the trace that a folder is or holds; None where there is none."""
    for name in FOLDERS:
        folder = path / name
        file = folder / "metadata"
        if file.is_file():
            try:
                with file.open("rb") as opened:
                    return folder if opened.read(16).startswith(HEADS) else None
            except OSError as error:
                raise LightsleepError(f"{file}: {error.strerror}") from error
    return None


@dataclass
class Loss:
    """Events that the tracer discarded: of which CPU (None: not known), how many, and when."""

    cpu: int | None
    count: int
    begin_ns: int
    end_ns: int
    told: bool = False


class Losses:
    """What babeltrace2 says of discarded events, until the events around them have been read.

    It warns before it prints an event that is later, and its warnings are not held back.
    """

    def __init__(self) -> None:
        """Know of none yet."""
        self._losses: list[Loss] = []
        self._cpus: set[int] = set()
        self._text = b""

    def hear(self, said: bytes) -> None:
        """Take what the program has said on standard error since the last time."""
        *whole, self._text = (self._text + said).split(b"\n")
        for line in whole:
            if match := LOST.fullmatch(line.decode(errors="replace")):
                begin, end = (int((match[x] or "0").replace(".", "")) for x in ("begin", "end"))
                count = max(1, int(match["count"] or 1))
                self._losses.append(Loss(_cpu_of(match), count, begin, end))

    def before(self, cpu: int, now_ns: int) -> Iterator[tuple[int, str]]:
        """Say on which CPU what was lost before an event of one, as the kernel's trace does.

        Each event in the time of a loss has events before it that may be missing. Such a time may
        be long. So only its begin and its end make wakings unknown: else, of the waits of other
        CPUs, the short ones would remain.
        """
        self._cpus.add(cpu)
        for loss in [x for x in self._losses if x.begin_ns <= now_ns] if self._losses else ():
            over = now_ns > loss.end_ns
            for each in sorted(self._cpus) if loss.cpu is None else [loss.cpu]:
                if over or not loss.told:
                    yield each, f"CPU:{each} [LOST {0 if loss.told else loss.count} EVENTS]"
                    loss.told = True
                elif each == cpu:
                    yield each, f"CPU:{each} [LOST MORE EVENTS]"
            if over:
                self._losses.remove(loss)

    def at_the_end(self) -> Iterator[str]:
        """Say what was lost after the last event, or around it."""
        for loss in self._losses:
            for each in sorted(self._cpus) if loss.cpu is None else [loss.cpu]:
                yield f"CPU:{each} [LOST {0 if loss.told else loss.count} EVENTS]"
                loss.told = True
        self._losses.clear()


def _cpu_of(match: re.Match[str]) -> int | None:
    """Return the CPU of a stream that lost events; None if its name does not tell."""
    cpu = match["cpu"]
    if match["more"] and match["id"] != cpu:
        cpu = match["more"] if match["id"] == match["more"] else None
    return int(cpu) if cpu else None


def lines(printed: Iterable[str], losses: Losses) -> Iterator[str]:
    """Turn what babeltrace2 prints into lines of a kernel's trace.

    There is a line for each line, and one more before an event where ``losses`` says that events
    may be missing. Raises ValueError where a line is none of its own, or lacks a field.
    """
    tasks: dict[int, tuple[str, int]] = {}
    for number, line in enumerate(printed, 1):
        match = LINE.fullmatch(line)
        if not match:
            raise ValueError(
                f"line {number} of what babeltrace2 prints is no event: {line[:200]!r}"
            )
        name = match["event"].rpartition(":")[2]
        for prefix in OF_LTTNG:
            name = name.removeprefix(prefix)
        if name not in EVENTS:
            yield ""
            continue
        try:
            context, fields = _groups(match["fields"])
            cpu = int(context.get("cpu_id") or fields["cpu_id"])
            for lost, said in losses.before(cpu, int(match["s"] + match["ns"])):
                tasks.pop(lost, None)  # who runs there by now, nobody has told
                yield said
            at = f"[{cpu:03}] {match['s']}.{match['ns']}: {name}"
            yield _event(at, name, tasks, cpu, context, fields)
        except KeyError as error:
            raise ValueError(
                f"line {number} of what babeltrace2 prints lacks the field {error.args[0]}"
            ) from error
    yield from losses.at_the_end()


def _event(
    at: str,
    name: str,
    tasks: dict[int, tuple[str, int]],
    cpu: int,
    context: dict[str, str],
    fields: dict[str, str],
) -> str:
    # A pid alone is that of the process; the last switch has told the thread.
    if "procname" in context and "tid" in context:
        tasks[cpu] = (context["procname"], int(context["pid"]))
    if name == "cpu_idle":
        tasks.setdefault(cpu, ("<idle>", 0))
    comm, pid = tasks.get(cpu, ("", 0))
    if name == "sched_switch":
        tasks[cpu] = (fields["next_comm"], int(fields["next_pid"]))
    elif name == "sched_waking" and not comm:
        return ""
    elif name == "cpu_idle_miss":
        fields["type"] = "below" if int(fields["below"]) else "above"
    return f"{comm or '<idle>'} {pid} {at}: {EVENTS[name].format_map(fields)}"


def _groups(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the fields of an event's contexts, and its own."""
    context: dict[str, str] = {}
    found: dict[str, str] = {}
    for name, quoted, number, end in PART.findall(text):
        if end:
            context |= found
            found = {}
        elif number:
            found[name] = str(int(number, 0))
        else:
            found[name] = ESCAPED.sub(_unescaped, quoted) if "\\" in quoted else quoted
    for fields in (context, found):
        for theirs, ours in FIELDS_OF_LTTNG.items():
            # Where there is a tid, a pid is that of the process: who wakes whom goes by threads.
            if theirs in fields:
                fields[ours] = fields[theirs]
    return context, found


def _unescaped(match: re.Match[str]) -> str:
    return chr(int(match[1], 16)) if match[1] else CONTROLS.get(match[2], match[2])
