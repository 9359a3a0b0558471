# SPDX-License-Identifier: GPL-2.0-only
"""The method of comparisons: against scipy and textbooks, as properties, and by simulation."""

from __future__ import annotations

import json
import math
import random
import statistics

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from paths import FIXTURES, ROOT

from lightsleep import units
from lightsleep.compare import words
from lightsleep.compare.boots import t_quantile
from lightsleep.compare.method import (
    MOST,
    Comparison,
    Verdict,
    compare,
    compare_jointly,
    rounds_needed,
    summarise,
)
from lightsleep.compare.result import Better, MetricResult
from lightsleep.lab.run import protocol

Floats = NDArray[np.float64]
ROUNDS, BOOTS = protocol.ROUNDS, protocol.BOOTS  # of lab compare, where nobody chose another number

values = st.floats(-1e18, 1e18)
positive = st.floats(1e-9, 1e9)
many = st.lists(positive, min_size=6, max_size=40)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    """Return samples of two arms, some of which differ."""
    n = draw(st.integers(6, 20))
    factor = draw(st.sampled_from([1.0, 1.2, 50.0]))
    noise = st.lists(st.floats(0.8, 1.2), min_size=n, max_size=n)
    return draw(noise), [factor * x for x in draw(noise)]


def test_nothing_is_said_of_no_samples() -> None:
    assert summarise([]) is None
    assert compare([], [], "lower").verdict is Verdict.TOO_FEW


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


# Hollander and Wolfe, table 3.1: depression before and after a tranquilliser, nine patients.
BEFORE = [1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30]
AFTER = [0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29]


def test_estimate_and_interval_of_the_textbook() -> None:
    comparison = compare(BEFORE, AFTER, "lower", "%")  # of which differences are taken
    assert comparison.difference
    assert comparison.difference.value == pytest.approx(-0.46)
    assert comparison.difference.low == pytest.approx(-0.786)
    assert comparison.difference.high == pytest.approx(-0.010)
    assert comparison.verdict is Verdict.BETTER


@settings(max_examples=200)
@given(st.integers(6, 30), st.floats(-1, 1), st.integers(0, 2**32 - 1))
def test_the_verdict_is_that_of_the_signed_rank_test(n: int, shift: float, seed: int) -> None:
    effects = np.random.default_rng(seed).normal(shift, 1, n)  # no ties
    comparison = compare([0.0] * n, effects.tolist(), "none", "%")
    p = float(scipy.stats.wilcoxon(effects, method="exact").pvalue)
    assert comparison.verdict.differs == (p <= 0.05)


@pytest.mark.parametrize("n", range(1, 6))
def test_fewer_than_six_rounds_claim_nothing(n: int) -> None:
    comparison = compare([1.0] * n, [9.0] * n, "lower")
    assert comparison == Comparison(Verdict.TOO_FEW, n, 0.95)
    assert compare([1.0] * 6, [9.0] * 6, "lower").verdict is Verdict.WORSE


def test_rounds_that_a_confidence_needs() -> None:
    assert [rounds_needed(1 - 0.05 / m) for m in (1, 2, 5, 6, 25)] == [6, 7, 8, 8, 10]


@given(many, st.sampled_from(["lower", "higher", "none"]))
def test_an_arm_never_differs_from_itself(samples: list[float], better: Better) -> None:
    assert compare(samples, samples, better).verdict is Verdict.SAME


@settings(max_examples=50)
@given(rounds())
def test_swapping_the_arms_swaps_the_verdict(arms: tuple[list[float], list[float]]) -> None:
    first, second = arms
    there, back = compare(first, second, "lower"), compare(second, first, "lower")
    opposite = {Verdict.BETTER: Verdict.WORSE, Verdict.WORSE: Verdict.BETTER}
    assert back.verdict == opposite.get(there.verdict, there.verdict)
    assert there.ratio
    assert back.ratio
    assert there.ratio.value == pytest.approx(1 / back.ratio.value)
    assert there.ratio.low == pytest.approx(1 / back.ratio.high)
    assert there.detectable == pytest.approx(back.detectable)


