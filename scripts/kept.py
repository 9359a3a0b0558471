# SPDX-License-Identifier: GPL-2.0-only
"""Read a kept result with what its experiment says by now: titles, and what an older one lacks."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from lightsleep.compare.result import FORMAT, CompareResult, check_claims
from lightsleep.document import load
from lightsleep.errors import WrongUsage
from lightsleep.lab import experiments

RENAMED = (
    ("halt-cost", r"([a-z]+)_us", "Loss of a wakeup in {}", "What a halt costs a wakeup in {}"),
    (
        "halt-cost",
        r"used_in_([a-z]+)_us",
        "Cost that decided in {}",
        "Cost of a halt that decided in {}",
    ),
    (
        "halt-cost",
        r"off_in_([a-z]+)_us",
        "Cost that decided in {}, too far from the loss",
        "Error of the halt cost in {}, beyond 25 %",
    ),
    (
        "measure-rate",
        r"(\w+)_(\d+)us_per_s",
        "State of {1} us, by {0}",
        "Samples per second of a state of {1} us, by {0}",
    ),
    ("measure-rate", "whole_s", "A whole guest", "Time to measure a whole guest"),
    (
        "measure-truth",
        r"(\w+)_(\d+)us",
        "State of {1} us, woken by {0}",
        "Latency of a state of {1} us, woken by {0}",
    ),
    (
        "measure-truth",
        "beyond_tolerance",
        "Medians beyond tolerance",
        "Measured medians that are too far from the truth",
    ),
    (
        "poll-source-blk",
        r"(\w+)_20us_iops",
        "{}, a disk that takes 20 us",
        "{}, a disk told to wait 20 us",
    ),
    (
        "poll-source-blk",
        "irqs_per_io_20us",
        "Interrupts per request, a disk that takes 20 us",
        "Interrupts per request, a disk told to wait 20 us",
    ),
    (
        "poll-source-blk",
        "own_irqs_per_io_20us",
        "Interrupts of the CPU's own per request, a disk that takes 20 us",
        "CPU's own interrupts per request, a disk told to wait 20 us",
    ),
    (
        "poll-source-blk",
        "own_irqs_per_io",
        "Interrupts of the CPU's own per request, a disk that answers at once",
        "CPU's own interrupts per request, a disk that answers at once",
    ),
    (
        "poll-source-file",
        "own_irqs_per_io",
        "Interrupts of the CPU's own per request, a file of the host",
        "CPU's own interrupts per request, a file of the host",
    ),
    (
        "poll-source-net",
        "rr_per_s",
        "Requests and responses",
        "Requests and responses, answered at once",
    ),
    (
        "poll-source-net",
        "rr_late_per_s",
        "The same, answered 200 us later",
        "Requests and responses, answered 200 us later",
    ),
    (
        r"promotion(-sibling)?",
        "exit_shallow_us",
        "Shallow by mistake",
        "Time in a shallow idle state by mistake",
    ),
    (
        "promotion",
        "fooled_pct",
        "Silences begun shallow",
        "Silences that began in a shallow idle state",
    ),
    (
        "promotion-sibling",
        "sibling_wakes",
        "Wakes of a sleeping sibling",
        "Wakes of a sleeping sibling thread",
    ),
    ("smp-storm", "calls_ipis_per_s", "Their interrupts", "Interrupts of these calls"),
    ("smp-storm", "unmap_ipis_per_s", "Their interrupts", "Interrupts of unmapping"),
)
"""Metrics of which an older result has another title for the same: experiment and name (regular
expressions), the old title, and today's.

Where another title says something else, both stay: promotion's share of silences "in the deepest
state" was that of one state, and is by now that of any deep one.
"""


def load_result(path: Path) -> tuple[CompareResult, bool]:
    """Return a result, and whether it has claims that its experiment declares only by now.

    Metrics that were RENAMED have the titles of today: more people understand those.
    """
    result = load(path, FORMAT)
    for name, kept in result.metrics.items():
        kept.title = _title(result.experiment, name, kept.title)
    try:
        experiment = experiments.load(result.experiment)
    except WrongUsage:
        return result, False  # somebody's own, or one that is no more
    if isinstance(experiment.metrics, tuple):
        for metric in experiment.metrics:
            found = result.metrics.get(metric.name)
            if found and found.unit == metric.unit:
                found.amount |= metric.amount  # an older result does not say so
    if result.claims:
        return result, False
    for claim in experiment.claims:
        # The experiment may have other arms or metrics by now.
        with contextlib.suppress(ValueError):
            check_claims([claim], result.arms, result.metrics)
            result.claims.append(claim)
    return result, bool(result.claims)


def _title(experiment: str, name: str, title: str) -> str:
    """Return today's title of a metric, where an older one says the same; else its title."""
    for experiments_of, names, old, new in RENAMED:
        if not re.fullmatch(experiments_of, experiment):
            continue
        found = re.fullmatch(names, name)
        if found and title == old.format(*found.groups()):
            return new.format(*found.groups())
    return title
