# SPDX-License-Identifier: GPL-2.0-only
"""What rounds can say about an arm: its effect, how sure that is, and what would have been missed.

A round runs every arm once, within seconds. What the host does meanwhile slows all arms of a round
alike, so an arm is compared with its reference within each round, and only then over the rounds:

1. The effect in a round is the logarithm of arm / reference, because noise multiplies: a host that
   is busy for a third of the time takes a third of the speed of every arm. Percentages, and
   quantities of which some sample is not positive (a count of 0), have no ratio; for them the
   effect is arm - reference. A bound of their ratio is still asked: where the reference is
   positive and the arm is not negative, arm / reference <= bound is arm - bound x reference <= 0,
   and that difference is compared with 0.
2. The estimate over all rounds is the Hodges-Lehmann estimate: the median of the averages of all
   pairs of rounds, each round with itself included (Walsh averages).
3. Its interval is that of Wilcoxon's signed-rank test: from the c-th smallest to the c-th largest
   Walsh average, where c is the largest with P(T < c) <= 2.5 % and T is the rank sum of n fair
   coins. It holds exactly for any distribution that is symmetric about the effect, as differences
   of two arms are that differ by nothing else; ties make it wider, never narrower.
   Where arms were booted several times, the rounds of one boot share what the boot fixed. The
   interval then also holds that of the boots' means (see ``boots.py``): its lower end is the lower
   of both, its upper end the higher.
4. The verdict is where the interval lies. A difference is shown if it does not hold "none" (a
   ratio of 1, a difference of 0). Nothing else is asked.
5. ``detectable`` is the difference that a comparison with as many rounds and this much noise shows
   in 90 % of cases: half the width of the interval, times (z[c] + z[0.9]) / z[c], where z[c] is the
   quantile that belongs to its confidence: 1.65 for 95 %.
   It says how small a difference is usually shown. Which differences "no difference shown" leaves
   open, the interval says. And how much noise there is, a comparison knows from its own rounds
   only. So ``detectable`` is shown less often than that: in about 8 of 10 comparisons, as tests
   simulate.

Six rounds are the fewest that give 95 %; there, one round that went the other way is a veto. Of one
boot, from twelve rounds on it is none, however far it went. Of several boots, one round that is far
off can hide a difference that all others show, because the interval over boots is one of means. Of
18 rounds in 9 boots, 17 with the same 20 % are not enough if the last is off by a factor of about
2.7 or more the other way, or of about 12 or more the same way. ``boots.py`` has the formula.

The tests simulate how often a difference of 20 % is shown, and how often one that is not there.

Several metrics together have one effect: in each round the geometric mean of their ratios.

A control is compared in every metric, and each comparison may be a false alarm. Its intervals are
wider, so that all of them together hold "none" with 95 % (Bonferroni; the first step of Holm's
procedure, and more steps do not change whether there is any alarm).

scipy has the test (scipy.stats.wilcoxon), not the interval: the distribution of T is counted here,
and the tests compare the two. Sources: Hollander, Wolfe, Chicken: Nonparametric Statistical
Methods, 3rd edition, sections 3.1 to 3.3; Lehmann: Nonparametrics, section 4.3 on the power.
"""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from lightsleep.compare.boots import Boots, by_boot
from lightsleep.compare.result import Better
from lightsleep.order import CONFIDENCE, median_ranks, quantile

TINY = 1e-18  # no ratio is taken of samples under this: none of a quantity worth dividing by
MOST = 256
"""Of more rounds, neighbours are averaged to this many: Walsh averages grow with the square."""
POWER = 0.9
"""What detectable is meant to have; see 5."""


class Verdict(StrEnum):
    """What may be claimed about an arm, compared to another one."""

    BETTER = "better"
    WORSE = "worse"
    HIGHER = "higher"
    LOWER = "lower"
    SAME = "no difference shown"
    TOO_FEW = "too few rounds"

    @property
    def differs(self) -> bool:
        """Whether a difference was shown."""
        return self not in (Verdict.SAME, Verdict.TOO_FEW)


@dataclass(frozen=True)
class Summary:
    """One arm's samples of one metric, in the unit of the metric.

    ``ci_low`` and ``ci_high`` enclose the true median with probability ``confidence`` (0 to 1).
    They describe this arm alone: how arms differ is not read from them.
    """

    n: int
    median: float
    ci_low: float
    ci_high: float
    confidence: float
    minimum: float
    q1: float
    q3: float
    maximum: float


