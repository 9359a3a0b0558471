# SPDX-License-Identifier: GPL-2.0-only
"""Verdicts: where advertised and observed latency meet, and where nothing can be told."""

import random
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lightsleep.measure.result import Figures, Verdict
from lightsleep.measure.summary import subtract, summarise
from lightsleep.measure.verdict import (
    MAX_SAMPLES,
    SLACK_NS,
    SPARED,
    Evidence,
    accepted_ns,
    judge,
)

BUSY_NS = 3000


def figures(median_ns: int, spread_ns: int = 100, count: int = 200) -> Figures:
    ci = (median_ns - spread_ns // 2, median_ns + spread_ns // 2) if count >= 6 else None
    p90_ns = p99_ns = median_ns + spread_ns
    return Figures(count, median_ns, p90_ns, p99_ns, 10**9, ci, None, None, independent=count)


def evidence(
    advertised_us: int | None, own_ns: int, spread_ns: int = 100, count: int = 200
) -> Evidence:
    raw, baseline = figures(own_ns + BUSY_NS, spread_ns, count), figures(BUSY_NS, 100)
    return Evidence(
        advertised_us=advertised_us,
        raw=raw,
        baseline=baseline,
        subtracted=subtract(raw, baseline),
        fastest_ns=int(raw.p50_ns) - 50,
        invalid={},
        instead={},
        usage=count,
        idled=count,
        polls=False,
        disturbed=None,
    )


NOTHING = replace(evidence(20, 0), raw=None, subtracted=None, usage=0)


@pytest.mark.parametrize("advertised_us", [0, 1, 2, 20, 200, 2000])
def test_the_truth_agrees(advertised_us: int) -> None:
    assert judge(evidence(advertised_us, 1000 * advertised_us)).kind == "agrees"


@pytest.mark.parametrize("advertised_us", [10, 20, 200, 2000, 10**6])
def test_a_lie_by_two_is_found_in_both_directions(advertised_us: int) -> None:
    slow = judge(evidence(advertised_us, 2000 * advertised_us))
    assert (slow.kind, slow.ratio, slow.text) == ("optimistic", 2.0, "optimistic by 2x")
    fast = judge(evidence(advertised_us, 500 * advertised_us))
    assert (fast.kind, fast.ratio, fast.text) == ("pessimistic", 0.5, "pessimistic by 2x")


def test_a_polling_state_that_does_not_poll() -> None:
    verdict = judge(evidence(0, 30_000))
    assert verdict == Verdict("optimistic", None, None, "optimistic by 30.0 us")


def test_there_is_no_factor_of_what_may_be_nothing() -> None:
    verdict = judge(evidence(100, 10, spread_ns=2000))
    assert (verdict.kind, verdict.ratio) == ("pessimistic", None)
    assert verdict.text == "pessimistic by 100.0 us"
    assert judge(evidence(1, 1_500_000)).text == "optimistic by 1,500x"


def test_faster_than_a_busy_cpu() -> None:
    verdict = judge(evidence(100, -500))
    assert verdict.kind == "pessimistic"
    assert verdict.text == "pessimistic by 100 us"


@pytest.mark.parametrize("advertised_us", [0, 100])
def test_a_baseline_that_is_none(advertised_us: int) -> None:
    verdict = judge(evidence(advertised_us, -2500))
    assert (verdict.kind, verdict.ratio) == ("too-noisy", None)
    assert "faster than a busy CPU" in verdict.text


@pytest.mark.parametrize("advertised_us", [1, 2])
def test_no_state_takes_less_than_nothing(advertised_us: int) -> None:
    """An error of the baseline is none of the state, though it is below the accepted range."""
    verdict = judge(evidence(advertised_us, -1400))
    assert (verdict.kind, verdict.ratio) == ("too-noisy", None)


def test_a_wake_that_does_not_come_agrees_with_nothing() -> None:
    verdict = judge(replace(evidence(20, 20_000), invalid={"timeout": 40}))
    assert verdict.kind == "too-noisy"
    assert verdict.text == "40 of 240 wakes took longer than a sample may"
    assert judge(replace(evidence(20, 20_000), invalid={"unsettled": 40})).kind == "agrees"


@pytest.mark.parametrize("spread_ns", [100, 500_000], ids=["below", "on both sides of its end"])
def test_a_wake_that_does_not_come_shows_no_state_to_be_faster(spread_ns: int) -> None:
    """The median is only of those that came."""
    judged = evidence(2000, 1_550_000, spread_ns)
    assert judge(judged).kind in ("pessimistic", "too-few")
    late = judge(replace(judged, invalid={"timeout": 90}))
    assert (late.kind, late.ratio) == ("too-noisy", None)
    assert late.text == "90 of 290 wakes took longer than a sample may"
    slower = replace(evidence(2, 1_000_000), invalid={"timeout": 90})
    assert judge(slower).kind == "optimistic"


def test_a_busy_cpu_that_took_an_interrupt_is_no_baseline_of_one_that_took_none() -> None:
    verdict = judge(replace(evidence(10, 9000), subtracted=None, spared=SPARED))
    assert verdict.kind == "too-noisy"
    assert "measure with --source store" in verdict.text


@given(
    advertised_us=st.integers(0, 10**5),
    own_ns=st.integers(-BUSY_NS, 10**9),
    spread_ns=st.integers(0, 10**9),
    count=st.integers(6, 10_000),
)
def test_a_verdict_is_where_the_whole_interval_is(
    advertised_us: int, own_ns: int, spread_ns: int, count: int
) -> None:
    judged = evidence(advertised_us, own_ns, spread_ns, count)
    verdict, (least, most) = judge(judged), accepted_ns(advertised_us)
    assert judged.subtracted
    assert judged.subtracted.ci_ns
    low, high = judged.subtracted.ci_ns
    if high < -SLACK_NS or high < least <= 0:
        assert verdict.kind == "too-noisy"
        return
    assert (verdict.kind == "agrees") == (least <= low and high <= most)
    assert (verdict.kind == "optimistic") == (low > most)
    assert (verdict.kind == "pessimistic") == (high < least)
    if verdict.kind == "too-few":
        # With so many more samples, if the median stays, the interval is on one side.
        assert verdict.more_samples
        assert count + verdict.more_samples <= MAX_SAMPLES
        times = ((count + verdict.more_samples) / count) ** 0.5
        ends = [own_ns + (end - own_ns) / times for end in (low, high)]
        assert not any(ends[0] + 1 < end < ends[1] - 1 for end in (least, most))
    else:
        assert verdict.more_samples is None


def test_an_interval_that_leaves_the_range_agrees_with_nothing() -> None:
    # The range is 158 to 252 us.
    verdict = judge(evidence(200, 248_000, spread_ns=19_000))
    assert verdict.kind == "too-few"
    assert verdict.text == f"cannot tell, {verdict.more_samples} more samples needed"
    assert judge(evidence(200, 240_000, spread_ns=19_000)).kind == "agrees"


@pytest.mark.parametrize("count", range(1, 6))
def test_too_few_for_an_interval(count: int) -> None:
    verdict = judge(evidence(20, 20_000, count=count))
    samples = "sample" if count == 5 else "samples"
    text = f"cannot tell, {6 - count} more {samples} needed"
    assert verdict == Verdict("too-few", None, 6 - count, text)


def test_too_few_for_an_interval_of_which_few_count() -> None:
    assert judge(replace(evidence(20, 20_000, count=4), worth=0.5)).more_samples == 4


def test_no_baseline() -> None:
    verdict = judge(replace(evidence(20, 20_000), baseline=None, subtracted=None))
    assert verdict.kind == "too-few"
    assert "baseline" in verdict.text


def test_no_number_of_samples_helps() -> None:
    verdict = judge(evidence(20, 20_000, spread_ns=10**7))
    assert (verdict.kind, verdict.text) == (
        "too-noisy",
        "-4980 to 5020 us: too close to what is accepted, or too scattered",
    )
    assert verdict.ratio is None


def test_a_wide_interval_still_tells_what_is_far_away() -> None:
    assert judge(evidence(20, 10**8, spread_ns=10**6)).kind == "optimistic"


STOLEN = "the host stole 12% of the time"


@pytest.mark.parametrize(
    ("fastest_us", "own_us", "kind"),
    [
        # The fastest tenth of a slow state is as fast as advertised: noise may have done the rest.
        (20, 90, "too-noisy"),
        (85, 90, "optimistic"),
        (19, 20, "agrees"),
        # What looks as advertised may be a fast state and noise.
        (5, 20, "too-noisy"),
        (4, 5, "pessimistic"),
        # Only the subtraction makes this one look fast, or it is.
        (4, 13, "too-noisy"),
    ],
)
def test_noise_only_ever_adds(fastest_us: int, own_us: int, kind: str) -> None:
    noisy = replace(
        evidence(20, 1000 * own_us), fastest_ns=1000 * fastest_us + BUSY_NS, disturbed=STOLEN
    )
    verdict = judge(noisy)
    assert verdict.kind == kind
    assert (STOLEN in verdict.text) == (kind == "too-noisy")


def test_a_baseline_that_spreads_is_noise() -> None:
    accused = replace(evidence(20, 90_000), fastest_ns=20_000 + BUSY_NS)
    assert judge(accused).kind == "optimistic"
    assert accused.baseline
    slow_tail = replace(accused.baseline, p90_ns=BUSY_NS + 50_000)
    verdict = judge(replace(accused, baseline=slow_tail))
    assert verdict.kind == "too-noisy"
    assert "1 busy wake in 10 is 50.0 us late" in verdict.text


def test_a_baseline_larger_than_what_is_to_be_told_apart() -> None:
    raw, busy = figures(130_000), figures(100_000)
    fast = replace(
        evidence(100, 0), raw=raw, baseline=busy, subtracted=subtract(raw, busy), fastest_ns=129_000
    )
    verdict = judge(fast)
    assert verdict.kind == "too-noisy"
    assert "29.0 to 130 us: busy wakes take 100 us" in verdict.text
    # A larger lie is found all the same.
    assert judge(replace(fast, advertised_us=400)).kind == "pessimistic"


@pytest.mark.parametrize(
    ("invalid", "instead", "kind", "text"),
    [
        ({"wrong-state": 16}, {"C1": 15, "POLL": 1}, "not-entered", "the CPU was in C1 instead"),
        ({"not-polling": 16}, {}, "not-entered", "never entered (16 x not-polling)"),
        ({"busy-was-idle": 16}, {}, "too-noisy", "no valid sample: 16 x busy-was-idle"),
        ({"timeout": 9, "wrong-state": 7}, {"C1": 7}, "too-noisy", "9 x timeout, 7 x wrong-state"),
        ({}, {}, "too-few", "no sample was taken"),
    ],
)
def test_without_a_valid_sample(
    invalid: dict[str, int], instead: dict[str, int], kind: str, text: str
) -> None:
    verdict = judge(replace(NOTHING, invalid=invalid, instead=instead, usage=5))
    assert verdict.kind == kind
    assert text in verdict.text
    assert verdict.ratio is None


def test_a_driver_that_enters_another_state_than_it_was_asked_for() -> None:
    verdict = judge(replace(evidence(20, 20_000), usage=3))
    assert verdict.kind == "not-entered"
    assert verdict.text == "chosen 200 times, but the driver counted 3 entries"
    assert judge(replace(evidence(20, 20_000), usage=None)).kind == "agrees"
    # A wake need not end a polling state, if nothing was to be done.
    assert judge(replace(evidence(20, 20_000), usage=3, polls=True)).kind == "agrees"


def test_where_busy_wakes_take_longer_than_what_is_advertised_nobody_is_accused() -> None:
    raw, busy = figures(900_000), figures(300_000)
    drowned = replace(
        evidence(50, 0), raw=raw, baseline=busy, subtracted=subtract(raw, busy), fastest_ns=850_000
    )
    assert judge(drowned).kind == "too-noisy"
    assert judge(replace(drowned, advertised_us=280)).kind == "optimistic"


def test_a_state_without_a_single_entry_was_not_entered() -> None:
    verdict = judge(replace(NOTHING, invalid={"not-idle": 16}))
    assert (verdict.kind, verdict.text) == ("not-entered", "never entered (16 x not-idle)")


@pytest.mark.parametrize("usage", [0, 1])
@pytest.mark.parametrize("idled", [0, 1, 6])
def test_a_cpu_that_was_busy_says_nothing_of_a_state(usage: int, idled: int) -> None:
    verdict = judge(replace(NOTHING, invalid={"not-idle": 13}, usage=usage, idled=idled))
    assert verdict == Verdict("too-noisy", None, None, "the CPU was busy: 13 x not-idle")
    # What was found in another state did idle.
    found = replace(NOTHING, invalid={"wrong-state": 7, "not-idle": 6}, usage=usage, idled=idled)
    assert judge(found).kind == "not-entered"


def test_where_nothing_tells_whether_the_cpu_idled_no_state_is_accused() -> None:
    verdict = judge(replace(NOTHING, invalid={"not-idle": 13}, idled=None))
    assert verdict == Verdict("too-noisy", None, None, "no valid sample: 13 x not-idle")


def test_nothing_advertised() -> None:
    verdict = judge(evidence(None, 20_000))
    assert verdict == Verdict("nothing-advertised", None, None, "nothing advertised")


@pytest.mark.parametrize(
    ("ci_ns", "kind", "text"),
    [
        ((-353_000, -108_000), "too-noisy", "faster than a busy CPU: no baseline to go by"),
        ((-3000, -2001), "too-noisy", "faster than a busy CPU: no baseline to go by"),
        ((-3000, -2000), "nothing-advertised", "not shown to be slower than a busy CPU"),
        ((-10_000, 6_625_000), "nothing-advertised", "not shown to be slower than a busy CPU"),
        ((0, 10), "nothing-advertised", "not shown to be slower than a busy CPU"),
        ((1, 10), "nothing-advertised", "nothing advertised"),
    ],
)
def test_with_nothing_advertised_the_baseline_is_doubted_all_the_same(
    ci_ns: tuple[int, int], kind: str, text: str
) -> None:
    known = evidence(None, 20_000)
    assert known.subtracted
    verdict = judge(replace(known, subtracted=replace(known.subtracted, ci_ns=ci_ns)))
    assert verdict.kind == kind
    assert verdict.text.endswith(text)


@pytest.mark.parametrize("count", range(1, 6))
def test_nothing_advertised_is_said_with_few_samples_and_no_baseline(count: int) -> None:
    few = evidence(None, 20_000, count=count)
    assert judge(few).kind == "nothing-advertised"
    assert judge(replace(few, baseline=None, subtracted=None)).kind == "nothing-advertised"


@given(st.integers(0, 10**5), st.sampled_from([1, 2, 5]), st.integers(0, 2**32))
def test_honest_drivers_are_not_accused_by_chance(
    advertised_us: int, shape: int, seed: int
) -> None:
    rng = random.Random(seed)

    def latency(true_ns: int) -> int:
        return true_ns + int(min(rng.gammavariate(shape, 300), SLACK_NS))

    raw = summarise([latency(1000 * advertised_us + BUSY_NS) for _ in range(200)])
    baseline = summarise([latency(BUSY_NS) for _ in range(200)])
    assert raw
    assert baseline
    assume(raw.ci_ns and baseline.ci_ns)
    honest = Evidence(
        advertised_us, raw, baseline, subtract(raw, baseline), None, {}, {}, 200, 200, False, None
    )
    assert judge(honest).kind in ("agrees", "too-few", "too-noisy")
    if advertised_us >= 10:
        assert judge(honest).kind == "agrees"
