# SPDX-License-Identifier: GPL-2.0-only
"""The keeper of a recording: starts it, ends it, and leaves no trace of tracing behind.

A process that is killed with SIGKILL cannot clean up, so another one does: the keeper. It runs in a
session of its own, deaf to the signals that end its parent, and blocks in reading a pipe of which
the parent holds the only write end. The pipe ends when the parent says so, or with the parent; to
the keeper that is the same. There is no other way to end a recording: the orderly end takes the
path that has to work after SIGKILL. Before the parent says that what is to be recorded
begins, no file is wanted.

Where a recording is trace-cmd's: before it starts, the keeper writes the document that belongs
beside the trace. At its end the keeper stops the tracing instance, reads what the kernel lost, has
trace-cmd finish its file, gives that and the document their names, and removes the instance and the
probe. The keeper removes these two whatever goes wrong. Where trace-cmd dies, the files of the CPUs
stay, of which trace-cmd restore makes a trace. If the keeper itself is killed, setpriv has
trace-cmd end in good order.

Where BPF programs record, they write the events to memory (bpf/trace.py). The keeper loads them,
copies what they have written into a file for each CPU, and makes one file of these at the end. If
the keeper is killed, its parent does that.

A histogram is counted by BPF programs, too (bpf/histogram.py). At the end, the keeper reads what
they have counted, and writes the file. The kernel drops all programs with the keeper, whatever ends
it.

The next recording in this PID namespace removes what a killed keeper left, or one on the host where
the namespace is gone.

This file runs on its own (``python -I -S``, by its path), and needs only the standard library and
its neighbours that need no more. Its first line of input is one JSON document, what to record. Its
answer is two lines of JSON: one when the recording has begun, and a report at the end. The first
one is why there is no probe, or why the kernel does not count; null where all is well, and false
where the recording has not begun, as the report says.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[2]))  # -I leaves it out; the last: for ours only

from lightsleep.record import scratch_files, trace_file, tracefs
from lightsleep.record.bpf import calls, pages

BEGUN, STOP, DISCARD = b"b", b"s", b"x"
"""What the parent sends: what is to be recorded begins, BPF programs are to record no more, and no
file is wanted after all."""

DEAF_TO = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)

FINISH_S, LOOK_S = 600.0, 1.0
"""How long the files of trace-cmd may stay as they are while it should write, and how often that
is looked at. Copying a long recording may take any time."""

REFUSED = {"refused": True}
"""Of a report: BPF programs cannot do what is asked for, but somebody else may."""

RIGHTS = (
    "CAP_BPF and CAP_PERFMON, which containers do not have by default: record on the host, or in a "
    "privileged container"
)
"""What the kernel wants of who loads BPF programs."""

ELSEWHERE = ("/var/tmp", "/run")  # noqa: S108 (a new file of an own name, which others cannot read)
"""Where a histogram goes whose own disk is full at the end."""

IDLE_MS = 1000
"""How long the rings of BPF programs may go unlooked at while none of them is a quarter full."""

PROC = Path("/proc")

NOT_SUPPORTED = 524
"""ENOTSUPP, an error of the kernel's own that libc has no words for."""

CLOCK = "mono"
"""The clock of all times."""


def until_the_end() -> bool:
    """Wait until standard input ends; return whether a file is wanted."""
    said = sys.stdin.buffer.read()
    return BEGUN in said and DISCARD not in said


def _tell(answer: object) -> None:
    """Send the parent a line, if it is still there."""
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), f"{json.dumps(answer)}\n".encode())


def end(tracer: subprocess.Popen[bytes], scratch: Path) -> None:
    """Have trace-cmd write its file, and end it the hard way where it does not."""
    if tracer.poll() is None:
        tracer.send_signal(signal.SIGINT)
    written, deadline = _bytes(scratch), time.monotonic() + FINISH_S
    while tracer.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            tracer.wait(LOOK_S)
        if (now := _bytes(scratch)) != written:
            written, deadline = now, time.monotonic() + FINISH_S
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(tracer.pid, signal.SIGKILL)
    tracer.wait()


def _bytes(scratch: Path) -> int:
    """Return how large the files of a recording are that is not yet whole."""
    total = 0
    for file in scratch.parent.glob(f"{scratch.name}*"):
        with contextlib.suppress(OSError):
            total += file.stat().st_size
    return total