@dataclass(frozen=True)
class Estimate:
    """A value with its interval."""

    value: float
    low: float
    high: float

    def map(self, function: Callable[[float], float]) -> Estimate:
        """Return the estimate of an increasing function of the value."""
        return Estimate(function(self.value), function(self.low), function(self.high))

    def inverse(self) -> Estimate:
        """Return the estimate of 1 / value."""
        return Estimate(1 / self.value, 1 / self.high, 1 / self.low)


@dataclass(frozen=True)
class Comparison:
    """An arm compared to a reference over ``rounds`` rounds.

    Either ``ratio``, arm / reference, or ``difference``, arm - reference in the unit of the metric,
    is the effect, with an interval of this ``confidence``; both are None where there are too few
    rounds for one. ``detectable`` is the effect that such a comparison shows in about 8 of 10
    cases: a factor above 1, or a difference above 0. ``boot_spread`` is how the effect scatters
    between ``boots``, a standard deviation in the same form (a factor of 1 or a difference of 0:
    none is seen); None where there was one boot.
    """

    verdict: Verdict
    rounds: int
    confidence: float
    ratio: Estimate | None = None
    difference: Estimate | None = None
    detectable: float | None = None
    boots: int = 1
    boot_spread: float | None = None

    @property
    def effect(self) -> Estimate | None:
        """The ratio or the difference, whichever there is."""
        return self.ratio or self.difference


def summarise(samples: Sequence[float]) -> Summary | None:
    """Summarise samples, in any order; None where there are none."""
    if not samples:
        return None
    ascending = sorted(map(float, samples))
    n = len(ascending)
    low, high, confidence = median_ranks(n)
    return Summary(
        n=n,
        median=quantile(ascending, 0.5),
        ci_low=ascending[low - 1],
        ci_high=ascending[high - 1],
        confidence=confidence,
        minimum=ascending[0],
        q1=quantile(ascending, 0.25),
        q3=quantile(ascending, 0.75),
        maximum=ascending[-1],
    )


def compare(
    reference: Sequence[float],
    arm: Sequence[float],
    better: Better,
    unit: str = "",
    confidence: float = CONFIDENCE,
    boots: int = 1,
) -> Comparison:
    """Compare an arm with a reference: samples of one metric, round by round.

    The rounds are those of ``boots``, one boot after the other, as many of each. Raises ValueError
    where they cannot be, or where one arm has more rounds than the other.
    """
    _check_paired(reference, arm)
    if has_ratio(reference, arm, unit):
        return _judge(_logs(reference, arm), better, confidence, boots, as_ratio=True)
    return compare_differences(reference, arm, better, confidence, boots)


def compare_differences(
    reference: Sequence[float],
    arm: Sequence[float],
    better: Better,
    confidence: float = CONFIDENCE,
    boots: int = 1,
) -> Comparison:
    """Compare an arm with a reference by arm - reference, also where they have a ratio.

    Otherwise as compare().
    """
    _check_paired(reference, arm)
    effects = [ours - theirs for ours, theirs in zip(arm, reference, strict=True)]
    return _judge(effects, better, confidence, boots, as_ratio=False)


def compare_jointly(
    reference: Sequence[Sequence[float]],
    arm: Sequence[Sequence[float]],
    better: Better,
    boots: int = 1,
    confidence: float = CONFIDENCE,
) -> Comparison:
    """Compare an arm with a reference in several metrics as one: samples by metric and round.

    Rounds are grouped in boots as in compare(). Raises ValueError where a sample is not positive,
    or the numbers of rounds differ.
    """
    for ours, theirs in zip(arm, reference, strict=True):
        _check_paired(theirs, ours)
        if ours and not has_ratio(theirs, ours, ""):
            raise ValueError("a sample is not positive: there is no ratio")
    logs = [_logs(theirs, ours) for ours, theirs in zip(arm, reference, strict=True)]
    effects = [statistics.fmean(x) for x in zip(*logs, strict=True)]
    return _judge(effects, better, confidence, boots, as_ratio=True)


def distance(
    reference: Sequence[float], arm: Sequence[float], bound: float, boots: int = 1
) -> Estimate | None:
    """Return arm - bound x reference, in their unit, with its interval: above 0 is a higher ratio.

    None where there are too few rounds for an interval. Raises ValueError where the reference is
    not positive or the arm negative, so that no ratio has a meaning, and as compare() does.
    """
    _check_paired(reference, arm)
    if min(reference, default=0) <= TINY or min(arm, default=0) < 0:
        raise ValueError("the reference is not positive or the arm negative: there is no ratio")
    effects = [ours - bound * theirs for ours, theirs in zip(arm, reference, strict=True)]
    return _judge(effects, "none", CONFIDENCE, boots, as_ratio=False).difference


