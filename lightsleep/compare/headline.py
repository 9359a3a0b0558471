# SPDX-License-Identifier: GPL-2.0-only
"""What came out of a comparison, in a few sentences."""

from collections.abc import Sequence

from lightsleep import units
from lightsleep.compare import words
from lightsleep.compare.analysis import (
    ClaimAnalysis,
    MetricAnalysis,
    Outcome,
    judge_claims,
    limit_of,
)
from lightsleep.compare.result import CompareResult

TOLD = (Outcome.REFUTED, Outcome.HELD, Outcome.OPEN)
"""Which outcome of a claim with bounds is told first."""


def headline(result: CompareResult, metrics: Sequence[MetricAnalysis]) -> str:
    """Return what came out in a few sentences; empty where nothing was measured.

    Of a trial, its outcome. Else the first claim of a gain, whatever came of it. Where no gain is
    claimed, the first claim that is refuted, else the first that held, else the first.
    Without claims, what the first treatment makes of the first metric. Without treatments, the
    baseline's lowest and highest median. Where the medians go another way, that. Then what came of
    all claims, or that none was declared; then the first percentage that something is claimed of,
    arm by arm; then how much all of it is worth.
    """
    if result.outcome:
        return result.outcome.sentence
    claims = judge_claims(result)
    said = _first_finding(result, claims, metrics) or _ends(result, metrics)
    if not said:
        return ""
    if counted := _count(claims, said):
        said += f" {counted}"
    percents = [
        name for found in claims for name in found.claim.metrics if result.metrics[name].unit == "%"
    ]
    if percents:
        said += f" {_medians(result, next(m for m in metrics if m.name == percents[0]))}"
    return f"{said} {_weight(result)}"


def _count(claims: Sequence[ClaimAnalysis], said: str) -> str:
    """Say how many claims are refuted, and how many not decided; empty where ``said`` ends so."""
    if not claims:
        return f"{words.NOT_CLAIMED}."
    counts = {
        outcome: sum(found.outcome is outcome for found in claims)
        for outcome in (Outcome.REFUTED, Outcome.OPEN)
    }
    found = [f"{n} {'is' if n == 1 else 'are'} {outcome}" for outcome, n in counts.items() if n]
    if len(claims) > 1:
        return f"Of {len(claims)} claims, {' and '.join(found)}." if found else "All claims held."
    outcome = claims[0].outcome
    held = outcome is Outcome.HELD
    return "" if held or said.endswith(f": {outcome}.") else f"The claim is {outcome}."


def _first_finding(
    result: CompareResult, claims: Sequence[ClaimAnalysis], metrics: Sequence[MetricAnalysis]
) -> str:
    gains = [x for x in claims if x.comparison and x.claim.is_gain]
    if gains:
        return _of_claim(gains[0], metrics)
    told = [x for x in claims if x.comparison or x.claim.reference is None]
    if not told:
        return _of_first_treatment(result, metrics)
    found = min(told, key=lambda x: TOLD.index(x.outcome))
    if found.claim.reference is None:
        return f"{words.of_rounds(found)}."
    claimed = f"; claimed: {words.bounds_of(found.claim, found.unit)}: {found.outcome}"
    return _of_claim(found, metrics, claimed)


def _of_claim(found: ClaimAnalysis, metrics: Sequence[MetricAnalysis], claimed: str = "") -> str:
    """Say how the arms of a claim compare, and then what was ``claimed``."""
    assert found.comparison
    assert found.claim.reference
    arm, other = found.claim.arm, found.claim.reference
    metric = words.as_one(found.metrics, found.unit)
    mark = words.dagger(found, found.comparison)
    said = words.sentence(arm, found.comparison, other, metric, mark)
    contrary = ""
    if len(found.metrics) == 1:
        (one,) = (x for x in metrics if x.name == found.claim.metrics[0])
        contrary = words.contrary_median(one, arm, found.comparison, other)
    return _with_contrary(f"{metric.title}: {said}{claimed}.", contrary)


def _of_first_treatment(result: CompareResult, metrics: Sequence[MetricAnalysis]) -> str:
    """Say what the first treatment makes of the first metric; empty without one of them."""
    for metric in metrics[:1]:
        for arm in metric.arms_as("treatment")[:1]:
            if arm.baseline:
                mark = words.dagger(metric, arm.baseline)
                said = words.sentence(arm.name, arm.baseline, result.baseline, metric.metric, mark)
                contrary = words.contrary_median(metric, arm.name, arm.baseline, result.baseline)
                return _with_contrary(f"{metric.metric.title}: {said}.", contrary)
    return ""


def _with_contrary(said: str, contrary: str) -> str:
    return f"{said} {contrary}." if contrary else said


def _ends(result: CompareResult, metrics: Sequence[MetricAnalysis]) -> str:
    """Say the lowest and the highest median of the baseline, in the unit of the first metric."""
    found = [
        (arm.summary.median, metric.metric)
        for metric in metrics
        for arm in metric.arms_as("baseline")
        if arm.summary and metric.metric.unit == metrics[0].metric.unit
    ]
    if not found or any(arm for metric in metrics for arm in metric.arms_as("treatment")):
        return ""
    found.sort(key=lambda x: x[0])
    said = [
        f"{metric.title}: {result.baseline} {units.value(median, metric.unit)}"
        for median, metric in (found[:1] + found[1:][-1:])
    ]
    return f"{'; '.join(said)}."


def _medians(result: CompareResult, metric: MetricAnalysis) -> str:
    """Say a metric's medians: those of the treatments, and of the limit or else the baseline."""
    named = {arm.name: arm for arm in metric.arms}
    shown = [*metric.arms_as("treatment"), named[limit_of(result) or result.baseline]]
    figures = [
        f"{arm.name} {units.value(arm.summary.median, metric.metric.unit)}"
        for arm in shown
        if arm.summary
    ]
    return f"{metric.metric.title}: {', '.join(figures)}." if figures else ""


def _weight(result: CompareResult) -> str:
    name = str(result.environment.get("accelerator", {}).get("name", ""))
    how = "Emulated" if name.startswith("tcg") else f"Under {name.upper()}" if name else "Measured"
    rounds = f"{how}, {units.counted(result.protocol['runs'], 'round')}"
    if result.boots > 1:
        return f"{rounds} in {result.boots} boots."
    if name:
        return f"{rounds}. Each guest was booted once: intervals are about these boots."
    return f"{rounds}."
