# SPDX-License-Identifier: GPL-2.0-only
"""What a recording says of its machine: a JSON document beside the trace.

A trace names idle states by their index and nothing else. The file ``TRACE.json`` holds their names
and advertised latencies, all that ``lightsleep scan`` found, what was recorded and how, and how
often and how long the kernel says that each state was entered meanwhile. ``schema`` is
"lightsleep.recording", ``version`` 1.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lightsleep.document import MAX_BYTES, headed
from lightsleep.errors import LightsleepError
from lightsleep.matches import matches
from lightsleep.periods.description import HISTOGRAM, HISTOGRAM_VERSION, SCHEMA, VERSION
from lightsleep.place import beside as beside
from lightsleep.scan import machine
from lightsleep.scan.collect import CPU_DIR, collect
from lightsleep.scan.document import document
from lightsleep.scan.lint import lint

TIME_OFFSETS = Path("/proc/self/timens_offsets")
"""Says for each clock how far the time namespace of our children is ahead of the machine: seconds,
then ns."""

TIME_NAMESPACES = (Path("/proc/self/ns/time"), Path("/proc/self/ns/time_for_children"))
"""Ours, and that of our children: unshare(CLONE_NEWTIME) changes only the second one. Before about
Linux 6.3 it does so across exec, too."""


def check_place(document: Path) -> None:
    """Raise LightsleepError where a description would replace a file that is something else."""
    if not document.is_file() or not document.stat().st_size:
        return  # nothing is lost, or check_writable() says what is in the way
    found = None
    with contextlib.suppress(OSError, ValueError, RecursionError):
        if document.stat().st_size <= MAX_BYTES:
            found = json.loads(document.read_bytes())
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise LightsleepError(
            f"{document} is there, and describes no recording: this one would overwrite it. Name "
            "another file with -o, or move that one away"
        )


def now_ns() -> int:
    """Return the time by the clock of the trace, which is the machine's.

    In a time namespace, as of a container that was moved, CLOCK_MONOTONIC is ahead or behind.
    """
    ahead_ns = 0
    with contextlib.suppress(OSError):  # a kernel without time namespaces
        ours, of_children = (path.readlink() for path in TIME_NAMESPACES)
        # Else the offsets are not ours. Who has just called unshare() was in the machine's.
        lines = TIME_OFFSETS.read_text().splitlines() if ours == of_children else []
        for line in lines:
            clock, seconds, more_ns = line.split()
            if clock == "monotonic":
                ahead_ns = int(seconds) * 10**9 + int(more_ns)
    return time.monotonic_ns() - ahead_ns


def begin(root: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Return what is known before a recording; ``settings`` say how it is made."""
    scan, tree = collect(root)
    here = machine.described(root, scan, tree)
    states = {
        str(cpu.number): [
            {key: value for key, value in dataclasses.asdict(state).items() if key != "knob"}
            for state in cpu.states
        ]
        for cpu in here.cpus.values()
    }
    known = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": os.uname().nodename,
        "environment": here.environment,
        "settings": settings,
        "states": states,
        "scan": document(scan, lint(scan)),
        "usage": {},
        "begun_ns": now_ns(),  # the recording begins after it
        "window_ns": None,
        "recorded": None,
    }
    return headed(SCHEMA, VERSION, known)


def begin_histogram(root: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Return what is known before a histogram; the keeper adds what the kernel has counted."""
    known = begin(root, settings)
    for key in ("schema", "version", "usage", "begun_ns", "window_ns", "recorded"):
        del known[key]
    return headed(HISTOGRAM, HISTOGRAM_VERSION, known)


Usage = dict[str, dict[str, dict[str, int]]]


@dataclass(frozen=True)
class Count:
    """What the kernel has counted of each state until ``at_ns``, by the clock of the trace."""

    at_ns: int
    usage: Usage


def count(root: Path, cpus: Iterable[str]) -> Count:
    """Return how often, and for how long, each state of these CPUs was entered since boot."""
    return Count(now_ns(), {cpu: _usage(root / CPU_DIR / f"cpu{cpu}") for cpu in cpus})


def end(
    known: dict[str, Any], before: Count, after: Count, recorded: dict[str, Any]
) -> dict[str, Any]:
    """Return the whole document: what ``begin()`` knew, and what became of the recording.

    ``usage`` is what the kernel counted between ``before`` and ``after``, its ``window_ns``.
    """
    return known | {
        "usage": _difference(before.usage, after.usage),
        "window_ns": [before.at_ns, after.at_ns],
        "recorded": recorded,
    }


def _usage(cpu: Path) -> dict[str, dict[str, int]]:
    found = {}
    for state in matches(cpu, "cpuidle/state*"):
        with contextlib.suppress(OSError, ValueError):  # its CPU went offline
            found[state.name.removeprefix("state")] = {
                "entered": int((state / "usage").read_text()),
                "time_us": int((state / "time").read_text()),
            }
    return found


def _difference(before: Usage, after: Usage) -> Usage:
    """Return what was counted meanwhile, of states that were there all the time.

    Some drivers count anew where a CPU comes back: what a state had before that is not known.
    """
    return {
        cpu: {
            state: {key: count - before[cpu][state][key] for key, count in counts.items()}
            for state, counts in states.items()
            if state in before[cpu]
            and all(count >= before[cpu][state][key] for key, count in counts.items())
        }
        for cpu, states in after.items()
        if cpu in before
    }