def keep(order: dict[str, Any]) -> dict[str, Any]:
    """Record until standard input ends; return what became of it."""
    tracing, group = _held(Path(order["tracing"])), tracefs.group_of(os.getpid())
    instance = tracing / "instances" / group
    notes = list[str | None]()
    with contextlib.ExitStack() as undo:
        undo.callback(lambda: notes.append(tracefs.remove_probes(tracing, group)))
        undo.callback(lambda: notes.append(tracefs.remove_instance(instance)))
        refused = tracefs.add_probe(tracing, group, order["probes"])
        words = order["command"] + ([] if refused else order["probe_options"])
        report = _trace([x.replace("{group}", group) for x in words], order, instance, refused)
    said = [note.replace(str(tracing), order["tracing"]) for note in notes if note]
    return report | {"notes": [*_hidden(), *said]}


def _held(folder: Path) -> Path:
    """Return a name of the folder of tracing that lasts until this process ends.

    "umount -l" takes the folder away, but not what is in it: the instance would go on tracing.
    """
    with contextlib.suppress(OSError):  # what needs the folder says why
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return scratch_files.DESCRIPTORS / str(descriptor)
    return folder


def _hidden() -> list[str]:
    """Return a note where a recording cannot tell which function an event is about."""
    with contextlib.suppress(OSError):
        if trace_file.hides_addresses(PROC / "kallsyms"):
            return [
                "the kernel hides the addresses of its functions (kptr_restrict, or no "
                "CAP_SYSLOG): a tick that ends an idle period counts as a timer"
            ]
    return []


def _trace(
    words: list[str], order: dict[str, Any], instance: Path, refused: str | None
) -> dict[str, Any]:
    """Have trace-cmd record until standard input ends; leave no scratch file that is not kept."""
    output, failed, kept = Path(order["output"]), None, list[Path]()
    scratch: Path | None = None
    try:
        try:
            log = os.memfd_create("trace-cmd")
            scratch = scratch_files.make_folder(Path(order["scratch"]))
            scratch_files.write_new(scratch_files.beside(scratch), order["document"])
            words = [x.replace("{scratch}", str(scratch)) for x in words]
            tracer = _start(words, log, scratch_files.descriptor_of(scratch))
        except OSError as error:
            _tell(refused)
            why = [f"cannot record to {output}", error.filename, error.strerror]
            failed = ": ".join(str(word) for word in why if word)
            return {"status": None, "said": "", "failed": failed, "kept": 0, "lost": {}}
        try:
            _tell(refused)
            wanted = until_the_end()
            with contextlib.suppress(OSError):
                (instance / "tracing_on").write_text("0")
            lost = tracefs.lost_events(instance)
        finally:
            end(tracer, scratch)
        if tracer.returncode != 0 and wanted:
            kept += [x for x in scratch.parent.glob(f"{scratch.name}*.cpu*") if x.stat().st_size]
            kept += [scratch_files.beside(scratch)] if kept else []
        elif wanted and (failed := scratch_files.take_places(scratch, output)) and scratch.exists():
            kept += [scratch, scratch_files.beside(scratch)]
            failed += f"; what was recorded is in {order['scratch']}"
    finally:
        if scratch:
            scratch_files.clear(scratch, kept)
    return {
        "status": tracer.returncode,
        "said": os.pread(log, 1 << 16, 0).decode(errors="replace"),
        "failed": failed,
        "kept": len(kept),
        "lost": lost,
    }


def trace(order: dict[str, Any]) -> dict[str, Any]:
    """Have BPF programs write a trace until standard input ends; return what became of it."""
    report: dict[str, Any] = {"status": 0, "said": "", "kept": 0, "lost": {}, "notes": _hidden()}
    names = trace_file.task_names(PROC)
    try:
        rings, programs, links, missing = _loaded(order)
    except _Refused as refused:
        _tell(False)
        return report | {"failed": str(refused)} | REFUSED
    try:
        scratch = _begun(order, names, rings)
    except OSError as error:
        _tell(False)
        return report | {"failed": f"cannot record to {order['output']}: {error.strerror}"}
    try:
        _tell(missing)
        try:
            wanted = _copy_until_the_end(rings)
        finally:
            rings.end()
            for link in links:
                os.close(link)
        if not wanted:
            return report | {"failed": None}
        report["kept"] = 1  # the files of the CPUs, whatever fails from here on
        time.sleep(pages.SETTLE_S)  # a program may still run
        rings.copy_the_rest()
        rings.close()
        report["lost"] = rings.lost
        report["notes"] += _unheard(sum(map(calls.missed, programs)))
        if rings.refused:
            report["stopped"] = f"cannot write more: {rings.refused}; the recording ended early"
        order = order | {"scratch": str(scratch)}
        report["failed"] = finish(order, names | trace_file.task_names(PROC))
        report["kept"] = int(report["failed"] is not None)
        return report
    finally:
        if not report["kept"]:
            scratch_files.clear(scratch)