@settings(max_examples=50)
@given(rounds())
def test_the_verdict_follows_the_interval_and_the_direction(
    arms: tuple[list[float], list[float]],
) -> None:
    comparison = compare(*arms, "higher")
    assert comparison.ratio
    assert comparison.ratio.low <= comparison.ratio.value <= comparison.ratio.high
    assert (comparison.verdict is Verdict.BETTER) == (comparison.ratio.low > 1)
    assert (comparison.verdict is Verdict.WORSE) == (comparison.ratio.high < 1)


@settings(max_examples=50)
@given(many, st.floats(0.01, 100), st.randoms())
def test_what_a_round_does_to_all_arms_does_not_matter(
    samples: list[float], factor: float, rng: random.Random
) -> None:
    slowed = [x * rng.uniform(1, 3) for x in samples]
    ratio = compare(slowed, [x * factor for x in slowed], "none").ratio
    assert ratio
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((factor, factor, factor))


def test_one_round_of_one_boot_that_went_the_other_way_is_no_veto() -> None:
    samples = [0.5, 0.52, 0.48, 0.51, 0.5, 0.49, 0.53, 0.5, 0.47, 0.52, 0.51, 40.0]
    assert compare([1.0] * len(samples), samples, "lower").verdict is Verdict.BETTER


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [
        (1 / 2.6, Verdict.BETTER),
        (1 / 2.8, Verdict.SAME),
        (11.0, Verdict.BETTER),
        (13.0, Verdict.SAME),
    ],
)
def test_one_round_of_several_boots_that_is_far_off_hides_a_difference(
    factor: float, verdict: Verdict
) -> None:
    """The figures of the essay and of docs/lab.md: 18 rounds in 9 boots, 17 of them with 20 %."""
    samples = [1.2] * 17 + [1.2 * factor]
    assert compare([1.0] * 18, samples, "higher", boots=9).verdict is verdict
    assert compare([1.0] * 18, samples, "higher").verdict is Verdict.BETTER
    by_formula = math.exp(18 * math.log(1.2) / (1 + t_quantile(8, 0.025)))
    assert by_formula == pytest.approx(2.7, abs=0.05)


@pytest.mark.parametrize(
    ("better", "verdict"),
    [("lower", Verdict.BETTER), ("higher", Verdict.WORSE), ("none", Verdict.LOWER)],
)
def test_the_ratio_is_arm_by_reference(better: Better, verdict: Verdict) -> None:
    comparison = compare([4.0] * 6, [1.0] * 6, better)
    assert comparison.verdict is verdict
    assert comparison.ratio
    assert comparison.ratio.value == pytest.approx(0.25)
    assert comparison.difference is None


def test_zeros_and_percentages_have_a_difference_but_no_ratio() -> None:
    comparison = compare([0.0] * 6, [39_700.0] * 6, "none")
    assert comparison.verdict is Verdict.HIGHER
    assert comparison.ratio is None
    assert comparison.difference
    assert comparison.difference.value == 39_700
    assert words.sentence("x", comparison, "y", metric_of("", "none")) == (
        "x has 39,700 more than y (95 % CI 39,700 to 39,700)"
    )
    assert compare([0.0] * 6, [0.0] * 6, "lower").verdict is Verdict.SAME
    assert compare([99.0] * 6, [98.0] * 6, "higher", "%").ratio is None


def test_arms_with_other_numbers_of_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="6 rounds cannot be compared with 7"):
        compare([1.0] * 7, [1.0] * 6, "lower")
    with pytest.raises(ValueError, match="6 rounds cannot be compared with 7"):
        compare_jointly([[1.0] * 7], [[1.0] * 6], "lower")


