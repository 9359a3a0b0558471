# SPDX-License-Identifier: GPL-2.0-only
"""From a result to what is shown of it: every arm of every metric, summarised and compared.

The table, the page and the JSON summary all read this and compute nothing themselves.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from lightsleep.compare.method import Comparison, Summary, compare, summarise
from lightsleep.compare.result import CompareResult, MetricResult, Role


@dataclass(frozen=True)
class ArmAnalysis:
    """One arm in one metric.

    ``summary`` is None without samples, ``baseline`` (the comparison to the baseline) for the
    baseline itself, ``limit`` (the comparison to the first limit) for all but treatments.
    """

    name: str
    role: Role
    samples: list[float]
    summary: Summary | None
    baseline: Comparison | None
    limit: Comparison | None


@dataclass(frozen=True)
class MetricAnalysis:
    """One metric, its arms in the order of the result."""

    name: str
    metric: MetricResult
    arms: list[ArmAnalysis]

    def arms_as(self, role: Role) -> list[ArmAnalysis]:
        """Return the arms that have this role."""
        return [arm for arm in self.arms if arm.role == role]


def analyse(result: CompareResult) -> list[MetricAnalysis]:
    """Analyse every metric of a result, in its order."""
    return [
        MetricAnalysis(name, metric, [_analyse_arm(result, metric, arm) for arm in result.arms])
        for name, metric in result.metrics.items()
    ]


def limit_of(result: CompareResult) -> str | None:
    """Return the arm that shows how far one could go, if there is one."""
    return next((arm for arm in result.arms if result.roles[arm] == "limit"), None)


def _analyse_arm(result: CompareResult, metric: MetricResult, arm: str) -> ArmAnalysis:
    def compared_to(other: str) -> Comparison:
        return compare(metric.samples.get(other, []), samples, metric.better)

    role, limit = result.roles[arm], limit_of(result)
    samples = metric.samples.get(arm, [])
    return ArmAnalysis(
        name=arm,
        role=role,
        samples=samples,
        summary=summarise(samples),
        baseline=None if role == "baseline" else compared_to(result.baseline),
        limit=compared_to(limit) if limit and role == "treatment" else None,
    )


def to_json(result: CompareResult) -> dict[str, Any]:
    """Return the analysis of a result as a JSON object: per metric and arm, without samples."""
    return {
        "experiment": result.experiment,
        "title": result.title,
        "created": result.created,
        "baseline": result.baseline,
        "limit": limit_of(result),
        "metrics": {
            metric.name: {
                "unit": metric.metric.unit,
                "better": metric.metric.better,
                "arms": {arm.name: _arm_to_json(arm) for arm in metric.arms},
            }
            for metric in analyse(result)
        },
    }


def _arm_to_json(arm: ArmAnalysis) -> dict[str, Any]:
    document = dataclasses.asdict(arm)
    del document["name"], document["samples"]
    return document
