# SPDX-License-Identifier: GPL-2.0-only
"""One recording, from the first event to the whole file; the keeper (keeper.py) makes it."""

import contextlib
import functools
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
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightsleep import place, terminal
from lightsleep.errors import LightsleepError
from lightsleep.matches import matches
from lightsleep.record import keeper, scratch_files, trace_file, tracefs, tracing
from lightsleep.record.bpf.pages import PAGE, files_of

START_S = 60.0
"""How long trace-cmd may take to enable its events."""

SPARE_BYTES = 16 << 20
"""What a recording leaves free on the disk."""

SILENT_S, REDRAW_S = 2.0, 0.5
"""How long the end of a recording may take without a progress bar, and how often that is drawn."""

HANGS_S = 10.0
"""Once nothing was written for so long, who waits for the end of a recording need not any more."""

DIED = "trace-cmd ended before its time"
KILLED = (
    "the process that copies events was killed: the recording ended early, and what had been "
    "copied is in the file"
)


@dataclass
class Recording:
    """A recording that runs, and after its end what became of it.

    ``instance`` is trace-cmd's, where that records. ``stop`` has events end, and raises OSError
    where it cannot; a histogram has none. So many ``unwritten_bytes`` may follow it on the disk.
    ``probe_refused`` says why the kernel does not tell what the governor knew. ``lost`` counts
    events by CPU. ``notes`` tell what could not be tidied up, and why it ended early. Where that
    was noticed while it ran, ``stopped`` says so, ``stopped_s`` when (time.monotonic()), and
    ``at_stop`` was called. While ``heeding_signals`` lasts, a signal ends the wait for the file. It
    has ``started`` once the kernel traces. What is to be recorded has ``begun`` after begin().
    """

    instance: Path | None
    scratch: Path
    process: "subprocess.Popen[bytes]"
    stop: Callable[[], object] | None = None
    unwritten_bytes: int = 0
    probe_refused: str | None = None
    elapsed_s: float = 0.0
    lost: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    stopped: str | None = None
    stopped_s: float | None = None
    at_stop: Callable[[], None] = lambda: None
    heeding_signals: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    started: bool = False
    begun: bool = False

    def begin(self) -> None:
        """Say that what is to be recorded begins now: from here on, a file is wanted."""
        self.begun = True
        _say(self.process, keeper.BEGUN)

    def watch(self) -> None:
        """Notice what ends a recording early.

        That is a dead trace-cmd, a tracing instance that is gone, a dead keeper of BPF programs, or
        a disk that is nearly full. Counts need none of these.
        """
        if self.stop is None or self.stopped is not None:
            return
        if self.instance and not _has_child(self.process.pid):
            self.stopped = DIED
        elif self.instance and not self.instance.is_dir():
            self.stopped = _gone(self.instance)
        elif not self.instance and self.process.poll() is not None:
            self.stopped = KILLED
        else:
            self._watch_disk(self.stop)
        if self.stopped is not None:
            self.stopped_s = time.monotonic()
            self.at_stop()

    def _watch_disk(self, stop: Callable[[], object]) -> None:
        """Stop tracing where the disk would not take the whole file."""
        used = sum(_sizes(self.scratch).values())
        # At the end, the data of all CPUs are copied into one file.
        needed = used + self.unwritten_bytes
        folder = self.scratch.parent.parent
        try:
            free = shutil.disk_usage(folder).free
        except OSError as error:
            self.stopped = (
                f"{folder} cannot be written to any more: {error.strerror}; the "
                "recording ended early"
            )
            with contextlib.suppress(OSError):
                stop()
            return
        if free >= needed + SPARE_BYTES:
            return
        try:
            stop()
        except OSError:
            assert self.instance
            self.stopped = _gone(self.instance)
        else:
            self.stopped = (
                f"the disk of {folder} is nearly full: {free >> 20} MiB are free, and "
                f"the file may need {needed >> 20} MiB more; the recording ended early"
            )


