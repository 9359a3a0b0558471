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

IDLE = """\
# event histogram
#
# trigger info: hist:keys=cpu,state,ns.buckets=1000:vals=hitcount,ns:sort=hitcount [active]
#

{ cpu:          0, state:          0, ns: ~ 63000-63999 } hitcount:         10  ns:     634000
{ cpu:          1, state:          1, ns: ~ 2^21 } hitcount:          3  ns:    4500000

Totals:
    Hits: 13
    Entries: 2
    Dropped: 0
"""
WAKE = """\
# event histogram
{ cpu:          0, state:          0, ns: ~ 5000-5999 } hitcount:         40  ns:     220000
{ cpu:          1, state:          1, ns: ~ 64000-79999 } hitcount:         99  ns:    6633000
{ cpu:          1, state:          1, ns: ~ 2^21 } hitcount:          1  ns:    1500000

Totals:
    Hits: 140
    Entries: 3
    Dropped: 2
"""


def histogram_document(**more: object) -> dict[str, Any]:
    """Return what ``record --histogram`` writes, with more or other keys."""
    states = [
        {"index": 0, "name": "POLL", "latency_us": 0, "residency_us": 0, "polls": True},
        {"index": 1, "name": "C6", "latency_us": 60, "residency_us": 200, "polls": False},
    ]
    return {
        "schema": "lightsleep.histogram",
        "version": 1,
        "created": "2026-11-23T00:00:00+00:00",
        "host": "somebody",
        "environment": {},
        "settings": {},
        "states": {"0": states, "1": states},
        "elapsed_s": 2.0,
        "histograms": {"idle": IDLE, "wake": WAKE},
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
