# SPDX-License-Identifier: GPL-2.0-only
"""What becomes of a CPU that a governor takes for busy: run in a guest, prints JSON.

A burst of short sleeps teaches the governor that sleeps are short. Then nothing comes. The trace of
cpu_idle tells which states the CPU goes through from there.

Python's standard library only; needs root and tracefs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

TRACING = Path("/sys/kernel/tracing")
CPUS = Path("/sys/devices/system/cpu")
LINE = re.compile(
    r"\s(\d+)\.(\d{6}): (cpu_idle: state=(\d+) cpu_id=(\d+)|tracing_mark_write: (\w+))"
)
WRITTEN = re.compile(r"entries-in-buffer/entries-written: (\d+)/(\d+)")
EXIT = 2**32 - 1
BEGIN, END = "silence", "noise"


@dataclass
class Silence:
    """One silence, as the CPU went through it."""

    first: int
    """The state that it began in."""
    exit_shallow_us: int
    """From its beginning until a deep state was entered, or until it ended."""
    reached: bool
    """Whether a deep state was entered."""
    deep_us: int
    """Time spent in deep states."""
    wakes: int
    """How often the CPU left an idle state."""
    length_us: int
    sibling_wakes: int = 0
    """How often its sibling left an idle state meanwhile, where one is watched."""


def least_deep(cpu: int, cpus: Path = CPUS) -> int:
    """Return the index of the first deep state.

    Deep are those beyond all that the driver asks to leave if they last, and the deepest one.
    """
    folders = cpus.glob(f"cpu{cpu}/cpuidle/state*")
    allowed = {int(x.name[5:]): x for x in folders if (x / "disable").read_text() == "0\n"}
    asked = [index for index, folder in allowed.items() if (folder / "promoted").exists()]
    return min(max(asked, default=max(allowed)) + 1, max(allowed))


def events(trace: str) -> Iterator[tuple[int, int, int | str]]:
    """Yield time in us, CPU, and the state that it entered, or EXIT; or the mark written."""
    for line in trace.splitlines():
        if found := LINE.search(line):
            at_us = int(found[1]) * 10**6 + int(found[2])
            yield (at_us, -1, found[6]) if found[6] else (at_us, int(found[5]), int(found[4]))


def silences(trace: str, cpu: int, deep: int, sibling: int | None = None) -> Iterator[Silence]:
    """Yield what the CPU, and its sibling, did between each BEGIN and END.

    States from ``deep`` on are deep.
    """
    one: Silence | None = None
    quiet, begin_us, entered, sibling_wakes = False, 0, (0, -1), 0
    for at_us, on, what in events(trace):
        if what in (BEGIN, END):
            if one is not None:
                one.length_us = at_us - begin_us
                one.sibling_wakes = sibling_wakes
                if not one.reached:
                    one.exit_shallow_us = one.length_us
                yield one
            one, quiet, sibling_wakes = None, what == BEGIN, 0
        elif not quiet or not isinstance(what, int):
            continue
        elif on != cpu:
            sibling_wakes += on == sibling and what == EXIT
        elif what == EXIT:
            if one is not None:
                one.wakes += 1
                one.deep_us += at_us - entered[0] if entered[1] >= deep else 0
        else:
            if one is None:
                one, begin_us = Silence(what, 0, False, 0, 0, 0), at_us
            if what >= deep and not one.reached:
                one.reached, one.exit_shallow_us = True, at_us - begin_us
            entered = (at_us, what)


def complete(trace: str) -> str:
    """Return ``trace``. Exits where the kernel had to drop a part of it."""
    counts = WRITTEN.search(trace)
    if not counts or counts[1] != counts[2]:
        said = counts[0] if counts else trace[:200]
        raise SystemExit(f"the trace is not complete, use shorter silences: {said}")
    return trace


def main() -> None:
    """Print one JSON list of silences."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cpu", type=int, default=1)
    parser.add_argument("--sibling", type=int, help="a CPU whose wakes are counted as well")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--burst", type=int, default=64, help="sleeps before each silence")
    parser.add_argument("--sleep-us", type=float, default=15)
    parser.add_argument("--silence-ms", type=float, default=1500)
    args = parser.parse_args()

    os.sched_setaffinity(0, [args.cpu])
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))  # without it, sleeps are 50 us late
    (TRACING / "trace_clock").write_text("mono")
    # Left on: to switch it is to patch the kernel's code, which QEMU does not take well.
    (TRACING / "events/power/cpu_idle/enable").write_text("1")
    found: list[Silence] = []
    with (TRACING / "trace_marker").open("w", buffering=1) as mark:
        for _ in range(args.count):
            (TRACING / "trace").write_text("")
            for _ in range(args.burst):
                time.sleep(args.sleep_us / 1e6)
            mark.write(BEGIN)
            mark.flush()
            time.sleep(args.silence_ms / 1e3)
            mark.write(END)
            mark.flush()
            trace = complete((TRACING / "trace").read_text())
            found += silences(trace, args.cpu, least_deep(args.cpu), args.sibling)
    print(json.dumps([asdict(x) for x in found]))


if __name__ == "__main__":
    main()
