# SPDX-License-Identifier: GPL-2.0-only
"""How verdicts are said, in sentences a stranger understands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lightsleep import units
from lightsleep.compare.analysis import ArmAnalysis, MetricAnalysis
from lightsleep.compare.method import Comparison, Estimate, Summary, Verdict
from lightsleep.order import CONFIDENCE

MARKS = {
    Verdict.BETTER: "✔",
    Verdict.WORSE: "✘",
    Verdict.HIGHER: "↑",
    Verdict.LOWER: "↓",
    Verdict.SAME: "=",
    Verdict.TOO_FEW: "?",
}

# unit -> what a smaller and what a larger value is called; "lower", "higher" for all others
ADVERBS = {
    **dict.fromkeys(("s", "ms", "us", "µs", "ns"), ("faster", "slower")),
    "": ("fewer", "more"),
}


def falls_short(summary: Summary) -> bool:
    """Whether there are too few samples for the interval to reach 95 %."""
    return summary.confidence < CONFIDENCE


def confidence(summary: Summary) -> str:
    """Return the confidence really reached: 93.75 % (n=5)."""
    return f"{100 * summary.confidence:.4g} % (n={summary.n})"


def effect(comparison: Comparison, unit: str) -> str:
    """Return the size of an effect in short: 6.12 × faster; empty where there is none to state."""
    factor, difference = _factor(comparison), comparison.difference
    if difference is None:
        return ""
    if factor is None or unit == "%":
        number = units.digits(abs(difference.value), unit, points=True)
        amount = f"{number} points" if unit == "%" else f"{number} {unit}".rstrip()
    else:
        amount = f"{units.factor(factor.value)} ×"
    return f"{amount} {_adverb(comparison, unit)}"


def effect_interval(comparison: Comparison, unit: str) -> str:
    """Return the 95 % interval of what effect() says."""
    factor, difference = _factor(comparison), comparison.difference
    if difference is None:
        return ""
    if factor is None or unit == "%":
        low, high = difference.low, difference.high
        if difference.value < 0:
            low, high = -high, -low
        ends, sign = [units.digits(end, unit, points=True) for end in (low, high)], unit
    else:
        ends, sign = [units.factor(end) for end in (factor.low, factor.high)], "×"
    return f"{ends[0]} to {ends[1]} {sign.replace('%', 'points')}".rstrip()


def sentence(arm: str, comparison: Comparison, other: str, unit: str) -> str:
    """Say one verdict in words, without naming the metric."""
    match comparison.verdict:
        case Verdict.TOO_FEW:
            return f"too few samples to compare {arm} with {other}"
        case Verdict.SAME:
            return f"no difference shown between {arm} and {other}"
    amount = effect(comparison, unit).replace("×", "times")
    interval = effect_interval(comparison, unit).removesuffix(" ×")
    verb = "has" if unit == "" else "is"
    return f"{arm} {verb} {amount} than {other} (95 % CI {interval})"


def sentences(metric: MetricAnalysis, baseline: str, limit: str | None) -> list[str]:
    """Say what a metric showed of every treatment, compared to the baseline and to the limit."""
    unit, said = metric.metric.unit, []
    for arm in metric.arms_as("treatment"):
        if arm.baseline:
            said.append(sentence(arm.name, arm.baseline, baseline, unit))
        if arm.limit and limit:
            said.append(sentence(arm.name, arm.limit, limit, unit))
    return said


def control_sentences(metrics: Sequence[MetricAnalysis], baseline: str) -> list[tuple[bool, str]]:
    """Judge the negative controls: (all is well, what to say), a warning for each difference."""
    controls = [(metric, arm) for metric in metrics for arm in metric.arms_as("control")]
    said = [
        (
            False,
            f"{metric.metric.title}: "
            f"{sentence(arm.name, arm.baseline, baseline, metric.metric.unit)}, although nothing "
            "differs between them: do not trust this metric here",
        )
        for metric, arm in controls
        if arm.baseline and arm.baseline.verdict.differs
    ]
    few = [m.metric.title for m, arm in controls if _verdict(arm) is Verdict.TOO_FEW]
    if few:
        said.append((False, f"too few samples to judge {_list(few)}"))
    same = [m.metric.title for m, arm in controls if _verdict(arm) is Verdict.SAME]
    if same:
        rest = f" in {_list(same)}" if said else ""
        said.append((True, f"no difference shown{rest}, as it must be"))
    return said


def _verdict(arm: ArmAnalysis) -> Verdict | None:
    return arm.baseline.verdict if arm.baseline else None


def _list(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))


def _adverb(comparison: Comparison, unit: str) -> str:
    assert comparison.difference
    smaller, larger = ADVERBS.get(unit, ("lower", "higher"))
    return smaller if comparison.difference.value < 0 else larger


def _factor(comparison: Comparison) -> Estimate | None:
    """Return by what factor the values differ, at least 1: "5 times slower", never 0.2."""
    ratio = comparison.ratio
    return ratio.inverse() if ratio and ratio.value < 1 else ratio
