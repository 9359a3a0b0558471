# SPDX-License-Identifier: GPL-2.0-only
"""How effects, verdicts and claims are said, in sentences a stranger understands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from lightsleep import cpulist, units
from lightsleep.compare.analysis import (
    ClaimAnalysis,
    MetricAnalysis,
    Outcome,
)
from lightsleep.compare.method import Comparison, Estimate, Summary, Verdict, rounds_needed
from lightsleep.compare.result import Claim, CompareResult, MetricResult
from lightsleep.order import CONFIDENCE

MARKS = {
    Verdict.BETTER: "✔",
    Verdict.WORSE: "✘",
    Verdict.HIGHER: "↑",
    Verdict.LOWER: "↓",
    Verdict.SAME: "=",
    Verdict.TOO_FEW: "?",
}

OUTCOMES = {Outcome.HELD: "✔", Outcome.REFUTED: "✘", Outcome.OPEN: "?"}

DETECTABLE = (
    "none shown (12 %): with this noise and as many rounds, a difference of 12 % is shown in about "
    "8 of 10 comparisons"
)
POSSIBLE = "the interval of an effect says which differences remain possible"

DAGGER = "†"
COULD_BE_MISSED = (
    f"{DAGGER} shown, but smaller than what the control could have missed: arms that are set "
    "up alike may differ as much without the control showing it"
)

QUIET_PCT = 5.0
"""Above this share of other work on the host, samples scatter visibly."""

OF_WHAT = "of as much CPU time as the guests can use"
"""What such a share is of."""

FEW_METRICS = 8
"""So many can be named in one sentence."""

MANY = 20
"""So many comparisons show a difference by chance once on average."""

MOST_TOLD = 10.0
"""Above this factor, what a comparison could have shown is no news: it could have shown nothing."""

PERCENTS = 1.245
"""Below this factor, up and down are about the same in per cent."""

COUNTS = "tcg-icount"
"""The accelerator whose clock counts instructions."""

NO_DIFFERENCE = "no difference"
NOT_CLAIMED = "No claim was declared beforehand"
NO_SPREAD = "none seen"
BOOT_SPREAD = (
    "boot to boot: how far the effect against the baseline differs between boots, beyond what "
    "rounds explain"
)
ARM_ALONE = "the interval of one arm is about these boots, that of a comparison about any boot"


def arms(result: CompareResult) -> list[tuple[str, str]]:
    """Return each arm and what it is; nothing for arms that the result does not describe."""
    guests = result.environment.get("guests", {})
    found = [(arm, guests.get(arm, {}).get("description")) for arm in result.arms]
    # An older lightsleep said whose kernel it was, whatever kernel the command line named.
    return [
        (arm, said.replace("the distribution's kernel", "the kernel"))
        for arm, said in found
        if isinstance(said, str) and said
    ]


def falls_short(summary: Summary) -> bool:
    """Whether there are too few samples for the interval to reach 95 %."""
    return summary.confidence < CONFIDENCE


def confidence(summary: Summary) -> str:
    """Return the confidence really reached: 93.75 % (n=5)."""
    return f"{100 * summary.confidence:.4g} % (n={summary.n})"


def effect(comparison: Comparison, metric: MetricResult) -> str:
    """Return the size of an effect in short: 6.12 × faster; empty where there is none to state."""
    found = comparison.effect
    if found is None:
        return ""
    if found.value == (1 if comparison.ratio else 0):
        return NO_DIFFERENCE
    if comparison.ratio:
        amount = f"{units.factor(_factor(comparison.ratio).value)} ×"
    else:
        amount = _amount(abs(found.value), metric.unit)
    return f"{amount} {_adverb(comparison, metric)}"


def effect_interval(comparison: Comparison, unit: str) -> str:
    """Return the interval of what effect() says: 95 % CI 5.80 to 6.31 ×."""
    found = comparison.effect
    if found is None:
        return ""
    if comparison.ratio:
        factor = _factor(comparison.ratio)
        ends, sign = [units.factor(end) for end in (factor.low, factor.high)], "×"
    else:
        low, high = (found.low, found.high) if found.value >= 0 else (-found.high, -found.low)
        ends = [units.digits(end, unit, points=True) for end in (low, high)]
        sign = "points" if unit == "%" else unit
    level = f"{100 * comparison.confidence:.3g} % CI"
    return f"{level} {ends[0]} to {ends[1]} {sign}".rstrip()


def detectable(comparison: Comparison, unit: str) -> str:
    """Return the smallest difference that would have been shown: 12 %, or over 10 ×.

    It is empty where none is known: where all rounds are equal there is no noise to know it from.
    """
    least = comparison.detectable
    if comparison.ratio and least and least > MOST_TOLD:
        return f"over {MOST_TOLD:g} ×"
    if comparison.ratio and least and least > 1:
        return _percent_or_factor(least)
    return _amount(least, unit) if comparison.difference and least else ""


def boot_spread(comparison: Comparison | None, unit: str) -> str:
    """Return how far boots differ, as a standard deviation: 4.1 %; empty where there was one."""
    if comparison is None or comparison.boot_spread is None:
        return ""
    if comparison.ratio:
        if comparison.boot_spread <= 1.0005:
            return NO_SPREAD
        return _percent_or_factor(comparison.boot_spread)
    return _amount(comparison.boot_spread, unit) if comparison.boot_spread else NO_SPREAD


def clocks(result: CompareResult) -> str:
    """Say by whose clock times are; empty where nothing was recorded of it."""
    rates = [x for boots in result.protocol.get("clock_rates", {}).values() for x in boots]
    if not rates:
        return ""
    return (
        f"times are by the host's clock; the guests' own ran {min(rates):.3f} to {max(rates):.3f} "
        "times as fast"
    )


def disturbed(result: CompareResult) -> str:
    """Say which turns the host disturbed by other work; empty where none, or nothing was recorded.

    It is a share of the CPUs that the lab was allowed to use, or of as many as the guests could,
    and never above 100 %. In an older result, it is one of all CPUs, which may be more than the
    guests could use, or only the mean of all turns. A clock that counts instructions stands still
    while the host does something else.
    """
    if result.environment.get("accelerator", {}).get("name") == COUNTS:
        return ""
    loads = result.protocol.get("other_load_pct", {})
    turns = [(pct, arm, n) for arm, each in loads.items() for n, pct in enumerate(each, 1)]
    if not turns:
        mean_pct = result.environment.get("host", {}).get("other_load_pct") or 0.0
        if mean_pct <= QUIET_PCT:
            return ""
        return f"other work took {mean_pct:.0f} % or more {OF_WHAT}"
    above = [turn for turn in turns if turn[0] > QUIET_PCT]
    if not above:
        return ""
    pct, arm, number = max(above)
    return (
        f"in {len(above)} of {len(turns)} turns other work took over {QUIET_PCT:g} % {OF_WHAT}, "
        f"{pct:.0f} % or more in the worst ({arm}, round {number})"
    )


def _listed(rounds: Sequence[int]) -> str:
    """Return rounds as 2, 4-6: CPU lists are written like that."""
    return cpulist.format(rounds).replace(",", ", ")


def paused(result: CompareResult) -> str:
    """Say in which rounds guests found their host short of cores; empty where none did, or told."""
    found = [
        f"{arm} in {len(rounds)} of {len(cpus)} rounds ({_listed(rounds)})"
        for arm, cpus in result.protocol.get("paused_cpus", {}).items()
        if (rounds := [number for number, paused in enumerate(cpus, 1) if paused])
    ]
    if not found:
        return ""
    return f"{'; '.join(found)}. CPUs do not poll for a while then, except in mode fixed"


def finding(comparison: Comparison, metric: MetricResult) -> str:
    """Say a comparison in short: the effect, or that none was shown and what would have been."""
    if comparison.verdict.differs:
        return effect(comparison, metric)
    least = detectable(comparison, metric.unit)
    if comparison.verdict is Verdict.TOO_FEW and not comparison.rounds:
        return "no samples"
    return f"none shown ({least})" if least else str(comparison.verdict)


def with_interval(comparison: Comparison, metric: MetricResult) -> str:
    """Say a comparison as finding() does, and the interval of its effect.

    Where no difference is shown, the effect as well; only the finding where no round differs.
    """
    said = finding(comparison, metric)
    if comparison.verdict.differs:
        return f"{said} ({effect_interval(comparison, metric.unit)})"
    possible = _possible(comparison, metric)
    return f"{said}: {possible}" if possible else said


def _possible(comparison: Comparison, metric: MetricResult) -> str:
    """Say an effect that is not shown, and its interval; empty where no round differs."""
    found = comparison.effect
    if found is None or found.low == found.high:
        return ""
    amount, interval = effect(comparison, metric), effect_interval(comparison, metric.unit)
    return interval if amount == NO_DIFFERENCE else f"{amount}, {interval}"


def dagger(found: MetricAnalysis | ClaimAnalysis, comparison: Comparison | None) -> str:
    """Return the mark of a difference that a control could have missed; empty where it is none."""
    return f" {DAGGER}" if found.could_be_missed(comparison) else ""


def has_dagger(metrics: Iterable[MetricAnalysis], claims: Iterable[ClaimAnalysis]) -> bool:
    """Whether the tables or what is said of the claims have such a mark."""
    of_claims = any(claim.could_be_missed(claim.comparison) for claim in claims)
    return of_claims or any(
        metric.could_be_missed(found)
        for metric in metrics
        for arm in metric.arms
        if arm.role != "control"
        for found in (arm.baseline, arm.limit)
    )


def sentence(
    arm: str, comparison: Comparison, other: str, metric: MetricResult, mark: str = ""
) -> str:
    """Say one verdict in words, without naming the metric; ``mark`` stands behind a difference."""
    unit = metric.unit
    match comparison.verdict:
        case Verdict.TOO_FEW if not comparison.rounds:
            return f"{arm} cannot be compared with {other}: one of them has no samples"
        case Verdict.TOO_FEW:
            needed = rounds_needed(comparison.confidence)
            return (
                f"too few rounds to compare {arm} with {other}: {comparison.rounds}, and {needed} "
                "are needed"
            )
        case Verdict.SAME:
            least = detectable(comparison, unit)
            possible = _possible(comparison, metric).removesuffix(" ×").replace("×", "times")
            found = f" ({possible})" if possible else ""
            more = f"; about 8 of 10 such comparisons show one of {least}" if least else ""
            return f"no difference shown between {arm} and {other}{found}{more}"
    amount = effect(comparison, metric).replace("×", "times")
    interval = effect_interval(comparison, unit).removesuffix(" ×")
    verb = "has" if unit == "" else "is"
    return f"{arm} {verb} {amount} than {other} ({interval}){mark}"


def sentences(metric: MetricAnalysis, baseline: str, limit: str | None) -> list[str]:
    """Say what a metric showed of every treatment, compared to the baseline and to the limit."""
    said = []
    for arm in metric.arms_as("treatment"):
        for found, other in ((arm.baseline, baseline), (arm.limit, limit)):
            if found and other:
                mark = dagger(metric, found)
                said.append(sentence(arm.name, found, other, metric.metric, mark))
    return said + contrary_medians(metric, baseline, limit)


def contrary_medians(metric: MetricAnalysis, baseline: str, limit: str | None) -> list[str]:
    """Say where medians go another way than a difference that is shown, arm by arm."""
    said = [
        contrary_median(metric, arm.name, comparison, other)
        for arm in metric.arms
        for comparison, other in ((arm.baseline, baseline), (arm.limit, limit))
        if comparison and other
    ]
    return [x for x in said if x]


def contrary_median(metric: MetricAnalysis, arm: str, comparison: Comparison, other: str) -> str:
    """Say that the medians of two arms go another way than the difference that is shown.

    Empty where they do not, or are the same in the digits that are shown.
    """
    effect, summaries = comparison.effect, {x.name: x.summary for x in metric.arms}
    ours, theirs = summaries[arm], summaries[other]
    if not (comparison.verdict.differs and effect and ours and theirs):
        return ""
    is_higher = effect.value > (1 if comparison.ratio else 0)
    shown = [units.value(x.median, metric.metric.unit) for x in (ours, theirs)]
    if shown[0] == shown[1] or is_higher == (ours.median > theirs.median):
        return ""
    way = "lower" if is_higher else "higher"
    return (
        f"Yet the median of {arm} is {way} than that of {other} ({' and '.join(shown)}): arms are "
        "compared round by round, and a median is of one arm alone"
    )


def control_sentences(metrics: Sequence[MetricAnalysis], baseline: str) -> list[tuple[bool, str]]:
    """Judge the negative controls: (all is well, what to say), a warning for each difference."""
    controls = [
        (metric.metric, arm.name, arm.baseline)
        for metric in metrics
        for arm in metric.arms_as("control")
        if arm.baseline
    ]
    said = [
        (
            False,
            f"{metric.title}: {sentence(arm, found, baseline, metric)}, although nothing "
            "tells them apart: a difference of this size says nothing in this comparison, "
            "repeat it",
        )
        for metric, arm, found in controls
        if found.verdict.differs
    ]
    few = [(metric, found) for metric, _, found in controls if found.verdict is Verdict.TOO_FEW]
    if empty := [metric for metric, found in few if not found.rounds]:
        said.append((False, f"no samples to judge {_list(metric.title for metric in empty)}"))
        few = [(metric, found) for metric, found in few if found.rounds]
    if few:
        _, found = few[0]
        # Those in which no round differs do not count: see control_confidence().
        compared = max(1, round((1 - CONFIDENCE) / (1 - found.confidence)))
        what = "it" if len(few) == len(controls) else _list(metric.title for metric, _ in few)
        said.append(
            (
                False,
                f"too few rounds to judge {what}: {found.rounds}, and "
                f"{rounds_needed(found.confidence)} are needed for "
                f"{units.counted(compared, 'comparison')} without false alarms",
            )
        )
    same = [(metric, found) for metric, _, found in controls if found.verdict is Verdict.SAME]
    if same:
        rest = f" in {_list(metric.title for metric, _ in same)}" if said else ""
        said.append((True, f"no difference shown{rest}, as it must be{_missed(same)}"))
    return said


def _missed(controls: Sequence[tuple[MetricResult, Comparison]]) -> str:
    """Say which difference a control misses in about 2 of 10 comparisons."""
    if len(controls) > FEW_METRICS:
        return "; the differences that it could have missed are in the tables"
    # Where there are several controls, the one that could have missed most.
    ordered = sorted(controls, key=lambda control: control[1].detectable or 0)
    least = {metric.title: detectable(found, metric.unit) for metric, found in ordered}
    noisy = [f"{amount} in {title}" for title, amount in least.items() if amount]
    return f"; about 2 of 10 such comparisons miss one of {', '.join(noisy)}" if noisy else ""


def together(metrics: Sequence[MetricResult]) -> str:
    """Name several metrics: randread, randwrite and randrw, a disk that answers at once.

    What they have in common stands behind the last comma of each title.
    """
    parts = [metric.title.rpartition(", ") for metric in metrics]
    if len({tail for _, _, tail in parts}) > 1:
        parts = [("", "", metric.title) for metric in metrics]
    heads = list(dict.fromkeys(_in_a_list(head or tail) for head, _, tail in parts))
    last = " and ".join([", ".join(heads[:-1]), heads[-1]] if len(heads) > 1 else heads)
    return f"{last}, {parts[0][2]}" if parts[0][0] else last


def _in_a_list(title: str) -> str:
    """Return a title without commas of its own: Unbound (a DNS server)."""
    name, comma, what = title.partition(", ")
    return f"{name} ({what})" if comma else name


def claim(found: Claim, metrics: Sequence[MetricResult]) -> str:
    """Say what was claimed: Pipe: lightsleep / idle=poll is at most 1.25."""
    title = together(metrics)
    if found.is_gain:
        return f"{title}: {found.arm} is better than {found.reference}"
    return f"{title}: {bounds_of(found, metrics[0].unit)}"


def bounds_of(found: Claim, unit: str) -> str:
    """Say which bounds are claimed: lightsleep / idle=poll is at most 1.25."""
    percent = unit == "%"
    if found.reference is None:
        return f"{found.arm} is {_ends_of(found, unit)} in each round"
    bounds = [
        f"at {which} {bound:.6g}{' points' if percent else ''}"
        for which, bound in (("least", found.at_least), ("most", found.at_most))
        if bound is not None
    ]
    quantity = f"{found.arm} {'-' if percent else '/'} {found.reference}"
    return f"{quantity} is {' and '.join(bounds)}"


def as_one(metrics: Sequence[MetricResult], unit: str) -> MetricResult:
    """Return what metrics of one claim are together."""
    amount = any(metric.amount for metric in metrics)
    return replace(metrics[0], title=together(metrics), unit=unit, samples={}, amount=amount)


def outcome(found: ClaimAnalysis) -> str:
    """Say what came of a claim, with the figure that decides it."""
    comparison = found.comparison
    if found.claim.reference is None:
        return f"{found.outcome}: {_beyond_bounds(found)}"
    if comparison is None or comparison.effect is None:
        arms = (found.claim.arm, found.claim.reference)
        if empty := [arm for arm in arms if not all(x.samples.get(arm) for x in found.metrics)]:
            return f"{found.outcome}: {empty[0]} has no samples"
    if comparison is None:
        return f"{found.outcome}: a sample is not positive, so there is no ratio"
    if comparison.effect is None:
        rounds = units.counted(comparison.rounds, "round")
        needed = rounds_needed(comparison.confidence)
        return f"{found.outcome}: {rounds}, and {needed} are needed"
    mark = dagger(found, comparison)
    if found.claim.is_gain:
        said = with_interval(comparison, as_one(found.metrics, found.unit))
        return f"{found.outcome}: {said}{mark}"
    if found.from_bounds:
        return f"{found.outcome}: {_from_bounds(found)}{mark}"
    ends = comparison.effect
    if comparison.ratio:
        low, value, high = _beside_bounds(found.claim, ends, units.factor)
        return f"{found.outcome}: {value} (95 % CI {low} to {high}){mark}"
    low, value, high = _beside_bounds(
        found.claim, ends, partial(units.digits, unit=found.unit, points=True)
    )
    return f"{found.outcome}: {value} points (95 % CI {low} to {high}){mark}"


def _beside_bounds(
    claim: Claim, ends: Estimate, said: Callable[[float], str]
) -> tuple[str, str, str]:
    """Say an interval's low end, its value and its high end, so that they agree with a verdict."""
    low, high = (
        units.beside(end, said(end), (claim.least, claim.most)) for end in (ends.low, ends.high)
    )
    return low, said(ends.value), high


