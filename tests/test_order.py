# SPDX-License-Identifier: GPL-2.0-only
"""Order statistics: against numpy and scipy, and how often intervals hold what they should.

Simulations have fixed seeds. Where 95 % are claimed, they are asked for 95 % less one standard
error.
"""

from __future__ import annotations

import math
import re
from collections import Counter

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st
from paths import ROOT
from simulated import Floats, batches, bursts, correlated

from lightsleep.measure import plan
from lightsleep.order import (
    binned_interval,
    binned_quantile,
    difference,
    independent,
    interval,
    percentile,
    quantile,
    ranks,
)

LATENCIES = st.lists(st.integers(-(10**9), 10**12), min_size=1, max_size=300)
RUNS = 1000
CLAIMED = 0.95 - 0.007
RHO = math.exp(-1 / 500)


@given(LATENCIES, st.sampled_from([50, 90, 99, 100]))
def test_percentiles_as_numpy_has_them(latencies: list[int], percent: int) -> None:
    expected = np.percentile(latencies, percent, method="inverted_cdf")
    assert percentile(sorted(latencies), percent) == expected


@given(LATENCIES, st.sampled_from([0, 0.25, 0.5, 0.9, 1]))
def test_quantiles_as_numpy_has_them(latencies: list[int], share: float) -> None:
    expected = np.quantile(latencies, share)
    assert quantile(sorted(latencies), share) == pytest.approx(expected, rel=1e-9, abs=1e-3)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=300), st.sampled_from([25, 50, 75]))
def test_a_histogram_has_the_percentiles_of_its_samples(samples: list[int], percent: int) -> None:
    ascending, counts = sorted(samples), Counter(samples)
    assert binned_quantile(counts, percent / 100) == percentile(ascending, percent)
    low, high = ranks(len(samples), percent)
    assert binned_interval(counts, percent) == (
        None if low is None else ascending[low - 1],
        None if high is None else ascending[high - 1],
    )


def test_no_other_module_computes_percentiles_of_samples() -> None:
    word = "(?:quantile|percentile)"
    own = re.compile(rf"statistics\.quantiles|np\.{word}|def \w*{word}\w*")
    # The one is of a distribution, the other prints what was computed.
    others = {"def t_quantile", "def _print_percentiles"}
    files = (ROOT / "lightsleep").rglob("*.py")
    found = [x.name for x in files if set(own.findall(x.read_text())) - others]
    assert found == ["order.py"]


@pytest.mark.parametrize("n", [*range(1, 200), 1000, 4999, 10_000, 1_000_003])
@pytest.mark.parametrize("percent", [50, 90, 99])
def test_ranks_are_the_closest_with_95_percent(n: int, percent: int) -> None:
    low, high = ranks(n, percent)
    q = percent / 100
    assert scipy.stats.binom.cdf((low or 0) - 1, n, q) <= 0.025 + 1e-9
    assert scipy.stats.binom.cdf(low or 0, n, q) > 0.025 - 1e-9
    if high is None:
        assert scipy.stats.binom.sf(n - 1, n, q) > 0.025 - 1e-9
    else:
        assert scipy.stats.binom.sf(high - 1, n, q) <= 0.025 + 1e-9
        assert high == 1 or scipy.stats.binom.sf(high - 2, n, q) > 0.025 - 1e-9


def test_the_median_is_bounded_from_six_samples_on_and_p99_from_368() -> None:
    assert next(n for n in range(1, 400) if ranks(n)[0]) == 6
    assert next(n for n in range(1, 400) if ranks(n, 99)[1]) == 368


@given(LATENCIES, st.sampled_from([50, 90, 99]))
def test_an_interval_holds_the_percentile_and_consists_of_samples(
    latencies: list[int], percent: int
) -> None:
    low, high = interval(latencies, percent)
    middle = percentile(sorted(latencies), percent)
    assert low is None or (low in latencies and low <= middle)
    assert high is None or (high in latencies and high >= middle)


def held(samples: Floats, percent: int, truth: float) -> float:
    """Return in which share of runs the interval holds the true percentile."""
    hits = 0
    for run in samples:
        low, high = interval(run.tolist(), percent)
        hits += (low is None or low <= truth) and (high is None or truth <= high)
    return hits / len(samples)


@pytest.mark.parametrize("n", [20, 200])
@pytest.mark.parametrize("percent", [50, 90, 99])
def test_intervals_hold_the_percentile_of_independent_samples(n: int, percent: int) -> None:
    samples = np.random.default_rng(5).exponential(size=(RUNS, n))
    assert held(samples, percent, float(scipy.stats.expon.ppf(percent / 100))) >= CLAIMED


