# SPDX-License-Identifier: GPL-2.0-only
"""From results to the page: what each section shows, in the order in which people ask.

What was compared and what came out; whether the control agrees; how each metric looks; then on
what and how it was measured, and every raw sample.
"""

from __future__ import annotations

import json
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

import jinja2
from markupsafe import Markup

from lightsleep import __version__, wording
from lightsleep.analysis import ArmAnalysis, MetricAnalysis, analyse, limit_of
from lightsleep.report import plots
from lightsleep.result import CompareResult
from lightsleep.stats import Verdict

Rows = list[tuple[str, str]]


@dataclass(frozen=True)
class MetricSection:
    """One metric with its plots (SVG)."""

    analysis: MetricAnalysis
    strip: Markup
    ecdf: Markup | None
    scale: str
    sentences: list[str]


@dataclass(frozen=True)
class ResultSection:
    """One result file: ``key`` makes ids unique in the page, ``label`` names the file."""

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


def render(results: Sequence[tuple[str, CompareResult]]) -> str:
    """Return the page for results, each labelled (usually with the name of its file)."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("lightsleep.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"cell": _cell}
    return environment.get_template("page.html.j2").render(
        sections=[_section(number, *labelled) for number, labelled in enumerate(results, 1)],
        metric_titles=_metric_titles,
        colours=plots.COLOURS,
        marks=wording.MARKS,
        wording=wording,
        version=__version__,
    )


def _section(number: int, label: str, result: CompareResult) -> ResultSection:
    key, limit, metrics = f"r{number}", limit_of(result), analyse(result)
    return ResultSection(
        key=key,
        label=label,
        result=result,
        limit=limit,
        metrics=[
            _metric(f"{key}m{index}", metric, result, limit) for index, metric in enumerate(metrics)
        ],
        treatments=[arm for arm in result.arms if result.roles[arm] == "treatment"],
        control=wording.control_sentences(metrics, result.baseline),
        environment=_flat(result.environment, said_elsewhere={"guests"}),
        protocol=_flat(result.protocol, said_elsewhere={"runs", "warmup", "seed", "order"}),
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
        sentences=wording.sentences(metric, result.baseline, limit),
    )


def _metric_titles(sections: Sequence[ResultSection]) -> dict[str, str]:
    """Return the titles of all metrics by name, in the order in which they first occur."""
    analyses = [metric.analysis for section in sections for metric in section.metrics]
    titles: dict[str, str] = {}
    for analysis in analyses:
        titles.setdefault(analysis.name, analysis.metric.title)
    return titles


def _flat(value: dict[str, Any], prefix: str = "", said_elsewhere: Set[str] = frozenset()) -> Rows:
    """Return what is known as rows, nested keys joined."""
    rows: Rows = []
    for key, item in value.items():
        name = f"{prefix} {key.replace('_', ' ')}".lstrip()
        if key in said_elsewhere:
            continue
        rows += _flat(item, name) if isinstance(item, dict) else [(name, _text(item))]
    return rows


def _guests(result: CompareResult) -> list[tuple[str, list[str]]]:
    """Return what is known of the guests: a row per key, a cell per arm."""
    guests: dict[str, dict[str, Any]] = result.environment.get("guests", {})
    keys = dict.fromkeys(key for arm in result.arms for key in guests.get(arm, {}))
    return [
        (key.replace("_", " "), [_text(guests.get(arm, {}).get(key, "")) for arm in result.arms])
        for key in keys
    ]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cell(arm: ArmAnalysis) -> str:
    """Return the class of a table cell or tile: what its verdict means to the reader."""
    verdict = arm.baseline.verdict if arm.baseline else None
    if arm.role == "control":
        return "bad" if verdict and verdict.differs else "plain"
    return {Verdict.BETTER: "good", Verdict.WORSE: "bad"}.get(verdict, "plain") if verdict else ""