def _from_bounds(found: ClaimAnalysis) -> str:
    """Say by which differences bounds were judged: lightsleep - 0.1 x stock is -3.6 (...)."""
    claim, unit = found.claim, found.unit
    said = []
    for bound in found.from_bounds:
        ends = bound.difference
        low, value, high = (units.digits(end, unit) for end in (ends.low, ends.value, ends.high))
        said.append(
            f"{claim.arm} - {bound.bound:.4g} × {claim.reference} is {value} {unit}".rstrip()
            + f" (95 % CI {low} to {high})"
        )
    return f"a sample is 0, so differences were judged: {'; '.join(said)}"


def _beyond_bounds(found: ClaimAnalysis) -> str:
    (metric,), claim = found.metrics, found.claim
    samples = metric.samples.get(claim.arm, [])
    if not samples:
        return f"{claim.arm} has no samples"
    if not found.beyond:
        return f"in all of {len(samples)} rounds" if len(samples) > 1 else "in the only round"
    rounds = units.counted(len(samples), "round")
    return f"beyond in {len(found.beyond)} of {rounds}, {_span(found, found.beyond)}"


def of_rounds(found: ClaimAnalysis) -> str:
    """Say what came of a claim without a reference: Period: off is 2.00 to 3.10 us in all of ...

    Where it is refuted, the rounds that refute it are told; else all of them.
    """
    (metric,), claim = found.metrics, found.claim
    samples = metric.samples.get(claim.arm, [])
    claimed = f"claimed: {_ends_of(claim, metric.unit)} in each round: {found.outcome}"
    if not samples:
        return f"{metric.title}: {claim.arm} has no samples; {claimed}"
    rounds = units.counted(len(samples), "round")
    those = f"all of {rounds}" if len(samples) > 1 else "the only round"
    if found.beyond:
        those = f"{len(found.beyond)} of {rounds}"
    verb = "has" if metric.unit == "" else "is"
    values = _span(found, found.beyond or samples)
    return f"{metric.title}: {claim.arm} {verb} {values} in {those}; {claimed}"


