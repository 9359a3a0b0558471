# SPDX-License-Identifier: GPL-2.0-only
"""``lightsleep record``: the command."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from lightsleep import cpulist
from lightsleep.document import UNPRINTABLE, headed, text_of
from lightsleep.ending import Signals, orderly_end
from lightsleep.errors import LightsleepError
from lightsleep.files import check_writable, publish
from lightsleep.options import (
    Duration,
    OutputFile,
    check_program,
    cpus_option,
    json_option,
    need_root,
)
from lightsleep.record import run, scratch_files, sidecar, tracing
from lightsleep.record.bpf import histogram as counted
from lightsleep.record.recorder import AUTO, BPF, TRACE_CMD, Request, begin, remove_leftovers
from lightsleep.record.waiting import Terminated, wait
from lightsleep.terminal import progress, remark

ROOT = Path("/")
SCHEMA = "lightsleep.record"
VERSION = 1
TRACE, COUNTS = "lightsleep.dat", "lightsleep-histogram.json"


# What follows COMMAND is its own, with and without --.
@click.command(context_settings={"allow_interspersed_args": False})
@cpus_option
@click.option(
    "--for",
    "seconds",
    type=Duration(),
    metavar="TIME",
    help="Record for 30s, 5min or 2h, instead of COMMAND.",
)
@click.option(
    "-o",
    "--output",
    type=OutputFile(),
    metavar="FILE",
    help=f"The trace to write; FILE.json describes the machine.  [default: {TRACE}; with "
    f"--histogram: {COUNTS}]",
)
@click.option(
    "--histogram",
    is_flag=True,
    help="Keep no events: the kernel counts idle periods, and how long wakeups took, by CPU and "
    "idle state. The file stays small for days.",
)
@click.option(
    "--recorder",
    type=click.Choice((AUTO, BPF, TRACE_CMD)),
    default=AUTO,
    show_default=True,
    help="Who writes the trace: BPF programs, which cost the workload less and need a kernel with "
    "BTF, or trace-cmd; auto: BPF programs where they can and have been tried, else trace-cmd.",
)
@click.option(
    "--buffer-kb",
    type=click.IntRange(64, 1 << 20),
    default=4096,
    show_default=True,
    help="Kernel memory per CPU for events that are not yet written; not with --histogram.",
)
@json_option(
    help="Print one JSON document instead. The standard output of COMMAND goes to standard error."
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def record(
    cpus: list[int] | None,
    seconds: float | None,
    output: Path | None,
    histogram: bool,
    recorder: str,
    buffer_kb: int,
    as_json: bool,
    command: tuple[str, ...],
) -> None:
    """Record idle periods and wakeups: of COMMAND, for a time, or until Ctrl-C.

    The kernel's own tracepoints tell when each CPU enters and leaves an idle state, and who wakes
    whom. BPF programs write that down, or trace-cmd does, in a tracing instance of its own. Both
    are gone at the end, whatever ends the command. lightsleep report FILE then shows how much time
    tasks lost while they waited for CPUs to wake. KernelShark and trace-cmd report read FILE, too.
    Needs root.

    Each idle period that is recorded costs CPU time. In an emulated guest, a task with 100,000 idle
    periods per second of its CPU is 1.068 times slower while BPF programs record it, 1.17 times
    while trace-cmd does, and 1.028 times with --histogram. With 10,000 periods, it is 1.008, 1.018,
    and 1.004 times slower. The page docs/results/record-cost-x86_64.md has the intervals.

    Options stand before COMMAND: everything after COMMAND is passed to COMMAND. The exit status is
    that of COMMAND.
    """
    if command and seconds is not None:
        raise click.UsageError("name a COMMAND or --for TIME, not both")
    sized = click.get_current_context().get_parameter_source("buffer_kb")
    if histogram and sized is ParameterSource.COMMANDLINE:
        raise click.UsageError("--histogram keeps no events, so --buffer-kb has no effect on it")
    if histogram and recorder != AUTO:
        raise click.UsageError("BPF programs make a histogram anyway: leave out --recorder")
    output = output or Path(COUNTS if histogram else TRACE)
    _refuse(output, cpus)
    if command:
        check_program(command[0])
    try:
        if histogram:
            status = _count(output, cpus, seconds, command, as_json)
        else:
            status = _record(output, cpus, seconds, command, buffer_kb, recorder, as_json)
    except Terminated as ended:  # before the recording had begun, or as its file was written
        status = 128 + ended.number
    if status:
        raise SystemExit(status)


def _count(
    output: Path,
    cpus: list[int] | None,
    seconds: float | None,
    command: tuple[str, ...],
    as_json: bool,
) -> int:
    """Have the kernel count; return the exit status of ``command``."""
    settings = {"cpus": None if cpus is None else cpulist.format(cpus), "command": said(command)}
    known = sidecar.begin_histogram(ROOT, settings | {"seconds": seconds, "clock": tracing.CLOCK})
    possible = cpulist.parse((ROOT / "sys/devices/system/cpu/possible").read_text())
    order = counted.order(possible if cpus is None else cpus, possible)
    target = Path(os.path.realpath(output))
    left = remove_leftovers(ROOT)
    with (
        # Until there is a file to write, each signal ends what may hang.
        orderly_end(Terminated, repeated=True) as signals,
        run.folder_of(target),
        run.counting(order, known, target) as running,
        _progress(seconds) as tick,
    ):
        status = _wait(command, seconds, running, tick, as_json, signals)
    recorded = {
        "elapsed_s": running.elapsed_s,
        "bytes": target.stat().st_size,
        "notes": [*left, *running.notes],
    }
    _show(output, recorded, as_json)
    return status


def _record(
    output: Path,
    cpus: list[int] | None,
    seconds: float | None,
    command: tuple[str, ...],
    buffer_kb: int,
    recorder: str,
    as_json: bool,
) -> int:
    """Have BPF programs or trace-cmd record; return the exit status of ``command``."""
    target = Path(os.path.realpath(output))
    check_writable(sidecar.beside(target))
    sidecar.check_place(sidecar.beside(target))
    settings = {
        "cpus": None if cpus is None else cpulist.format(cpus),
        "seconds": seconds,
        "command": said(command),
        "clock": tracing.CLOCK,
        "buffer_kb": buffer_kb,
    }
    with (
        orderly_end(Terminated, repeated=True) as signals,  # as in _count()
        run.folder_of(target),
    ):
        with contextlib.ExitStack() as stack:
            begun = begin(stack, Request(ROOT, target, recorder, cpus, buffer_kb, settings))
            running, states = begun.running, begun.known["states"]
            tick = stack.enter_context(_progress(seconds))
            before = sidecar.count(ROOT, states)
            counts: list[sidecar.Count] = []
            running.at_stop = lambda: counts.append(sidecar.count(ROOT, states))
            status = _wait(command, seconds, running, tick, as_json, signals)
            running.at_stop()
            after = counts[0]
        notes = [*begun.notes, *_notes(running, begun.missing_events)]
        recorded = {
            "elapsed_s": running.elapsed_s,
            "bytes": target.stat().st_size,
            "lost_events": running.lost,
            "sleep_length": running.probe_refused or "recorded",
            "notes": [*begun.said, *notes, *([running.stopped] if running.stopped else [])],
        }
        document = sidecar.end(begun.known, before, after, recorded)
        # The keeper has put a file there. Who owns the folder may have put a link in its place.
        described = f"{text_of(document)}\n".encode()
        publish(sidecar.beside(target), described, scratch_files.PRIVATE)
    # Why it stopped is an error, which is printed as such.
    _show(output, recorded if as_json else recorded | {"notes": notes}, as_json)
    if running.stopped:
        raise LightsleepError(running.stopped)
    return status


def _wait(
    command: tuple[str, ...],
    seconds: float | None,
    running: run.Recording,
    tick: Callable[[float], None],
    as_json: bool,
    signals: Signals,
) -> int:
    """Wait for the end of a recording; return the exit status. Then, no signal spoils the file."""
    signals.repeated = False  # without a command, which gets them all, the first is the end
    running.heeding_signals = signals.heeded
    try:
        return wait(command, seconds, running, tick, as_json, signals)
    finally:
        signals.ignore()


def said(command: tuple[str, ...]) -> list[str]:
    """Return the words of a command as a document can hold them: any byte may be in one."""
    return [UNPRINTABLE.sub("?", word) for word in command]


def _refuse(output: Path, cpus: list[int] | None) -> None:
    """Raise LightsleepError where something is in the way of a recording."""
    need_root("tracing the kernel")
    check_writable(output)
    if output.exists() and not output.is_file():
        raise LightsleepError(f"{output} is no regular file: a recording cannot be written to it")
    if cpus:
        online = cpulist.parse((ROOT / "sys/devices/system/cpu/online").read_text())
        if absent := sorted(set(cpus) - set(online)):
            raise click.BadParameter(f"CPU {cpulist.format(absent)} is not online")


@contextlib.contextmanager
def _progress(seconds: float | None) -> Iterator[Callable[[float], None]]:
    """Lend a function that shows how many seconds have passed, where somebody looks."""
    with progress(has_end=seconds is not None) as tell:
        yield lambda passed: tell(f"recording, {passed:.0f} s", passed, seconds)


def _notes(running: run.Recording, missing: list[str]) -> list[str]:
    notes = list(running.notes)
    if running.lost:
        total = sum(running.lost.values())
        cpus = cpulist.format(int(cpu) for cpu in running.lost)
        notes.append(
            f"{total:,} events were lost on CPU {cpus}, and with them some idle periods: record "
            "again with a larger --buffer-kb"
        )
    if running.probe_refused:
        notes.append(
            "the kernel does not let a probe read the governor's sleep length "
            f"({running.probe_refused}): that column stays empty"
        )
    if missing:
        notes.append(
            f"this kernel lacks {', '.join(missing)}: the cause of some wakeups stays unknown"
        )
    return notes


def _show(output: Path, recorded: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(text_of(headed(SCHEMA, VERSION, recorded)))
        return
    for note in recorded["notes"]:
        remark(f"note: {note}")
    # For a shell; a name may be any bytes.
    name = shlex.quote(os.fsencode(output).decode(errors="replace"))
    size = recorded["bytes"]
    said = f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"
    remark(
        f"recorded {recorded['elapsed_s']:.1f} s in {name} ({said}); "
        f"see it with: lightsleep report {name}"
    )
