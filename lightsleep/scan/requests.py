# SPDX-License-Identifier: GPL-2.0-only
"""The processes that hold a system-wide latency limit (PM QoS), and what it costs at this moment.

A process requests a limit by writing to /dev/cpu_dma_latency. The kernel drops the request when the
file is closed, so the process keeps it open. /proc shows to root which processes do. Only root can
read the limit, too. Names of processes appear on the screen and in the JSON document, and in no
recording.

A limit below the exit latency of every state that halts makes idle CPUs spin. How much they do is
seen by looking twice: only the time in polling states tells what a limit costs on this machine, as
a driver need not obey (cpuidle-lightsleep halts all the same where its host runs something else).
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from lightsleep.scan.model import LatencyRequest, Scan

DEVICE = "dev/cpu_dma_latency"
LOOK_S = 0.2
"""How long to look: a state counts its time when it ends, and no poll lasts longer than a tick."""


def with_request(first: Scan, again: Callable[[], Scan], root: Path) -> Scan:
    """Return a scan of the running machine with who holds its latency limit, if it has one."""
    if first.latency_limit_us is None:
        return first
    start_s = time.monotonic()
    time.sleep(LOOK_S)
    polled = polled_share(first, again(), time.monotonic() - start_s)
    return replace(first, latency_request=LatencyRequest([*holders(root)], polled))


def polled_share(first: Scan, last: Scan, span_s: float) -> float | None:
    """Return the share of all CPUs' time in polling states between two scans."""
    before, after = _polled_us(first), _polled_us(last)
    if before is None or after is None or not last.cpus:
        return None
    return min(max(after - before, 0) / (span_s * 1e6 * len(last.cpus)), 1.0)


def _polled_us(scan: Scan) -> int | None:
    times = [state.time_us for cpu in scan.cpus for state in cpu.states if state.polls]
    known = [time_us for time_us in times if time_us is not None]
    return sum(known) if known else None


def holders(root: Path) -> Iterator[str]:
    """Yield the processes that hold the device open, by process ID; only root sees all of them."""
    try:
        device = (root / DEVICE).stat()
        processes = sorted(int(x.name) for x in (root / "proc").iterdir() if x.name.isdecimal())
    except OSError:
        return
    for process in processes:
        folder = root / f"proc/{process}"
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if any(_is(device, file) for file in (folder / "fd").iterdir()):
                yield f"{_name(folder)} ({process})"


def _is(device: os.stat_result, file: Path) -> bool:
    """Return whether an open file of a process is the device.

    Only a file of the device's name is looked at: stat() of a file on a dead NFS or FUSE hangs.
    """
    try:
        if file.readlink().name != Path(DEVICE).name:
            return False
        found = file.stat()
    except OSError:
        return False
    same_node = stat.S_ISCHR(found.st_mode) and found.st_rdev == device.st_rdev
    return same_node or os.path.samestat(found, device)


def _name(folder: Path) -> str:
    """Return the name that a process gives itself; a terminal must not obey it."""
    name = (folder / "comm").read_bytes().decode(errors="replace").strip()
    return "".join(c if c.isprintable() else "�" for c in name)
