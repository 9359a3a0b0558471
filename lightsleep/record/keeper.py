# SPDX-License-Identifier: GPL-2.0-only
"""The keeper of a recording: starts it, ends it, and leaves no trace of tracing behind.

A process that is killed with SIGKILL cannot clean up, so another one does: the keeper. It runs in a
session of its own, deaf to the signals that end its parent, and blocks in reading a pipe of which
the parent holds the only write end. The pipe ends when the parent says so, or with the parent; to
the keeper that is the same. There is no other way to end a recording: the orderly end takes the
path that has to work after SIGKILL.

A recording of events is trace-cmd's. At its end the keeper stops the tracing instance, reads what
the kernel lost, has trace-cmd finish its file, gives the file its name, and removes the instance
and the probe. If the keeper itself is killed, setpriv has trace-cmd end in good order.

A histogram is the kernel's (histogram.py). The keeper makes the instance and the triggers; at the
end it reads what the kernel has counted, writes the file, and removes them. Meanwhile it wakes
every few seconds.

The next recording removes what a killed keeper left.

This file runs on its own (``python -I -S``, by its path), and needs only the standard library. Its
first line of input is one JSON document, what to record. Its answer is two lines of JSON: one when
the recording has begun, and a report at the end. The first one is why there is no probe, or why the
kernel does not count; null where all is well.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

DEAF_TO = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)

FINISH_S = 600.0
"""How long trace-cmd may take to write its file."""

BUSY_S = 10.0
"""How long an instance may be in use after its last reader has ended."""

BUFFER_KB = 64
"""Of each CPU, for an instance that keeps no events."""

CLOCK = "mono"
"""The clock of all times."""

COUNTED = ("power/cpu_idle", "sched/sched_waking", "sched/sched_switch", "synthetic/lightsleep_*")
"""Events that may have triggers of ours."""


def group_of(keeper: int) -> str:
    """Return the name of the instance and the group of probes that belong to a keeper."""
    return f"lightsleep_{keeper}"


def lost_events(instance: Path) -> dict[str, int]:
    """Return how many events the kernel lost, by CPU, where it lost any."""
    lost = {}
    for stats in sorted(instance.glob("per_cpu/cpu*/stats")):
        with contextlib.suppress(OSError, ValueError):
            counts = dict(line.split(":", 1) for line in stats.read_text().splitlines())
            names = ("overrun", "commit overrun", "dropped events")
            if count := sum(int(counts.get(name, "0")) for name in names):
                lost[stats.parent.name.removeprefix("cpu")] = count
    return lost


def remove_instance(instance: Path) -> str | None:
    """Remove a tracing instance and its triggers; return why it is still there."""
    deadline = time.monotonic() + BUSY_S
    while True:
        remove_triggers(instance)
        with contextlib.suppress(OSError):
            (instance / "events/enable").write_text("0")
        try:
            instance.rmdir()
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                return f"cannot remove {instance}: {error.strerror}; remove it with rmdir"
            time.sleep(0.05)
        else:
            return None


def _append(file: Path, line: str) -> None:
    """Add a line to a file of tracefs, which open() cannot append to: it seeks to the end."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def add_probe(tracing: Path, group: str, probes: list[str]) -> str | None:
    """Add the first of these probes that the kernel takes; return why it refuses the last."""
    refused = None
    for probe in probes:
        try:
            _append(tracing / "kprobe_events", probe.replace("{group}", group))
        except OSError as error:
            refused = error.strerror or str(error)
        else:
            return None
    return refused


def remove_probes(tracing: Path, group: str) -> str | None:
    """Remove all probes of a group; return why one is still there."""
    probes = tracing / "kprobe_events"
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            found = [line for line in probes.read_text().splitlines() if f":{group}/" in line]
            for line in found:
                name = line.split()[0].partition(":")[2]
                _append(probes, f"-:{name}")
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                return f"cannot remove the probe {group} from {probes}: {error.strerror}"
            time.sleep(0.05)
        else:
            return None


def remove_triggers(instance: Path) -> None:
    """Remove the triggers of an instance: first those whose variables no other one needs."""
    for _ in range(len(COUNTED) + 1):
        files = [file for name in COUNTED for file in instance.glob(f"events/{name}/trigger")]
        lines = [(file, line) for file in files for line in _triggers(file)]
        if not lines:
            return
        for file, line in reversed(lines):
            with contextlib.suppress(OSError):  # another one needs it, and goes in this pass
                _append(file, f"!{line}")


def _triggers(file: Path) -> list[str]:
    with contextlib.suppress(OSError):
        lines = file.read_text().splitlines()
        return [re.sub(r" \[\w+\]$", "", line) for line in lines if line.startswith("hist:")]
    return []


def remove_synthetic(tracing: Path, group: str) -> str | None:
    """Remove the synthetic events of a group; return why one is still there."""
    file = tracing / "synthetic_events"
    try:
        for line in file.read_text().splitlines():
            if line.startswith(f"{group}_"):
                _append(file, f"!{line}")
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot remove the events {group} from {file}: {error.strerror}"
    return None


