# SPDX-License-Identifier: GPL-2.0-only
"""What a handful of samples can say: medians, their confidence, and whether two arms differ.

Benchmark times are skewed, have outliers and come in small numbers, so nothing here assumes a
distribution.

The interval of a median is a pair of order statistics (``order.py``). Fewer than six samples cannot
give 95 %, so the confidence that was really reached goes with every interval (93.75 % for n = 5).

Two arms differ where these intervals do not overlap, which is stricter than a test of the
difference at 5 %. Below MIN_SAMPLES no verdict is given. How large a difference is, as a ratio
of medians and as a difference of medians, comes with a bootstrap interval (percentile, 95 %).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from lightsleep.compare.result import Better
from lightsleep.order import CONFIDENCE, median_ranks

MIN_SAMPLES = 5
RESAMPLES = 10_000
TINY = 1e-18  # no ratio is taken of samples under this: none of a quantity worth dividing by

Floats = NDArray[np.float64]


class Verdict(StrEnum):
    """What may be claimed about an arm, compared to another one."""

    BETTER = "better"
    WORSE = "worse"
    HIGHER = "higher"
    LOWER = "lower"
    SAME = "no difference shown"
    TOO_FEW = "too few samples"

    @property
    def differs(self) -> bool:
        """Whether a difference was shown."""
        return self not in (Verdict.SAME, Verdict.TOO_FEW)


@dataclass(frozen=True)
class Summary:
    """One arm's samples of one metric, in the unit of the metric.

    ``ci_low`` and ``ci_high`` enclose the true median with probability ``confidence`` (0 to 1).
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
    """A value with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def inverse(self) -> Estimate:
        """Return the estimate of 1 / value."""
        return Estimate(1 / self.value, 1 / self.high, 1 / self.low)


@dataclass(frozen=True)
class Comparison:
    """An arm compared to a reference.

    ``ratio`` says how many times better the arm is: median of the reference / median of the arm
    where lower is better, the inverse where higher or neither is. It is None unless all samples
    are positive. ``difference`` is median of the arm - median of the reference, in the unit of
    the metric. Both are None where there are too few samples.
    """

    verdict: Verdict
    ratio: Estimate | None
    difference: Estimate | None


def summarise(samples: Sequence[float]) -> Summary | None:
    """Summarise samples, in any order; None where there are none."""
    if not samples:
        return None
    ordered = np.sort(np.asarray(samples, dtype=float))
    n = len(ordered)
    low, high, confidence = median_ranks(n)
    q1, median, q3 = np.quantile(ordered, [0.25, 0.5, 0.75])
    return Summary(
        n=n,
        median=float(median),
        ci_low=float(ordered[low - 1]),
        ci_high=float(ordered[high - 1]),
        confidence=confidence,
        minimum=float(ordered[0]),
        q1=float(q1),
        q3=float(q3),
        maximum=float(ordered[-1]),
    )


def compare(reference: Sequence[float], arm: Sequence[float], better: Better) -> Comparison:
    """Compare the samples of an arm to those of a reference."""
    of_reference, of_arm = summarise(reference), summarise(arm)
    if not of_reference or not of_arm or min(of_reference.n, of_arm.n) < MIN_SAMPLES:
        return Comparison(Verdict.TOO_FEW, None, None)

    rng = np.random.default_rng(0)
    medians_reference = _bootstrap_medians(reference, rng)
    medians_arm = _bootstrap_medians(arm, rng)
    difference = _estimate(of_arm.median - of_reference.median, medians_arm - medians_reference)
    ratio = None
    if min(of_reference.minimum, of_arm.minimum) > TINY:
        ratio = _estimate(of_arm.median / of_reference.median, medians_arm / medians_reference)
        if better == "lower":
            ratio = ratio.inverse()
    return Comparison(_verdict(of_reference, of_arm, better), ratio, difference)


def _verdict(reference: Summary, arm: Summary, better: Better) -> Verdict:
    if arm.ci_low > reference.ci_high:
        direction = "higher"
    elif arm.ci_high < reference.ci_low:
        direction = "lower"
    else:
        return Verdict.SAME
    if better == "none":
        return Verdict(direction)
    return Verdict.BETTER if direction == better else Verdict.WORSE


def _bootstrap_medians(samples: Sequence[float], rng: np.random.Generator) -> Floats:
    """Return the medians of RESAMPLES resamples, without drawing the resamples.

    Drawing n indices with replacement is rounding n uniform numbers down to multiples of 1/n.
    Only the middle one of them is needed, or the middle two, and order statistics of uniform
    numbers are known: the m-th of n is Beta(m, n - m + 1), and the next one cuts the rest at
    Beta(1, n - m). So the cost does not depend on n.
    """
    ordered = np.sort(np.asarray(samples, dtype=float))
    n = len(ordered)
    m = (n + 1) // 2
    middle = rng.beta(m, n - m + 1, RESAMPLES)
    if n % 2:
        return _at(ordered, middle)
    after = middle + (1 - middle) * rng.beta(1, n - m, RESAMPLES)
    return (_at(ordered, middle) + _at(ordered, after)) / 2


def _at(ordered: Floats, quantile: Floats) -> Floats:
    index = np.minimum((quantile * len(ordered)).astype(int), len(ordered) - 1)
    taken: Floats = np.take(ordered, index)
    return taken


def _estimate(value: float, resampled: Floats) -> Estimate:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Estimate(float(value), float(low), float(high))
