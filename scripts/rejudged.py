# SPDX-License-Identifier: GPL-2.0-only
"""Judge every comparison by an old rule and by the new one, and say what changed and why.

``make results`` writes the page. The old rule, ``old_direction``, lives only here. The new rule
is ``lightsleep/compare/method.py``.

A direction is 1 where the arm is shown to be higher, -1 where it is lower, 0 where no difference is
shown.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kept import load_result

from lightsleep import units
from lightsleep.compare import words
from lightsleep.compare.analysis import analyse, limit_of
from lightsleep.compare.boots import by_boot, t_quantile
from lightsleep.compare.method import (
    Comparison,
    Estimate,
    compare,
    has_ratio,
    rounds_needed,
    summarise,
)
from lightsleep.compare.result import CompareResult, MetricResult
from lightsleep.markdown import table
from lightsleep.order import CONFIDENCE

FOLDER = "rejudged"
"""Results that are of interest only here, in the folder of the others."""

PAGE = f"{FOLDER}.md"
LEAST_SAMPLES = 5
"""The old rule gave no verdict on fewer."""

SIX_ROUNDS = "idle-x86_64-2026-11"
MORE_ROUNDS = "idle-x86_64"
METRIC, ARM, LIMIT = "sched_seccomp_notify_s", "lightsleep", "idle=poll"
"""What the section on six rounds is about."""


class Reason(StrEnum):
    """Why the two rules disagree."""

    ONE_ROUND = "one round decided before"
    STRICTER = "the old rule is stricter"
    TOGETHER = "the rounds vary together"
    PAIRING = "the pairing decides, perhaps by chance"
    TOO_FEW = "too few rounds"
    BOOTS = "the boots decide"
    DISAGREE = "the rounds disagree"


MEANINGS = {
    Reason.ONE_ROUND: "Without this round, the old rule shows the difference, too.",
    Reason.STRICTER: "More than half of the other pairings show the difference, too. So the "
    "pairing does not decide.",
    Reason.TOGETHER: "At most half of the other pairings show the difference. The samples of the "
    "two arms are correlated over the rounds (one-sided test at 5 %), and the pairing removes what "
    "they share.",
    Reason.PAIRING: "At most half of the other pairings show the difference, and no correlation "
    "is shown.",
    Reason.TOO_FEW: "The new rule needs more rounds for an interval of 95 %.",
    Reason.BOOTS: "The new rule would show the difference if all rounds were of one boot. The "
    "interval over the boots is wider.",
    Reason.DISAGREE: "The medians lie apart, but some rounds do not go that way.",
}


@dataclass(frozen=True)
class Judged:
    """An arm compared with a reference in one metric; ``new`` is what the new rule says."""

    metric: MetricResult
    arm: str
    reference: str
    boots: int
    new: Comparison

    @property
    def ours(self) -> list[float]:
        """The samples of the arm, by round."""
        return self.metric.samples[self.arm]

    @property
    def theirs(self) -> list[float]:
        """The samples of the reference, by round."""
        return self.metric.samples[self.reference]

    @property
    def before(self) -> int:
        """The direction by the old rule."""
        return old_direction(self.ours, self.theirs)

    @property
    def now(self) -> int:
        """The direction by the new rule."""
        return new_direction(self.new)


@dataclass(frozen=True)
class File:
    """A result file, the Markdown that links to it, its comparisons, and those of its controls."""

    path: Path
    link: str
    result: CompareResult
    judged: list[Judged]
    controls: list[Judged]


def old_direction(arm: Sequence[float], reference: Sequence[float]) -> int:
    """Return the direction by the old rule: where the intervals of the medians lie apart."""
    ours, theirs = summarise(arm), summarise(reference)
    if not ours or not theirs or min(ours.n, theirs.n) < LEAST_SAMPLES:
        return 0
    return (ours.ci_low > theirs.ci_high) - (ours.ci_high < theirs.ci_low)


def new_direction(comparison: Comparison) -> int:
    """Return the direction by the new rule."""
    effect = comparison.effect
    if effect is None or not comparison.verdict.differs:
        return 0
    return 1 if effect.value > (1 if comparison.ratio else 0) else -1


def judge(result: CompareResult) -> list[Judged]:
    """Judge every treatment against the baseline and the limit, in every metric with samples."""
    limit = limit_of(result)
    return [
        Judged(metric.metric, arm.name, reference, result.boots, comparison)
        for metric in analyse(result)
        for arm in metric.arms_as("treatment")
        for reference, comparison in ((result.baseline, arm.baseline), (limit, arm.limit))
        if reference and comparison and arm.samples and metric.metric.samples[reference]
    ]


def judge_controls(result: CompareResult) -> list[Judged]:
    """Judge every control against the baseline, in every metric with samples."""
    return [
        Judged(metric.metric, arm.name, result.baseline, result.boots, arm.baseline)
        for metric in analyse(result)
        for arm in metric.arms_as("control")
        if arm.baseline and arm.samples and metric.metric.samples[result.baseline]
    ]


def why(found: Judged) -> tuple[Reason, str]:
    """Return why the rules disagree, and the figures that say so."""
    return _why_not_now(found) if found.before else _why_now(found)


def _why_now(found: Judged) -> tuple[Reason, str]:
    ours, theirs, count = found.ours, found.theirs, len(found.ours)
    for n in range(count):
        if old_direction(ours[:n] + ours[n + 1 :], theirs[:n] + theirs[n + 1 :]) == found.now:
            return Reason.ONE_ROUND, f"round {n + 1}"
    others = [_again(found, ours[n:] + ours[:n]) for n in range(1, count)]
    shown = sum(direction == found.now for direction in others)
    pairings = f"{shown} of {len(others)} other pairings show it"
    if 2 * shown > len(others):
        return Reason.STRICTER, pairings
    r = _correlation(*_scaled(found))
    likely = r > 0 and r * r * (count - 2) > (1 - r * r) * t_quantile(count - 2, 0.05) ** 2
    return Reason.TOGETHER if likely else Reason.PAIRING, f"{pairings}, correlation {r:.2f}"


def _why_not_now(found: Judged) -> tuple[Reason, str]:
    if found.new.effect is None:
        return Reason.TOO_FEW, f"{found.new.rounds}, and {rounds_needed()} are needed"
    if _again(found, found.ours, boots=1) == found.before:
        spread = words.boot_spread(found.new, found.metric.unit)
        return Reason.BOOTS, f"boot to boot: {spread}"
    against = sum((x - y) * found.before <= 0 for x, y in zip(*_scaled(found), strict=True))
    return Reason.DISAGREE, f"{against} of {len(found.ours)} do not go that way"


def _again(found: Judged, ours: Sequence[float], boots: int | None = None) -> int:
    """Return the new direction of other samples of the arm, or as if of so many boots."""
    metric = found.metric
    return new_direction(
        compare(found.theirs, ours, metric.better, metric.unit, boots=boots or found.boots)
    )


def _scaled(found: Judged) -> tuple[list[float], list[float]]:
    """Return the samples of the arm and of the reference so that they differ by the effect."""
    ours, theirs = found.ours, found.theirs
    if has_ratio(theirs, ours, found.metric.unit):
        return [math.log(x) for x in ours], [math.log(x) for x in theirs]
    return ours, theirs


def _correlation(ours: Sequence[float], theirs: Sequence[float]) -> float:
    constant = len({*ours}) == 1 or len({*theirs}) == 1
    return 0.0 if constant else statistics.correlation(ours, theirs)


INTRODUCTION = """\
An old rule once judged the comparisons. Today, a new rule does. This page applies both rules to the
same samples, and says which verdicts changed and why.

