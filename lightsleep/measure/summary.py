# SPDX-License-Identifier: GPL-2.0-only
"""What a list of latencies says, without assuming how they are distributed. No side effects.

Percentiles are order statistics: a latency that was measured, never one between two of them. So
are the ends of their intervals (``order.py``), for as many independent samples as these are worth.
The baseline's median is subtracted from every latency; its own uncertainty goes into the intervals.
"""

from collections.abc import Sequence

from lightsleep.measure.result import Figures, HalfOpen
from lightsleep.order import difference, independent, interval, percentile


def summarise(latencies_ns: Sequence[int]) -> Figures | None:
    """Summarise latencies, in the order in which they were taken; None where there are none."""
    if not latencies_ns:
        return None
    ascending = sorted(latencies_ns)
    p50_ns = percentile(ascending, 50)
    low_ns, high_ns = interval(latencies_ns, 50)
    return Figures(
        count=len(ascending),
        p50_ns=p50_ns,
        p90_ns=percentile(ascending, 90),
        p99_ns=percentile(ascending, 99),
        max_ns=ascending[-1],
        ci_ns=None if low_ns is None or high_ns is None else (low_ns, high_ns),
        p90_ci_ns=_half_open(latencies_ns, 90),
        p99_ci_ns=_half_open(latencies_ns, 99),
        independent=independent(latencies_ns, 50),
    )


def _half_open(latencies_ns: Sequence[int], percent: int) -> HalfOpen | None:
    low_ns, high_ns = interval(latencies_ns, percent)
    return None if low_ns is None else (low_ns, high_ns)


def subtract(raw: Figures, baseline: Figures) -> Figures:
    """Return ``raw`` without what waking a busy CPU costs."""
    cost_ns = baseline.p50_ns
    ci_ns = None
    if raw.ci_ns and baseline.ci_ns:
        ci_ns = difference(raw.p50_ns, raw.ci_ns, cost_ns, baseline.ci_ns)
    return Figures(
        count=raw.count,
        p50_ns=raw.p50_ns - cost_ns,
        p90_ns=raw.p90_ns - cost_ns,
        p99_ns=raw.p99_ns - cost_ns,
        max_ns=raw.max_ns - cost_ns,
        ci_ns=ci_ns,
        p90_ci_ns=_without(raw.p90_ns, raw.p90_ci_ns, baseline),
        p99_ci_ns=_without(raw.p99_ns, raw.p99_ci_ns, baseline),
        independent=raw.independent,
    )


def _without(value_ns: float, ci_ns: HalfOpen | None, baseline: Figures) -> HalfOpen | None:
    if ci_ns is None or baseline.ci_ns is None:
        return None
    low_ns, high_ns = ci_ns
    bounded = (low_ns, value_ns if high_ns is None else high_ns)
    low, high = difference(value_ns, bounded, baseline.p50_ns, baseline.ci_ns)
    return low, None if high_ns is None else high