def test_several_metrics_are_the_geometric_mean_within_rounds() -> None:
    # Two metrics, 4 times and the same: twice; in rounds that change both metrics, too.
    reference = [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [10.0, 1.0, 7.0, 8.0, 2.0, 3.0]]
    arm = [[4 * x for x in reference[0]], reference[1]]
    ratio = compare_jointly(reference, arm, "higher").ratio
    assert ratio
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((2, 2, 2))
    assert compare_jointly(reference[:1], arm[:1], "lower") == compare(
        reference[0], arm[0], "lower"
    )
    with pytest.raises(ValueError, match="not positive"):
        compare_jointly([[1.0] * 6], [[0.0] * 6], "lower")


@given(st.lists(st.tuples(values, values), max_size=12))
def test_figures_are_finite_for_whatever_a_result_may_hold(
    samples: list[tuple[float, float]],
) -> None:
    comparison = compare([x for x, _ in samples], [y for _, y in samples], "lower")
    if effect := comparison.effect:
        assert all(map(math.isfinite, (effect.value, effect.low, effect.high)))
        assert comparison.detectable is not None
        assert math.isfinite(comparison.detectable)


def test_very_many_rounds_are_judged_by_their_neighbours_averages() -> None:
    rng = np.random.default_rng(4)
    samples = rng.lognormal(0, 0.1, (2, 100 * MOST))
    comparison = compare(samples[0].tolist(), (1.01 * samples[1]).tolist(), "lower")
    assert comparison.verdict is Verdict.WORSE
    assert comparison.rounds == 100 * MOST
    assert comparison.ratio
    assert comparison.ratio.value == pytest.approx(1.01, abs=0.003)


# Simulations. Each has a fixed seed; what they are asked leaves room for 3 standard errors.


def shown(effects: Floats, confidence: float = 0.95, boots: int = 1) -> float:
    """Return in which share of runs a difference is shown: effects by run and round."""
    verdicts = [
        compare([0.0] * effects.shape[1], run.tolist(), "none", "%", confidence, boots).verdict
        for run in effects
    ]
    return sum(verdict.differs for verdict in verdicts) / len(verdicts)


def noise(n: int, runs: int = 2000, sigma: float = 0.1) -> Floats:
    """Return log-ratios of two arms, each of whose samples scatters by ``sigma``."""
    arms: Floats = np.random.default_rng(20).normal(0, sigma, (2, runs, n))
    difference: Floats = arms[0] - arms[1]
    return difference


@pytest.mark.parametrize(("n", "least"), [(6, 0.48), (8, 0.79), (10, 0.92), (ROUNDS, 0.96)])
def test_the_power_to_show_20_percent(n: int, least: float) -> None:
    assert shown(noise(n) + math.log(1.2)) >= least


@pytest.mark.parametrize("n", [6, 8, ROUNDS, 20])
def test_false_alarms_of_normal_noise(n: int) -> None:
    assert shown(noise(n)) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000)


def test_false_alarms_and_power_with_heavy_tails() -> None:
    tails = np.random.default_rng(3).standard_t(2, (2, 2000, ROUNDS)) * 0.1
    effects = tails[0] - tails[1]
    assert shown(effects) <= 0.06
    assert shown(effects + math.log(1.2)) >= 0.45  # non-overlapping intervals of medians: 0.19


RECORDED = FIXTURES / "compare/noise.json"
"""Times and rates of baselines and of controls booted alike, on quiet hosts and on busy ones."""


def recorded_noise() -> list[Floats]:
    """Return log-ratios of two arms booted alike, without their median, metric by metric."""
    metrics = json.loads(RECORDED.read_text()).values()
    ratios = [np.log(metric["control"]) - np.log(metric["baseline"]) for metric in metrics]
    return [each - np.median(each) for each in ratios]


def drawn_from(pool: Floats, runs: int = 2000) -> Floats:
    """Return runs of rounds drawn from recorded ones: which arm was faster is a coin toss."""
    rng = np.random.default_rng(11)
    signs = rng.choice([-1.0, 1.0], (runs, ROUNDS))
    drawn: Floats = rng.choice(pool, (runs, ROUNDS)) * signs
    return drawn


