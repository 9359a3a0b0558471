# SPDX-License-Identifier: GPL-2.0-only
"""Recordings that tests read: those that are kept, and some that are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from paths import FIXTURES

from lightsleep.periods.columns import COLUMNS
from lightsleep.periods.model import Metadata
from lightsleep.periods.source import open_recording

RECORDINGS = FIXTURES / "record"
PIPE = RECORDINGS / "pipe.txt.gz"
"""Of ``perf bench sched pipe``, as text."""

IDLE = ([0, 0, 63_000, 63_999, 10, 634_000], [1, 1, 1 << 20, (1 << 21) - 1, 3, 4_500_000])
WAKE = (
    [0, 0, 5000, 5999, 40, 220_000],
    [1, 1, 64_000, 79_999, 99, 6_633_000],
    [1, 1, 1 << 20, (1 << 21) - 1, 1, 1_500_000],
)
"""Buckets."""


def described_state(index: int, name: str, latency_us: int, residency_us: int) -> dict[str, Any]:
    """Return what record says of an idle state; only POLL polls."""
    known = {"index": index, "name": name, "latency_us": latency_us, "residency_us": residency_us}
    return known | {"polls": name == "POLL", "disabled": False}


def histogram_document(**more: object) -> dict[str, Any]:
    """Return what ``record --histogram`` writes, with more or other keys."""
    states = [described_state(0, "POLL", 0, 0), described_state(1, "C6", 60, 200)]
    return {
        "schema": "lightsleep.histogram",
        "version": 1,
        "created": "2026-11-23T00:00:00+00:00",
        "host": "somebody",
        "environment": {},
        "settings": {},
        "states": {"0": states, "1": states},
        "elapsed_s": 2.0,
        "dropped": 2,
        "histograms": {"idle": IDLE, "wake": WAKE, "interrupt": ()},
        **more,
    }


def page_of(text: bytes) -> bytes:
    """Return a page as systrace makes it: a viewer, a list of processes, the kernel's trace."""
    viewer = b"<!DOCTYPE html>\n<html><script>" + b"x" * 300_000 + b"</script>\n"
    begin, end = b'  <script class="trace-data" type="application/text">\n', b"  </script>\n"
    parts = (b"USER PID\n", b"# tracer: nop\n#\n" + text)
    traces = b"".join(begin + part + end for part in parts)
    return viewer + b"<!-- BEGIN TRACE -->\n" + traces + b"<!-- END TRACE -->\n</html>\n"


def rows_of(path: Path) -> tuple[list[dict[str, Any]], Metadata]:
    """Read a recording; return its rows, and what is known of it after the last one."""
    recording = open_recording(path)
    rows = pa.Table.from_batches(list(recording.batches), COLUMNS).to_pylist()
    return rows, recording.metadata
