# SPDX-License-Identifier: GPL-2.0-only
"""The sentences in which a comparison is told."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace

import pytest
from comparisons import made_up
from result_page import page
from rich.console import Console

from lightsleep import units
from lightsleep.compare.analysis import Outcome, analyse, document, judge_claims
from lightsleep.compare.headline import headline
from lightsleep.compare.method import compare
from lightsleep.compare.result import Claim, CompareResult, MetricResult
from lightsleep.compare.table import print_table
from lightsleep.compare.words import (
    COULD_BE_MISSED,
    by_chance,
    claim,
    contrary_medians,
    control_sentences,
    effect,
    effect_interval,
    finding,
    outcome,
    sentences,
    together,
)


@pytest.mark.parametrize(
    ("titles", "said"),
    [
        (["Pipe ping-pong"], "Pipe ping-pong"),
        (["Pipe ping-pong", "Idle guest asleep"], "Pipe ping-pong and Idle guest asleep"),
        (
            ["randread, a slow disk", "randwrite, a slow disk", "randrw, a slow disk"],
            "randread, randwrite and randrw, a slow disk",
        ),
        (
            ["randread, a slow disk", "randread, a disk"],
            "randread (a slow disk) and randread (a disk)",
        ),
        (["Unbound, a DNS server, one client"], "Unbound (a DNS server), one client"),
        (
            ["Redis, one client", "Unbound, a DNS server, one client"],
            "Redis and Unbound (a DNS server), one client",
        ),
    ],
)
def test_metrics_are_named_together(titles: list[str], said: str) -> None:
    metrics = [MetricResult("/s", "higher", title, "", {}) for title in titles]
    assert together(metrics) == said


def test_a_bound_close_to_1_is_not_rounded_to_it() -> None:
    metric = MetricResult("us", "lower", "Period", "", {})
    said = claim(Claim("histogram", "off", ("period_us",), at_most=1.005), [metric])
    assert said == "Period: histogram / off is at most 1.005"


@pytest.mark.parametrize(
    ("number", "said", "bounds", "expected"),
    [
        (1.1017, "1.10", [1.1], "1.102"),
        (0.95007, "0.950", [0.95], "0.9501"),
        (1.1756, "1.18", [0.85, 1 / 0.85], "1.176"),
        (1.1, "1.10", [1.1], "1.10"),
        (1.2, "1.20", [1.1, math.inf], "1.20"),
        (999.96, "1,000", [1000], "999.96"),
        (1.1 + 1e-12, "1.10", [1.1], "1.100000000"),
        (1.2e9, "1.2e+09", [1.2e9 - 1], "1.2e+09"),
    ],
)
def test_a_figure_is_told_from_the_bound_beside_it(
    number: float, said: str, bounds: list[float], expected: str
) -> None:
    assert units.beside(number, said, bounds) == expected


def test_a_printed_interval_agrees_with_its_verdict() -> None:
    result = made_up()
    claimed = Claim("lightsleep", "stock", ("sched_messaging_s",))
    (found,) = judge_claims(replace(result, claims=[replace(claimed, at_most=5)]))
    assert found.comparison
    assert found.comparison.ratio
    high = found.comparison.ratio.high
    for bound, verdict in ((high - 1e-5, "not decided"), (high + 1e-5, "held")):
        (found,) = judge_claims(replace(result, claims=[replace(claimed, at_most=bound)]))
        said = outcome(found)
        assert said.startswith(verdict)
        printed = float(said.removesuffix(")").rpartition(" to ")[2])
        assert (printed <= bound) == (verdict == "held")


def test_what_a_control_could_have_missed_is_one_short_sentence() -> None:
    few, many = analyse(made_up(metrics=2)), analyse(made_up(metrics=2)) * 5
    ((_, named),) = control_sentences(few, "stock")
    assert re.search(r"; about 2 of 10 such comparisons miss one of [\d.]+ % in ", named)
    assert " % in sched pipe" in named
    ((_, short),) = control_sentences(many, "stock")
    assert "the differences that it could have missed are in the tables" in short


def test_of_several_controls_the_one_that_could_have_missed_most_counts() -> None:
    metrics = analyse(made_up(metrics=1))
    (control,) = metrics[0].arms_as("control")
    assert control.baseline
    assert control.baseline.detectable
    surer = replace(control, baseline=replace(control.baseline, detectable=1.0001))
    alone, before, behind = (
        control_sentences([replace(metrics[0], arms=arms)], "stock")
        for arms in ([control], [surer, control], [control, surer])
    )
    assert alone == before == behind


def noisy() -> CompareResult:
    """Return a result of 12 rounds whose control differs by a factor of 10, up and down."""
    result = made_up(n=12, metrics=1)
    samples = result.metrics["sched_pipe_s"].samples
    samples["control"] = [x * 10 ** (-1) ** i for i, x in enumerate(samples["stock"])]
    return result


def test_a_difference_that_the_control_could_have_missed_is_marked() -> None:
    result = noisy()
    (metric,) = analyse(result)
    arms = {arm.name: arm for arm in metric.arms}
    assert metric.could_be_missed(arms["lightsleep"].baseline)
    assert metric.could_be_missed(arms["lightsleep"].limit)
    assert not metric.could_be_missed(arms["control"].baseline)  # none is shown
    text = page(result, "x.json")
    assert re.search(r"\| lightsleep \|.* ✔ 5.98 × faster \([^)]*\) † \| .* † \|\n", text)
    assert text.count(COULD_BE_MISSED) == 1
    console = Console(record=True, width=200, file=io.StringIO())
    print_table(result, console)
    printed = console.export_text()
    assert "5.98 × faster †" in printed
    assert COULD_BE_MISSED in printed


def test_what_is_said_of_a_claim_is_marked_as_its_row_is() -> None:
    result = noisy()
    result.claims = [Claim("lightsleep", "stock", ("sched_pipe_s",))]
    (found,) = judge_claims(result)
    assert re.fullmatch(r"held: 5\.98 × faster \(95 % CI [^)]*\) †", outcome(found))
    said = headline(result, analyse(result))
    assert re.match(r"sched pipe: lightsleep is 5\.98 times faster than stock \([^)]*\) †\. ", said)
    (metric,) = analyse(result)
    assert sentences(metric, "stock", "idle=poll")[0].endswith(") †")
    result.claims = [replace(result.claims[0], at_most=0.5)]
    assert outcome(judge_claims(result)[0]).endswith(") †")
    result.claims = []
    assert " times faster than stock (" in headline(result, analyse(result))
    assert ") †. " in headline(result, analyse(result))


def test_a_claim_about_several_metrics_is_marked_by_the_control_in_all_of_them() -> None:
    result = made_up(n=12, metrics=3)
    joint = Claim("lightsleep", "stock", ("sched_pipe_s", "sched_seccomp_notify_s"))
    result.claims = [joint]
    (found,) = judge_claims(result)
    assert found.outcome is Outcome.HELD
    assert not found.could_be_missed(found.comparison)
    for name in joint.metrics:
        samples = result.metrics[name].samples
        samples["control"] = [x * 10 ** (-1) ** i for i, x in enumerate(samples["stock"])]
    (found,) = judge_claims(result)
    assert outcome(found).endswith(" †")
    assert page(result, "x.json").count(COULD_BE_MISSED) == 1


def test_an_effect_without_a_ratio_is_compared_with_the_difference_of_the_control() -> None:
    result = noisy()
    (metric,) = result.metrics.values()
    metric.unit = ""
    metric.samples["stock"] = [100.0 + i for i in range(12)]
    stock = metric.samples["stock"]
    metric.samples["control"] = [x * 10 ** (-1) ** i for i, x in enumerate(stock)]
    metric.samples["lightsleep"] = [0.0, *(x - 5 for x in stock[1:])]
    (found,) = analyse(result)
    (treatment,) = found.arms_as("treatment")
    assert treatment.baseline
    assert treatment.baseline.difference
    assert treatment.baseline.verdict.differs
    assert found.could_be_missed(treatment.baseline)
    metric.samples["control"] = [x + 0.01 * (-1) ** i for i, x in enumerate(stock)]
    (found,) = analyse(result)
    assert not found.could_be_missed(treatment.baseline)


@pytest.mark.parametrize("differs", [False, True])
def test_the_words_call_a_comparison_no_run(differs: bool) -> None:
    result = made_up(n=12, boots=3)
    if differs:
        samples = result.metrics["ipis"].samples
        samples["control"] = [2 * x for x in samples["control"]]
    result.claims = []
    text = page(result, "x.json").partition("## How it was measured")[0]
    assert "8 of 10 comparisons" in text
    assert ("says nothing in this comparison" in text) == differs
    assert not re.search(r"\bruns?\b", text)


def test_a_page_has_the_interval_of_a_difference_that_is_not_shown() -> None:
    result = made_up(n=12)
    samples = result.metrics["sched_messaging_s"].samples
    samples["lightsleep"] = [1.005 * x for x in samples["lightsleep"]]
    found = compare(samples["stock"], samples["lightsleep"], "lower").ratio
    assert found
    low, value, high = map(units.factor, (found.low, found.value, found.high))
    said = f"): {value} × slower, 95 % CI {low} to {high} ×"
    row = rf"\| lightsleep \|[^|]*\| = none shown \([^)]*{re.escape(said)} \|"
    assert re.search(row, page(result, "x.json"))
    result.claims = [Claim("lightsleep", "stock", ("sched_messaging_s",))]
    assert outcome(judge_claims(result)[0]).endswith(said)


def test_a_difference_that_the_control_would_have_shown_is_not_marked() -> None:
    assert "†" not in page(made_up(n=12), "x.json")
    few = noisy()
    few.roles["control"] = "treatment"
    few.arms.remove("control")
    assert "†" not in page(few, "x.json")


def test_differences_of_percentages_are_compared_with_those_of_the_control() -> None:
    result = made_up(n=18)
    metric = analyse(result)[-1]
    (treatment,), (control,) = metric.arms_as("treatment"), metric.arms_as("control")
    assert treatment.limit
    assert control.baseline
    assert not metric.could_be_missed(treatment.limit)
    loud = replace(control, baseline=replace(control.baseline, detectable=100.0))
    assert replace(metric, arms=[treatment, loud]).could_be_missed(treatment.limit)
    unknown = replace(control, baseline=replace(control.baseline, detectable=None))
    assert not replace(metric, arms=[treatment, unknown]).could_be_missed(treatment.limit)


def test_many_comparisons_say_how_many_differ_by_chance() -> None:
    assert by_chance(analyse(made_up(metrics=2)), claimed=True) == ""
    many = analyse(made_up(metrics=2)) * 10
    said = by_chance(many, claimed=False)
    assert re.match(
        r"\d+ comparisons at 95 % each: where nothing differs, about \d+ of them show a difference "
        "by chance, on average$",
        said,
    )
    assert by_chance(many, claimed=True) == f"{said}. What was claimed was chosen beforehand"


def test_a_refuted_bound_is_told_before_one_that_held() -> None:
    result = made_up()
    bound = Claim("lightsleep", "stock", ("sched_pipe_s",), at_most=0.5)
    result.claims = [bound, replace(bound, at_most=0.1), replace(bound, at_most=0.6)]
    said = headline(result, analyse(result))
    assert said.startswith("sched pipe: lightsleep is ")
    assert "; claimed: lightsleep / stock is at most 0.1: refuted." in said
    result.claims.pop(1)
    assert "is at most 0.5: held." in headline(result, analyse(result))


def test_of_several_gains_the_first_is_told_whatever_came_of_it() -> None:
    result = made_up()
    gain = Claim("lightsleep", "stock", ("sched_messaging_s",))
    result.claims = [gain, replace(gain, metrics=("sched_pipe_s",))]
    said = headline(result, analyse(result))
    assert said.startswith("messaging: no difference shown between lightsleep and stock")
    assert "refuted" not in said


def test_a_gain_does_not_hide_how_many_claims_are_refuted() -> None:
    result = made_up()
    gain = Claim("lightsleep", "stock", ("sched_pipe_s",))
    wrong = replace(gain, reference="idle=poll")
    result.claims = [gain, wrong]
    said = headline(result, analyse(result))
    assert re.match(r"sched pipe: [^)]* than stock [^)]*\)\. Of 2 claims, 1 is refuted\. ", said)
    result.claims = [wrong, gain, wrong]
    assert "Of 3 claims, 2 are refuted. " in headline(result, analyse(result))


def test_a_sentence_counts_the_claims_that_are_not_decided() -> None:
    result = made_up()
    assert "Of 4 claims, 1 is refuted and 1 is not decided. " in headline(result, analyse(result))
    held = Claim("lightsleep", "stock", ("sched_pipe_s",))
    unsure = Claim("lightsleep", "stock", ("sched_messaging_s",))
    result.claims = [held, unsure, unsure]
    assert ". Of 3 claims, 2 are not decided. " in headline(result, analyse(result))
    result.claims = [unsure]
    assert ". The claim is not decided. " in headline(result, analyse(result))
    result.claims = [replace(unsure, at_most=1.0)]
    said = headline(result, analyse(result))
    assert said.count("not decided") == 1
    assert "is at most 1: not decided. Emulated" in said


def test_a_sentence_says_that_all_claims_held() -> None:
    result = made_up()
    held = Claim("lightsleep", "stock", ("sched_pipe_s",))
    result.claims = [held, replace(held, at_most=0.5)]
    assert ". All claims held. Emulated" in headline(result, analyse(result))
    result.claims = [held]
    said = headline(result, analyse(result))
    assert "All claims" not in said
    assert "No claim was declared" not in said


def test_what_is_refuted_is_told_first_whatever_kind_of_claim_it_is() -> None:
    result = made_up()
    bound = Claim("lightsleep", "stock", ("sched_pipe_s",), at_most=0.5)
    slow = Claim("lightsleep", None, ("sched_pipe_s",), at_least=1)
    result.claims = [bound, slow]
    assert headline(result, analyse(result)).startswith("sched pipe: lightsleep is 0.35")
    result.claims = [replace(bound, at_most=0.1), slow]
    assert "at most 0.1: refuted. Of 2 claims, 2 are " in headline(result, analyse(result))


def test_an_arm_without_samples_is_not_told_to_have_too_few_rounds() -> None:
    result = made_up(metrics=1)
    (metric,) = result.metrics.values()
    metric.samples["control"] = []
    ((well, said),) = control_sentences(analyse(result), "stock")
    assert not well
    assert said == "no samples to judge sched pipe"
    (control,) = analyse(result)[0].arms_as("control")
    assert control.baseline
    assert finding(control.baseline, metric) == "no samples"


def test_an_end_of_an_interval_is_not_minus_0() -> None:
    theirs, ours = (0, 3, 2, 1, 3, 2, 0, 4, 1, 0), (0, 0, 2, 0, 3, 1, 0, 1, 1, 0)
    found = compare(list(map(float, theirs)), list(map(float, ours)), "lower")
    assert effect_interval(found, "") == "95 % CI 0 to 1.50"


@pytest.mark.parametrize("unit", ["s", "%"])
def test_equal_samples_have_no_direction(unit: str) -> None:
    metric = MetricResult(unit, "lower", "Period", "", {})
    samples = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert effect(compare(samples, samples, "lower", unit), metric) == "no difference"


@pytest.mark.parametrize(("metrics", "said"), [(1, "1 comparison "), (6, "5 comparisons ")])
def test_too_few_rounds_for_the_control_are_told_by_comparisons(metrics: int, said: str) -> None:
    # In one of six metrics, no round of the control differs.
    judged = control_sentences(analyse(made_up(n=5, metrics=metrics)), "stock")
    ((well, sentence),) = judged
    assert not well
    assert f"are needed for {said}without false alarms" in sentence


def test_one_claim_and_one_round_are_told_as_one() -> None:
    result = made_up(n=1)
    gain = Claim("lightsleep", "stock", ("sched_pipe_s",))
    least = Claim("lightsleep", None, ("idle_residency_pct",), at_least=99.0)
    most = Claim("lightsleep", None, ("idle_residency_pct",), at_most=99.0)
    result.claims = [gain, least, most]
    said = [outcome(found) for found in judge_claims(result)]
    assert said[0] == "not decided: 1 round, and 6 are needed"
    assert said[1] == "held: in the only round"
    assert "beyond in 1 of 1 round, 99.92 %" in said[2]
    result.claims = [most]
    told = headline(result, analyse(result))
    assert "99.92 % in 1 of 1 round; claimed: at most 99.00 % in each round: refuted. idle " in told
    assert "Emulated, 1 round. " in told


def test_guests_that_booted_once_are_said_to_have() -> None:
    once, thrice = (headline(x, analyse(x)) for x in (made_up(n=12), made_up(n=12, boots=3)))
    assert once.endswith("12 rounds. Each guest was booted once: intervals are about these boots.")
    assert thrice.endswith("12 rounds in 3 boots.")
    on_this_machine = made_up(n=12)
    del on_this_machine.environment["accelerator"]
    assert headline(on_this_machine, analyse(on_this_machine)).endswith("12 rounds.")


def test_a_gain_in_a_count_that_may_be_0_is_decided_by_the_difference() -> None:
    result = made_up(n=18, metrics=1)
    (metric,) = result.metrics.values()
    metric.unit = ""
    metric.samples["stock"] = [5.0 + i % 3 for i in range(18)]
    metric.samples["lightsleep"] = [float(i % 2) for i in range(18)]
    gain = Claim("lightsleep", "stock", tuple(result.metrics))
    result.claims = [gain, replace(gain, at_most=0.5)]
    decided, bound = judge_claims(result)
    assert decided.outcome is Outcome.HELD
    assert bound.outcome is Outcome.HELD
    metric.samples["lightsleep"] = []
    assert outcome(judge_claims(result)[0]).endswith("lightsleep has no samples")
    metric.samples["stock"] = []
    assert outcome(judge_claims(result)[0]).endswith("lightsleep has no samples")


@pytest.mark.parametrize(
    ("bounds", "expected", "said"),
    [
        (
            {"at_most": 0.1},
            Outcome.HELD,
            "lightsleep - 0.1 × stock is -0.800 (95 % CI -0.900 to -0.550)",
        ),
        ({"at_least": 0.1}, Outcome.REFUTED, "is -0.800 (95 % CI -0.900 to -0.550)"),
        (
            {"at_most": 0.0001},
            Outcome.OPEN,
            "0.0001 × stock is -0.000800 (95 % CI -0.000900 to 0.499)",
        ),
        ({"at_most": 0.5, "at_least": 0.1}, Outcome.REFUTED, "; lightsleep - 0.5 × stock is -4"),
        ({"at_most": 0.5, "at_least": 1e-6}, Outcome.OPEN, "; lightsleep - 0.5 × stock is -4"),
    ],
)
def test_a_bound_of_counts_that_may_be_0_is_judged_by_differences(
    bounds: dict[str, float], expected: Outcome, said: str
) -> None:
    result = made_up(n=18, metrics=1)
    (metric,) = result.metrics.values()
    metric.unit = ""
    metric.samples["stock"] = [9.0, 8.0, 10.0, 9.0, 6.0, 12.0] * 3
    metric.samples["lightsleep"] = [0.0, 0.0, 0.0, 0.0, 0.0, 1.0] * 3
    result.claims = [Claim("lightsleep", "stock", tuple(result.metrics), **bounds)]
    (found,) = judge_claims(result)
    assert found.outcome is expected
    assert said in outcome(found)
    (claim,) = document(result)["claims"]
    assert [x["bound"] for x in claim["from_bounds"]] == sorted(bounds.values())


def test_a_bound_that_is_judged_by_differences_is_marked_too() -> None:
    result = made_up(n=18, metrics=1)
    (metric,) = result.metrics.values()
    metric.samples["stock"] = [9.0, 8.0, 10.0, 9.0, 6.0, 12.0] * 3
    metric.samples["lightsleep"] = [0.0, 7.0, 9.0, 8.0, 5.0, 11.0] * 3
    metric.samples["control"] = [6.0, 12.0, 9.0, 8.0, 10.0, 9.0] * 3
    result.claims = [Claim("lightsleep", "stock", tuple(result.metrics), at_most=1)]
    (found,) = judge_claims(result)
    assert found.could_be_missed(found.comparison)
    assert outcome(found).endswith(") †")


@pytest.mark.parametrize(("theirs", "ours"), [(0.0, 1.0), (1.0, -1.0)])
def test_a_bound_without_a_meaning_is_not_judged(theirs: float, ours: float) -> None:
    result = made_up(n=18, metrics=1)
    (metric,) = result.metrics.values()
    metric.samples |= {"stock": [theirs] * 18, "lightsleep": [ours] * 18}
    result.claims = [Claim("lightsleep", "stock", tuple(result.metrics), at_most=0.5)]
    (found,) = judge_claims(result)
    assert (found.outcome, found.from_bounds) == (Outcome.OPEN, [])
    assert outcome(found).endswith("a sample is not positive, so there is no ratio")


def contrary() -> CompareResult:
    """Return a result in which lightsleep is higher in 16 of 18 rounds, and its median lower."""
    result = made_up(n=18, metrics=1)
    (metric,) = result.metrics.values()
    metric.unit, metric.better = "%", "higher"
    metric.samples["stock"] = [float(80 + i) for i in range(18)]
    metric.samples["lightsleep"] = [88.4] * 11 + [float(93 + i) for i in range(7)]
    result.claims = [Claim("lightsleep", "stock", tuple(result.metrics))]
    return result


def test_medians_that_go_the_other_way_are_said_to() -> None:
    result = contrary()
    said = (
        "Yet the median of lightsleep is lower than that of stock (88.40 % and 88.50 %): arms are "
        "compared round by round, and a median is of one arm alone"
    )
    assert "lightsleep is 2.40 points higher" in headline(result, analyse(result))
    assert f") †. {said}. " in headline(result, analyse(result))
    result.claims = []
    assert f") †. {said}. " in headline(result, analyse(result))
    (metric,) = analyse(result)
    assert said in sentences(metric, "stock", "idle=poll")
    assert f"|\n\n{said}." in page(result, "x.json")
    console = Console(record=True, width=200, file=io.StringIO())
    print_table(result, console)
    assert said in console.export_text()


def test_medians_that_agree_are_not_mentioned() -> None:
    result = made_up(n=18)
    assert not any(contrary_medians(x, "stock", "idle=poll") for x in analyse(result))
    result = contrary()
    result.metrics["sched_pipe_s"].samples["stock"][8:10] = [88.400, 88.401]
    assert contrary_medians(analyse(result)[0], "stock", "idle=poll") == []
