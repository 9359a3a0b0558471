# SPDX-License-Identifier: GPL-2.0-only
"""From a result to what is shown of it: every arm of every metric, summarised and compared.

The table, the page and the JSON summary all read this and compute nothing themselves.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from lightsleep.compare.method import (
    Comparison,
    Estimate,
    Summary,
    Verdict,
    compare,
    compare_differences,
    compare_jointly,
    distance,
    has_ratio,
    summarise,
)
from lightsleep.compare.result import Claim, CompareResult, MetricResult, Role
from lightsleep.document import headed
from lightsleep.order import CONFIDENCE

SCHEMA = "lightsleep.comparison"
VERSION = 1


@dataclass(frozen=True)
class ArmAnalysis:
    """One arm in one metric.

    ``samples`` has one of each round. ``summary`` is None without samples, ``baseline`` (the
    comparison to the baseline) for the baseline itself, ``limit`` (the comparison to the first
    limit) for all but treatments. ``by_difference`` is that of a control to the baseline, by
    differences: what it could have missed where another arm has no ratio.
    """

    name: str
    role: Role
    samples: list[float]
    summary: Summary | None
    baseline: Comparison | None
    limit: Comparison | None
    by_difference: Comparison | None = None

    @property
    def as_control(self) -> list[Comparison]:
        """What this arm, a control, is judged by: by its ratio and by its difference."""
        return [x for x in (self.baseline, self.by_difference) if x]


def could_be_missed(comparison: Comparison | None, controls: Iterable[Comparison]) -> bool:
    """Whether a difference is shown that is smaller than what a control could have missed.

    False where no control was judged, and where it is a ratio and no control has one.
    """
    if comparison is None or comparison.effect is None or not comparison.verdict.differs:
        return False
    value = comparison.effect.value
    of_kind = [x.detectable for x in controls if bool(x.ratio) == bool(comparison.ratio)]
    size = max(value, 1 / value) if comparison.ratio else abs(value)
    return any(least is not None and size < least for least in of_kind)


@dataclass(frozen=True)
class MetricAnalysis:
    """One metric, its arms in the order of the result."""

    name: str
    metric: MetricResult
    arms: list[ArmAnalysis]
    boots: int = 1

    def arms_as(self, role: Role) -> list[ArmAnalysis]:
        """Return the arms that have this role."""
        return [arm for arm in self.arms if arm.role == role]

    def could_be_missed(self, comparison: Comparison | None) -> bool:
        """Whether a difference is shown that a control could have missed."""
        return could_be_missed(
            comparison, [x for arm in self.arms_as("control") for x in arm.as_control]
        )


class Outcome(StrEnum):
    """What a comparison says about a claim."""

    HELD = "held"
    REFUTED = "refuted"
    OPEN = "not decided"


@dataclass(frozen=True)
class BoundAnalysis:
    """A bound of a ratio, and arm - bound x reference in the unit of the metric."""

    bound: float
    difference: Estimate


@dataclass(frozen=True)
class ClaimAnalysis:
    """A claim and what came of it; ``comparison`` is None where samples allow none.

    ``beyond`` has the samples that refute a claim without a reference. ``from_bounds`` has what a
    bounded claim was judged by where a sample is 0, so that the comparison is no ratio.
    ``controls`` are compared with the baseline in the same metrics, as one where they are several.
    """

    claim: Claim
    metrics: list[MetricResult]
    outcome: Outcome
    comparison: Comparison | None
    beyond: list[float] = field(default_factory=list)
    from_bounds: list[BoundAnalysis] = field(default_factory=list)
    controls: list[Comparison] = field(default_factory=list)

    def could_be_missed(self, comparison: Comparison | None) -> bool:
        """Whether a difference is shown that a control could have missed."""
        return could_be_missed(comparison, self.controls)

    @property
    def unit(self) -> str:
        """The unit of the metrics, where they share one."""
        units = {metric.unit for metric in self.metrics}
        return units.pop() if len(units) == 1 else "metrics of several units"


def analyse(result: CompareResult) -> list[MetricAnalysis]:
    """Analyse every metric of a result, in its order."""
    confidence = control_confidence(result)
    return [
        MetricAnalysis(
            name,
            metric,
            [_analyse_arm(result, metric, arm, confidence) for arm in result.arms],
            result.boots,
        )
        for name, metric in result.metrics.items()
    ]


def limit_of(result: CompareResult) -> str | None:
    """Return the arm that shows how far one could go, if there is one."""
    return next((arm for arm in result.arms if result.roles[arm] == "limit"), None)


def control_confidence(result: CompareResult) -> float:
    """Return the confidence with which to compare a control in one metric.

    All comparisons of controls together then raise a false alarm in at most 5 % of results. Those
    in which no round differs cannot raise one, so they do not count.
    """
    comparisons = sum(
        metric.samples.get(arm, []) != metric.samples.get(result.baseline, [])
        for metric in result.metrics.values()
        for arm in result.arms
        if result.roles[arm] == "control"
    )
    return 1 - (1 - CONFIDENCE) / max(1, comparisons)


def control_failed(result: CompareResult) -> bool:
    """Whether a control differs from the baseline, from which nothing should tell it."""
    return any(
        arm.baseline is not None and arm.baseline.verdict.differs
        for metric in analyse(result)
        for arm in metric.arms_as("control")
    )


def judge_claims(result: CompareResult) -> list[ClaimAnalysis]:
    """Judge every claim of a result, in its order."""
    return [
        replace(_judge_claim(result, claim), controls=_controls(result, claim))
        for claim in result.claims
    ]


def _controls(result: CompareResult, claim: Claim) -> list[Comparison]:
    """Compare the controls with the baseline in the metrics of a claim, as the claim is judged."""
    metrics, confidence = [result.metrics[x] for x in claim.metrics], control_confidence(result)
    found: list[Comparison] = []
    for arm in (x for x in result.arms if result.roles[x] == "control"):
        if len(metrics) == 1:
            found += _analyse_arm(result, metrics[0], arm, confidence).as_control
            continue
        theirs, ours = (
            [x.samples.get(name, []) for x in metrics] for name in (result.baseline, arm)
        )
        with contextlib.suppress(ValueError):  # a sample is 0, or there are none
            better = metrics[0].better
            found.append(compare_jointly(theirs, ours, better, result.boots, confidence))
    return found


def _judge_claim(result: CompareResult, claim: Claim) -> ClaimAnalysis:
    metrics = [result.metrics[name] for name in claim.metrics]
    ours = [metric.samples.get(claim.arm, []) for metric in metrics]
    if claim.reference is None:
        beyond = [x for x in ours[0] if not _within(claim, x, x)]
        outcome = Outcome.REFUTED if beyond else Outcome.HELD if ours[0] else Outcome.OPEN
        return ClaimAnalysis(claim, metrics, outcome, None, beyond)
    theirs = [metric.samples.get(claim.reference, []) for metric in metrics]
    better = metrics[0].better
    # Counts of 0 have no ratio, but one arm may have more of them, or a multiple of them.
    alone = metrics[0].unit == "%" or (claim.is_gain and len(metrics) == 1 and ours[0])
    try:
        if len(metrics) == 1 and ours[0] and not (alone or has_ratio(theirs[0], ours[0], "")):
            return _judge_bounds(claim, metrics[0], theirs[0], ours[0], result.boots)
        if alone:
            comparison = compare(theirs[0], ours[0], better, metrics[0].unit, boots=result.boots)
        else:
            comparison = compare_jointly(theirs, ours, better, result.boots)
    except ValueError:
        return ClaimAnalysis(claim, metrics, Outcome.OPEN, None)
    return ClaimAnalysis(claim, metrics, _outcome(claim, comparison), comparison)


def _judge_bounds(
    claim: Claim,
    metric: MetricResult,
    theirs: Sequence[float],
    ours: Sequence[float],
    boots: int,
) -> ClaimAnalysis:
    """Judge bounds of a ratio by differences. Raises ValueError where these say nothing, either."""
    comparison = compare(theirs, ours, metric.better, metric.unit, boots=boots)
    above = distance(theirs, ours, claim.least, boots) if claim.at_least is not None else None
    below = distance(theirs, ours, claim.most, boots) if claim.at_most is not None else None
    found = [
        BoundAnalysis(bound, difference)
        for bound, difference in ((claim.least, above), (claim.most, below))
        if difference
    ]
    if not found:
        outcome = Outcome.OPEN
    elif (not above or above.low >= 0) and (not below or below.high <= 0):
        outcome = Outcome.HELD
    elif (above and above.high < 0) or (below and below.low > 0):
        outcome = Outcome.REFUTED
    else:
        outcome = Outcome.OPEN
    return ClaimAnalysis(claim, [metric], outcome, comparison, from_bounds=found)


def _within(claim: Claim, low: float, high: float) -> bool:
    return claim.least <= low and high <= claim.most


def _outcome(claim: Claim, comparison: Comparison) -> Outcome:
    effect = comparison.effect
    if effect is None:
        return Outcome.OPEN
    if claim.is_gain:
        outcomes = {Verdict.BETTER: Outcome.HELD, Verdict.WORSE: Outcome.REFUTED}
        return outcomes.get(comparison.verdict, Outcome.OPEN)
    if _within(claim, effect.low, effect.high):
        return Outcome.HELD
    apart = effect.high < claim.least or effect.low > claim.most
    return Outcome.REFUTED if apart else Outcome.OPEN


def _analyse_arm(
    result: CompareResult, metric: MetricResult, arm: str, of_controls: float
) -> ArmAnalysis:
    role, limit = result.roles[arm], limit_of(result)
    samples = metric.samples.get(arm, [])
    confidence = of_controls if role == "control" else CONFIDENCE

    def compared_to(other: str) -> Comparison:
        theirs = metric.samples.get(other, [])
        if not samples or not theirs:
            return Comparison(Verdict.TOO_FEW, 0, confidence)
        return compare(theirs, samples, metric.better, metric.unit, confidence, result.boots)

    baseline = None if role == "baseline" else compared_to(result.baseline)
    apart = None
    if role == "control" and baseline and baseline.ratio:
        theirs = metric.samples[result.baseline]
        apart = compare_differences(theirs, samples, metric.better, confidence, result.boots)
    return ArmAnalysis(
        name=arm,
        role=role,
        samples=samples,
        summary=summarise(samples),
        baseline=baseline,
        limit=compared_to(limit) if limit and role == "treatment" else None,
        by_difference=apart,
    )


def document(result: CompareResult) -> dict[str, Any]:
    """Return the JSON document of an analysis: per metric and arm, without samples."""
    rest = {
        "experiment": result.experiment,
        "title": result.title,
        "created": result.created,
        "baseline": result.baseline,
        "limit": limit_of(result),
        "boots": result.boots,
        "control_failed": control_failed(result),
        "outcome": dataclasses.asdict(result.outcome) if result.outcome else None,
        "claims": [
            dataclasses.asdict(found.claim)
            | {
                "outcome": found.outcome,
                "comparison": dataclasses.asdict(found.comparison) if found.comparison else None,
                "beyond": found.beyond,
                "from_bounds": [dataclasses.asdict(bound) for bound in found.from_bounds],
            }
            for found in judge_claims(result)
        ],
        "metrics": {
            metric.name: {
                "unit": metric.metric.unit,
                "better": metric.metric.better,
                "arms": {arm.name: _arm_to_json(arm) for arm in metric.arms},
            }
            for metric in analyse(result)
        },
    }
    return headed(SCHEMA, VERSION, rest)


def _arm_to_json(arm: ArmAnalysis) -> dict[str, Any]:
    figures = dataclasses.asdict(arm)
    del figures["name"], figures["samples"], figures["by_difference"]
    return figures
