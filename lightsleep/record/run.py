# SPDX-License-Identifier: GPL-2.0-only
"""One recording, from the first event to the whole file; the keeper (keeper.py) traces."""

import contextlib
import json
import os
import secrets
import select
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightsleep import terminal
from lightsleep.errors import LightsleepError
from lightsleep.record import keeper, tracing

START_S = 60.0
"""How long trace-cmd may take to enable its events."""

SPARE_BYTES = 16 << 20
"""What a recording leaves free on the disk."""

SILENT_S, REDRAW_S = 2.0, 0.5
"""How long the end of a recording may take without a progress bar, and how often that is drawn."""

DIED = "trace-cmd ended before its time"

STDERR = 2
"""The file descriptor."""


@dataclass
class Recording:
    """A recording that runs, and after its end what became of it.

    ``probe_refused`` says why the kernel does not tell what the governor knew. ``lost`` counts
    events by CPU. ``notes`` tell what could not be tidied up, and why it ended early. Where that
    was noticed while it ran, ``stopped`` says so, ``stopped_s`` when (time.monotonic()), and
    ``at_stop`` was called.
    """

    instance: Path | None
    scratch: Path
    process: "subprocess.Popen[bytes]"
    probe_refused: str | None = None
    elapsed_s: float = 0.0
    lost: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    stopped: str | None = None
    stopped_s: float | None = None
    at_stop: Callable[[], None] = lambda: None
    started: bool = False

    def watch(self) -> None:
        """Notice what ends a recording early.

        That is a dead trace-cmd, a tracing instance that is gone, or a disk that is nearly full.
        Counts need none of these.
        """
        if self.instance is None or self.stopped is not None:
            return
        if not _has_child(self.process.pid):
            self.stopped = DIED
        elif not self.instance.is_dir():
            self.stopped = _gone(self.instance)
        else:
            self._watch_disk(self.instance)
        if self.stopped is not None:
            self.stopped_s = time.monotonic()
            self.at_stop()

    def _watch_disk(self, instance: Path) -> None:
        """Stop tracing where the disk would not take the whole file."""
        used = 0
        for file in self.scratch.parent.glob(f"{self.scratch.name}*"):
            with contextlib.suppress(FileNotFoundError):
                used += file.stat().st_size
        # At its end trace-cmd copies the data of all CPUs into one file.
        free = shutil.disk_usage(self.scratch.parent).free
        if free >= used + SPARE_BYTES:
            return
        try:
            (instance / "tracing_on").write_text("0")
        except OSError:
            self.stopped = _gone(instance)
        else:
            self.stopped = (
                f"the disk of {self.scratch.parent} is nearly full: {free >> 20} MiB are free, and "
                f"the file needs {used >> 20} MiB more; the recording ended early"
            )


def _gone(instance: Path) -> str:
    return (
        f"the tracing instance {instance} is gone: the recording ended early; record again, and "
        "leave the instance to lightsleep"
    )


class Terminated(KeyboardInterrupt):
    """A signal to this process alone: a command that it runs has not heard of it."""

    def __init__(self, number: int) -> None:
        """Remember which signal it was."""
        super().__init__(number)
        self.number = number


class _NotStartedError(Exception):
    """trace-cmd ended before it traced; its report says why."""


def need_programs() -> None:
    """Raise LightsleepError where a program is missing that a recording needs."""
    packages = {"trace-cmd": "trace-cmd", "setpriv": "util-linux"}
    for program, package in packages.items():
        if not shutil.which(program):
            raise LightsleepError(
                f"a recording needs the program {program}: install the package {package}"
            )