- **The old rule** summarizes each arm alone: its median, and the 95 % interval of that median
  (order statistics). It shows a difference if the two intervals do not overlap. With up to 8
  samples, the interval reaches from the smallest sample to the largest. The rule needs 5 samples of
  each arm, which give 93.75 %.
- **The new rule** compares the arms within each round: it divides the arm by the reference, or
  subtracts the reference if the unit is % or a sample is 0. The effect is the Hodges-Lehmann
  estimate of all rounds, with the 95 % interval of the signed-rank test. If the arms were booted
  several times, the interval also covers what differs between boots. The rule shows a difference if
  the interval does not contain "none" (a ratio of 1, a difference of 0). It needs 6 rounds.

[What a comparison does](../lab.md#what-a-comparison-does) describes the new rule.
[method.py](../../lightsleep/compare/method.py) has its source and its reasons. The old rule is in
[rejudged.py](../../scripts/rejudged.py), and nothing else uses it.

A comparison is one treatment against the baseline, or against the limit, in one metric. The page
covers each result in this folder and one older result, which is kept for this page.
[Controls](#controls) have a section of their own. The page leaves out claims about several metrics
together, and the comparisons of the same kernel with itself."""

OF_SIX_ROUNDS = """\
For six rounds of one boot, the interval of the new rule reaches from the lowest round to the
highest. If two arms do not differ, each round goes up or down like a fair coin. All six go the same
way in 2 of 64 cases (3.1 %). The next narrower interval would be wrong in 4 of 64 cases (6.25 %),
which is more than 5 %. So if one of six rounds goes the other way, the rule shows no difference."""

OF_STUDENT = """\
Student's t is a paired method, too. It is narrower because it assumes that the logarithms are
normally distributed. Six rounds cannot tell whether they are. The new rule assumes only that the
effects scatter symmetrically. That it shows no difference does not mean that there is none: its
interval says which differences remain possible."""

OF_PAIRINGS = """\
Some reasons are about the pairing of rounds. To test it, the samples of the arm are moved by one
round, by two, and so on, so that each meets another round of the reference. These are the *other
pairings*, one fewer than there are rounds. Of several reasons that hold, the tables name the
first."""


def page(folder: Path) -> str:
    """Return the page of a folder of results. Raises LightsleepError where one is damaged."""
    files = _read(folder)
    changed = [
        (file, each, *why(each))
        for file in files
        for each in file.judged
        if each.before != each.now
    ]
    reasons = Counter(reason for _, _, reason, _ in changed)
    parts = [
        "<!-- SPDX-License-Identifier: GPL-2.0-only -->",
        "<!-- Written by make results: do not edit. -->",
        "# Results judged by the old rule and by the new one",
        INTRODUCTION,
        "## How many verdicts changed",
        *_counts([each for file in files for each in file.judged]),
        "## Six rounds",
        *_six_rounds({file.path.stem: file for file in files}),
        "## Reasons",
        OF_PAIRINGS,
        table(
            ("reason", "what it means", "changes"),
            [(reason, MEANINGS[reason], str(reasons[reason])) for reason in Reason],
        ),
        "## Not shown before, shown now",
        "Where an interval ends at 1.000, the end is rounded: it is above 1.",
        _changes([row for row in changed if not row[1].before]),
        "## Shown before, not shown now",
        _changes([row for row in changed if row[1].before]),
        "## Controls",
        *_controls(files),
        "## Each result",
        "How many comparisons a result has, and in how many of them each rule shows a difference. "
        "A result without treatments has none.",
        _each_result(files),
    ]
    return "\n\n".join(parts) + "\n"


def _read(folder: Path) -> list[File]:
    paths = [*sorted(folder.glob("*.json")), *sorted((folder / FOLDER).glob("*.json"))]
    files = []
    for path in paths:
        result, _ = load_result(path)
        target = f"{path.stem}.md" if path.parent == folder else f"{FOLDER}/{path.name}"
        link = f"[{path.stem}]({target})"
        files.append(File(path, link, result, judge(result), judge_controls(result)))
    return files


def _counts(judged: Sequence[Judged]) -> list[str]:
    """Return how many verdicts changed, and what chance has to do with it."""
    changes = Counter((each.before, each.now) for each in judged)
    total = len(judged)
    rows = [
        ("not shown, as before", changes[0, 0]),
        ("shown, as before", changes[1, 1] + changes[-1, -1]),
        ("not shown before, shown now", changes[0, 1] + changes[0, -1]),
        ("shown before, not shown now", changes[1, 0] + changes[-1, 0]),
        ("shown before, now shown in the other direction", changes[1, -1] + changes[-1, 1]),
        ("all", total),
    ]
    return [
        table(("difference", "comparisons"), [(name, str(count)) for name, count in rows]),
        "The old rule is stricter than 95 %. If two arms of six samples each do not differ, their "
        "intervals lie apart in 2 of 924 cases (0.2 %). The new rule shows a difference in up to "
        "5 % of such comparisons. If no arm differed at all, chance would show up to "
        f"{(1 - CONFIDENCE) * total:.0f} of these {total} on average.",
    ]


def _six_rounds(files: dict[str, File]) -> list[str]:
    """Return the paragraphs on the result of six rounds in which another method shows more."""
    file, later = files[SIX_ROUNDS], files[MORE_ROUNDS]
    found, more = _of_section(file), _of_section(later)
    effects = [x - y for x, y in zip(*_scaled(found), strict=True)]
    # As if each round were a boot: that is Student's t over the rounds.
    t = by_boot(effects, len(effects), CONFIDENCE)
    student = Estimate(t.mean, t.mean - t.reach, t.mean + t.reach)
    medians = (_interval(samples, found.metric.unit) for samples in (found.ours, found.theirs))
    run = f"{later.link}, {more.new.rounds} rounds in {more.boots} boots"
    rows = [
        ("old rule", " against ".join(medians), found.before != 0),
        ("new rule", _ratio(found.new.ratio), found.now != 0),
        (
            "Student's t of the logarithms",
            _ratio(student.map(math.exp)),
            not student.low <= 0 <= student.high,
        ),
        (f"new rule, later run: {run}", _ratio(more.new.ratio), more.now != 0),
    ]
    return [
        OF_SIX_ROUNDS,
        f"An example is {file.link}, with {ARM} against {LIMIT} in {found.metric.title}. The "
        f"ratios of its rounds are {', '.join(units.factor(math.exp(x)) for x in effects)}. {ARM} "
        f"was the faster one in {sum(x < 0 for x in effects)} of {len(effects)} rounds.",
        table(
            ("method", f"{ARM} / {LIMIT}, or the intervals of both", "difference"),
            [(name, said, "shown" if shown else "not shown") for name, said, shown in rows],
        ),
        OF_STUDENT,
    ]


def _of_section(file: File) -> Judged:
    metric = file.result.metrics[METRIC]
    return next(
        each
        for each in file.judged
        if each.metric is metric and (each.arm, each.reference) == (ARM, LIMIT)
    )


def _ratio(ratio: Estimate | None) -> str:
    if ratio is None:
        return ""
    value, low, high = map(units.factor, (ratio.value, ratio.low, ratio.high))
    return f"{value} ({low} to {high})"


def _changes(changed: Sequence[tuple[File, Judged, Reason, str]]) -> str:
    headings = (
        "result",
        "metric",
        "arms",
        "old: interval of the arm",
        "old: interval of the reference",
        "new: effect",
        "why",
    )
    rows = [
        (
            file.link,
            each.metric.title,
            f"{each.arm} against {each.reference}",
            _interval(each.ours, each.metric.unit),
            _interval(each.theirs, each.metric.unit),
            _effect(each.new, each.metric),
            f"{reason} ({detail})",
        )
        for file, each, reason, detail in changed
    ]
    return table(headings, rows) if rows else "None."


def _interval(samples: Sequence[float], unit: str) -> str:
    found = summarise(samples)
    return units.span(found.ci_low, found.ci_high, unit) if found else ""


def _effect(new: Comparison, metric: MetricResult) -> str:
    if new.effect is None:
        return str(new.verdict)
    return f"{words.effect(new, metric)} ({words.effect_interval(new, metric.unit)})"


OF_CONTROLS = """\
A control is booted as the baseline is, so nothing should tell it from that. The old rule judged it
as any other arm, so few samples that scatter passed as "no difference shown". The new rule has
wider intervals for controls: all of a result together raise a false alarm in at most 5 % of
results. It needs more rounds for that, and with fewer it says that the control was not judged."""


def _controls(files: Sequence[File]) -> list[str]:
    """Return what both rules say of controls, result by result."""
    headings = (
        "result",
        "comparisons",
        "shown before",
        "shown now",
        "not judged now",
        "medians furthest apart",
        "new rule on these",
    )
    rows = []
    for file in files:
        if not file.controls:
            continue
        far = _furthest_apart(file.controls)
        counts = (len(file.controls), *_shown(file.controls))
        rows.append((file.link, *map(str, counts), *(_apart(far) if far else ("", ""))))
    judged = [each for file in files for each in file.controls]
    before, now, few = _shown(judged)
    return [
        OF_CONTROLS,
        f"Of {len(judged)} comparisons of a control with its baseline, the old rule shows a "
        f"difference in {before}, the new rule in {now}. In {few}, the new rule has too few "
        "rounds.",
        table(headings, rows),
    ]


def _shown(judged: Sequence[Judged]) -> tuple[int, int, int]:
    """Return how often the old rule shows a difference, how often the new one, and cannot judge."""
    return (
        sum(each.before != 0 for each in judged),
        sum(each.now != 0 for each in judged),
        sum(each.new.effect is None for each in judged),
    )


def _furthest_apart(judged: Sequence[Judged]) -> Judged | None:
    """Return where medians have the largest ratio; None where none has one."""
    found = [x for x in judged if has_ratio(x.theirs, x.ours, x.metric.unit)]
    return max(found, key=lambda x: abs(math.log(_ratio_of_medians(x))), default=None)


def _ratio_of_medians(found: Judged) -> float:
    return statistics.median(found.ours) / statistics.median(found.theirs)


def _apart(far: Judged) -> tuple[str, str]:
    medians = (units.value(statistics.median(x), far.metric.unit) for x in (far.theirs, far.ours))
    return f"{far.metric.title}: {' and '.join(medians)}", words.finding(far.new, far.metric)


def _each_result(files: Sequence[File]) -> str:
    headings = ("result", "rounds", "boots", "comparisons", "shown before", "shown now", "changed")
    rows = []
    for file in files:
        counts = (
            file.result.protocol["runs"],
            file.result.boots,
            len(file.judged),
            sum(each.before != 0 for each in file.judged),
            sum(each.now != 0 for each in file.judged),
            sum(each.before != each.now for each in file.judged),
        )
        rows.append((file.link, *map(str, counts)))
    return table(headings, rows)
