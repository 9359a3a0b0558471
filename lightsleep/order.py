# SPDX-License-Identifier: GPL-2.0-only
"""Order statistics: percentiles of samples and how sure they are, whatever the distribution.

The i-th smallest of n independent samples lies below the q-quantile of what they are drawn from
exactly if at least i samples do, and the number of samples below it is binomial, B(n, q). So

    P(i-th <= quantile <= j-th) = P(i <= B < j)

for any continuous distribution, and at least that for one with ties. ``ranks`` takes the largest
i and the smallest j that leave at most half of what is not covered on either side. For the median
that is the interval of the sign test. Where n is too small for one side, that side has no bound:
the largest of 200 samples is below the 99th percentile in 13 % of cases.

Samples taken one after the other are rarely independent: whatever slows a machine lasts for more
than one of them. What counts is whether a sample is below the percentile, a series of yes and no;
n samples whose series has the autocorrelations r1, r2, ... are worth n / (1 + 2 (r1 + r2 + ...))
independent ones. Estimated autocorrelations are noise from some lag on, so the sum ends where two
neighbouring ones are no longer positive together, and never grows (Geyer's initial monotone
sequence). The interval is that of so many independent samples. Each of them stands for a group of
neighbours among the sorted ones: the interval begins with the smallest sample of the group that
holds its lower end, and ends with the largest of the one that holds its upper end.

An end of the interval is a statement about the share of samples below that end. So what the samples
are worth is estimated at both ends, too, and the least of the three counts. This matters most for
high percentiles: few samples lie beyond them, too few to show that such samples come together.

Tests simulate how often an interval then holds the percentile: in at least 95 % of runs if a run
has 200 samples or more and neighbours have a correlation of at most 0.9, or if samples come in
batches of 10, each with a level of its own. Of 10,000 samples whose level drifts over hundreds of
them, it is at least 85 %. Two cases fall short. Few samples do not show for how
long they resemble each other: with 20 samples of that correlation, the interval of the median holds
it in 84 %, and a few large batches do not show how far these differ. And no run shows what it did
not meet: where one sample in 20 is in a burst, and a run of 400 meets two bursts on average, the
interval of the median holds it in 96 %, but that of the 90th percentile in 82 % and that of the
99th in 87 %.

``difference`` combines the intervals of two independent estimates: the distances of their ends
add up as standard deviations do, by the sum of squares (MOVER). To subtract one interval's end
from the other's would be as if both erred to the extreme at once: far more than 95 %.

A histogram keeps how many samples each of its buckets holds, and not their order. So samples in a
histogram count as independent ones (``binned_interval``). Where neighbours resemble each other, the
interval is too narrow.

Only the standard library is used: this runs on the machine that is measured.
(David, Nagaraja: Order Statistics, 3rd edition, section 7.1. Geyer: Practical Markov Chain Monte
Carlo, Statistical Science 7 (1992), section 3.3. Zou, Donner: Construction of confidence limits
about effect measures, Statistics in Medicine 27 (2008).)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TypeVar

CONFIDENCE = 0.95

LONGEST = 200
"""Samples further apart than this, and than a quarter of them all, are taken for independent: over
longer distances, there are too few pairs to tell."""

T = TypeVar("T", int, float)
Interval = tuple[float, float]


def percentile(ascending: Sequence[T], percent: int) -> T:
    """Return the smallest sample that at least ``percent`` % of the samples do not exceed."""
    return ascending[max(0, -(-len(ascending) * percent // 100) - 1)]


def quantile(ascending: Sequence[float], share: float) -> float:
    """Return a quantile of sorted samples, between two of them by linear interpolation.

    For samples as few as the rounds of a comparison. Of many, ``percentile`` returns a real one.
    """
    place = share * (len(ascending) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ascending) - 1)
    return ascending[below] + (ascending[above] - ascending[below]) * (place - below)


def interval(samples: Sequence[T], percent: int) -> tuple[T | None, T | None]:
    """Return a 95 % interval of a percentile; None for a side that no sample bounds.

    ``samples`` are in the order in which they were taken.
    """
    ascending = sorted(samples)
    low, high = _places(len(ascending), independent(samples, percent), percent)
    return None if low is None else ascending[low], None if high is None else ascending[high]


def binned_quantile(counts: Mapping[int, int], share: float) -> int:
    """Return the bucket of the smallest sample that a share of the samples do not exceed.

    ``counts`` says how many samples each bucket of a histogram holds: one at least, in all.
    """
    return _bucket(sorted(counts.items()), share * sum(counts.values()))


def binned_interval(counts: Mapping[int, int], percent: int) -> tuple[int | None, int | None]:
    """Return the buckets that a 95 % interval of a percentile begins and ends in.

    The samples count as independent. None stands for a side that no sample bounds.
    """
    ascending = sorted(counts.items())
    low, high = ranks(sum(counts.values()), percent)
    return (
        None if low is None else _bucket(ascending, low),
        None if high is None else _bucket(ascending, high),
    )


def _bucket(ascending: Sequence[tuple[int, int]], rank: float) -> int:
    """Return the bucket of the sample with that rank, from 1."""
    seen = 0
    for bucket, number in ascending:
        seen += number
        if seen >= rank:
            return bucket
    return ascending[-1][0]


def independent(samples: Sequence[float], percent: int) -> int:
    """Return how many independent samples these are worth, for the interval of a percentile.

    ``samples`` are in the order in which they were taken.
    """
    ascending = sorted(samples)
    worth = _worth(samples, percentile(ascending, percent))
    ends = _places(len(ascending), worth, percent)
    return min([worth, *(_worth(samples, ascending[end]) for end in ends if end is not None)])


def _places(n: int, worth: int, percent: int) -> tuple[int | None, int | None]:
    """Return where an interval begins and ends among n sorted samples, from 0.

    None stands for a side that no sample bounds.
    """
    low, high = ranks(worth, percent)
    return (
        None if low is None else (low - 1) * n // worth,
        None if high is None else n - 1 - (worth - high) * n // worth,
    )


def _worth(samples: Sequence[float], at: float) -> int:
    """Return how many independent samples these are worth, for the share of those up to ``at``."""
    n = len(samples)
    below = int("".join("1" if sample <= at else "0" for sample in samples), 2)  # a bit of each
    share = below.bit_count() / n
    variance = share * (1 - share)
    if not variance:
        return n

    def correlation(lag: int) -> float:
        earlier, later = below >> lag, below & ((1 << (n - lag)) - 1)
        either = earlier.bit_count() + later.bit_count()
        both = (earlier & later).bit_count()
        return (both - share * either + share**2 * (n - lag)) / n / variance

    total, least = 0.0, math.inf
    for lag in range(0, min(n - 1, max(LONGEST, n // 4)), 2):
        least = min(least, correlation(lag) + correlation(lag + 1))
        if least <= 0:
            break
        total += 2 * least
    return max(1, min(n, int(n / max(total - 1, 1))))


def difference(
    first: float, of_first: Interval, second: float, of_second: Interval
) -> tuple[float, float]:
    """Return a 95 % interval of first - second from those of both, which are independent."""
    low = math.hypot(first - of_first[0], of_second[1] - second)
    high = math.hypot(of_first[1] - first, second - of_second[0])
    return first - second - low, first - second + high


@cache
def ranks(n: int, percent: int = 50) -> tuple[int | None, int | None]:
    """Return which of n sorted samples, from 1, enclose a percentile with 95 % confidence.

    None stands for a side that no sample bounds.
    """
    tail, q = (1 - CONFIDENCE) / 2, percent / 100
    low = _rank(n, q, tail)
    return low, _mirrored(n, low if q == 0.5 else _rank(n, 1 - q, tail))


def _mirrored(n: int, rank: int | None) -> int | None:
    return None if rank is None else n + 1 - rank


def _rank(n: int, q: float, tail: float) -> int | None:
    """Return the largest i with P(B(n, q) < i) <= tail, None where there is none."""
    # What is farther below the mean is less than 1e-13 in all.
    first = max(0, math.floor(n * q - 8 * math.sqrt(n * q * (1 - q))) - 40)
    below, here = 0.0, _pmf(n, first, q)
    for count in range(first, n + 1):
        below += here
        if below > tail:
            return count or None
        here *= (n - count) / (count + 1) * q / (1 - q)  # a histogram of days has many samples
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