@contextlib.contextmanager
def recording(
    folder: Path,
    command: list[str],
    options: list[str],
    scratch: Path,
    output: Path,
    document: dict[str, Any],
) -> Iterator[Recording]:
    """Record while the context lasts; ``output`` is there, and whole, when it has ended.

    ``folder`` is where tracing is mounted. ``document`` is what the file beside ``output`` says,
    whatever ends the recording. Raises LightsleepError where tracing does not start, and where the
    file cannot be written.
    """
    order = {
        "tracing": str(folder),
        "command": command,
        "probes": tracing.PROBES,
        "probe_options": options,
        "scratch": str(scratch),
        "output": str(output),
        "document": document,
    }
    process = _keeper()
    instance = folder / "instances" / keeper.group_of(process.pid)
    running = Recording(instance, scratch, process)
    began = time.monotonic()
    try:
        running.probe_refused = _send_order(process, order)
        if not _await_start(instance, process):
            raise _NotStartedError
        running.started = True
        _say(process, keeper.BEGUN)
        began = time.monotonic()
        yield running
    except _NotStartedError:
        pass
    except LightsleepError:  # what was to be recorded has not begun
        _say(process, keeper.DISCARD)
        raise
    finally:
        # What was to be recorded may run on after the recording has stopped.
        running.elapsed_s = (running.stopped_s or time.monotonic()) - began
        report = _finish(process, scratch)
        running.lost = report.get("lost", {})
        running.notes = report.get("notes", [])
    if report["failed"] or report["status"] != 0 or not running.started:
        why = report["failed"] or _failure(report, scratch, output)
        known = running.stopped if running.stopped != DIED else None
        raise LightsleepError("\n".join(filter(None, (known, why))))


@contextlib.contextmanager
def counting(order: dict[str, Any], document: dict[str, Any], output: Path) -> Iterator[Recording]:
    """Have the kernel count what ``order`` says; ``output`` is whole when the context has ended.

    ``document`` is what the file says beside the counts. Raises LightsleepError
    where the kernel does not count, and where the file cannot be written.
    """
    scratch = scratch_for(output)
    more = {"scratch": str(scratch), "output": str(output), "document": document}
    process = _keeper()
    running = Recording(None, scratch, process)
    began = time.monotonic()
    try:
        if not _send_order(process, order | more):
            _say(process, keeper.BEGUN)
            yield running
    except LightsleepError:
        _say(process, keeper.DISCARD)
        raise
    finally:
        running.elapsed_s = time.monotonic() - began
        report = _finish(process, scratch)
    if report["failed"]:
        raise LightsleepError(report["failed"])


def _keeper() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-I", "-S", keeper.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _send_order(process: "subprocess.Popen[bytes]", order: dict[str, Any]) -> str | None:
    """Have the keeper begin; return its first answer. Raises LightsleepError without one."""
    assert process.stdin
    assert process.stdout
    process.stdin.write(json.dumps(order).encode() + b"\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise LightsleepError(
            f"cannot start the process that ends a recording: {sys.executable} {keeper.__file__}"
        )
    said: str | None = json.loads(answer)
    return said


def _say(process: "subprocess.Popen[bytes]", word: bytes) -> None:
    """Tell the keeper that the recording has begun, or that no file is wanted."""
    assert process.stdin
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(word)
        process.stdin.flush()


def scratch_for(output: Path) -> Path:
    """Return a name beside ``output`` for a file that is not yet whole."""
    return output.with_name(f".lightsleep-{secrets.token_hex(8)}")


def _await_start(instance: Path, process: "subprocess.Popen[bytes]") -> bool:
    """Wait until all events are enabled and the instance traces; return whether it does."""
    deadline = time.monotonic() + START_S
    seen = False
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            seen |= instance.is_dir()
            on = (instance / "tracing_on").read_text().strip() == "1"
            # The last of the events that are always there; trace-cmd sets tracing_on after all.
            idle = (instance / "events/power/cpu_idle/enable").read_text().strip()
            if on and idle.startswith("1"):
                return True
        if not _has_child(process.pid) or (seen and not instance.is_dir()):
            return False
        time.sleep(0.01)
    return False


