# SPDX-License-Identifier: GPL-2.0-only
"""What ``lightsleep watch`` costs on a machine of 256 CPUs.

The machine is made up, in a folder: with the file ``stat`` that lightsleep's driver has for each
CPU, and without it, as with every other driver. Between two rounds every tenth CPU, or every CPU,
counts on. Prints the CPU time of one round of what watch does for a screen, a JSON line and a file
of metrics, the interval that watch therefore chooses, and what share of one CPU it uses then.

The kernel's own work to fill files of sysfs and procfs is not in it: the files are ordinary ones.
watch itself counts that work, too, when it chooses the interval.
"""

from __future__ import annotations

import contextlib
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from lightsleep.watch import draw, openmetrics
from lightsleep.watch.cli import document
from lightsleep.watch.model import Snapshot
from lightsleep.watch.pace import LIVE_S, SCRAPED_S, pause_s
from lightsleep.watch.rates import rates
from lightsleep.watch.reading import OWN, Reader

STATES = ("POLL", "HALT")
DEVICES = 200
"""Rows of devices in /proc/interrupts, of which one in ten counts on."""

BETWEEN_S = {"screen": LIVE_S, "json": LIVE_S, "openmetrics": SCRAPED_S}
"""What watch does with what it has read, and how often at most and at least."""

CPU = "sys/devices/system/cpu"

T = TypeVar("T")


def grow(root: Path, cpus: int, step: int, busy: range, stat: bool) -> None:
    """Write the counters of the CPUs in ``busy`` as they are after ``step`` rounds."""
    for cpu in busy:
        folder = root / f"{CPU}/cpu{cpu}"
        for index in range(len(STATES)):
            state = folder / f"cpuidle/state{index}"
            (state / "usage").write_text(f"{1000 * step}\n")
            (state / "time").write_text(f"{400_000 * step}\n")
        for name in OWN:
            (folder / f"lightsleep/{name}").write_text(f"{100_000 * step}\n")
        if stat:
            own, states = f"{100_000 * step} " * len(OWN), f"{1000 * step} {400_000 * step} "
            (folder / "lightsleep/stat").write_text(f"{own}{states * len(STATES)}\n")
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


@click.command()
@click.option(
    "--cpus", type=click.IntRange(1), default=256, show_default=True, help="CPUs of the machine."
)
@click.option(
    "--rounds", type=click.IntRange(1), default=20, show_default=True, help="Rounds to time."
)
def main(cpus: int, rounds: int) -> None:
    """Measure what a round of lightsleep watch costs, and print it."""
    print(f"{cpus} CPUs, {DEVICES + 3} rows of interrupts; CPU time of one round, median:")
    for stat in (True, False):
        print("with one file for each CPU:" if stat else "with a file for each counter:")
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(folder), cpus, rounds, stat)


def measure(root: Path, cpus: int, rounds: int, stat: bool) -> None:
    """Measure and print what one kind of machine costs."""
    machine(root, cpus)
    grow(root, cpus, 1, range(cpus), stat)
    with contextlib.closing(Reader(root, None)) as reader:
        gc.freeze()  # as watch does
        step = 1
        for what, busy in (("every CPU", range(cpus)), ("a tenth", range(0, cpus, 10))):
            spent: dict[str, list[float]] = {}
            before = reader.read()
            for _ in range(rounds):
                step += 1
                grow(root, cpus, step, busy, stat)
                before = _round(reader, before, spent)
            for name, between_s in BETWEEN_S.items():
                both = zip(spent["read"], spent[name], strict=True)
                cost_s = statistics.median(map(sum, both))
                every_s = pause_s(cost_s, between_s)
                print(
                    f"  {what} counts on, {name:<11} {1e3 * cost_s:6.2f} ms, every {every_s:>2} s: "
                    f"{100 * cost_s / every_s:.3f} % of one CPU"
                )


def _round(reader: Reader, before: Snapshot, spent: dict[str, list[float]]) -> Snapshot:
    after = _timed(spent, "read", reader.read)
    _timed(spent, "screen", lambda: "\n".join(_view(before, after)))
    _timed(spent, "json", lambda: json.dumps(document(before, after)))
    _timed(spent, "openmetrics", lambda: openmetrics.text(after))
    return after


def _view(before: Snapshot, after: Snapshot) -> list[str]:
    return draw.lines(after, rates(before, after), 1.0, sort="wakes", rows=44, width=200)


def _timed(spent: dict[str, list[float]], name: str, work: Callable[[], T]) -> T:
    start = time.process_time()
    result = work()
    spent.setdefault(name, []).append(time.process_time() - start)
    return result


if __name__ == "__main__":
    main()