def _check_paired(reference: Sequence[float], arm: Sequence[float]) -> None:
    if len(reference) != len(arm):
        raise ValueError(f"{len(arm)} rounds cannot be compared with {len(reference)}")


def has_ratio(reference: Sequence[float], arm: Sequence[float], unit: str) -> bool:
    """Whether the effect on such samples is a ratio."""
    return unit != "%" and min((*reference, *arm), default=0) > TINY


def rounds_needed(confidence: float = CONFIDENCE) -> int:
    """Return the fewest rounds that give an interval of this confidence."""
    return next(n for n in range(1, 100) if _rank(n, (1 - confidence) / 2))


def rounds_for_controls(comparisons: int) -> int:
    """Return the fewest rounds that judge so many comparisons of controls; 0 where there is none.

    All of them together raise a false alarm in at most 5 % of results.
    """
    return rounds_needed(1 - (1 - CONFIDENCE) / comparisons) if comparisons else 0


def _logs(reference: Sequence[float], arm: Sequence[float]) -> list[float]:
    return [math.log(ours) - math.log(theirs) for ours, theirs in zip(arm, reference, strict=True)]


def _judge(
    effects: Sequence[float], better: Better, confidence: float, boots: int, *, as_ratio: bool
) -> Comparison:
    rounds = len(effects)
    booted = by_boot(effects, boots, confidence) if boots > 1 and effects else None
    blocks = effects
    if rounds > MOST:
        ends = [rounds * part // MOST for part in range(MOST + 1)]
        blocks = [statistics.fmean(effects[a:b]) for a, b in itertools.pairwise(ends)]
    rank = _rank(len(blocks), (1 - confidence) / 2)
    if not rank:
        return Comparison(Verdict.TOO_FEW, rounds, confidence, boots=boots)
    walsh = _walsh_averages(blocks)
    found = _widened(Estimate(statistics.median(walsh), walsh[rank - 1], walsh[-rank]), booted)
    spread = booted.spread if booted else None
    verdict = _verdict(found, better)
    detectable = _beyond(confidence) * (found.high - found.low) / 2
    if as_ratio:
        # An interval of two boots may reach beyond what a number can hold.
        ratio, detectable = found.map(_exp), _exp(detectable)
        spread = None if spread is None else _exp(spread)
        return Comparison(
            verdict, rounds, confidence, ratio, None, detectable, boots=boots, boot_spread=spread
        )
    return Comparison(
        verdict, rounds, confidence, None, found, detectable, boots=boots, boot_spread=spread
    )


@cache
def _beyond(confidence: float) -> float:
    """Return by how much a difference must exceed half an interval to be shown usually."""
    z = statistics.NormalDist().inv_cdf
    ends = z((1 + confidence) / 2)
    return (ends + z(POWER)) / ends


def _widened(found: Estimate, booted: Boots | None) -> Estimate:
    if booted is None:
        return found
    low, high = booted.mean - booted.reach, booted.mean + booted.reach
    return Estimate(found.value, min(found.low, low), max(found.high, high))


def _exp(logarithm: float) -> float:
    return math.exp(min(max(logarithm, -700.0), 700.0))


def _verdict(effect: Estimate, better: Better) -> Verdict:
    if effect.low > 0:
        direction = "higher"
    elif effect.high < 0:
        direction = "lower"
    else:
        return Verdict.SAME
    if better == "none":
        return Verdict(direction)
    return Verdict.BETTER if direction == better else Verdict.WORSE


def _walsh_averages(effects: Sequence[float]) -> list[float]:
    """Return the averages of all pairs of rounds, a round with itself included, sorted."""
    pairs = itertools.combinations_with_replacement(effects, 2)
    return sorted(first / 2 + second / 2 for first, second in pairs)


@cache
def _rank(n: int, tail: float) -> int:
    """Return the largest c with P(T < c) <= tail; 0 where there is none.

    T is the sum of those of the ranks 1 to n for which a fair coin fell heads. It is symmetric, so
    the lower half is enough for a tail.
    """
    chances = [1.0] + [0.0] * (n * (n + 1) // 4)
    for rank in range(1, n + 1):
        # By 2 ** -n at the end would underflow for many rounds.
        without = itertools.chain(itertools.repeat(0.0, min(rank, len(chances))), chances)
        chances = [(here + before) / 2 for here, before in zip(chances, without, strict=False)]
    return bisect.bisect_right(list(itertools.accumulate(chances)), tail)
