# SPDX-License-Identifier: GPL-2.0-only
"""Who records: BPF programs, or trace-cmd, and how a recording begins.

BPF programs slow the workload less, so they are tried first where tests have had them record.
trace-cmd records on other machines, where BPF programs cannot, and where they would miss what it
can have.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lightsleep import cpulist
from lightsleep.errors import LightsleepError
from lightsleep.record import run, sidecar, tracing
from lightsleep.record.bpf import trace
from lightsleep.terminal import remark

AUTO, BPF, TRACE_CMD = "auto", "bpf", "trace-cmd"

TRIED = ("x86_64", "aarch64")
"""Machines where tests have had BPF programs record."""

PROGRAMS_SINCE = {"x86_64": (5, 18), "aarch64": (5, 18), "ppc64le": (6, 0)}
"""Before, sched_switch hands no state of the task to BPF programs, or the kernel has no atomic
operations of theirs on this machine that return the old value."""

REALTIME_SINCE = 6, 12
"""Before, waking the keeper takes a lock there that may sleep, where nothing may:
CVE-2024-50138."""


@dataclass(frozen=True)
class Request:
    """What is to be recorded: ``settings`` of the document that belongs to ``target``, and these.

    ``root`` is where the machine's files are.
    """

    root: Path
    target: Path
    recorder: str
    cpus: list[int] | None
    buffer_kb: int
    settings: dict[str, Any]


class Begun(NamedTuple):
    """A recording that runs.

    ``known`` is its document so far. ``said`` are notes that were printed, ``notes`` others.
    """

    running: run.Recording
    known: dict[str, Any]
    missing_events: list[str]
    said: list[str]
    notes: list[str]


def begin(stack: contextlib.ExitStack, request: Request) -> Begun:
    """Begin a recording, which ends with ``stack``. Raises LightsleepError where nobody can."""
    refused, said, notes = None, list[str](), remove_leftovers(request.root)
    if request.recorder == BPF or (request.recorder == AUTO and _bpf_first()):
        try:
            return Begun(*_by_bpf(stack, request), said, notes)
        except run.RefusedError as error:
            refused = error.message
            if request.recorder == BPF:
                raise LightsleepError(
                    f"BPF programs cannot record here: {refused}; record without --recorder {BPF}"
                ) from error
    try:
        begun = _by_trace_cmd(stack, request)
    except LightsleepError as error:
        if refused:
            error.add_note(f"BPF programs cannot record here, either: {refused}")
        elif request.recorder == AUTO:
            error.add_note(f"--recorder {BPF} may record, but has not been tried on such a machine")
        raise
    if refused:
        remark(f"note: {TRACE_CMD} records, and not BPF programs: {refused}")
        said = [f"recorded by {TRACE_CMD}, and not by BPF programs: {refused}"]
    return Begun(*begun, said, notes)


def remove_leftovers(root: Path) -> list[str]:
    """Remove what a killed keeper left of tracing; return what could not be removed."""
    with contextlib.suppress(LightsleepError, OSError):  # BPF programs need no tracing
        return tracing.remove_leftovers(tracing.tracing_folder(root))
    return []


def _bpf_first() -> bool:
    """Whether BPF programs record where nobody says who does."""
    return os.uname().machine in TRIED and not _is_realtime()


def _is_realtime() -> bool:
    """Whether the kernel has PREEMPT_RT. Only patched ones have the file /sys/kernel/realtime."""
    return "PREEMPT_RT" in os.uname().version.split()


def _has_probes(root: Path) -> bool:
    """Whether trace-cmd can record, and what a probe reads, too."""
    try:
        run.need_programs()
        return (tracing.tracing_folder(root) / "kprobe_events").exists()
    except (LightsleepError, OSError):
        return False


def _by_bpf(
    stack: contextlib.ExitStack, request: Request
) -> tuple[run.Recording, dict[str, Any], list[str]]:
    """Have BPF programs record. Raises RefusedError where they cannot."""
    root, release = request.root, os.uname().release
    if _is_realtime() and version(release) < REALTIME_SINCE:
        raise run.RefusedError(
            f"with PREEMPT_RT, they need Linux {REALTIME_SINCE[0]}.{REALTIME_SINCE[1]}, and this "
            f"is {release}"
        )
    try:
        types = trace.kernel_types(root)
        events, missing = tracing.available(trace.tracepoints(types))
        present, possible = (
            cpulist.parse((root / "sys/devices/system/cpu" / name).read_text())
            for name in ("present", "possible")
        )
        order = trace.order(events, request.cpus, present, possible, request.buffer_kb, types)
    except LightsleepError as error:
        raise run.RefusedError(error.message) from error
    order["all_probes"] = request.recorder == AUTO and _has_probes(root)
    known = _known(request, BPF, events, missing)
    try:
        running = stack.enter_context(run.tracing_by_bpf(order, request.target, known))
    except run.RefusedError as error:  # some kernels have later features
        since = PROGRAMS_SINCE.get(os.uname().machine, (0, 0))
        if version(release) >= since:
            raise
        raise run.RefusedError(
            f"on this machine they need Linux {since[0]}.{since[1]}, and this is {release}"
        ) from error
    return running, known, missing


def _by_trace_cmd(
    stack: contextlib.ExitStack, request: Request
) -> tuple[run.Recording, dict[str, Any], list[str]]:
    """Have trace-cmd record. Raises LightsleepError where it cannot."""
    folder = tracing.tracing_folder(request.root)
    run.need_programs()
    events, missing = tracing.available(tracing.tracepoints(folder))
    known = _known(request, TRACE_CMD, events, missing)
    scratch = run.scratch_for(request.target)
    words = tracing.command(events, request.cpus, request.buffer_kb)
    options = tracing.probe_options(request.cpus)
    target, buffer_kb = request.target, request.buffer_kb
    recording = run.recording(folder, words, options, scratch, target, known, buffer_kb)
    return stack.enter_context(recording), known, missing


def _known(
    request: Request, recorder: str, events: list[tracing.Event], missing: list[str]
) -> dict[str, Any]:
    """Return what the document says already when the recording begins."""
    names = [event.name for event in events]
    more = {"recorder": recorder, "events": names, "missing_events": missing}
    return sidecar.begin(request.root, request.settings | more)


def version(release: str) -> tuple[int, ...]:
    """Return the version in the name of a kernel's release: 6.12 of 6.12.117+deb13-rt-amd64."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return tuple(map(int, found.groups())) if found else ()
