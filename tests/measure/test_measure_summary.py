# SPDX-License-Identifier: GPL-2.0-only
"""The figures of a list of latencies."""

import random

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st
from simulated import correlated

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


@pytest.mark.parametrize(("n", "rho"), [(40, 0), (200, 0), (200, 0.8), (200, 0.9)])
def test_intervals_of_what_a_state_costs_hold_it_as_often_as_they_say(n: int, rho: float) -> None:
    """A wake from the state takes 22 us, one of the busy CPU 8 us, and both scatter by 4 us."""
    runs, claimed = 1000, 0.95 - 0.007
    state = np.exp(10 + 0.2 * correlated(runs, n, rho, seed=1)).astype(int).tolist()
    busy = np.exp(9 + 0.5 * correlated(runs, n, rho, seed=2)).astype(int).tolist()
    tail = float(scipy.stats.norm.ppf(0.9))
    median_ns, p90_ns = np.exp(10) - np.exp(9), np.exp(10 + 0.2 * tail) - np.exp(9)
    hits = told = tail_hits = 0
    for ours, theirs in zip(state, busy, strict=True):
        raw, baseline = summarise(ours), summarise(theirs)
        assert raw
        assert baseline
        own = subtract(raw, baseline)
        if own.ci_ns:
            told += 1
            hits += own.ci_ns[0] <= median_ns <= own.ci_ns[1]
        low, high = own.p90_ci_ns or (-np.inf, None)
        tail_hits += low <= p90_ns and (high is None or p90_ns <= high)
    assert told > 0.9 * runs
    assert hits >= claimed * told
    assert tail_hits >= claimed * runs


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
