# SPDX-License-Identifier: GPL-2.0-only
"""Reading what describes a recording: the JSON document that ``lightsleep record`` puts beside it.

record/sidecar.py says what is in it, and writes it; ``recording.schema.json`` has it key by key.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from lightsleep import cpulist
from lightsleep.document import Format, load
from lightsleep.errors import LightsleepError
from lightsleep.files import check_writable, same
from lightsleep.periods import architecture
from lightsleep.periods.model import Metadata
from lightsleep.place import beside

SCHEMA = "lightsleep.recording"
VERSION = 1

HISTOGRAM = "lightsleep.histogram"
"""The schema of a histogram, which is one document: of the machine, and what the kernel counted."""

HISTOGRAM_VERSION = 1

FORMAT: Format[dict[str, Any]] = Format(
    SCHEMA,
    VERSION,
    "the description of a recording",
    resources.files("lightsleep.periods").joinpath("recording.schema.json"),
    lambda document: document,
)


def of(trace: Path) -> Path:
    """Return the name of the document that describes a trace, which need not be there."""
    # record writes both files to where a symbolic link leads.
    led = beside(Path(os.path.realpath(trace)))
    return led if is_there(led) and not is_there(beside(trace)) else beside(trace)


def is_there(document: Path) -> bool:
    """Whether there is such a file. Raises OSError, but for a name longer than any can have."""
    try:
        return document.exists()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise


def check_output(output: Path, inputs: Iterable[Path]) -> None:
    """Refuse, before any work is done, to write where one of these is read, or what describes it.

    Raises LightsleepError, also where ``output`` cannot be written.
    """
    for path in inputs:
        if same(output, path):
            raise LightsleepError(f"{output} is read: name another file to write to")
        if same(output, of(path)) and output.exists():
            raise LightsleepError(f"{output} describes {path}: name another file to write to")
    check_writable(output)


def read(path: Path, architecture_of: Callable[[Path], str | None]) -> Metadata:
    """Return what the document beside a trace says.

    Little is known where there is none; then ``architecture_of`` asks the trace.
    """
    document = of(path)
    metadata = Metadata(host="unknown", source=path.name)
    if not is_there(document):
        metadata.notes.append(
            f"{document.name} is missing: idle states have no names, and what the machine is, is "
            "not known"
        )
        architecture.suppose_states(metadata, architecture_of(path))
        return metadata
    if not document.stat().st_size:
        raise LightsleepError(
            f"{document} is empty: remove it, and {path.name} can be read without what it said: "
            "the names of idle states, and what the machine is"
        )
    described = load(document, FORMAT)
    metadata.host = described["host"]
    metadata.environment = described["environment"]
    try:
        _take_scan(metadata, described.get("scan", {}))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LightsleepError(
            f"{document}: scan: not what lightsleep scan --json prints"
        ) from error
    metadata.settings = described["settings"]
    for cpu, states in described["states"].items():
        metadata.add_described(int(cpu), states)
    architecture.suppose_alike(metadata, described["states"])
    metadata.cpus = _recorded_cpus(described)
    recorded = described["recorded"]
    metadata.expected_ns = int(recorded["elapsed_s"] * 1e9) if recorded else None
    if window_ns := described.get("window_ns"):
        # Events may come long before usage is counted. Documents of older versions do not say when.
        metadata.window_ns = described.get("begun_ns", window_ns[0]), window_ns[1]
    metadata.notes += recorded["notes"] if recorded else ["the recording was killed before its end"]
    return metadata


def _take_scan(metadata: Metadata, scan: dict[str, Any]) -> None:
    """Learn how cpuidle-lightsleep decided, if it was loaded.

    Raises AttributeError, KeyError, TypeError and ValueError where scan prints no such document.
    """
    metadata.driver_cost_ns = _driver_cost_ns(scan)
    if mode := (scan.get("lightsleep") or {}).get("mode"):
        metadata.environment = {**metadata.environment, "driver_mode": mode}


def _driver_cost_ns(scan: dict[str, Any]) -> dict[int, int]:
    """Return by which cost of a halt cpuidle-lightsleep decides on each CPU, where it knows one."""
    found = {}
    for cpu in scan.get("cpus", []):
        cost_ns = (cpu.get("lightsleep") or {}).get("halt_cost_ns")
        if isinstance(cost_ns, int) and cost_ns > 0:
            found[int(cpu["cpu"])] = cost_ns
    return found


def _recorded_cpus(described: dict[str, Any]) -> set[int]:
    """Return the CPUs that were recorded, of those that were online when it began."""
    online = {int(cpu) for cpu in described["states"]}
    wanted = described["settings"].get("cpus")
    if not isinstance(wanted, str):
        return online
    try:
        return online & set(cpulist.parse(wanted))
    except LightsleepError:
        return set()
