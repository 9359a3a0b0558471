# SPDX-License-Identifier: GPL-2.0-only
"""Order statistics: percentiles of samples and how sure they are, whatever the distribution.

The i-th smallest of n independent samples lies below the q-quantile of what they are drawn from
exactly if at least i samples do, and the number of samples below it is binomial, B(n, q). So

    P(i-th <= quantile <= j-th) = P(i <= B < j)

for any continuous distribution, and at least that for one with ties. ``ranks`` takes the largest
i and the smallest j that leave at most half of what is not covered on either side. For the median
that is the interval of the sign test. Where n is too small for one side, that side has no bound:
the largest of 200 samples is below the 99th percentile in 13 % of cases.

Only the standard library is used: this runs on the machine that is measured.
(David, Nagaraja: Order Statistics, 3rd edition, section 7.1.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import TypeVar

CONFIDENCE = 0.95

T = TypeVar("T", int, float)


def percentile(ordered: Sequence[T], percent: int) -> T:
    """Return the smallest sample that at least ``percent`` % of the samples do not exceed."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


@cache
def ranks(n: int, percent: int = 50) -> tuple[int | None, int | None]:
    """Return which of n sorted samples, from 1, enclose a percentile with 95 % confidence.

    None stands for a side that no sample bounds.
    """
    tail, q = (1 - CONFIDENCE) / 2, percent / 100
    return _rank(n, q, tail), _mirrored(n, _rank(n, 1 - q, tail))


def _mirrored(n: int, rank: int | None) -> int | None:
    return None if rank is None else n + 1 - rank


def _rank(n: int, q: float, tail: float) -> int | None:
    """Return the largest i with P(B(n, q) < i) <= tail, None where there is none."""
    below = 0.0
    for count in range(n + 1):
        below += _pmf(n, count, q)
        if below > tail:
            return count or None
    return n or None


def _pmf(n: int, count: int, q: float) -> float:
    log_ways = math.lgamma(n + 1) - math.lgamma(count + 1) - math.lgamma(n - count + 1)
    return math.exp(log_ways + count * math.log(q) + (n - count) * math.log1p(-q))


@cache
def median_ranks(n: int) -> tuple[int, int, float]:
    """Return the ranks of an interval of the median and the confidence that it really has.

    With fewer than six samples these are the smallest and the largest, and the confidence is below
    95 %.
    """
    low, _ = ranks(n)
    low = low or 1
    return low, n + 1 - low, 1 - 2 * sum(_pmf(n, count, 0.5) for count in range(low))
