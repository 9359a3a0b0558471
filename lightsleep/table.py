# SPDX-License-Identifier: GPL-2.0-only
"""The table a comparison prints in a terminal: a block per metric, a line per arm."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lightsleep import wording
from lightsleep.analysis import ArmAnalysis, MetricAnalysis, analyse, limit_of
from lightsleep.result import CompareResult
from lightsleep.stats import Comparison, Verdict

STYLES = {
    Verdict.BETTER: "green",
    Verdict.WORSE: "bold red",
    Verdict.HIGHER: "yellow",
    Verdict.LOWER: "yellow",
}


def print_table(result: CompareResult, console: Console) -> None:
    """Print medians, their intervals and every arm compared to the baseline (and the limit)."""
    metrics, limit = analyse(result), limit_of(result)
    table = Table(title=Text(result.title), title_justify="left", box=None, pad_edge=False)
    table.add_column("")
    for heading in ("median", "95 % CI", "n"):
        table.add_column(heading, justify="right", no_wrap=heading != "95 % CI")
    for other in filter(None, (result.baseline, limit)):
        table.add_column(Text(f"against {other}"))
    for metric in metrics:
        table.add_row(Text(f"\n{metric.metric.title}", style="bold"))
        for arm in metric.arms:
            table.add_row(*_cells(arm, metric.metric.unit)[: len(table.columns)])
    console.print(table)
    _print_notes(metrics, result.baseline, console)


def _cells(arm: ArmAnalysis, unit: str) -> list[Text]:
    name = Text(f"  {arm.name}")
    if arm.summary is None:
        return [name, Text("no samples"), Text(""), Text("0")]
    ends = wording.span(arm.summary.ci_low, arm.summary.ci_high, unit)
    if wording.falls_short(arm.summary):
        ends += " *"
    return [
        name,
        Text(wording.value(arm.summary.median, unit)),
        Text(ends),
        Text(str(arm.summary.n)),
        _against(arm.baseline, unit, is_control=arm.role == "control"),
        _against(arm.limit, unit),
    ]


def _against(comparison: Comparison | None, unit: str, *, is_control: bool = False) -> Text:
    if comparison is None:
        return Text("")
    verdict = comparison.verdict
    said = wording.effect(comparison, unit) if verdict.differs else verdict
    style = "bold red" if is_control and verdict.differs else STYLES.get(verdict, "")
    return Text(f"{wording.MARKS[verdict]} {said}", style=style)


def _print_notes(metrics: list[MetricAnalysis], baseline: str, console: Console) -> None:
    console.print()
    summaries = [arm.summary for metric in metrics for arm in metric.arms if arm.summary]
    short = {wording.confidence(s): s.n for s in summaries if wording.falls_short(s)}
    if short:
        reached = ", ".join(sorted(short, key=lambda text: short[text]))
        console.print(Text(f"* confidence reached: {reached}; 95 % needs 6 samples"))
    for well, said in wording.control_sentences(metrics, baseline):
        warning = "" if well else "WARNING: "
        style = "green" if well else "bold red"
        console.print(Text(f"{warning}control: {said}", style=style))