def test_recorded_noise_raises_few_false_alarms() -> None:
    assert shown(drawn_from(np.concatenate(recorded_noise())), boots=BOOTS) <= 0.05


QUIET = FIXTURES / "compare/noise-quiet.json"
"""The same on a quiet host, of the results idle and programs of 2026-11-30 (x86_64): 9 boots."""

SHOWN_LESS_OFTEN = {
    "redis_1_p99_us",
    "redis_50_p99_us",
    "nginx_1_p99_us",
    "memcached_50_per_s",
    "mosquitto_50_per_s",
}
"""In 36 to 87 of 100 runs. docs/lab.md names these metrics."""


def drawn_boots(metric: dict[str, list[float]], runs: int = 500) -> Floats:
    """Return runs of boots drawn from recorded ones, each with its rounds: boots scatter, too."""
    ratios = np.log(metric["control"]) - np.log(metric["baseline"])
    boots = (ratios - np.median(ratios)).reshape(BOOTS, -1)
    rng = np.random.default_rng(11)
    signs = rng.choice([-1.0, 1.0], (runs, BOOTS, 1))
    drawn: Floats = (boots[rng.integers(0, BOOTS, (runs, BOOTS))] * signs).reshape(runs, -1)
    return drawn


def test_on_a_quiet_host_20_percent_are_shown_but_for_what_the_docs_name() -> None:
    recorded = json.loads(QUIET.read_text())
    power = {
        name.partition(", ")[2]: shown(drawn_boots(each) + math.log(1.2), boots=BOOTS)
        for name, each in recorded.items()
    }
    assert {name for name, share in power.items() if share < 0.9} == SHOWN_LESS_OFTEN
    said = " ".join((ROOT / "docs/lab.md").read_text().split())
    assert f"For {len(power) - len(SHOWN_LESS_OFTEN)} of these {len(power)} metrics" in said


def test_on_busy_hosts_20_percent_are_shown_in_as_many_metrics_as_the_docs_say() -> None:
    effects = [drawn_from(metric, 500) + math.log(1.2) for metric in recorded_noise()]
    usually = sum(shown(each, boots=BOOTS) >= 0.9 for each in effects)
    said = " ".join((ROOT / "docs/lab.md").read_text().split())
    assert f"that is so for {usually} of {len(effects)}" in said


def test_a_control_of_many_metrics_raises_few_false_alarms() -> None:
    metrics = 6
    confidence = 1 - 0.05 / metrics
    verdicts = [
        compare([0.0] * ROUNDS, run.tolist(), "none", "%", confidence).verdict.differs
        for run in drawn_from(np.concatenate(recorded_noise()), 1000 * metrics)
    ]
    alarms = np.array(verdicts).reshape(-1, metrics).any(axis=1)
    assert alarms.mean() <= 0.05
    assert shown(noise(ROUNDS) + math.log(1.5), confidence) >= 0.9  # and it can fail


@pytest.mark.parametrize("confidence", [0.95, 1 - 0.05 / 38])
def test_what_a_run_could_have_shown_grows_with_its_interval(confidence: float) -> None:
    effects = noise(ROUNDS, 1)[0].tolist()
    found = compare([0.0] * ROUNDS, effects, "none", "%", confidence)
    assert found.difference
    reach = scipy.stats.norm.ppf((1 + confidence) / 2)
    assert found.detectable == pytest.approx(
        (found.difference.high - found.difference.low)
        / 2
        * (reach + scipy.stats.norm.ppf(0.9))
        / reach
    )


@pytest.mark.parametrize("n", [6, 8, ROUNDS, 20])
def test_what_is_called_detectable_is_detected_in_9_of_10_runs(n: int) -> None:
    said = [compare([0.0] * n, run.tolist(), "none", "%").detectable for run in noise(n, 300)]
    typical = statistics.mean(least for least in said if least is not None)
    assert shown(noise(n) + typical) == pytest.approx(0.9, abs=0.05)


