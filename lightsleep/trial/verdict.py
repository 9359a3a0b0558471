# SPDX-License-Identifier: GPL-2.0-only
"""Which setting wins, in one sentence: what it gains, and what it costs.

The first metric decides: the first that the command prints, else its wall time. A service that runs
on has no wall time: without a number of its own, there is no winner. The winner is the
setting with the largest gain among those that are shown to be better than as-is. The method is that
of every comparison (lightsleep/compare/method.py). Where the metric has the same value in all
samples, it tells nothing, and there is no winner. Where none is shown to be better, there is no
winner, and the sentence says how small a gain could have been shown. Where runs or periods were so
short that lightsleep's driver was still learning, it says that, too: the driver is loaded for each.
If it was active before, it stays loaded instead, and each begins with what the driver learned under
other parameters.

Of several settings that do nothing, one may look better by chance. So each of them is compared with
a confidence with which all of them together raise a false alarm in at most 1 of 20 trials
(Bonferroni), as controls are in their metrics. And there is no winner where the control could
not be judged: it must be able to show that the trial proves nothing.

What it costs is told of CPU time and energy where a difference is shown. The time polled is always
told, beside that of as-is, which may poll as well.
"""

import statistics
from collections.abc import Sequence

from lightsleep import units
from lightsleep.compare import method, words
from lightsleep.compare.analysis import ArmAnalysis, MetricAnalysis, analyse, control_failed
from lightsleep.compare.method import Verdict
from lightsleep.compare.result import CompareResult, TrialOutcome
from lightsleep.order import CONFIDENCE
from lightsleep.scan.facts import LIGHTSLEEP_DRIVER
from lightsleep.trial.metrics import is_printed

USED = ("cpu_s", "busy_s", "busy_pct", "energy_J", "power_W")
MOST_COUNTED = 18
"""Metrics that the machine counts: the time in each idle state, of which a driver has 10 at most
(CPUIDLE_STATE_MAX), and eight more."""

LEARNS_S = 5.0
"""In shorter runs, the driver's adaptive mode learns for a good part of the time. What a halt costs
the programs is known after 64 comparisons, 0.8 s for 100 us at the earliest
(kernel/drivers/cpuidle/wake_cost.c), and counts from the next evaluation on, one a second; then the
limit follows, by steps."""

COSTS = (*USED, "stolen_s", "stolen_pct")


def judge(result: CompareResult) -> TrialOutcome:
    """Return which setting of a trial won."""
    metrics = analyse(result)
    first = metrics[0]
    if control_failed(result):
        return TrialOutcome(
            None,
            f"{result.baseline} differs from itself, so this trial proves nothing. Repeat it on a "
            "quieter machine, with more rounds, or with longer runs.",
        )
    if first.metric.better == "none":
        return TrialOutcome(
            None,
            "No metric tells how well the service ran, so no setting wins. Name a number of it "
            f"with --metric-command and --metric. Keep {result.baseline}.",
        )
    values = {x for samples in first.metric.samples.values() for x in samples}
    if len(values) == 1:
        sample = "run" if result.protocol.get("switchback_s") is None else "period"
        return TrialOutcome(
            None,
            f"{first.metric.title} was {units.value(values.pop(), first.metric.unit)} in every "
            f"{sample}, so it cannot tell settings apart. Keep {result.baseline}, and see what "
            "--metric matches.",
        )
    found = {
        arm.name: _among_all(result, arm)
        for arm in first.arms_as("treatment")
        if arm.baseline and arm.baseline.verdict is not Verdict.TOO_FEW
    }
    better = [
        arm
        for arm in first.arms_as("treatment")
        if arm.baseline and arm.baseline.verdict is Verdict.BETTER
    ]
    if not better:
        roles = list(result.roles.values())
        printed = sum(map(is_printed, result.metrics))
        needed = rounds_needed("control" in roles, roles.count("treatment"), printed)
        said = _no_winner(first, result.baseline, list(found.values()), needed)
        return TrialOutcome(None, said + _still_learning(result))
    sure = [arm for arm in better if found[arm.name].verdict is Verdict.BETTER]
    if not sure:
        names = " and ".join(arm.name for arm in better)
        few = next((x for x in found.values() if x.verdict is Verdict.TOO_FEW), None)
        more = f"{method.rounds_needed(few.confidence)} or more" if few else "more"
        return TrialOutcome(
            None,
            f"{first.metric.title}: {names} looked better than {result.baseline}, but of "
            f"{len(found)} settings one may do so by chance. Keep {result.baseline}, or try again "
            f"with {more} rounds.",
        )
    best = _best(sure, first.metric.samples[result.baseline], first.metric.better)
    assert best.baseline
    mark = words.dagger(first, found[best.name])
    said = words.sentence(best.name, found[best.name], result.baseline, first.metric, mark)
    if few := _unjudged(metrics):
        return TrialOutcome(
            None,
            f"{first.metric.title}: {said}. But {few.rounds} rounds are too few to judge the "
            f"control: {method.rounds_needed(few.confidence)} are needed.",
        )
    return TrialOutcome(
        best.name, f"{first.metric.title}: {said}. It costs: {_costs(metrics, best.name)}."
    )


def rounds_needed(control: bool, settings: int, printed: int) -> int:
    """Return how many rounds are enough for a verdict on one of ``settings``.

    ``printed`` metrics are numbers that the command prints: a control is compared in each of them.
    """
    comparisons = max(settings, MOST_COUNTED + printed if control else 1)
    return method.rounds_needed(1 - (1 - CONFIDENCE) / comparisons)