def end(tracer: subprocess.Popen[bytes]) -> None:
    """Have trace-cmd write its file, and end it the hard way where it does not."""
    if tracer.poll() is None:
        tracer.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            tracer.wait(FINISH_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(tracer.pid, signal.SIGKILL)
    tracer.wait()


def keep(order: dict[str, Any]) -> dict[str, Any]:
    """Record until standard input ends; return what became of it."""
    tracing, group = Path(order["tracing"]), group_of(os.getpid())
    instance = tracing / "instances" / group
    scratch, output = Path(order["scratch"]), Path(order["output"])
    refused = add_probe(tracing, group, order["probes"])
    words = order["command"] + ([] if refused else order["probe_options"])
    log = os.memfd_create("trace-cmd")
    tracer = subprocess.Popen(
        [word.replace("{group}", group) for word in words],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    os.write(sys.stdout.fileno(), f"{json.dumps(refused)}\n".encode())
    while os.read(sys.stdin.fileno(), 1):
        pass
    with contextlib.suppress(OSError):
        (instance / "tracing_on").write_text("0")
    lost = lost_events(instance)
    end(tracer)
    failed = None
    try:
        if tracer.returncode == 0:
            scratch.replace(output)
    except OSError as error:
        failed = f"cannot write {output}: {error.strerror}"
    for file in scratch.parent.glob(f"{scratch.name}*"):
        file.unlink(missing_ok=True)
    notes = [remove_instance(instance), remove_probes(tracing, group)]
    return {
        "status": tracer.returncode,
        "said": os.pread(log, 1 << 16, 0).decode(errors="replace"),
        "failed": failed,
        "lost": lost,
        "notes": [note for note in notes if note],
    }


def count(order: dict[str, Any]) -> dict[str, Any]:
    """Have the kernel count until standard input ends; return what became of it."""
    tracing, group = Path(order["tracing"]), group_of(os.getpid())
    instance = tracing / "instances" / group
    began = time.monotonic()
    failed = _begin(tracing, instance, order["events"], order["triggers"], group)
    os.write(sys.stdout.fileno(), f"{json.dumps(failed)}\n".encode())
    document, notes = dict(order["document"]), list[str | None]()
    if not failed:
        try:
            ended, dropped, note = _wait(instance, order["forget"], group)
            notes.append(note)
            (instance / "tracing_on").write_text("0")
            document["elapsed_s"] = ended - began
            document["dropped"] = dropped + _dropped(instance, order["forget"]["full"])
            document["histograms"] = {
                name: (instance / "events" / file.replace("{group}", group)).read_text()
                for name, file in order["read"].items()
            }
        except OSError as error:
            failed = f"cannot read what the kernel has counted: {error}"
    notes += [remove_instance(instance), remove_synthetic(tracing, group)]
    if not failed:
        failed = _write(Path(order["scratch"]), Path(order["output"]), document)
    return {"failed": failed, "notes": [note for note in notes if note]}


def _write(scratch: Path, output: Path, document: dict[str, Any]) -> str | None:
    try:
        scratch.write_text(json.dumps(document, indent=1) + "\n")
        scratch.replace(output)
    except OSError as error:
        with contextlib.suppress(OSError):
            scratch.unlink()
        return f"cannot write {output}: {error.strerror}"
    return None


def _begin(
    tracing: Path, instance: Path, events: list[str], triggers: list[list[str]], group: str
) -> str | None:
    """Have the kernel count; return why it does not."""
    try:
        for line in events:
            _append(tracing / "synthetic_events", line.replace("{group}", group))
        instance.mkdir()
        (instance / "buffer_size_kb").write_text(str(BUFFER_KB))
        (instance / "trace_clock").write_text(CLOCK)
        _trigger(instance, triggers, group)
    except OSError as error:
        return f"the kernel refuses a histogram: {error.strerror}{_why(instance)}"
    return None


def _trigger(instance: Path, triggers: list[list[str]], group: str) -> None:
    for file, line in triggers:
        trigger = instance / "events" / file.replace("{group}", group) / "trigger"
        _append(trigger, line.replace("{group}", group))


def _why(instance: Path) -> str:
    """Return what the kernel said last of a trigger that it refused."""
    with contextlib.suppress(OSError):
        if found := re.findall(r"error: (.*)", (instance / "error_log").read_text()):
            return f": {found[-1]}"
    return ""


def _wait(instance: Path, forget: dict[str, Any], group: str) -> tuple[float, int, str | None]:
    """Wait until standard input ends; meanwhile empty what remembers pids before it is full.

    Return when counting ended, for how many wakeups there was no room, and what went wrong.
    """
    emptied, dropped, note = _forks(), 0, None
    stopped: float | None = None
    while True:
        if select.select([sys.stdin.fileno()], [], [], forget["look_s"])[0]:
            if not os.read(sys.stdin.fileno(), 1):
                return stopped or time.monotonic(), dropped, note
            continue
        if stopped is None and (instance / "tracing_on").read_text().strip() == "0":
            stopped = time.monotonic()
        if (now := _forks()) - emptied > forget["forks"]:
            emptied = now
            dropped += _dropped(instance, forget["full"])
            try:
                _trigger(instance, forget["triggers"], group)
            except OSError as error:
                note = (
                    "what remembers pids could not be emptied, and figures may be too low: "
                    f"{error.strerror}{_why(instance)}"
                )


def _dropped(instance: Path, files: list[str]) -> int:
    """Return for how many events these histograms had no room."""
    texts = [(instance / "events" / file).read_text() for file in files]
    return sum(int(x) for text in texts for x in re.findall(r"^    Dropped: (\d+)", text, re.M))


def _forks() -> int:
    """Return how many tasks were made since boot."""
    found = re.search(r"^processes (\d+)", Path("/proc/stat").read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


def _ignored(_number: int, _frame: object) -> None:
    """Do nothing. Unlike SIG_IGN, trace-cmd does not inherit a handler."""


def main() -> None:
    """Read the order, carry it out, and tell those who still listen."""
    for number in DEAF_TO:
        signal.signal(number, _ignored)
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(sys.stdin.fileno(), 1)
        if not byte:
            return  # the parent is gone before it asked for anything
        line += byte
    order = json.loads(line)
    report = count(order) if "triggers" in order else keep(order)
    with contextlib.suppress(OSError):  # nobody left to tell
        os.write(sys.stdout.fileno(), json.dumps(report).encode())


if __name__ == "__main__":
    main()
