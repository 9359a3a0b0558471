# SPDX-License-Identifier: GPL-2.0-only
"""The figures of a list of latencies."""

import random

from hypothesis import given
from hypothesis import strategies as st

from lightsleep.measure.summary import subtract, summarise

LATENCIES = st.lists(st.integers(-(10**9), 10**12), min_size=1, max_size=300)


@given(LATENCIES)
def test_figures(latencies: list[int]) -> None:
    figures = summarise(latencies)
    assert figures
    ascending = [figures.p50_ns, figures.p90_ns, figures.p99_ns, figures.max_ns]
    assert ascending == sorted(ascending)
    assert figures.count == len(latencies)
    assert {*ascending} <= {*latencies}
    assert figures.independent
    assert figures.independent <= figures.count
    assert (figures.ci_ns is None) == (figures.independent < 6)
    assert figures.p99_ci_ns is None or figures.p99_ci_ns[0] <= figures.p99_ns
    if figures.ci_ns:
        assert figures.ci_ns[0] <= figures.p50_ns <= figures.ci_ns[1]


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
        widths = [ends[1] - ends[0] for ends in (raw.ci_ns, baseline.ci_ns, own.ci_ns)]
        assert max(widths[:2]) <= widths[2] * (1 + 1e-9)
        assert widths[2] <= (widths[0] + widths[1]) * (1 + 1e-9)


def test_the_99th_percentile_has_an_interval() -> None:
    rng = random.Random(3)
    few, many = (summarise([int(rng.expovariate(1e-6)) for _ in range(n)]) for n in (200, 2000))
    assert few
    assert few.p99_ci_ns
    assert few.p99_ci_ns[1] is None  # the largest of 200 may well be below it
    assert many
    assert many.p99_ci_ns
    assert many.p99_ci_ns[1]
    assert many.p99_ci_ns[0] <= 4_605_170 <= many.p99_ci_ns[1]
