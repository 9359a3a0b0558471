# SPDX-License-Identifier: GPL-2.0-only
"""What a list of latencies says, without assuming how they are distributed. No side effects.

Percentiles are order statistics: a latency that was measured, never one between two of them. So
are the ends of the interval of the median (``order.py``), which fewer than six samples do not have.

The baseline's median is subtracted from every latency. Its own uncertainty goes into the interval:
lowest minus highest, highest minus lowest, which encloses the true difference wherever both
intervals enclose their medians.
"""

from collections.abc import Sequence

from lightsleep.measure.result import Figures
from lightsleep.order import percentile, ranks


def summarise(latencies_ns: Sequence[int]) -> Figures | None:
    """Summarise latencies, in any order; None where there are none."""
    if not latencies_ns:
        return None
    ordered = sorted(latencies_ns)
    n = len(ordered)
    low, high = ranks(n)
    return Figures(
        count=n,
        p50_ns=percentile(ordered, 50),
        p90_ns=percentile(ordered, 90),
        p99_ns=percentile(ordered, 99),
        max_ns=ordered[-1],
        ci_ns=(ordered[low - 1], ordered[high - 1]) if low and high else None,
    )


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
