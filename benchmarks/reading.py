# SPDX-License-Identifier: GPL-2.0-only
"""How fast a trace.dat becomes idle periods: by trace-cmd's library, and by the text of its report.

A guest records a pipe between two CPUs, unless a recording is given. It is read some times by each
reader in turn, on one CPU; the CPU time counts, of this process and of those that it starts. The
best time of each is shown, as everything that disturbs makes it longer.
"""

from __future__ import annotations

import base64
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

from lightsleep.errors import LightsleepError
from lightsleep.lab.boot.guest import boot
from lightsleep.lab.boot.machine import Machine
from lightsleep.periods import trace_dat
from lightsleep.periods.source import open_recording
from lightsleep.record import sidecar

TIMES = 5
ROUND_TRIPS = 40_000
ENOUGH_S = 600.0


def record(folder: Path) -> Path:
    """Record a pipe in a guest; return the file."""
    name = Path("/run/pipe.dat")
    workload = ["perf", "bench", "-f", "simple", "sched", "pipe", "-l", str(ROUND_TRIPS)]
    command = ["python3", "-m", "lightsleep", "record", "--recorder", "trace-cmd"]
    command += ["--buffer-kb", "16384", "-o", str(name)]
    with boot(Machine(accel="tcg"), "reading", ENOUGH_S) as guest:
        guest.run([*command, "--", *workload], timeout_s=ENOUGH_S)
        for path in (name, sidecar.beside(name)):
            text = guest.run(["base64", str(path)], timeout_s=ENOUGH_S).stdout
            (folder / path.name).write_bytes(base64.b64decode(text))
    return folder / name.name


def cpu_s() -> float:
    """Return the CPU time of this process and of those that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def read(path: Path) -> tuple[int, int, float, float]:
    """Read a recording; return its events, its rows, the CPU time and the time that took."""
    begin_s, begin = cpu_s(), time.perf_counter()
    recording = open_recording(path)
    rows = sum(len(batch) for batch in recording.batches)
    return recording.metadata.events, rows, cpu_s() - begin_s, time.perf_counter() - begin


def text_only() -> str:
    """Stand for trace_dat.program() where there is no library."""
    return "the benchmark asks for the text"


@click.command()
@click.argument("recording", required=False, type=click.Path(path_type=Path, exists=True))
def main(recording: Path | None) -> None:
    """Time the readers of trace.dat on RECORDING, or on one that a guest makes."""
    with tempfile.TemporaryDirectory() as folder:
        path = recording or record(Path(folder))
        library = trace_dat.program
        if isinstance(reason := library(), str):
            raise LightsleepError(f"{reason}: install {trace_dat.PACKAGES}")
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        readers: dict[str, Callable[[], Path | str]] = {"library": library, "text": text_only}
        found: dict[str, list[tuple[int, int, float, float]]] = {name: [] for name in readers}
        for _ in range(TIMES):
            for name, program in readers.items():
                trace_dat.program = program  # type: ignore[assignment]
                found[name].append(read(path))
    for name, times in found.items():
        events, rows, used_s, took_s = min(times, key=lambda x: x[2])
        click.echo(
            f"{name}: {events:,} events, {rows:,} periods; {events / used_s:,.0f} events per "
            f"second of CPU time, {events / took_s:,.0f} per second on one CPU"
        )


if __name__ == "__main__":
    main()
