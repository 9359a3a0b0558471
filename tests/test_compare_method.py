# SPDX-License-Identifier: GPL-2.0-only
"""Statistics: against values worked out by hand, and as properties of any samples."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightsleep import units
from lightsleep.compare import words
from lightsleep.compare.method import (
    MIN_SAMPLES,
    RESAMPLES,
    Verdict,
    _bootstrap_medians,
    compare,
    summarise,
)
from lightsleep.compare.result import Better

values = st.floats(-1e18, 1e18)
positive = st.floats(1e-9, 1e9)
many = st.lists(positive, min_size=MIN_SAMPLES, max_size=40)

# Samples close to one of few centres, so that some arms differ and some do not.
near = st.builds(
    lambda centre, steps: [centre * (1 + step) for step in steps],
    st.sampled_from([1.0, 1.2, 50.0]),
    st.lists(st.floats(0, 0.3), min_size=MIN_SAMPLES, max_size=40),
)


def test_nothing_is_said_of_no_samples() -> None:
    assert summarise([]) is None
    assert compare([], [1.0] * 9, "lower").verdict is Verdict.TOO_FEW


def test_one_sample_gives_no_confidence() -> None:
    summary = summarise([3.0])
    assert summary
    assert (summary.n, summary.median, summary.ci_low, summary.ci_high) == (1, 3.0, 3.0, 3.0)
    assert summary.confidence == 0.0


# The ranks and confidences of tables of the sign test; n, k-th smallest and largest, confidence.
@pytest.mark.parametrize(
    ("n", "rank", "confidence"),
    [
        (2, 1, 0.5),
        (5, 1, 0.9375),
        (6, 1, 0.96875),
        (8, 1, 0.9921875),
        (9, 2, 0.9609375),
        (10, 2, 0.978515625),
        (20, 6, 0.958610535),
        (100, 40, 0.9647998),
    ],
)
def test_interval_is_the_pair_of_order_statistics_of_the_sign_test(
    n: int, rank: int, confidence: float
) -> None:
    summary = summarise([float(x) for x in range(1, n + 1)])
    assert summary
    assert (summary.ci_low, summary.ci_high) == (rank, n + 1 - rank)
    assert summary.confidence == pytest.approx(confidence, abs=1e-7)


def test_interval_covers_the_true_median_as_often_as_it_claims() -> None:
    rng = np.random.default_rng(7)
    trials, n = 2000, 12
    summaries = [summarise(list(row)) for row in rng.exponential(size=(trials, n))]
    hits = sum(s.ci_low <= math.log(2) <= s.ci_high for s in summaries if s)
    claimed = summaries[0].confidence if summaries[0] else 0
    assert hits / trials == pytest.approx(claimed, abs=0.02)


@given(st.lists(values, min_size=1, max_size=60))
def test_figures_are_in_order_and_of_the_samples(samples: list[float]) -> None:
    s = summarise(samples)
    assert s
    assert s.minimum == min(samples)
    assert s.maximum == max(samples)
    assert s.median == pytest.approx(statistics.median(samples))
    assert s.minimum <= s.ci_low <= s.ci_high <= s.maximum
    assert s.minimum <= s.q1 <= s.median <= s.q3 <= s.maximum
    assert s.ci_low in samples
    assert s.ci_high in samples
    assert (s.confidence >= 0.95) == (len(samples) >= 6)


@given(st.lists(values, min_size=1, max_size=20), st.randoms())
def test_order_of_samples_does_not_matter(samples: list[float], rng: random.Random) -> None:
    shuffled = rng.sample(samples, len(samples))
    assert summarise(samples) == summarise(shuffled)


@given(many, st.sampled_from(["lower", "higher", "none"]))
def test_an_arm_never_differs_from_itself(samples: list[float], better: Better) -> None:
    assert compare(samples, samples, better).verdict is Verdict.SAME


@settings(max_examples=50)
@given(near, near)
def test_swapping_the_arms_swaps_the_verdict(first: list[float], second: list[float]) -> None:
    there, back = compare(first, second, "lower"), compare(second, first, "lower")
    opposite = {Verdict.BETTER: Verdict.WORSE, Verdict.WORSE: Verdict.BETTER}
    assert back.verdict == opposite.get(there.verdict, there.verdict)
    assert there.ratio
    assert back.ratio
    assert there.ratio.value == pytest.approx(1 / back.ratio.value)


@settings(max_examples=50)
@given(near, near)
def test_verdict_follows_the_intervals_and_the_direction(
    first: list[float], second: list[float]
) -> None:
    a, b = summarise(first), summarise(second)
    assert a
    assert b
    verdict = compare(first, second, "higher").verdict
    if verdict is Verdict.BETTER:
        assert b.ci_low > a.ci_high
    elif verdict is Verdict.WORSE:
        assert b.ci_high < a.ci_low
    else:
        assert b.ci_low <= a.ci_high
        assert a.ci_low <= b.ci_high


@settings(max_examples=50)
@given(many, st.floats(0.01, 100))
def test_scaling_an_arm_gives_that_ratio(samples: list[float], factor: float) -> None:
    ratio = compare(samples, [x * factor for x in samples], "none").ratio
    assert ratio
    assert ratio.value == pytest.approx(factor)
    assert ratio.low <= ratio.value * (1 + 1e-9)
    assert ratio.high >= ratio.value * (1 - 1e-9)


def test_touching_intervals_show_no_difference() -> None:
    assert compare([1, 1, 1, 1, 1, 2], [2, 3, 3, 3, 3, 3], "lower").verdict is Verdict.SAME
    assert compare([1] * 6, [1.001] * 6, "lower").verdict is Verdict.WORSE


@pytest.mark.parametrize(
    ("better", "verdict", "ratio"),
    [("lower", Verdict.BETTER, 4), ("higher", Verdict.WORSE, 0.25), ("none", Verdict.LOWER, 0.25)],
)
def test_ratio_says_how_many_times_better(better: Better, verdict: Verdict, ratio: float) -> None:
    comparison = compare([4.0] * 6, [1.0] * 6, better)
    assert comparison.verdict is verdict
    assert comparison.ratio
    assert comparison.ratio.value == ratio
    assert comparison.difference
    assert comparison.difference.value == -3


@pytest.mark.parametrize("n", range(1, MIN_SAMPLES))
def test_few_samples_claim_nothing(n: int) -> None:
    comparison = compare([1.0] * n, [9.0] * 20, "lower")
    assert comparison.verdict is Verdict.TOO_FEW
    assert comparison.ratio is None
    assert comparison.difference is None


def test_zeros_have_a_difference_but_no_ratio() -> None:
    comparison = compare([0.0] * 6, [39_700.0] * 6, "none")
    assert comparison.verdict is Verdict.HIGHER
    assert comparison.ratio is None
    assert comparison.difference
    assert comparison.difference.value == 39_700
    assert words.sentence("x", comparison, "y", "") == (
        "x has 39,700 more than y (95 % CI 39,700 to 39,700)"
    )
    assert compare([0.0] * 6, [0.0] * 6, "lower").verdict is Verdict.SAME


@given(st.lists(values, max_size=12), st.lists(values, max_size=12))
def test_figures_are_finite_for_whatever_a_result_may_hold(
    first: list[float], second: list[float]
) -> None:
    comparison = compare(first, second, "lower")
    for estimate in filter(None, (comparison.ratio, comparison.difference)):
        assert all(map(math.isfinite, (estimate.value, estimate.low, estimate.high)))


@pytest.mark.parametrize("n", [5, 6])
def test_shortcut_bootstrap_has_the_distribution_of_the_real_one(n: int) -> None:
    samples = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0][:n]
    resamples = itertools.product(samples, repeat=n)  # every resample there is: n ** n
    exact = np.array([statistics.median(resample) for resample in resamples])
    drawn = _bootstrap_medians(samples, np.random.default_rng(3))
    assert len(drawn) == RESAMPLES
    for value in np.unique(exact):
        assert (drawn <= value).mean() == pytest.approx((exact <= value).mean(), abs=0.02)


@pytest.mark.parametrize(
    ("number", "unit", "said"),
    [
        (0.4019, "s", "0.402 s"),
        (0.4, "s", "0.400 s"),
        (2.2, "s", "2.20 s"),
        (39_700.0, "", "39,700"),
        (59.5, "", "59.5"),
        (0.0, "", "0"),
        (0.0, "s", "0 s"),
        (0.1, "%", "0.10 %"),
        (99.93, "%", "99.93 %"),
        (-0.008, "%", "-0.01 %"),
        (1234.5, "us", "1,234 us"),
        (1.5e-9, "s", "1.5e-09 s"),
        (1e18, "", "1e+18"),
    ],
)
def test_digits_and_units(number: float, unit: str, said: str) -> None:
    assert units.value(number, unit) == said


@pytest.mark.parametrize(
    ("unit", "better", "baseline", "arm", "said"),
    [
        ("s", "lower", 2.0, 0.4, "a is 5.00 times faster than b (95 % CI 5.00 to 5.00)"),
        ("s", "lower", 0.4, 2.0, "a is 5.00 times slower than b (95 % CI 5.00 to 5.00)"),
        ("s", "lower", 1.0, 1.02, "a is 1.020 times slower than b (95 % CI 1.020 to 1.020)"),
        ("", "lower", 39_700, 200, "a has 198 times fewer than b (95 % CI 198 to 198)"),
        ("MiB/s", "higher", 10, 40, "a is 4.00 times higher than b (95 % CI 4.00 to 4.00)"),
        (
            "%",
            "higher",
            99.93,
            99.92,
            "a is 0.010 points lower than b (95 % CI 0.010 to 0.010 points)",
        ),
        ("s", "lower", 1.0, 1.0, "no difference shown between a and b"),
    ],
)
def test_verdicts_in_words(
    unit: str, better: Better, baseline: float, arm: float, said: str
) -> None:
    comparison = compare([baseline] * 6, [arm] * 6, better)
    assert words.sentence("a", comparison, "b", unit) == said