class _Refused(Exception):
    """The kernel does not run the programs, or not all that are asked for."""


def _loaded(order: dict[str, Any]) -> tuple[pages.Rings, list[int], list[int], str | None]:
    """Return the rings, the programs, what ends them when it is closed, and why there is no probe.

    Raises _Refused.
    """
    try:
        rings = pages.Rings(order)
        programs, links, missing = _attached(order, rings)
    except OSError as error:
        advice = {
            errno.ENOMEM: "; try a smaller --buffer-kb",
            errno.EPERM: f"; they need {RIGHTS}",
        }.get(error.errno or 0, "")
        raise _Refused(f"the kernel refuses them: {error.strerror}{advice}") from error
    # What the kernel's types do not know, trace-cmd's probe will hardly find.
    if missing and order.get("all_probes") and None not in order["probes"].values():
        raise _Refused(
            "they would miss the governor's sleep length, as the kernel refuses that program: "
            + missing
        )
    return rings, programs, links, missing


def _begun(order: dict[str, Any], names: dict[int, bytes], rings: pages.Rings) -> Path:
    """Have the rings write into a new scratch folder, and return that. Raises OSError."""
    scratch = scratch_files.make_folder(Path(order["scratch"]))
    try:
        order = order | {"scratch": str(scratch)}
        scratch_files.write_new(scratch_files.beside(scratch), order["document"])
        begin = trace_file.head(order, names, PROC)
        scratch_files.write_whole(trace_file.head_of(scratch), begin)
        rings.open(scratch, scratch_files.PRIVATE)
        rings.begin()
    except BaseException:
        scratch_files.clear(scratch)
        raise
    return scratch


def _attached(order: dict[str, Any], rings: pages.Rings) -> tuple[list[int], list[int], str | None]:
    """Return the programs, what ends them when it is closed, and why there is no probe.

    Raises OSError.
    """
    programs = [calls.load(name, code, rings.maps) for name, code in order["programs"].items()]
    links = [calls.attach(None, program) for program in programs]
    refused = None
    for name, code in order["probes"].items():
        if code is None:
            refused = f"it has no function {name}"
            continue
        try:
            programs.append(calls.load(name, code, rings.maps, calls.AT_RETURN))
            links.append(calls.attach(None, programs[-1]))
        except OSError as error:
            refused = error.strerror or str(error)
            if error.errno == NOT_SUPPORTED:
                refused = "it runs no program at the end of a function"
    return programs, links, refused


def _copy_until_the_end(rings: pages.Rings) -> bool:
    """Empty the rings until standard input ends; return whether a file is wanted."""
    said = b""
    poll = select.poll()
    poll.register(sys.stdin, select.POLLIN)
    poll.register(rings.wakes, select.POLLIN)
    while True:
        if sys.stdin.fileno() in dict(poll.poll(IDLE_MS)):
            data = os.read(sys.stdin.fileno(), 1 << 10)
            if not data:
                return BEGUN in said and DISCARD not in said
            said += data
            if STOP in data:
                rings.end()
        rings.copy()


def _unheard(count: int) -> list[str]:
    """Return a note of events that happened while their own program ran."""
    if not count:
        return []
    return [f"events not recorded, as their program would have interrupted itself: {count:,}"]


def finish(order: dict[str, Any], names: dict[int, bytes]) -> str | None:
    """Make one file of those of the CPUs; return why that failed. Only then, they are still there.

    Once is enough, but a second time does no harm.
    """
    scratch, output = Path(order["scratch"]), Path(order["output"])
    try:
        scratch.unlink(missing_ok=True)  # of who was killed meanwhile
        begin = trace_file.head(order, names, PROC)
        with scratch_files.new_file(scratch) as file:
            trace_file.assemble(file, begin, pages.files_of(order, scratch), CLOCK)
    except OSError as error:
        with contextlib.suppress(OSError):
            scratch.unlink()
        return f"cannot write {output}: {error.strerror}"
    if failed := scratch_files.take_places(scratch, output):
        return failed
    scratch_files.clear(scratch)
    return None