@pytest.mark.parametrize("n", [200, 400])
@pytest.mark.parametrize("rho", [0.5, 0.8, 0.9])
@pytest.mark.parametrize("percent", [50, 90, 99])
def test_intervals_hold_the_percentile_of_correlated_samples(
    n: int, rho: float, percent: int
) -> None:
    assert (
        held(correlated(RUNS, n, rho), percent, float(scipy.stats.norm.ppf(percent / 100)))
        >= CLAIMED
    )


@pytest.mark.parametrize(("n", "runs"), [(200, RUNS), (1000, 200)])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("percent", [50, 90, 99])
def test_intervals_hold_where_each_batch_has_a_level_of_its_own(
    n: int, runs: int, share: float, percent: int
) -> None:
    samples = batches(runs, n, plan.BATCH, share)
    error = math.sqrt(0.95 * 0.05 / runs)
    assert held(samples, percent, float(scipy.stats.norm.ppf(percent / 100))) >= 0.95 - 2 * error


@pytest.mark.parametrize("percent", [50, 90])
def test_intervals_hold_where_the_machine_drifts_for_hundreds_of_samples(percent: int) -> None:
    """Of the largest run there is: 500 samples until it is another level by 1 / e."""
    n, runs, drift = 10_000, 60, 0.3
    rng = np.random.default_rng(11)
    level = scipy.signal.lfilter(
        [math.sqrt(1 - RHO**2)], [1, -RHO], rng.standard_normal((runs, n + 5000))
    )
    noise = rng.standard_normal((runs, n))
    samples = math.sqrt(drift) * level[:, 5000:] + math.sqrt(1 - drift) * noise
    assert held(samples, percent, float(scipy.stats.norm.ppf(percent / 100))) >= 0.85


def test_few_large_batches_would_not() -> None:
    assert held(batches(200, 1000, 250, 0.3), 50, 0) < 0.8


@pytest.mark.parametrize(("n", "least"), [(20, 0.8), (60, 0.92)])
def test_few_samples_that_are_worth_hardly_any_are_a_limit_that_is_known(
    n: int, least: float
) -> None:
    assert least <= held(correlated(RUNS, n, 0.9), 50, 0) < CLAIMED


@pytest.mark.parametrize(("percent", "least"), [(50, CLAIMED), (90, 0.75), (99, 0.8)])
def test_bursts_that_a_run_hardly_meets_are_a_limit_that_is_known(
    percent: int, least: float
) -> None:
    """Two bursts a run, of which some runs meet none."""
    truth = scipy.optimize.brentq(
        lambda x: (
            0.95 * scipy.stats.norm.cdf(x) + 0.05 * scipy.stats.norm.cdf(x - 4) - percent / 100
        ),
        -9,
        9,
    )
    assert held(bursts(RUNS, 400, 0.05, 10), percent, truth) >= least


def test_correlated_samples_taken_for_independent_would_not() -> None:
    low, high = ranks(400)
    assert low
    assert high
    runs = np.sort(correlated(RUNS, 400, 0.8), axis=1)
    assert ((runs[:, low - 1] <= 0) & (runs[:, high - 1] >= 0)).mean() < 0.75


def test_how_much_samples_are_worth() -> None:
    rng = np.random.default_rng(2)
    worth = [independent(run, 50) for run in rng.normal(size=(100, 400)).tolist()]
    assert np.mean(worth) > 340
    assert independent([1.0] * 50, 50) == 50
    # All small ones first, then all large ones: two samples, if that.
    assert independent([0.0] * 200 + [1.0] * 200, 50) < 10


@pytest.mark.parametrize("n", [40, 200])
def test_an_interval_of_a_difference_holds_it_in_95_percent(n: int) -> None:
    rng = np.random.default_rng(9)
    state, busy = rng.lognormal(3, 0.3, (RUNS, n)), rng.exponential(2, (RUNS, n))
    truth = float(
        scipy.stats.lognorm.median(0.3, scale=math.exp(3)) - scipy.stats.expon.median(scale=2)
    )
    hits = 0
    for ours, theirs in zip(state.tolist(), busy.tolist(), strict=True):
        low, high = ranks(n)
        assert low
        assert high
        ours.sort()
        theirs.sort()
        ends = difference(
            percentile(ours, 50),
            (ours[low - 1], ours[high - 1]),
            percentile(theirs, 50),
            (theirs[low - 1], theirs[high - 1]),
        )
        hits += ends[0] <= truth <= ends[1]
    assert 0.94 <= hits / RUNS <= 0.98
