# SPDX-License-Identifier: GPL-2.0-only
"""The table a comparison prints in a terminal: a block per metric, a line per arm."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lightsleep import units
from lightsleep.compare import words
from lightsleep.compare.analysis import (
    ArmAnalysis,
    ClaimAnalysis,
    MetricAnalysis,
    Outcome,
    analyse,
    judge_claims,
    limit_of,
)
from lightsleep.compare.headline import headline
from lightsleep.compare.method import Comparison, Verdict
from lightsleep.compare.result import CompareResult

STYLES = {
    Verdict.BETTER: "green",
    Verdict.WORSE: "bold red",
    Verdict.HIGHER: "yellow",
    Verdict.LOWER: "yellow",
}

INTERVALS = (
    f"95 % CI: of the median of one arm; {words.POSSIBLE}: lightsleep report has it, in its page "
    "and with --json"
)
"""Where to find what this table is too narrow for."""

OUTCOMES = {Outcome.HELD: "green", Outcome.REFUTED: "bold red", Outcome.OPEN: "yellow"}


def print_table(result: CompareResult, console: Console) -> None:
    """Print medians, their intervals and every arm compared to the baseline (and the limit)."""
    metrics, limit, claims = analyse(result), limit_of(result), judge_claims(result)
    headings = [Text(x) for x in ("", "median", "95 % CI", "n", f"against {result.baseline}")]
    behind = len(headings)
    if limit:
        headings.append(Text(f"against {limit}"))
    blocks = [[_cells(arm, m)[: len(headings)] for arm in m.arms] for m in metrics]
    if result.boots > 1:
        headings.insert(behind, Text("boot to boot"))
        for metric, rows in zip(metrics, blocks, strict=True):
            for arm, row in zip(metric.arms, rows, strict=True):
                row.insert(behind, Text(words.boot_spread(arm.baseline, metric.metric.unit)))
    lines = [headings, *itertools.chain.from_iterable(blocks)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    if sum(widths) + 2 * len(widths) > console.width:
        widths = [0] * len(widths)  # no room to align the blocks with each other
    console.print(Text(result.title, style="bold"))
    _print_claims(result, claims, metrics, console)
    for metric, rows in zip(metrics, blocks, strict=True):
        title = Text(f"\n{metric.metric.title}", style="bold")
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        table.show_header = rows is blocks[0]
        for index, (heading, width) in enumerate(zip(headings, widths, strict=True)):
            table.add_column(
                heading,
                justify="right" if index in (1, 2, 3) else "left",
                min_width=width,
                overflow="fold",
            )
        for row in rows:
            table.add_row(*row)
        console.print(table)
        for said in words.contrary_medians(metric, result.baseline, limit):
            console.print(Text(f"  {said}"))
    _print_notes(result, claims, metrics, console)
    if result.outcome:
        console.print()
        console.print(Text(result.outcome.sentence))


def _print_claims(
    result: CompareResult,
    claims: Sequence[ClaimAnalysis],
    metrics: Sequence[MetricAnalysis],
    console: Console,
) -> None:
    """Print what was claimed and whether it held; and what came out, unless the end says that."""
    for found in claims:
        console.print(
            Text.assemble(
                f"{words.OUTCOMES[found.outcome]} {words.claim(found.claim, found.metrics)}: ",
                (words.outcome(found), OUTCOMES[found.outcome]),
            )
        )
    if not result.outcome and (said := headline(result, metrics)):
        console.print(Text(said))


def _cells(arm: ArmAnalysis, metric: MetricAnalysis) -> list[Text]:
    unit = metric.metric.unit
    name = Text(f"  {arm.name}")
    if arm.summary is None:
        return [name, Text("no samples"), Text(""), Text("0"), Text(""), Text("")]
    ends = units.span(arm.summary.ci_low, arm.summary.ci_high, unit)
    if words.falls_short(arm.summary):
        ends += " *"
    return [
        name,
        Text(units.value(arm.summary.median, unit)),
        Text(ends),
        Text(str(arm.summary.n)),
        _against(arm.baseline, metric, is_control=arm.role == "control"),
        _against(arm.limit, metric),
    ]


def _against(
    comparison: Comparison | None, metric: MetricAnalysis, *, is_control: bool = False
) -> Text:
    if comparison is None:
        return Text("")
    verdict = comparison.verdict
    style = "bold red" if is_control and verdict.differs else STYLES.get(verdict, "")
    mark = "" if is_control else words.dagger(metric, comparison)
    found = words.finding(comparison, metric.metric)
    return Text(f"{words.MARKS[verdict]} {found}{mark}", style=style)


def _print_notes(
    result: CompareResult,
    claims: Sequence[ClaimAnalysis],
    metrics: Sequence[MetricAnalysis],
    console: Console,
) -> None:
    console.print()
    summaries = [arm.summary for metric in metrics for arm in metric.arms if arm.summary]
    short = {words.confidence(s): s.n for s in summaries if words.falls_short(s)}
    if short:
        reached = ", ".join(sorted(short, key=lambda text: short[text]))
        console.print(Text(f"* confidence reached: {reached}; 95 % needs 6 samples"))
    comparisons = [found for m in metrics for arm in m.arms for found in (arm.baseline, arm.limit)]
    if any(found and found.verdict is Verdict.SAME for found in comparisons):
        console.print(Text(words.DETECTABLE))
    if any(found and found.effect for found in comparisons):
        console.print(Text(INTERVALS))
    if words.has_dagger(metrics, claims):
        console.print(Text(words.COULD_BE_MISSED))
    if any(found and found.boots > 1 for found in comparisons):
        console.print(Text(words.BOOT_SPREAD))
        console.print(Text(words.ARM_ALONE))
    if chance := words.by_chance(metrics, claimed=bool(result.claims)):
        console.print(Text(chance))
    for well, said in words.control_sentences(metrics, result.baseline):
        warning = "" if well else "WARNING: "
        style = "green" if well else "bold red"
        console.print(Text(f"{warning}control: {said}", style=style))