def metric_of(unit: str, better: Better = "lower", *, amount: bool = False) -> MetricResult:
    return MetricResult(unit, better, "metric", "", {}, amount)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (1.0, "1.000"),
        (1.047, "1.047"),
        (1.00046, "1.0005"),
        (0.99987, "0.9999"),
        (1.0000001, "1.000"),
        (5.0, "5.00"),
        (0.0123, "0.0123"),
        (1e-70, "1e-70"),
        (5.7e21, "5.7e+21"),
    ],
)
def test_a_factor_can_be_told_from_none(number: float, said: str) -> None:
    assert units.factor(number) == said


@pytest.mark.parametrize(
    ("number", "said"),
    [(0.0, "0.000"), (-0.0, "0.000"), (-1e-9, "-1e-09"), (-0.0004, "-0.0004"), (0.25, "0.25")],
)
def test_points_can_be_told_from_none(number: float, said: str) -> None:
    assert units.digits(number, "%", points=True) == said


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (metric_of("s"), "2.00 × faster"),
        (metric_of("us", amount=True), "2.00 × lower"),
        (metric_of("us", "none"), "2.00 × lower"),
        (metric_of("/s", "higher"), "2.00 × lower"),
        (metric_of("", "none"), "2.00 × fewer"),
    ],
)
def test_only_what_takes_time_is_faster(metric: MetricResult, said: str) -> None:
    assert words.effect(compare([2.0] * 6, [1.0] * 6, metric.better, metric.unit), metric) == said


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
        (-0.008, "%", "-0.008 %"),
        (0.0, "%", "0.00 %"),
        (0.004, "%", "0.004 %"),
        (0.00051, "%", "0.0005 %"),
        (99.99, "%", "99.99 %"),
        (99.9996, "%", "99.9996 %"),
        (100.0, "%", "100.00 %"),
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
        ("", "lower", 39_700, 200, "a has 199 times fewer than b (95 % CI 199 to 199)"),
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
    comparison = compare([baseline] * 6, [arm] * 6, better, unit)
    assert words.sentence("a", comparison, "b", metric_of(unit, better)) == said


def test_a_difference_that_was_not_shown_says_which_would_have_been() -> None:
    baseline, arm = [1.0, 1.1, 0.9, 1.0, 1.05, 0.95], [1.06, 1.01, 1.0, 0.96, 1.0, 1.01]
    comparison = compare(baseline, arm, "lower")
    assert comparison.detectable
    assert comparison.ratio
    percent = f"{100 * (comparison.detectable - 1):.2g} %"
    low, value, high = (
        units.factor(x)
        for x in (comparison.ratio.low, comparison.ratio.value, comparison.ratio.high)
    )
    assert words.sentence("a", comparison, "b", metric_of("s")) == (
        f"no difference shown between a and b ({value} times slower, 95 % CI {low} to {high}); "
        f"about 8 of 10 such comparisons show one of {percent}"
    )
    assert words.finding(comparison, metric_of("s")) == f"none shown ({percent})"
    assert words.with_interval(comparison, metric_of("s")) == (
        f"none shown ({percent}): {value} × slower, 95 % CI {low} to {high} ×"
    )
    in_points = compare(baseline, arm, "lower", "%")
    assert words.finding(in_points, metric_of("%")).endswith(" points)")


def test_a_run_that_could_have_shown_nothing_names_no_absurd_factor() -> None:
    baseline, arm = [1.0, 900.0, 3.0, 50.0, 2.0, 400.0], [700.0, 1.0, 30.0, 2.0, 80.0, 9.0]
    noisy = compare(baseline, arm, "lower")
    assert noisy.detectable
    assert noisy.detectable > 10
    assert words.finding(noisy, metric_of("s")) == "none shown (over 10 ×)"
