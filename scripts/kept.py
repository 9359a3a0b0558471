# SPDX-License-Identifier: GPL-2.0-only
"""Read a kept result with what its experiment says by now: titles, and what an older one lacks."""

from __future__ import annotations

import contextlib
from pathlib import Path

from lightsleep.compare.result import FORMAT, CompareResult, check_claims
from lightsleep.document import load
from lightsleep.errors import WrongUsage
from lightsleep.lab import experiments


def load_result(path: Path) -> tuple[CompareResult, bool]:
    """Return a result, and whether it has claims that its experiment declares only by now.

    A metric whose description is today's has the title of today, too: more people understand it.
    """
    result = load(path, FORMAT)
    try:
        experiment = experiments.load(result.experiment)
    except WrongUsage:
        return result, False  # somebody's own, or one that is no more
    if isinstance(experiment.metrics, tuple):
        for metric in experiment.metrics:
            found = result.metrics.get(metric.name)
            if not found or found.unit != metric.unit:
                continue
            found.amount |= metric.amount  # an older result does not say so
            if found.description == metric.description:
                found.title = metric.title
    if result.claims:
        return result, False
    for claim in experiment.claims:
        # The experiment may have other arms or metrics by now.
        with contextlib.suppress(ValueError):
            check_claims([claim], result.arms, result.metrics)
            result.claims.append(claim)
    return result, bool(result.claims)