def _among_all(result: CompareResult, arm: ArmAnalysis) -> method.Comparison:
    """Compare a setting with the baseline, in the first metric, as one of all that were tried."""
    metric = next(iter(result.metrics.values()))
    settings = sum(role == "treatment" for role in result.roles.values())
    confidence = 1 - (1 - CONFIDENCE) / settings
    as_is = metric.samples[result.baseline]
    return method.compare(as_is, arm.samples, metric.better, metric.unit, confidence, result.boots)


def _unjudged(metrics: list[MetricAnalysis]) -> method.Comparison | None:
    """Return a comparison of a control for which there are too few rounds."""
    controls = [arm for metric in metrics for arm in metric.arms_as("control")]
    few = [arm.baseline for arm in controls if arm.baseline]
    return next((found for found in few if found.verdict is Verdict.TOO_FEW), None)


def _best(arms: Sequence[ArmAnalysis], as_is: Sequence[float], better: str) -> ArmAnalysis:
    """Return the arm that is farthest from the baseline, of some that are all better.

    By their ratios; by the median difference of a round where a sample of one is 0, which leaves
    that one without a ratio.
    """
    ratios = {x.name: x.baseline.ratio.value for x in arms if x.baseline and x.baseline.ratio}
    if len(ratios) == len(arms):
        return max(arms, key=lambda arm: max(ratios[arm.name], 1 / ratios[arm.name]))
    sign = 1 if better == "higher" else -1
    return max(
        arms,
        key=lambda arm: (
            sign * statistics.median(x - y for x, y in zip(arm.samples, as_is, strict=True))
        ),
    )


def _no_winner(
    first: MetricAnalysis, baseline: str, comparisons: list[method.Comparison], needed: int
) -> str:
    if not comparisons or any(found.verdict is Verdict.TOO_FEW for found in comparisons):
        return (
            f"{first.metric.title}: too few rounds to tell. Keep {baseline}, or try again with "
            f"{needed} or more."
        )
    # A sample of 0 leaves an arm without a ratio; differences and ratios have no common order.
    alike = [x for x in comparisons if x.difference] or comparisons
    least = max(alike, key=lambda found: found.detectable or 0)
    amount = words.detectable(least, first.metric.unit)
    missed = f"; a gain of {amount} would probably have been shown" if amount else ""
    return (
        f"{first.metric.title}: no setting was shown to be better than {baseline}{missed}. "
        f"Keep {baseline}."
    )


def _still_learning(result: CompareResult) -> str:
    """Return what to say where samples ended before lightsleep's driver had learned from them."""
    learning = [arm for arm in result.arms if _learns(arm)]
    if not learning:
        return ""
    took_s, sample = result.protocol.get("switchback_s"), "period"
    if took_s is None:
        wall = result.metrics.get("wall_s")
        if wall is None:
            return ""
        took_s, sample = max(statistics.median(wall.samples[arm]) for arm in learning), "run"
    if took_s >= LEARNS_S:
        return ""
    if result.environment.get("host", {}).get("cpuidle_driver") == LIGHTSLEEP_DRIVER:
        why = "stays loaded, and takes seconds to follow other parameters"
    else:
        why = "is loaded for each, and learns in its first seconds"
    return (
        f" A {sample} took {units.value(took_s, 's')}. lightsleep's driver {why}: {sample}s of "
        f"{LEARNS_S:g} s or more may show a gain."
    )


def _learns(arm: str) -> bool:
    """Whether lightsleep's driver adapts its poll limit under this setting."""
    parts = [part.split(":") for part in arm.split("+")]
    return any(name == "lightsleep" and not {"fixed", "off"} & set(words) for name, *words in parts)


def _costs(metrics: list[MetricAnalysis], winner: str) -> str:
    said = []
    for metric in metrics:
        arm = next(arm for arm in metric.arms if arm.name == winner)
        if metric.name == "polled_pct" and arm.summary:
            said.append(_polled(arm.summary, metric.arms_as("baseline")[0]))
        worse = arm.baseline and arm.baseline.verdict in (Verdict.WORSE, Verdict.HIGHER)
        if metric.name in COSTS and arm.baseline and worse:
            amount = words.effect(arm.baseline, metric.metric).replace("×", "times")
            said.append(f"{_inside(metric.metric.title)} is {amount}")
    shown = [_inside(m.metric.title) for m in metrics if m.name in USED]
    if not any("polled" not in part for part in said):
        said.append(f"no more {_list(shown)} was shown")
    return "; ".join(said)


def _inside(title: str) -> str:
    """Return a title as it stands inside of a sentence."""
    return title if title[:2].isupper() else f"{title[:1].lower()}{title[1:]}"


def _list(names: Sequence[str]) -> str:
    *others, last = names or [""]
    return f"{', '.join(others)}, or {last}" if len(others) > 1 else " or ".join(names)


def _polled(winner: method.Summary, as_is: ArmAnalysis) -> str:
    """Say how much the winner polled, and as-is, where it polled as well."""
    said = f"{units.value(winner.median, '%')} of the CPUs' time was polled"
    if as_is.summary and as_is.summary.median:
        said += f" ({as_is.name}: {units.value(as_is.summary.median, '%')})"
    return said
