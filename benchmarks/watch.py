# SPDX-License-Identifier: GPL-2.0-only
"""What ``lightsleep watch`` costs on a machine of 256 CPUs: watch.py [CPUS [ROUNDS]].

The machine is made up, in a folder. Between two rounds every tenth CPU, or every CPU, counts on.
Prints the CPU time of one round of reading, computing rates and showing them, and what share of one
CPU that is at one round a second. The kernel's own work to fill files of sysfs is not in it: the
files are ordinary ones. On the machine under test, ask: perf stat -p PID.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from lightsleep.watch import draw, openmetrics
from lightsleep.watch.cli import document
from lightsleep.watch.model import Snapshot
from lightsleep.watch.rates import rates
from lightsleep.watch.reading import OWN, Reader

STATES = ("POLL", "HALT")
DEVICES = 200
"""Rows of devices in /proc/interrupts, of which one in ten counts on."""

CPU = "sys/devices/system/cpu"

T = TypeVar("T")


def grow(root: Path, cpus: int, step: int, busy: range) -> None:
    """Write the counters of the CPUs in ``busy`` as they are after ``step`` rounds."""
    for cpu in busy:
        for index in range(len(STATES)):
            state = root / f"{CPU}/cpu{cpu}/cpuidle/state{index}"
            (state / "usage").write_text(f"{1000 * step}\n")
            (state / "time").write_text(f"{400_000 * step}\n")
        for name in OWN:
            (root / f"{CPU}/cpu{cpu}/lightsleep/{name}").write_text(f"{100_000 * step}\n")
    idle = "".join(f"cpu{cpu} 1 0 1 {80 * step} 0 0 0 0 0 0\n" for cpu in range(cpus))
    (root / "proc/stat").write_text(f"cpu 1 0 1 1 0 0 0 0 0 0\n{idle}intr {'0 ' * 4000}\n")
    rows = ["".join(f"  CPU{cpu}" for cpu in range(cpus))]
    for row in range(DEVICES):
        count = step if row % 10 == 0 else 7
        rows.append(f"{row:>4}:" + f"  {count:>9}" * cpus + "  PCI-MSIX  nvme0q1")
    for label in ("LOC", "RES", "CAL"):
        rows.append(f"{label:>4}:" + f"  {1000 * step:>9}" * cpus + "  interrupts")
    (root / "proc/interrupts").write_text("\n".join(rows) + "\n")


def machine(root: Path, cpus: int) -> None:
    """Make up a machine with lightsleep's driver."""
    for cpu in range(cpus):
        for index, name in enumerate(STATES):
            state = root / f"{CPU}/cpu{cpu}/cpuidle/state{index}"
            state.mkdir(parents=True)
            (state / "name").write_text(f"{name}\n")
        (root / f"{CPU}/cpu{cpu}/lightsleep").mkdir()
    (root / f"{CPU}/cpuidle").mkdir()
    (root / f"{CPU}/cpuidle/current_driver").write_text("lightsleep\n")
    (root / f"{CPU}/online").write_text(f"0-{cpus - 1}\n")
    (root / "proc").mkdir()


def main(cpus: int = 256, rounds: int = 20) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        machine(root, cpus)
        grow(root, cpus, 1, range(cpus))
        reader = Reader(root, None)
        step = 1
        print(f"{cpus} CPUs, {DEVICES + 3} rows of interrupts, CPU time of one round:")
        for what, busy in (("every CPU", range(cpus)), ("a tenth", range(0, cpus, 10))):
            spent: dict[str, list[float]] = {}
            before = reader.read()
            for _ in range(rounds):
                step += 1
                grow(root, cpus, step, busy)
                before = _round(reader, before, spent)
            for name, times in spent.items():
                ms = 1e3 * statistics.median(times)
                print(f"  {what} counts on, {name:<11} {ms:7.2f} ms  {ms / 10:5.2f} % of one CPU")


def _round(reader: Reader, before: Snapshot, spent: dict[str, list[float]]) -> Snapshot:
    after = _timed(spent, "read", reader.read)
    _timed(spent, "screen", lambda: "\n".join(_view(before, after)))
    _timed(spent, "json", lambda: document(before, after))
    _timed(spent, "openmetrics", lambda: openmetrics.text(after))
    return after


def _view(before: Snapshot, after: Snapshot) -> list[str]:
    return draw.lines(after, rates(before, after), sort="wakes", rows=44, width=200)


def _timed(spent: dict[str, list[float]], name: str, work: Callable[[], T]) -> T:
    start = time.process_time()
    result = work()
    spent.setdefault(name, []).append(time.process_time() - start)
    return result


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
