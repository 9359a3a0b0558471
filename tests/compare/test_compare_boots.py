# SPDX-License-Identifier: GPL-2.0-only
"""What boots fix: intervals that know of it, against scipy and by simulation with fixed seeds."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest
import scipy
from click.testing import CliRunner
from comparisons import made_up
from numpy.typing import NDArray

from lightsleep.cli import main
from lightsleep.compare import words
from lightsleep.compare.analysis import control_failed, document
from lightsleep.compare.boots import by_boot, t_quantile
from lightsleep.compare.method import Verdict, compare, compare_jointly
from lightsleep.lab.run import protocol
from lightsleep.report import plots

Floats = NDArray[np.float64]
RUNS = 1000
DEFAULT = (
    protocol.BOOTS,
    protocol.ROUNDS // protocol.BOOTS,
)  # boots, and rounds of each: of lab compare
LEAST = (3, 4)  # as few boots as may be
DEMO = (5, 2)
SHARES = (0.0, 0.5, 1.0, 4.0)
SELDOM = [(shape, share) for shape in (DEMO, (4, 2), (12, 1)) for share in SHARES]
SELDOM.remove((DEMO, 1.0))
ALARMS = 0.05 + 3 * math.sqrt(0.05 * 0.95 / RUNS)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 8, 11, 12, 40])
@pytest.mark.parametrize("tail", [0.1, 0.025, 0.004])
def test_the_quantiles_of_t(degrees: int, tail: float) -> None:
    assert t_quantile(degrees, tail) == pytest.approx(scipy.stats.t.isf(tail, degrees), rel=1e-8)


def test_the_interval_is_that_of_a_t_test_of_the_boots_means() -> None:
    effects = np.random.default_rng(7).normal(0, 1, (5, 3))
    found = by_boot(effects.ravel().tolist(), 5, 0.9)
    expected = scipy.stats.ttest_1samp(effects.mean(axis=1), 0).confidence_interval(0.9)
    assert (found.mean - found.reach, found.mean + found.reach) == pytest.approx(expected)


def test_rounds_that_are_not_those_of_boots_are_refused() -> None:
    for boots, rounds in ((1, 6), (4, 6), (3, 0)):
        with pytest.raises(ValueError, match=f"{rounds} rounds are not those of {boots} boots"):
            by_boot([1.0] * rounds, boots, 0.95)


def test_boots_that_differ_are_told_from_rounds_that_do() -> None:
    rng = np.random.default_rng(2)
    between = np.repeat(rng.normal(0, 0.3, 2000), 4).reshape(-1, 4)
    within = rng.normal(0, 0.1, (2000, 4))
    assert by_boot((between + within).ravel().tolist(), 2000, 0.95).spread == pytest.approx(
        0.3, rel=0.05
    )
    assert by_boot(within.ravel().tolist(), 2000, 0.95).spread < 0.02


def test_a_run_of_one_boot_is_judged_as_ever() -> None:
    first, second = [1.0, 1.2, 1.1, 0.9, 1.3, 1.0], [2.0, 2.1, 2.2, 1.9, 2.0, 2.3]
    alone = compare(first, second, "lower")
    assert (alone.boots, alone.boot_spread) == (1, None)
    assert words.boot_spread(alone, "s") == ""
    booted = compare(first, second, "lower", boots=3)
    assert booted.ratio
    assert alone.ratio
    assert booted.ratio.low <= alone.ratio.low
    assert booted.ratio.high >= alone.ratio.high
    assert booted.boots == 3
    assert compare_jointly([first], [second], "lower", 3) == booted


# Simulations: noise of 10 % per arm, and boots that scatter by ``share`` of that variance.


def noise(shape: tuple[int, int], share: float, runs: int = RUNS, heavy: bool = False) -> Floats:
    """Return log-ratios of two arms, by run and round; rounds of a boot follow each other."""
    rng = np.random.default_rng(31)
    boots, rounds = shape
    draw = (lambda size: rng.standard_t(3, size) / math.sqrt(3)) if heavy else rng.standard_normal
    arms = draw((2, runs, boots, rounds)) + math.sqrt(share) * draw((2, runs, boots, 1))
    found: Floats = 0.1 * (arms[0] - arms[1]).reshape(runs, -1)
    return found


def shown(effects: Floats, boots: int, confidence: float = 0.95) -> float:
    """Return in which share of runs a difference is shown."""
    none = [0.0] * effects.shape[1]
    verdicts = [compare(none, x.tolist(), "none", "%", confidence, boots).verdict for x in effects]
    return sum(verdict.differs for verdict in verdicts) / len(verdicts)


@pytest.mark.parametrize(
    ("shape", "share"),
    [
        *((shape, share) for shape in (DEFAULT, LEAST) for share in SHARES),
        (DEMO, 1.0),
        *(pytest.param(*cell, marks=pytest.mark.more) for cell in SELDOM),
    ],
)
def test_false_alarms_whatever_boots_do(shape: tuple[int, int], share: float) -> None:
    assert shown(noise(shape, share), shape[0]) <= ALARMS


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_false_alarms_with_heavy_tails(share: float) -> None:
    assert shown(noise(DEFAULT, share, heavy=True), DEFAULT[0]) <= ALARMS


def test_rounds_alone_would_raise_them() -> None:
    """What the method is for: without it, many runs show what is not there."""
    assert shown(noise(DEFAULT, 4.0), 1) > 0.1
    assert shown(noise(LEAST, 1.0), 1) > 0.2
    assert shown(noise(LEAST, 4.0), 1) > 0.3


def test_the_power_to_show_20_percent() -> None:
    """At a noise of 10 % and with the default of boots: at least 9 of 10; few boots show less."""
    assert shown(noise(DEFAULT, 0.0) + math.log(1.2), DEFAULT[0]) >= 0.9
    assert 0.55 <= shown(noise(LEAST, 0.0) + math.log(1.2), LEAST[0]) <= 0.75
    assert shown(noise(LEAST, 0.0) + math.log(1.5), LEAST[0]) >= 0.99


@pytest.mark.parametrize(("metrics", "share", "factor"), [(2, 0.0, 1.2), (6, 0.0, 1.25)])
def test_the_power_of_a_control_in_the_boots_of_a_comparison(
    metrics: int, share: float, factor: float
) -> None:
    """All metrics together raise a false alarm in 5 %, so each needs a wider interval."""
    confidence = 1 - 0.05 / metrics
    effects = noise(DEFAULT, share)
    assert shown(effects, DEFAULT[0], confidence) <= 0.05 / metrics + 0.01
    assert shown(effects + math.log(factor), DEFAULT[0], confidence) >= 0.9


@pytest.mark.parametrize("shape", [DEFAULT, LEAST])
def test_what_a_run_calls_detectable_by_its_own_noise_about_8_of_10_show(
    shape: tuple[int, int],
) -> None:
    none = [0.0] * math.prod(shape)
    own = np.array(
        [
            compare(none, run.tolist(), "none", "%", boots=shape[0]).detectable or 0
            for run in noise(shape, 0.0, 400)
        ]
    )
    fresh = noise(shape, 0.0, 800)[400:] + own[:, None]
    assert shown(fresh, shape[0]) == pytest.approx(0.8, abs=0.1)


@pytest.mark.parametrize("shape", [DEFAULT, LEAST])
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_what_is_called_detectable_is_detected(shape: tuple[int, int], share: float) -> None:
    none = [0.0] * math.prod(shape)
    said = [
        compare(none, run.tolist(), "none", "%", boots=shape[0]).detectable or 0
        for run in noise(shape, share, 300)
    ]
    assert shown(noise(shape, share) + statistics.mean(said), shape[0]) == pytest.approx(
        0.9, abs=0.07
    )


def test_a_control_that_one_boot_sets_apart_is_seen() -> None:
    """Boots of the control that are slower in all their rounds, and one run that cannot tell."""
    result = made_up(n=12, boots=6)
    slow = [x * 1.05 for x in result.metrics["sched_pipe_s"].samples["control"]]
    result.metrics["sched_pipe_s"].samples["control"] = slow
    assert control_failed(result)
    once = made_up(n=12, boots=6)
    once.metrics["sched_pipe_s"].samples["control"][:2] = slow[:2]
    assert not control_failed(once)


def test_boots_are_reported_everywhere(tmp_path: Path) -> None:
    result = made_up(n=12, boots=6)
    samples = result.metrics["sched_pipe_s"].samples
    samples["lightsleep"] = [x * (1 + 0.1 * (i // 2)) for i, x in enumerate(samples["lightsleep"])]
    (found,) = [
        arm["baseline"]
        for name, arm in document(result)["metrics"]["sched_pipe_s"]["arms"].items()
        if name == "lightsleep"
    ]
    assert found["boots"] == 6
    assert found["boot_spread"] == pytest.approx(1.16, abs=0.03)
    (tmp_path / "x.json").write_text(json.dumps(result.document()))
    page = CliRunner().invoke(
        main, ["report", str(tmp_path / "x.json"), "-o", str(tmp_path / "x.html")]
    )
    assert page.exit_code == 0, page.output
    html = (tmp_path / "x.html").read_text()
    assert "divided among 6 boots" in html
    assert "0.980 to 0.980" in html
    assert "boot to boot" in html


def test_dots_of_one_boot_are_in_a_line() -> None:
    heights = plots._heights(12, 6)
    assert len(set(heights)) == 6
    assert heights.tolist() == sorted(heights)
    assert heights[0] == heights[1]
    assert len(set(plots._heights(12, 1))) == 12


def test_rounds_that_boots_do_not_divide_are_refused(tmp_path: Path) -> None:
    written = made_up(n=12, boots=6).document()
    written["protocol"]["boots"] = 5
    (tmp_path / "x.json").write_text(json.dumps(written))
    said = CliRunner().invoke(main, ["report", str(tmp_path / "x.json")])
    assert said.exit_code == 1
    assert "12 rounds (runs) are not those of 5 boots" in said.output


def test_three_boots_say_less_than_twelve_rounds_would() -> None:
    effects = noise(LEAST, 0.0, 50)
    none = [0.0] * 12
    for run in effects:
        booted, alone = (compare(none, run.tolist(), "none", "%", boots=b) for b in (3, 1))
        assert booted.detectable
        assert alone.detectable
        assert booted.detectable >= alone.detectable
        assert booted.verdict in (alone.verdict, Verdict.SAME)