def _start(words: list[str], log: int, folder: int) -> subprocess.Popen[bytes]:
    """Start trace-cmd, with the descriptor of the folder that it writes to. Raises OSError.

    It ignores what this process is deaf to, but for SIGINT, by which it is told to end: who ends a
    service, or shuts the machine down, sends the others to all processes.
    """
    before = {x: signal.signal(x, signal.SIG_IGN) for x in DEAF_TO if x != signal.SIGINT}
    try:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(folder,),
            start_new_session=True,
            umask=0o077,  # the files of the CPUs are as private as the whole one
        )
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def count(order: dict[str, Any]) -> dict[str, Any]:
    """Have the kernel count until standard input ends; return what became of it."""
    failed, document = None, dict(order["document"])
    maps, memory, programs = dict[str, int](), dict[str, mmap.mmap](), list[int]()
    try:
        for name, kind in order["maps"].items():
            maps[name] = calls.create(calls.ARRAY, kind["bytes"], 1, calls.MMAPABLE)
            memory[name] = mmap.mmap(maps[name], pages.rounded(kind["bytes"]))
            filled = bytes.fromhex(kind.get("value", ""))
            memory[name][: len(filled)] = filled
        for tracepoint, program in order["programs"].items():
            programs.append(calls.load(tracepoint, program, maps))
        links = [
            calls.attach(tracepoint, number)
            for tracepoint, number in zip(order["programs"], programs, strict=True)
        ]
    except OSError as error:
        failed = f"the kernel refuses to count: {error.strerror}"
        if error.errno == errno.EPERM:
            failed += f"; this needs {RIGHTS}"
        if error.errno == errno.E2BIG:
            failed = (
                "the kernel refuses to count on so many CPUs: before Linux 6.0, a histogram counts "
                "on CPUs below 16; record events instead, without --histogram"
            )
    began = time.monotonic()
    _tell(failed)
    if failed:
        return {"failed": failed}
    wanted = until_the_end()
    document["elapsed_s"] = time.monotonic() - began
    for link in links:
        os.close(link)
    if not wanted:
        return {"failed": None}
    try:
        document["dropped"] = sum(map(calls.missed, programs))
        time.sleep(pages.SETTLE_S)  # a program may still run
        document["histograms"] = _counted(memory[order["counts"]], order)
    except OSError as error:
        return {"failed": f"cannot read what the kernel has counted: {error.strerror}"}
    return {"failed": _write(Path(order["scratch"]), Path(order["output"]), document)}


def _write(scratch: Path, output: Path, document: dict[str, Any]) -> str | None:
    led = None
    try:
        led = scratch_files.make_folder(scratch)
        scratch_files.write_new(led, document)
        scratch_files.take_place(led, output)
    except OSError as error:
        kept = _write_elsewhere(document)
        where = f"; what was counted is in {kept}" if kept else ""
        return f"cannot write {output}: {error.strerror}{where}"
    finally:
        if led:
            scratch_files.clear(led)
    return None


def _write_elsewhere(document: dict[str, Any]) -> Path | None:
    """Write to the first of ELSEWHERE that takes it, and return the file: it may tell of days."""
    for folder in ELSEWHERE:
        path = Path(folder, f"lightsleep-histogram-{os.getpid()}-{time.time_ns()}.json")
        try:
            scratch_files.write_new(path, document)
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink()
        else:
            return path
    return None


def _counted(memory: mmap.mmap, order: dict[str, Any]) -> dict[str, list[tuple[int, ...]]]:
    """Return what was counted: of each bucket that is not empty, what the JSON Schema says."""
    found = {}
    for kind, at_kind in order["kinds"].items():
        rows = list[tuple[int, ...]]()
        for state, at_state in order["states"].items():
            for cpu, at_cpu in order["counters"].items():
                at = at_cpu + at_kind + at_state
                counters = memory[at : at + 16 * len(order["ranges"])]
                for (low_ns, high_ns), (number, total_ns) in zip(
                    order["ranges"], struct.iter_unpack("=QQ", counters), strict=True
                ):
                    if number:
                        rows.append((int(cpu), int(state), low_ns, high_ns, number, total_ns))
        found[kind] = rows
    return found


def _ignored(_number: int, _frame: object) -> None:
    """Do nothing. Unlike SIG_IGN, trace-cmd does not inherit a handler."""


def main() -> None:
    """Read the order, carry it out, and tell those who still listen."""
    for number in DEAF_TO:
        signal.signal(number, _ignored)
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return  # the parent is gone before it asked for anything
    order = json.loads(line)
    # Before Linux 5.11, the memory of BPF programs counts as locked, and 64 KiB are the default.
    with contextlib.suppress(OSError, ValueError):  # no right to that: it may be enough
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY,) * 2)
    does = count if "maps" in order else trace if "programs" in order else keep
    _tell(does(order))


if __name__ == "__main__":
    main()