def _has_child(pid: int) -> bool:
    """Whether a process has a child that runs."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return True  # a kernel without this file
    for child in children:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                return True
    return False


def _finish(process: "subprocess.Popen[bytes]", scratch: Path) -> dict[str, Any]:
    """End the recording and return the keeper's report."""
    assert process.stdin
    assert process.stdout
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    with contextlib.ExitStack() as shown:
        tell = None
        while not select.select([process.stdout], [], [], REDRAW_S if tell else SILENT_S)[0]:
            tell = tell or shown.enter_context(terminal.progress())
            tell("writing the file", *_written(scratch))
        said = process.stdout.read()
    process.stdout.close()
    process.wait()
    # A signal at the start leaves the first answer unread. It is no object, unlike the report.
    report = json.loads(said.splitlines()[-1]) if said else None
    if isinstance(report, dict):
        return report
    return {
        "status": None,
        "said": "",
        "failed": "the process that ends a recording was killed; what had been recorded is in "
        f"{scratch}, if that is there",
    }


def _written(scratch: Path) -> tuple[int, int]:
    """Return how many bytes trace-cmd has copied into one file, and how many there are to copy."""
    done, total = 0, 0
    for file in scratch.parent.glob(f"{scratch.name}*"):
        with contextlib.suppress(FileNotFoundError):
            if file == scratch:
                done = file.stat().st_size
            elif ".cpu" in file.suffix:
                total += file.stat().st_size
    return min(done, total), max(1, total)


def _failure(report: dict[str, Any], scratch: Path, output: Path) -> str:
    """Say why trace-cmd failed, and how to make a trace of what it had recorded."""
    why = f"trace-cmd failed: {_reason(report['said'])}"
    status = report["status"]
    if status is not None and status < 0:
        why = f"trace-cmd was ended by signal {-status}"
    if not report["kept"]:
        return why
    ours, theirs = scratch.name, shlex.quote(output.name)  # in one folder
    return (
        f"{why}; what it had recorded is in one file for each CPU. Before the next boot, this "
        f"makes a trace of them: (cd {shlex.quote(str(output.parent))} && trace-cmd restore -o "
        # By number: 10 is behind 9.
        f"{theirs} $(ls -v {ours}*.cpu*) && mv {ours}{keeper.DESCRIBED} {theirs}{keeper.DESCRIBED})"
    )


def _reason(said: str) -> str:
    """Return what trace-cmd said, without its greeting."""
    lines = [line.strip() for line in said.splitlines()]
    wanted = [line for line in lines if line and "Hit Ctrl^C" not in line]
    return "; ".join(wanted[-4:]) or "it said nothing"


def wait(
    command: tuple[str, ...],
    seconds: float | None,
    running: Recording,
    tick: Callable[[float], None],
    aside: bool = False,
) -> int:
    """Wait for a command, else for some seconds, else for Ctrl-C; return the exit status.

    ``tick`` is called about once a second with the seconds that passed. With ``aside``, the
    command's stdout goes to stderr. The recording goes on until the command has ended, which may
    take its time after a signal. Raises LightsleepError where the command cannot be started.
    """
    child = _start(command, aside) if command else None
    started = time.monotonic()
    while running.process.poll() is None:
        try:
            left = 1.0 if seconds is None else started + seconds - time.monotonic()
            if left <= 0 or (running.stopped and not child):
                break
            tick(time.monotonic() - started)
            if _ended(child, min(1.0, left)):
                break
            before = running.stopped
            running.watch()
            if child and running.stopped != before:  # the command may run for long
                print(f"note: {running.stopped}", file=sys.stderr)
        except KeyboardInterrupt as signalled:
            if child is None:
                break
            if isinstance(signalled, Terminated):  # Ctrl-C has reached the command, too
                child.send_signal(signalled.number)
    if child is None:
        return 0
    status = child.wait()
    return 128 - status if status < 0 else status


def _ended(child: "subprocess.Popen[bytes] | None", pause_s: float) -> bool:
    """Wait for at most ``pause_s``; return whether there is a child and it has ended."""
    if child is None:
        time.sleep(pause_s)
        return False
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(pause_s)
    return child.poll() is not None


def _start(command: tuple[str, ...], aside: bool) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(command, stdout=STDERR if aside else None)
    except OSError as error:
        raise LightsleepError(f"cannot run {command[0]}: {os.strerror(error.errno or 0)}") from None
