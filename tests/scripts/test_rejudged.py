# SPDX-License-Identifier: GPL-2.0-only
"""Comparisons judged by an old rule and by the new one: what changes, and why."""

from __future__ import annotations

import runpy
from typing import Any

from comparisons import made_up
from paths import ROOT

from lightsleep.compare.result import MetricResult

rejudged = runpy.run_path(str(ROOT / "scripts/rejudged.py"))
Reason = rejudged["Reason"]

# Rounds that scatter by a factor of 2, as both arms of a round do.
SCATTER = [1.0, 2.0, 1.5, 1.2, 1.8, 1.1, 1.6, 1.3]
SMALL = [1.01, 1.02, 1.03, 1.04, 1.05, 1.06, 1.07, 1.08]


def judged(arm: list[float], stock: list[float], boots: int = 1) -> Any:
    """Return one comparison of made-up samples, of which lower is better."""
    result = made_up(n=len(arm), metrics=1, boots=boots)
    samples = {"stock": stock, "lightsleep": arm}
    result.metrics = {"x": MetricResult("s", "lower", "x", "x", {a: [] for a in result.arms})}
    result.metrics["x"].samples.update(samples)
    (found,) = rejudged["judge"](result)
    return found


def test_what_varies_together_is_shown_now() -> None:
    found = judged([x * y for x, y in zip(SCATTER, SMALL, strict=True)], SCATTER)
    assert (found.before, found.now) == (0, 1)
    reason, detail = rejudged["why"](found)
    assert reason == Reason.TOGETHER
    assert detail.endswith("correlation 1.00")


def test_one_round_decided_before() -> None:
    stock = [1.0, 1.1, 1.2, 1.3, 1.4, 3.0]
    found = judged([2.0, 2.1, 2.2, 2.3, 2.4, 4.0], stock)
    assert (found.before, found.now) == (0, 1)
    assert rejudged["why"](found) == (Reason.ONE_ROUND, "round 6")


def test_the_old_rule_is_stricter() -> None:
    stock = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]
    found = judged([1.6, 1.65, 1.7, 1.75, 1.8, 1.85, 1.9, 2.0], stock)
    assert (found.before, found.now) == (0, 1)
    assert rejudged["why"](found) == (Reason.STRICTER, "7 of 7 other pairings show it")


def test_a_pairing_may_have_been_lucky() -> None:
    found = judged([1.55, 1.51, 1.11, 1.41, 1.21, 1.31], [1.0, 1.5, 1.1, 1.4, 1.2, 1.3])
    assert (found.before, found.now) == (0, 1)
    reason, detail = rejudged["why"](found)
    assert reason == Reason.PAIRING
    assert detail.startswith("0 of 5 other pairings show it, correlation 0.")


def test_five_rounds_are_too_few_now() -> None:
    found = judged([2.0, 2.1, 2.2, 2.3, 2.4], [1.0, 1.1, 1.2, 1.3, 1.4])
    assert (found.before, found.now) == (1, 0)
    assert rejudged["why"](found) == (Reason.TOO_FEW, "5, and 6 are needed")


def test_boots_that_differ_are_not_shown_now() -> None:
    arm = [x for boot in (1.1, 1.12, 5.0) for x in (boot, boot * 1.001, boot * 1.002)]
    found = judged(arm, [1.0 + n / 1000 for n in range(9)], boots=3)
    assert (found.before, found.now) == (1, 0)
    reason, detail = rejudged["why"](found)
    assert reason == Reason.BOOTS
    assert detail.startswith("boot to boot: ")


def test_rounds_that_disagree_are_not_shown_now() -> None:
    arm = [2 + n / 100 for n in range(12)]
    stock = [1 + n / 100 for n in range(12)]
    arm[:2], stock[2:4] = [0.1, 0.1], [20.0, 20.0]
    found = judged(arm, stock)
    assert (found.before, found.now) == (1, 0)
    assert rejudged["why"](found) == (Reason.DISAGREE, "4 of 12 do not go that way")


def test_the_old_rule_wants_five_samples_and_a_gap() -> None:
    direction = rejudged["old_direction"]
    assert direction([2, 2, 2, 2], [1, 1, 1, 1]) == 0
    assert direction([2, 2, 2, 2, 2], [1, 1, 1, 1, 1]) == 1
    assert direction([1, 1, 1, 1, 1], [1, 2, 2, 2, 2]) == 0
    assert direction([1, 1, 1, 1, 1], [2, 2, 2, 2, 2]) == -1


def test_controls_are_judged_by_both_rules() -> None:
    result = made_up(n=5, metrics=2)
    pipe, messaging = result.metrics.values()
    pipe.samples |= {"stock": [1.0, 1.1, 1.2, 1.3, 1.4], "control": [2.0, 2.1, 2.2, 2.3, 2.4]}
    messaging.samples |= {"stock": [1.0] * 5, "control": [1.5, 1.0, 1.0, 1.0, 1.0]}
    found = rejudged["judge_controls"](result)
    assert [(x.arm, x.before, x.now) for x in found] == [("control", 1, 0), ("control", 0, 0)]
    said = rejudged["_controls"]([rejudged["File"](ROOT, "[x](x.md)", result, [], found)])
    assert said[1].endswith(
        "Of 2 comparisons of a control with its baseline, the old rule shows a difference in 1, "
        "the new rule in 0. In 2, the new rule has too few rounds."
    )
    assert (
        "| [x](x.md) | 2 | 1 | 0 | 2 | sched pipe: 1.20 s and 2.20 s | too few rounds |" in said[2]
    )


def test_a_control_that_differs_is_shown_by_the_new_rule_too() -> None:
    result = made_up(n=12, metrics=1)
    (pipe,) = result.metrics.values()
    pipe.samples["control"] = [2 * x for x in pipe.samples["stock"]]
    (found,) = rejudged["judge_controls"](result)
    assert (found.before, found.now) == (1, 1)
    result.roles["control"] = "treatment"
    assert rejudged["judge_controls"](result) == []
