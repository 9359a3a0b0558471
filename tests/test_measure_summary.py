# SPDX-License-Identifier: GPL-2.0-only
"""The figures, against what numpy and scipy say, and against coin tosses."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from lightsleep.measure.summary import subtract, summarise
from lightsleep.order import percentile, ranks

LATENCIES = st.lists(st.integers(-(10**9), 10**12), min_size=1, max_size=300)


@given(LATENCIES, st.sampled_from([50, 90, 99, 100]))
def test_percentiles_as_numpy_has_them(latencies: list[int], percent: int) -> None:
    expected = np.percentile(latencies, percent, method="inverted_cdf")
    assert percentile(sorted(latencies), percent) == expected


@given(LATENCIES)
def test_figures(latencies: list[int]) -> None:
    figures = summarise(latencies)
    assert figures
    ordered = [figures.p50_ns, figures.p90_ns, figures.p99_ns, figures.max_ns]
    assert ordered == sorted(ordered)
    assert figures.count == len(latencies)
    assert {*ordered} <= {*latencies}
    assert (figures.ci_ns is None) == (len(latencies) < 6)
    if figures.ci_ns:
        assert figures.ci_ns[0] <= figures.p50_ns <= figures.ci_ns[1]


@pytest.mark.parametrize("n", [*range(1, 200), 1000, 4999, 10_000])
def test_the_rank_is_the_largest_with_95_percent(n: int) -> None:
    k = ranks(n)[0] or 0
    assert k == 0 or 1 - 2 * binom.cdf(k - 1, n, 0.5) >= 0.95 - 1e-9
    assert 1 - 2 * binom.cdf(k, n, 0.5) < 0.95 + 1e-9


def test_the_interval_encloses_the_median_as_often_as_it_says() -> None:
    rng = random.Random(7)
    hits = 0
    for _ in range(2000):
        figures = summarise([int(rng.expovariate(1e-6)) for _ in range(40)])
        assert figures
        assert figures.ci_ns
        hits += figures.ci_ns[0] <= 693_147 <= figures.ci_ns[1]
    assert hits / 2000 > 0.94


def test_no_samples_no_figures() -> None:
    assert summarise([]) is None


@given(LATENCIES, LATENCIES)
def test_subtraction(state: list[int], busy: list[int]) -> None:
    raw, baseline = summarise(state), summarise(busy)
    assert raw
    assert baseline
    own = subtract(raw, baseline)
    assert own.p50_ns == raw.p50_ns - baseline.p50_ns
    assert own.max_ns - own.p50_ns == raw.max_ns - raw.p50_ns
    assert (own.ci_ns is None) == (raw.ci_ns is None or baseline.ci_ns is None)
    if own.ci_ns and raw.ci_ns and baseline.ci_ns:
        assert own.ci_ns[0] <= own.p50_ns <= own.ci_ns[1]
        width = (raw.ci_ns[1] - raw.ci_ns[0]) + (baseline.ci_ns[1] - baseline.ci_ns[0])
        assert own.ci_ns[1] - own.ci_ns[0] == width
