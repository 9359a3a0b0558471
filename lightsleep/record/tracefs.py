# SPDX-License-Identifier: GPL-2.0-only
"""The tracing instance of a recording, and its probe: both go, whatever ends the recording.

Its neighbours in this folder that run on their own import it: the standard library is enough.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path

from lightsleep.matches import matches

BUSY_S = 10.0
"""How long an instance may be in use after its last reader has ended."""

PID_NAMESPACE = Path("/proc/self/ns/pid")


def group_of(keeper: int) -> str:
    """Return the name of the instance and the group of probes that belong to a keeper.

    All containers of a machine share tracefs, and their processes may have the same numbers. So the
    name has the PID namespace, too.
    """
    namespace = 0  # of a kernel without PID namespaces
    with contextlib.suppress(OSError):
        namespace = PID_NAMESPACE.stat().st_ino
    return f"lightsleep_{namespace}_{keeper}"


def lost_events(instance: Path) -> dict[str, int]:
    """Return how many events the kernel lost, by CPU, where it lost any."""
    lost = {}
    for stats in sorted(matches(instance, "per_cpu/cpu*/stats")):
        with contextlib.suppress(OSError, ValueError):
            counts = dict(line.split(":", 1) for line in stats.read_text().splitlines())
            names = ("overrun", "commit overrun", "dropped events")
            if count := sum(int(counts.get(name, "0")) for name in names):
                lost[stats.parent.name.removeprefix("cpu")] = count
    return lost


def remove_instance(instance: Path, busy_s: float = BUSY_S) -> str | None:
    """Remove a tracing instance, which may be busy so long; return why it is still there."""
    deadline = time.monotonic() + busy_s
    while True:
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


def remove_probes(tracing: Path, group: str, busy_s: float = BUSY_S) -> str | None:
    """Remove all probes of a group, which may be busy so long; return why one is still there."""
    probes = tracing / "kprobe_events"
    deadline = time.monotonic() + busy_s
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