def _gone(instance: Path) -> str:
    return (
        f"the tracing instance {instance} is gone, or tracing was unmounted: the recording ended "
        "early; record again, and do not remove or unmount them meanwhile"
    )


class RefusedError(LightsleepError):
    """BPF programs cannot record here. The message is why, and calls them "they"."""


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
    buffer_kb: int = 0,
) -> Iterator[Recording]:
    """Record while the context lasts; ``output`` is there, and whole, when it has ended.

    That is so where Recording.begin() was called. Without it, an ``output`` of before stays.

    ``folder`` is where tracing is mounted. ``document`` is what the file beside ``output`` says,
    whatever ends the recording. The kernel has ``buffer_kb`` for the events of each CPU. Raises
    LightsleepError where tracing does not start, and where the file cannot be written.
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
    instance = folder / "instances" / tracefs.group_of(process.pid)
    switch = instance / "tracing_on"
    unwritten_bytes = _unwritten_bytes(os.cpu_count() or 1, buffer_kb << 10)
    stop = functools.partial(switch.write_text, "0")
    running = Recording(instance, scratch, process, stop, unwritten_bytes)
    with _recorded(running, order, output):
        yield running


@contextlib.contextmanager
def tracing_by_bpf(
    order: dict[str, Any], output: Path, document: dict[str, Any]
) -> Iterator[Recording]:
    """Record as recording(), by BPF programs: ``order`` is theirs (bpf/trace.py).

    Raises RefusedError where the kernel does not run them.
    """
    scratch = scratch_for(output)
    whole = order | {"scratch": str(scratch), "output": str(output), "document": document}
    unwritten_bytes = _unwritten_bytes(len(order["buffers"]), order["pages"] * PAGE)
    free = shutil.disk_usage(output.parent).free
    if free < unwritten_bytes + SPARE_BYTES:
        raise LightsleepError(
            f"{output.parent} has {free >> 20} MiB free, and what the buffers of "
            f"{len(order['buffers'])} CPUs hold at the end may need "
            f"{unwritten_bytes + SPARE_BYTES >> 20} MiB: name another place with -o, or try a "
            "smaller --buffer-kb"
        )
    process = _keeper()
    stop = functools.partial(_say, process, keeper.STOP)
    running = Recording(None, scratch, process, stop, unwritten_bytes)
    with _recorded(running, whole, output):
        yield running


def _unwritten_bytes(cpus: int, buffer_bytes: int) -> int:
    """Return how much may follow on the disk once no more is recorded.

    What the buffers hold is still to be written to files of the CPUs, and then once more.
    """
    return 2 * cpus * buffer_bytes


@contextlib.contextmanager
def _recorded(running: Recording, order: dict[str, Any], output: Path) -> Iterator[None]:
    """Have the keeper record while the context lasts. Raises LightsleepError."""
    process, scratch = running.process, running.scratch
    began, wanted = time.monotonic(), True
    try:
        answer = _send_order(process, order)
        if answer is False or (running.instance and not _await_start(running.instance, process)):
            raise _NotStartedError
        assert not isinstance(answer, bool)
        running.probe_refused = answer
        running.started = True
        began = time.monotonic()
        yield
    except _NotStartedError:
        pass
    except LightsleepError:  # what was to be recorded could not begin
        wanted = False
        _say(process, keeper.DISCARD)
        raise
    finally:
        # What was to be recorded may run on after the recording has stopped.
        running.elapsed_s = (running.stopped_s or time.monotonic()) - began
        where = f"what had been recorded is in {scratch}, if that is there"
        report = _finish(running, where)
        if report["status"] is None and "formats" in order:
            report = _finish_for(order, wanted and running.begun)
        running.lost = report.get("lost", {})
        running.notes = report.get("notes", [])
        running.stopped = running.stopped or report.get("stopped")
    if report["failed"] or report["status"] != 0 or not running.started:
        why = report["failed"] or _failure(report, scratch, output)
        if report["failed"] and "formats" in order and report["kept"]:
            head = trace_file.head_of(scratch).relative_to(output.parent)
            why += f"; {_restore(scratch, output, f'-i {head} ')}"
        known = running.stopped if running.stopped != DIED else None
        error = RefusedError if report.get("refused") else LightsleepError
        raise error("\n".join(filter(None, (known, why))))


def _finish_for(order: dict[str, Any], wanted: bool) -> dict[str, Any]:
    """Make a file of what BPF programs have written, as the keeper that was killed would have."""
    failed = None
    try:
        scratch = scratch_files.open_folder(Path(order["scratch"]))
    except FileNotFoundError:  # the file was whole before the keeper was killed
        pass
    except OSError as error:
        failed = f"cannot write {order['output']}: {error.strerror}"
    else:
        # Where these are gone, it was whole, too.
        if wanted and all(file.exists() for file in files_of(order, scratch).values()):
            failed = keeper.finish(order | {"scratch": str(scratch)}, {})
        if failed is None:
            scratch_files.clear(scratch)
        os.close(scratch_files.descriptor_of(scratch))
    stopped = KILLED if wanted else None
    return {"status": 0, "failed": failed, "kept": failed is not None, "stopped": stopped}


@contextlib.contextmanager
def counting(order: dict[str, Any], document: dict[str, Any], output: Path) -> Iterator[Recording]:
    """Have the kernel count what ``order`` says; ``output`` is whole when the context has ended.

    As with recording(), there is no file without Recording.begin(). ``document`` is what the file
    says beside the counts. Raises LightsleepError where the kernel does not count, and where the
    file cannot be written.
    """
    scratch = scratch_for(output)
    more = {"scratch": str(scratch), "output": str(output), "document": document}
    process = _keeper()
    running = Recording(None, scratch, process)
    began = time.monotonic()
    try:
        if not _send_order(process, order | more):
            yield running
    except LightsleepError:
        _say(process, keeper.DISCARD)
        raise
    finally:
        running.elapsed_s = time.monotonic() - began
        report = _finish(running, "what the kernel had counted is lost")
    if report["failed"]:
        raise LightsleepError(report["failed"])


def _keeper() -> "subprocess.Popen[bytes]":
    """Start the keeper. Raises LightsleepError."""
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:  # no memory, or too many processes
        raise LightsleepError(f"{_not_started()}: {error.strerror}") from error


def _not_started() -> str:
    return f"cannot start the process that ends a recording: {sys.executable} {keeper.__file__}"


def _send_order(process: "subprocess.Popen[bytes]", order: dict[str, Any]) -> str | bool | None:
    """Have the keeper begin; return its first answer. Raises LightsleepError without one."""
    assert process.stdin
    assert process.stdout
    with contextlib.suppress(BrokenPipeError):  # then it has no answer, either
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise LightsleepError(_not_started())
    said: str | bool | None = json.loads(answer)
    return said


def _say(process: "subprocess.Popen[bytes]", word: bytes) -> None:
    """Tell the keeper that a file is wanted, or that none is."""
    assert process.stdin
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(word)
        process.stdin.flush()


def scratch_for(output: Path) -> Path:
    """Return a name for a file that is not yet whole, in a folder beside ``output`` yet to make."""
    return output.with_name(f".lightsleep-{secrets.token_hex(8)}") / "trace"


@contextlib.contextmanager
def folder_of(output: Path) -> Iterator[None]:
    """Have the folder of ``output``; what is made for it, and is empty at the end, goes again.

    A new folder belongs to who called sudo, as the file does. Raises LightsleepError.
    """
    with contextlib.ExitStack() as made:
        try:
            for folder in reversed([x for x in output.parents if not x.exists()]):
                folder.mkdir()
                made.callback(_remove_empty, folder)
                _give_to_caller(folder)
        except OSError as error:
            raise LightsleepError(f"cannot write {output}: {error.strerror}") from error
        yield


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _give_to_caller(folder: Path) -> None:
    """Give a new folder away; a link that took its place is refused. Raises OSError."""
    owner = place.caller()
    if owner is None or os.geteuid() != 0:
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with contextlib.suppress(PermissionError):  # root of a network's file system
            os.fchown(descriptor, *owner)
    finally:
        os.close(descriptor)


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


def _finish(running: Recording, remains: str) -> dict[str, Any]:
    """End the recording and return the keeper's report; without one, say what ``remains``."""
    process = running.process
    assert process.stdin
    assert process.stdout
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    try:
        _wait_for_report(running)
        said = process.stdout.read()
    except KeyboardInterrupt:
        terminal.remark(
            f"not waited for the end: process {process.pid} goes on, finishes the file if there is "
            "anything in it, and tidies up"
        )
        raise
    process.stdout.close()
    process.wait()
    # A signal at the start leaves the first answer unread. It is no object, unlike the report.
    report = json.loads(said.splitlines()[-1]) if said else None
    if isinstance(report, dict):
        return report
    return {
        "status": None,
        "said": "",
        "failed": f"the process that ends a recording was killed; {remains}",
    }