def _ends_of(claim: Claim, unit: str) -> str:
    """Say the bounds of a metric itself: at least 2 us and at most 3 us."""
    return " and ".join(
        f"at {which} {units.value(bound, unit)}"
        for which, bound in (("least", claim.at_least), ("most", claim.at_most))
        if bound is not None
    )


def _span(found: ClaimAnalysis, samples: Sequence[float]) -> str:
    """Say the least and the largest of samples, so that they agree with the claim's bounds."""
    (metric,), claim = found.metrics, found.claim
    low, high = (
        units.beside(x, units.digits(x, metric.unit), (claim.least, claim.most))
        for x in (min(samples), max(samples))
    )
    return f"{low if low == high else f'{low} to {high}'} {metric.unit}".rstrip()


def by_chance(metrics: Sequence[MetricAnalysis], *, claimed: bool) -> str:
    """Say how many differences to expect where there are none; empty where hardly any.

    ``claimed`` says that something was claimed before the run.
    """
    found = [
        comparison
        for metric in metrics
        for arm in metric.arms_as("treatment")
        for comparison in (arm.baseline, arm.limit)
        if comparison and comparison.effect
    ]
    if len(found) < MANY:
        return ""
    expected = round(len(found) * (1 - CONFIDENCE))
    sure = f"{100 * CONFIDENCE:.0f} %"
    return (
        f"{len(found)} comparisons at {sure} each: where nothing differs, about {expected} of them "
        "show a difference by chance, on average"
        f"{'. What was claimed was chosen beforehand' if claimed else ''}"
    )


def _list(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))


def _adverb(comparison: Comparison, metric: MetricResult) -> str:
    smaller, larger = "lower", "higher"
    if metric.unit in units.TIMES and metric.better == "lower" and not metric.amount:
        smaller, larger = "faster", "slower"
    elif metric.unit == "":
        smaller, larger = "fewer", "more"
    if comparison.ratio:
        return smaller if comparison.ratio.value < 1 else larger
    return smaller if comparison.difference and comparison.difference.value < 0 else larger


def _factor(ratio: Estimate) -> Estimate:
    """Return by what factor values differ, at least 1: "5 times slower", never 0.2."""
    return ratio.inverse() if ratio.value < 1 else ratio


def _percent_or_factor(factor: float) -> str:
    return f"{100 * (factor - 1):.2g} %" if factor < PERCENTS else f"{units.factor(factor)} ×"


def _amount(number: float, unit: str) -> str:
    said = units.digits(number, unit, points=True)
    return f"{said} points" if unit == "%" else f"{said} {unit}".rstrip()
