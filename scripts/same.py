# SPDX-License-Identifier: GPL-2.0-only
"""Comparisons of the same with the same: how often they show a difference all the same.

``make false-alarms`` runs them, one file for each in a folder, and ``make results`` writes the page
of a folder.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path

from result_page import against, origin

from lightsleep.compare import words
from lightsleep.compare.analysis import analyse, control_failed
from lightsleep.compare.boots import by_boot
from lightsleep.compare.result import FORMAT, CompareResult
from lightsleep.document import load
from lightsleep.errors import LightsleepError
from lightsleep.markdown import table, text
from lightsleep.order import CONFIDENCE

EXPECTED = 0.05
"""The share of comparisons that may show a difference by chance."""

NAME = "same-{:02}.json"

PICTURED = (
    "Each comparison's ratio to the baseline, with the interval by which the control is judged; "
    "bold where a difference is shown"
)


def report(results: list[CompareResult]) -> str:
    """Return what so many comparisons of the same showed."""
    alarms = sum(map(control_failed, results))
    most = next(n for n in range(len(results) + 1) if _at_most(n, len(results)) >= 0.95)
    lines = [
        f"{alarms} of {len(results)} comparisons showed a difference; "
        f"by chance alone, up to {most} of {len(results)} would be no surprise (95 %)"
    ]
    for name, metric in results[0].metrics.items() if results else []:
        found = [
            (arm.baseline, _boot_variance(result, name, arm.name))
            for result in results
            for each in analyse(result)
            for arm in each.arms_as("control")
            if each.name == name and arm.baseline and arm.baseline.ratio and result.boots > 1
        ]
        if found:
            least = statistics.median(x.detectable for x, _ in found if x.detectable)
            variance = statistics.fmean(variance for _, variance in found)
            spread = math.exp(math.sqrt(max(0.0, variance)))
            said = words.boot_spread(replace(found[0][0], boot_spread=spread), metric.unit)
            lines.append(
                f"{metric.title}: boot to boot, over all comparisons, {said}; about 8 of 10 such "
                f"comparisons show a difference of {100 * (least - 1):.0f} % (median)"
            )
    return "\n".join(lines)


def _boot_variance(result: CompareResult, metric: str, arm: str) -> float:
    """Return how an arm's log-ratio to the baseline varies between boots; less than 0 by chance."""
    samples = result.metrics[metric].samples
    pairs = zip(samples[arm], samples[result.baseline], strict=True)
    return by_boot([math.log(x / y) for x, y in pairs], result.boots, CONFIDENCE).variance


def command(results: list[CompareResult]) -> str:
    """Return the command that repeats such comparisons."""
    rounds, boots = results[0].protocol["runs"], results[0].boots
    return f"make false-alarms RUNS={len(results)} ROUNDS={rounds} BOOTS={boots}"


def files(folder: Path) -> list[Path]:
    """Return the files of results in a folder, in order."""
    return sorted(folder.glob(NAME.replace("{:02}", "*")))


def read(folder: Path) -> list[CompareResult]:
    """Return the results in a folder, in order. Raises LightsleepError where one is damaged."""
    return [load(path, FORMAT) for path in files(folder)]


def page(folder: Path, picture: str = "") -> str:
    """Return the page of a folder of such results; ``picture`` is the name of one of the effects.

    Raises LightsleepError where one is damaged, or measured in another way than the first.
    """
    results = read(folder)
    first = results[0]
    for path, result in zip(files(folder), results, strict=True):
        if _measured(result) != _measured(first):
            raise LightsleepError(
                f"{path} has {_measured(result)}, but {files(folder)[0].name} has "
                f"{_measured(first)}: a page is of results that were measured alike. Move those "
                "that are not to another folder"
            )
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
        f"Hypothesis: {text(first.hypothesis)}",
        f"{len(results)} comparisons, each of {first.protocol['runs']} rounds in {first.boots} "
        "boots of each guest:",
        "\n".join(f"- {text(line)}" for line in report(results).splitlines()),
        f"![Effects, as ratios to {text(first.baseline)}]({picture})" if picture else "",
        f"{PICTURED}." if picture else "",
        "## Comparisons",
        table(headings, rows),
        "## How it was measured",
        f"    {command(results)}",
        "Of the first one:",
        origin(first, f"{folder.name}/{NAME.format(1)}"),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _measured(result: CompareResult) -> str:
    commit = result.environment.get("source", {}).get("commit")
    rounds, boots = result.protocol["runs"], result.boots
    return f"{rounds} rounds in {boots} boots of commit {commit or 'unknown'}"


def _at_most(alarms: int, runs: int) -> float:
    """Return the probability of so many alarms or fewer."""
    return math.fsum(
        math.comb(runs, n) * EXPECTED**n * (1 - EXPECTED) ** (runs - n) for n in range(alarms + 1)
    )
