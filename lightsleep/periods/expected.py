# SPDX-License-Identifier: GPL-2.0-only
"""About how long a recording is, before it is read: for a bar that says how long reading takes.

Of a text, the times of its first and of its last event tell, and of a trace in the Common Trace
Format what babeltrace2 says of each stream. Nothing that is asked here is needed to read the
recording, so no failure is an error: then nobody knows.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from lightsleep.periods import ctf
from lightsleep.periods.lines import LINE

TAIL = 1 << 16
"""Bytes at the end of a text in which an event is looked for: more than any line has."""

PATIENCE_S = 10.0
MEMORY_BYTES = 1 << 30

RANGE = re.compile(r"\b(?:begin|end): (\d{1,19})$", re.MULTILINE)


def of_text(path: Path) -> int | None:
    """Return the time between the first and the last event of a text, in ns."""
    with path.open("rb") as file:
        head = file.read(TAIL)
        file.seek(max(0, path.stat().st_size - TAIL))
        tail = file.read(TAIL)
    first = next(_times_ns(head.splitlines()), None)
    last = next(_times_ns(reversed(tail.splitlines())), None)
    return between([first, last])


def _times_ns(lines: Iterable[bytes]) -> Iterator[int]:
    for line in lines:
        if match := LINE.match(line.decode(errors="replace")):
            yield int(match["s"]) * 10**9 + int(match["fraction"].ljust(9, "0"))


def of_ctf(folder: Path) -> int | None:
    """Return the time between the first and the last event of a CTF trace, in ns."""
    if (trace := ctf.folder_of(folder)) is None:
        return None
    query = ["query", "source.ctf.fs", "babeltrace.trace-infos"]
    inputs = json.dumps([str(trace)])
    said = said_by(["babeltrace2", *query, "--params", f"inputs={inputs}"])
    return between([int(at_ns) for at_ns in RANGE.findall(said)])


def between(times_ns: Sequence[int | None]) -> int | None:
    """Return the time between the first and the last of these; None where fewer are known."""
    known = [at_ns for at_ns in times_ns if at_ns is not None]
    return max(known) - min(known) if len(known) > 1 else None


def said_by(command: list[str], within_s: float = PATIENCE_S) -> str:
    """Return what a program prints; nothing where it fails, or takes longer."""
    # A damaged file may ask for any amount of memory.
    limited = ["prlimit", f"--data={MEMORY_BYTES}", *command]
    try:
        done = subprocess.run(
            limited, capture_output=True, stdin=subprocess.DEVNULL, timeout=within_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""
