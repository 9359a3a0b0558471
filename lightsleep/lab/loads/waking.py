# SPDX-License-Identifier: GPL-2.0-only
"""What every experiment about wake latency shares: ``lightsleep measure``, run in a guest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from lightsleep.errors import LightsleepError
from lightsleep.lab.boot.guest import Guest

MODULE = "test_cpuidle_latency"
SOURCE_CPU, DEST_CPU = 0, 1
"""The CPU that wakes, which has the guest's other work, too, and the CPU that is woken."""

Row = dict[str, Any]


def measure_in(guest: Guest, *options: str, timeout_s: float = 300) -> dict[str, Any]:
    """Return the document of one ``lightsleep measure`` in ``guest``."""
    done = guest.run(
        ["python3", "-m", "lightsleep", "measure", "--mode", "module", "--json", *options],
        timeout_s=timeout_s,
    )
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def sources(*names: str) -> list[str]:
    """Return the options of ``lightsleep measure`` that choose sources."""
    return [word for name in names for word in ("--source", name)]


def rows_of(document: dict[str, Any], source: str) -> Sequence[Row]:
    """Return the rows of the states and a wake source, in the order of the states."""
    rows = [x for x in document["rows"] if x["source"] == source and x["kind"] == "state"]
    return sorted(rows, key=lambda row: -1 if row["state"] is None else row["state"])


def row_of(document: dict[str, Any], source: str, name: str) -> Row:
    """Return the row of one wake source and state."""
    return next(row for row in rows_of(document, source) if row["name"] == name)


def median_us(row: Row, which: str = "raw") -> float:
    """Return the median of a row, "raw" or "subtracted".

    Raises LightsleepError where nothing was measured.
    """
    if row[which]:
        return float(row[which]["p50_ns"] / 1000)
    why = "no baseline to subtract"
    if not row["raw"]:
        reasons = ", ".join(f"{count} {reason}" for reason, count in row["invalid"].items())
        why = f"no valid sample ({reasons or 'none was taken'})"
    raise LightsleepError(
        f"{row['name']}, woken by {row['source']}: {why}: run it again on a quiet host, unless "
        "this CPU cannot enter that state"
    )
