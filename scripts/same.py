# SPDX-License-Identifier: GPL-2.0-only
"""Comparisons of the same with the same: how often they show a difference all the same.

``make false-alarms`` runs them, one file for each in a folder, and ``make results`` writes the page
of a folder.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path

from result_page import against, origin

from lightsleep.compare.analysis import analyse, control_failed
from lightsleep.compare.result import FORMAT, CompareResult
from lightsleep.document import load
from lightsleep.markdown import table, text

EXPECTED = 0.05
"""The share of comparisons that may show a difference by chance."""

NAME = "same-{:02}.json"


def report(results: list[CompareResult]) -> str:
    """Return what so many comparisons of the same showed."""
    alarms = sum(map(control_failed, results))
    most = next(n for n in range(len(results) + 1) if _at_most(n, len(results)) >= 0.95)
    lines = [
        f"{alarms} of {len(results)} comparisons showed a difference; "
        f"at {EXPECTED:.0%} each, up to {most} are within 95 %"
    ]
    for name in results[0].metrics if results else []:
        found = [
            arm.baseline
            for result in results
            for metric in analyse(result)
            for arm in metric.arms_as("control")
            if metric.name == name and arm.baseline and arm.baseline.ratio
        ]
        spreads = [x.boot_spread for x in found if x.boot_spread is not None]
        if spreads:
            least = statistics.median(x.detectable for x in found if x.detectable)
            lines.append(
                f"{name}: boots scatter by {100 * (statistics.median(spreads) - 1):.1f} %, "
                f"about 8 of 10 such runs show a difference of {100 * (least - 1):.0f} % (medians)"
            )
    return "\n".join(lines)


def files(folder: Path) -> list[Path]:
    """Return the files of results in a folder, in order."""
    return sorted(folder.glob(NAME.replace("{:02}", "*")))


def read(folder: Path) -> list[CompareResult]:
    """Return the results in a folder, in order. Raises LightsleepError where one is damaged."""
    return [load(path, FORMAT) for path in files(folder)]


def page(folder: Path) -> str:
    """Return the page of a folder of such results. Raises LightsleepError where one is damaged."""
    results = read(folder)
    first = results[0]
    headings = ["seed", *(metric.title for metric in first.metrics.values())]
    rows = []
    for result in results:
        found = [
            against(arm.baseline, metric.metric)
            for metric in analyse(result)
            for arm in metric.arms_as("control")
        ]
        rows.append([str(result.protocol["seed"]), *found])
    parts = [
        "<!-- SPDX-License-Identifier: GPL-2.0-only -->",
        f"<!-- Written by make results from {folder.name}/: do not edit. -->",
        f"# {text(first.title)}",
        text(first.hypothesis),
        f"{len(results)} comparisons, each of {first.protocol['runs']} rounds in {first.boots} "
        "boots of each guest:",
        "\n".join(f"- {text(line)}" for line in report(results).splitlines()),
        "## Comparisons",
        table(headings, rows),
        "## How it was measured",
        f"    make false-alarms RUNS={len(results)} ROUNDS={first.protocol['runs']} "
        f"BOOTS={first.boots}",
        "Of the first one:",
        origin(first, f"{folder.name}/{NAME.format(1)}"),
    ]
    return "\n\n".join(parts) + "\n"


def _at_most(alarms: int, runs: int) -> float:
    """Return the probability of so many alarms or fewer."""
    return math.fsum(
        math.comb(runs, n) * EXPECTED**n * (1 - EXPECTED) ** (runs - n) for n in range(alarms + 1)
    )