def _wait_for_report(running: Recording) -> None:
    """Wait until the keeper says how a recording ended. Where that hangs, a signal ends the wait.

    Before that, a signal does no more than the first one did: many press Ctrl-C twice.
    """
    report = running.process.stdout
    assert report
    written, since = _written(running.scratch), time.monotonic()
    with contextlib.ExitStack() as shown, contextlib.ExitStack() as heeding:
        tell, hangs = None, False
        while not select.select([report], [], [], REDRAW_S if tell else SILENT_S)[0]:
            tell = tell or shown.enter_context(terminal.progress())
            now = _written(running.scratch)
            tell("writing the file", *now)
            if now != written:
                written, since = now, time.monotonic()
            elif not hangs and time.monotonic() - since >= HANGS_S:
                shown.close()
                tell, hangs = None, True
                terminal.remark(
                    f"nothing was written for {HANGS_S:.0f} s; Ctrl-C ends the wait for the file, "
                    "which another process goes on to write"
                )
                heeding.enter_context(running.heeding_signals())


def _written(scratch: Path) -> tuple[int, int]:
    """Return how many bytes trace-cmd has copied into one file, and how many there are to copy."""
    sizes = _sizes(scratch)
    total = sum(size for file, size in sizes.items() if ".cpu" in file.suffix)
    return min(sizes.get(scratch, 0), total), max(1, total)


