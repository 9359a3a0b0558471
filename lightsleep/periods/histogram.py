# SPDX-License-Identifier: GPL-2.0-only
"""What ``lightsleep record --histogram`` says of time lost waking.

The file holds lines such as

    { cpu: 1, state: 2, ns: ~ 16384-18431 } hitcount: 12  ns: 198000

in the form of the kernel's own histograms, of which files of older versions are.

A bucket becomes as many wakeups of the same length, the sum of its times divided by their number.
Sums are therefore exact. Percentiles are as exact as the buckets are narrow.

There is no task, waker or cause: nothing but counts by CPU and state was kept.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from lightsleep.document import Format, shortened
from lightsleep.periods import architecture
from lightsleep.periods.lost import TimeLost, Wakes, bucket
from lightsleep.periods.model import AWAKE, Metadata
from lightsleep.record import sidecar

ENTRY = re.compile(
    r"\{ cpu:\s*(\d{1,5}), state:\s*(-1|\d{1,3}), ns: ~ (?:(\d{1,19})-\d{1,19}|2\^(\d{1,2})\s*) \}"
    r"\s+hitcount:\s*(\d{1,15})\s+ns:\s*(\d{1,18})"
)
DROPPED = re.compile(r"\s*Dropped: (\d{1,18})$")
HARMLESS = re.compile(r"(?:#.*|Totals:|\s+(?:Hits|Entries): \d+)?$")

BUCKETS = "percentiles come from buckets, and are as exact as those are narrow; sums are exact"


class Bucket(NamedTuple):
    """Periods, or wakeups, that took about as long, ``total_ns`` together."""

    cpu: int
    state: int
    number: int
    total_ns: int


def parse(text: str, what: str) -> tuple[list[Bucket], int]:
    """Return the buckets of a histogram, and how many events it had no room for.

    Raises ValueError that names ``what`` and the line.
    """
    found, dropped = [], 0
    for number, line in enumerate(text.splitlines(), 1):
        if match := ENTRY.fullmatch(line.rstrip()):
            cpu, state, low, power, count, total = match.groups()
            entry = Bucket(int(cpu), int(state), int(count), int(total))
            least = int(low) if low else (1 << int(power)) // 2
            if entry.number == 0 or entry.total_ns < entry.number * least:
                raise ValueError(f"{what}: line {number}: counts do not fit: {shortened(line)!r}")
            found.append(entry)
        elif match := DROPPED.fullmatch(line):
            dropped += int(match[1])
        elif not HARMLESS.fullmatch(line):
            raise ValueError(f"{what}: line {number}: no bucket: {shortened(line)!r}")
    return found, dropped


def _built(document: dict[str, Any]) -> TimeLost:
    """Return what a histogram says of time lost. Raises ValueError."""
    metadata = Metadata(
        document["host"], "histogram", document["environment"], document["settings"]
    )
    for cpu, states in document["states"].items():
        metadata.add_described(int(cpu), states)
    architecture.suppose_alike(metadata, document["states"])
    metadata.first_ns, metadata.last_ns = 0, int(document["elapsed_s"] * 1e9)
    lost = TimeLost(metadata)
    idle, idle_dropped = parse(document["histograms"]["idle"], "histograms.idle")
    wakes, wakes_dropped = parse(document["histograms"]["wake"], "histograms.wake")
    # Files of older versions have these among the others.
    by_interrupt, more_dropped = parse(
        document["histograms"].get("interrupt", ""), "histograms.interrupt"
    )
    metadata.seen = {each.cpu for each in (*idle, *wakes, *by_interrupt)}
    architecture.keep_seen(metadata)
    for each in idle:
        state = lost.states[metadata.name(each.cpu, each.state)]
        state.periods += each.number
        state.total_ns += each.total_ns
    for each in wakes:
        for group in _groups(lost, each):
            group.merge(_wakes(each))
    for each in by_interrupt:
        # The interrupt of an idle CPU wakes tasks in another way: it is awake by then.
        for group in _groups(lost, each):
            if group is not lost.reference:
                group.merge(_wakes(each))
    metadata.events = sum(each.number for each in (*idle, *wakes, *by_interrupt))
    metadata.notes.append(BUCKETS)
    if dropped := idle_dropped + wakes_dropped + more_dropped + document.get("dropped", 0):
        metadata.notes.append(f"the kernel left {dropped:,} events out: figures are low")
    return lost


def _groups(lost: TimeLost, each: Bucket) -> Iterator[Wakes]:
    if each.state == AWAKE or lost.metadata.polls(each.cpu, each.state):
        yield lost.reference
        return
    yield lost.all
    yield lost.groups["state"][lost.metadata.name(each.cpu, each.state)]
    yield lost.groups["cpu"][str(each.cpu)]


def _wakes(each: Bucket) -> Wakes:
    mean_ns = each.total_ns // each.number
    (index,) = bucket(np.array([mean_ns])).tolist()
    return Wakes(each.number, each.total_ns, mean_ns, Counter({index: each.number}))


FORMAT: Format[TimeLost] = Format(
    sidecar.HISTOGRAM,
    sidecar.HISTOGRAM_VERSION,
    "a histogram of lightsleep record",
    resources.files("lightsleep.periods").joinpath("histogram.schema.json"),
    _built,
)
