# SPDX-License-Identifier: GPL-2.0-only
"""What ``lightsleep record --histogram`` says of time lost waking.

A bucket becomes as many wakeups of the same length, the sum of its times divided by their number.
Sums are therefore exact. Percentiles are as exact as the buckets are narrow.

There is no task, waker or cause: nothing but counts by CPU and state was kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from lightsleep.document import Format, shortened
from lightsleep.periods import architecture
from lightsleep.periods.description import HISTOGRAM, HISTOGRAM_VERSION
from lightsleep.periods.lost import TimeLost, Wakes, bucket
from lightsleep.periods.model import AWAKE, MAX_CPUS, MAX_NS, MAX_STATES, Metadata

LIMITS = (
    range(MAX_CPUS),
    range(AWAKE, MAX_STATES),
    range(MAX_NS),
    range(MAX_NS),
    range(1, MAX_NS),
    range(MAX_NS),
)
"""What the numbers of a Bucket may be. On large machines, a JSON Schema would take seconds to check
them."""

BUCKETS = "percentiles come from buckets, and are as exact as those are narrow; sums are exact"


class Bucket(NamedTuple):
    """Periods, or wakeups, that took from ``low_ns`` to ``high_ns``, ``total_ns`` together."""

    cpu: int
    state: int
    low_ns: int
    high_ns: int
    number: int
    total_ns: int


def buckets(document: dict[str, Any], kind: str) -> list[Bucket]:
    """Return a histogram. Raises ValueError that says which row is wrong."""
    found = [Bucket(*row) for row in document["histograms"][kind]]
    for index, each in enumerate(found):
        known = all(type(x) is int and x in may_be for x, may_be in zip(each, LIMITS, strict=True))
        if not known or each.total_ns < each.number * each.low_ns:
            row = shortened(str(list(each)))
            raise ValueError(f"histograms.{kind}[{index}]: counts do not fit: {row}")
    return found


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
    idle, wakes, by_interrupt = (buckets(document, kind) for kind in ("idle", "wake", "interrupt"))
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
    lost.add_up()
    metadata.events = sum(each.number for each in (*idle, *wakes, *by_interrupt))
    metadata.notes.append(BUCKETS)
    if dropped := document["dropped"]:
        metadata.notes.append(f"the kernel left {dropped:,} events out: figures are low")
    return lost


def _groups(lost: TimeLost, each: Bucket) -> Iterator[Wakes]:
    if each.state == AWAKE or lost.metadata.polls(each.cpu, each.state):
        yield lost.reference
        return
    name = lost.metadata.name(each.cpu, each.state)
    yield lost.parts["state"][name][name]
    yield lost.parts["cpu"][str(each.cpu)][name]


def _wakes(each: Bucket) -> Wakes:
    mean_ns = each.total_ns // each.number
    (index,) = bucket(np.array([mean_ns])).tolist()
    return Wakes(each.number, each.total_ns, mean_ns, Counter({index: each.number}))


FORMAT: Format[TimeLost] = Format(
    HISTOGRAM,
    HISTOGRAM_VERSION,
    "a histogram of lightsleep record",
    resources.files("lightsleep.periods").joinpath("histogram.schema.json"),
    _built,
)