def _sizes(scratch: Path) -> dict[Path, int]:
    """Return the sizes of a recording's files in bytes; the keeper may remove them meanwhile."""
    sizes = {}
    for file in matches(scratch.parent, f"{scratch.name}*"):
        with contextlib.suppress(FileNotFoundError):
            sizes[file] = file.stat().st_size
    return sizes


def _failure(report: dict[str, Any], scratch: Path, output: Path) -> str:
    """Say why trace-cmd failed, and how to make a trace of what it had recorded."""
    why = f"trace-cmd failed: {_reason(report['said'])}"
    status = report["status"]
    if status is not None and status < 0:
        why = f"trace-cmd was ended by signal {-status}"
    if not report["kept"]:
        return why
    return f"{why}; {_restore(scratch, output, '', 'before the next boot, ')}"


def _restore(scratch: Path, output: Path, more: str, when: str = "") -> str:
    """Say how trace-cmd makes a trace of files that are there, with ``more`` options."""
    ours, theirs = scratch.relative_to(output.parent), shlex.quote(output.name)
    described = place.DESCRIBED
    what = f"{when}this makes a trace of them: "
    return (
        f"what was recorded is in one file for each CPU. {what[0].upper()}{what[1:]}"
        f"(cd {shlex.quote(str(output.parent))} && trace-cmd restore {more}-o {theirs} "
        # By number: 10 is behind 9.
        f"$(ls -v {ours}*.cpu*) && mv {ours}{described} {theirs}{described})"
    )


def _reason(said: str) -> str:
    """Return what trace-cmd said, without its greeting."""
    lines = [line.strip() for line in said.splitlines()]
    wanted = [line for line in lines if line and "Hit Ctrl^C" not in line]
    return "; ".join(wanted[-4:]) or "it said nothing"
