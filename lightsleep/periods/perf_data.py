# SPDX-License-Identifier: GPL-2.0-only
"""A perf.data: what perf says of its header, and the lines that perf script prints of it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from lightsleep.errors import LightsleepError
from lightsleep.periods.expected import between, said_by
from lightsleep.periods.model import Metadata
from lightsleep.periods.programs import printed_by

ARCHITECTURE = re.compile(r"(?m)^# arch : (\w+)$")
SAMPLE = re.compile(r"# time of (?:first|last) sample : (\d{1,10})\.(\d{6})", re.MULTILINE)

# Of a thread, pid would be its process: who wakes whom goes by threads.
FIELDS = ("-F", "comm,tid,cpu,time,event,trace", "--ns")

INCOMPATIBLE = "incompatible file format"
"""What perf says of a file that a newer one wrote."""

HEADER_S = 60.0
"""How long perf may read a header for what figures depend on."""


def _header(path: Path) -> list[str]:
    return ["perf", "script", "--header-only", "-i", str(path)]


def architecture(path: Path) -> str | None:
    """Return the architecture that the header names; None where perf finds none."""
    found = ARCHITECTURE.search(said_by(_header(path), HEADER_S))
    return found[1] if found else None


def expected_ns(path: Path) -> int | None:
    """Return the time between the first and the last sample; None where perf knows none."""
    times = SAMPLE.findall(said_by(_header(path)))
    return between([int(s) * 10**9 + int(us) * 1000 for s, us in times])


@contextlib.contextmanager
def lines(path: Path, metadata: Metadata) -> Iterator[Iterable[str]]:
    """Lend the lines of all events. Raises LightsleepError where perf does not read them."""
    command = ["perf", "script", *FIELDS, "--show-lost-events", "-i", str(path)]
    try:
        with printed_by(command, path, metadata) as printed:
            yield printed
    except LightsleepError as error:
        if INCOMPATIBLE in error.message:
            error.add_note(
                "this perf may be older than the one that recorded: there, run "
                f"perf script {' '.join(FIELDS)} > FILE, and read that file here"
            )
        raise
