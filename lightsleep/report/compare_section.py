# SPDX-License-Identifier: GPL-2.0-only
"""From a comparison to a section of the page, in the order in which people ask.

What was compared and what came out; whether the control agrees; how each metric looks; then on
what and how it was measured, and every raw sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from markupsafe import Markup

from lightsleep.compare import words
from lightsleep.compare.analysis import ArmAnalysis, MetricAnalysis, analyse, limit_of
from lightsleep.compare.method import Verdict
from lightsleep.compare.result import CompareResult
from lightsleep.report import plots
from lightsleep.report.rows import Rows, flat, text_of


@dataclass(frozen=True)
class MetricSection:
    """One metric with its plots (SVG)."""

    analysis: MetricAnalysis
    strip: Markup
    ecdf: Markup | None
    scale: str
    sentences: list[str]


@dataclass(frozen=True)
class CompareSection:
    """One result file: ``key`` makes ids unique in the page, ``label`` names the file."""

    kind: ClassVar = "compare"

    key: str
    label: str
    result: CompareResult
    limit: str | None
    metrics: list[MetricSection]
    treatments: list[str]
    control: list[tuple[bool, str]]
    environment: Rows
    protocol: Rows
    guests: list[tuple[str, list[str]]]

    @property
    def title(self) -> str:
        """What was compared."""
        return self.result.title


def section(key: str, label: str, result: CompareResult) -> CompareSection:
    """Return the section of one result; ``key`` and ``label`` as in CompareSection."""
    limit, metrics = limit_of(result), analyse(result)
    return CompareSection(
        key=key,
        label=label,
        result=result,
        limit=limit,
        metrics=[
            _metric(f"{key}m{index}", metric, result, limit) for index, metric in enumerate(metrics)
        ],
        treatments=[arm for arm in result.arms if result.roles[arm] == "treatment"],
        control=words.control_sentences(metrics, result.baseline),
        environment=flat(result.environment, said_elsewhere={"guests"}),
        protocol=flat(result.protocol, said_elsewhere={"runs", "warmup", "seed", "order"}),
        guests=_guests(result),
    )


def _metric(
    key: str, metric: MetricAnalysis, result: CompareResult, limit: str | None
) -> MetricSection:
    ecdf = plots.ecdf_plot(metric, f"{key}e")
    return MetricSection(
        analysis=metric,
        strip=Markup(plots.strip_plot(metric, f"{key}s")),
        ecdf=Markup(ecdf) if ecdf else None,
        scale=plots.scale_of(metric),
        sentences=words.sentences(metric, result.baseline, limit),
    )


def metric_titles(sections: Sequence[CompareSection]) -> dict[str, str]:
    """Return the titles of all metrics by name, in the order in which they first occur."""
    analyses = [metric.analysis for section in sections for metric in section.metrics]
    titles: dict[str, str] = {}
    for analysis in analyses:
        titles.setdefault(analysis.name, analysis.metric.title)
    return titles


def _guests(result: CompareResult) -> list[tuple[str, list[str]]]:
    """Return what is known of the guests: a row per key, a cell per arm."""
    guests: dict[str, dict[str, Any]] = result.environment.get("guests", {})
    keys = dict.fromkeys(key for arm in result.arms for key in guests.get(arm, {}))
    return [
        (key.replace("_", " "), [text_of(guests.get(arm, {}).get(key, "")) for arm in result.arms])
        for key in keys
    ]


def cell(arm: ArmAnalysis) -> str:
    """Return the class of a table cell or tile: what its verdict means to the reader."""
    verdict = arm.baseline.verdict if arm.baseline else None
    if arm.role == "control":
        return "bad" if verdict and verdict.differs else "plain"
    return {Verdict.BETTER: "good", Verdict.WORSE: "bad"}.get(verdict, "plain") if verdict else ""
