# SPDX-License-Identifier: GPL-2.0-only
"""What a list of latencies says, without assuming how they are distributed. No side effects.

Percentiles are order statistics: a latency that was measured, never one between two of them. So
is the interval of the median: the k-th smallest and the k-th largest of n samples enclose the true
median unless fewer than k samples fell on one side of it, which is a matter of n coin tosses:

    confidence = 1 - 2 P(B < k),  B ~ Binomial(n, 1/2)

and k is the largest with at least 95 %. It is counted in whole numbers, so it is exact. Fewer than
six samples give 95 % with no k.

The baseline's median is subtracted from every latency. Its own uncertainty goes into the interval:
lowest minus highest, highest minus lowest, which encloses the true difference wherever both
intervals enclose their medians.
"""

from collections.abc import Sequence
from functools import cache

from lightsleep.measure.result import Figures


def summarise(latencies_ns: Sequence[int]) -> Figures | None:
    """Summarise latencies, in any order; None where there are none."""
    if not latencies_ns:
        return None
    ordered = sorted(latencies_ns)
    n = len(ordered)
    k = rank(n)
    return Figures(
        count=n,
        p50_ns=percentile(ordered, 50),
        p90_ns=percentile(ordered, 90),
        p99_ns=percentile(ordered, 99),
        max_ns=ordered[-1],
        ci_ns=(ordered[k - 1], ordered[n - k]) if k else None,
    )


def percentile(ordered: Sequence[int], percent: int) -> int:
    """Return the smallest sample that at least ``percent`` % of the samples do not exceed."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


@cache
def rank(n: int) -> int:
    """Return the largest k for which the k-th of n from both ends enclose the median at 95 %.

    0 where there is none.
    """
    k, below, term = 0, 0, 1  # below: C(n, 0) + ... + C(n, k - 1); term: C(n, k)
    while 2 * (below + term) * 20 <= 2**n:
        below += term
        term = term * (n - k) // (k + 1)
        k += 1
    return k


def subtract(raw: Figures, baseline: Figures) -> Figures:
    """Return ``raw`` without what waking a busy CPU costs."""
    cost = baseline.p50_ns
    ci = None
    if raw.ci_ns and baseline.ci_ns:
        ci = (raw.ci_ns[0] - baseline.ci_ns[1], raw.ci_ns[1] - baseline.ci_ns[0])
    return Figures(
        count=raw.count,
        p50_ns=raw.p50_ns - cost,
        p90_ns=raw.p90_ns - cost,
        p99_ns=raw.p99_ns - cost,
        max_ns=raw.max_ns - cost,
        ci_ns=ci,
    )
