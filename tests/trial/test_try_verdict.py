# SPDX-License-Identifier: GPL-2.0-only
"""try: which setting wins, and what its last sentence says of it."""

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from trials import EXECUTE, attempt, teller

from lightsleep.compare.result import CompareResult, MetricResult
from lightsleep.trial import process
from lightsleep.trial.verdict import judge


def test_the_last_line_names_the_winner(root: Path) -> None:
    result = attempt("-n", "10", "-m", r"t=t (\d+):lower", "--", *teller(root))
    assert result.exit_code == 0
    last = " ".join(result.stdout.split("\n\n")[-1].split())
    assert "lightsleep has 10.0 times fewer than as-is" in last
    assert "It costs:" in last


@pytest.mark.parametrize(
    ("as_is_pct", "told"), [(55.0, "was polled (as-is: 55.00 %);"), (0.0, "was polled;")]
)
def test_the_time_polled_is_told_beside_that_of_as_is(as_is_pct: float, told: str) -> None:
    """It may be less under the winner than it was before."""
    trial = of_times(
        {
            "as-is": [2 + n / 1000 for n in range(10)],
            "lightsleep": [1 + n / 1000 for n in range(10)],
        }
    )
    polled = {"as-is": [as_is_pct] * 10, "lightsleep": [12.0] * 10}
    trial.metrics["polled_pct"] = MetricResult("%", "none", "Time polled", "", polled)
    trial.metrics["cpu_s"] = MetricResult(
        "s", "lower", "CPU time", "", dict.fromkeys(polled, [0.5] * 10), amount=True
    )
    assert f"It costs: 12.00 % of the CPUs' time {told}" in judge(trial).sentence


@pytest.mark.parametrize(
    ("of_machine_s", "told"),
    [
        (2.0, "CPU time of the machine is 2.00 times higher."),
        (1.0, "no more CPU time, CPU time of the machine, or energy was shown."),
    ],
)
def test_what_a_server_uses_is_a_cost(of_machine_s: float, told: str) -> None:
    """The command is its client, which uses no more."""
    trial = of_times(
        {
            "as-is": [2 + n / 1000 for n in range(10)],
            "lightsleep": [1 + n / 1000 for n in range(10)],
        }
    )
    for name, unit, title, used in (
        ("cpu_s", "s", "CPU time", 0.5),
        ("busy_s", "s", "CPU time of the machine", of_machine_s),
        ("energy_J", "J", "Energy", 7.0),
    ):
        samples = {arm: [used] * 10 for arm in trial.arms}
        trial.metrics[name] = MetricResult(unit, "lower", title, "", samples, amount=True)
    trial.metrics["busy_s"].samples["as-is"] = [1.0] * 10
    assert judge(trial).sentence.endswith(f"It costs: {told}")


def test_no_winner_where_nothing_differs() -> None:
    noise = random.Random(3)
    samples = {
        arm: [1.45 + noise.gauss(0, 0.01) for _ in range(10)] for arm in ("as-is", "haltpoll")
    }
    outcome = judge(of_times(samples))
    assert outcome.winner is None
    assert "no setting was shown to be better than as-is" in outcome.sentence
    assert "Keep as-is" in outcome.sentence


@pytest.mark.parametrize("value", [0.0, 5.0])
@pytest.mark.parametrize("sample", ["run", "period"])
def test_a_number_that_never_moves_is_no_finding(sample: str, value: float) -> None:
    trial = of_times(dict.fromkeys(("as-is", "haltpoll"), [value] * 10))
    if sample == "period":
        trial.protocol["switchback_s"] = 10.0
    outcome = judge(trial)
    assert outcome.winner is None
    assert f"in every {sample}, so it cannot tell settings apart" in outcome.sentence
    assert "shown" not in outcome.sentence


def test_no_winner_where_the_control_cannot_be_judged(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "execute", EXECUTE)  # times that differ, too few to tell
    result = attempt("-n", "6", "-m", r"t=t (\d+):lower", "--", *teller(root))
    assert result.exit_code == 0
    said = " ".join(result.stdout.split())
    assert "lightsleep has 10.0 times fewer than as-is" in said
    assert re.search(r"But 6 rounds are too few to judge the control: \d+ are needed", said)
    assert not (root / "sys/module/cpuidle_lightsleep").exists()


def of_times(samples: dict[str, list[float]]) -> CompareResult:
    """Return a trial of these wall times, by setting and round; the first setting is as-is."""
    as_is, *settings = samples
    return CompareResult(
        experiment="try",
        title="t",
        hypothesis="h",
        created="2026-11-25T00:00:00+00:00",
        environment={},
        protocol={"runs": len(samples[as_is]), "warmup": 1, "seed": 1, "order": []},
        arms=list(samples),
        roles={as_is: "baseline", **dict.fromkeys(settings, "treatment")},
        metrics={"wall_s": MetricResult("s", "lower", "Wall time", "", samples)},
    )


def test_of_many_settings_that_do_nothing_one_wins_in_1_of_20_trials() -> None:
    chance, rounds, trials = random.Random(8), 10, 200
    settings = [f"setting{number}" for number in range(8)]
    winners = alone = 0
    for _ in range(trials):
        samples = {
            arm: [chance.lognormvariate(0, 0.1) for _ in range(rounds)]
            for arm in ("as-is", *settings)
        }
        outcome = judge(of_times(samples))
        winners += outcome.winner is not None
        alone += "may do so by chance" in outcome.sentence
    assert winners <= 18  # of 200 at 5 %: more in 1 of 100 tests
    assert alone >= 5


def test_a_setting_that_reaches_0_is_ranked_by_its_difference_as_all_are() -> None:
    samples = {
        "as-is": [1.5 + n / 1000 for n in range(10)],
        "halves": [0.7 + n / 1000 for n in range(10)],
        "ends": [0.0, 0.01] * 5,
    }
    assert judge(of_times(samples)).winner == "ends"


@pytest.mark.parametrize(
    ("setting", "took_s", "told"),
    [
        ("lightsleep", 1.45, True),
        ("lightsleep:weight=20", 1.45, True),
        ("lightsleep+governor:menu", 1.45, True),
        ("governor:menu+lightsleep:300us", 1.45, True),
        ("lightsleep", 5.5, False),
        ("lightsleep:fixed:100us", 1.45, False),
        ("qos:10us+lightsleep:off", 1.45, False),
        ("haltpoll", 1.45, False),
        ("haltpoll+governor:menu", 1.45, False),
    ],
)
def test_runs_in_which_the_driver_still_learns_are_told(
    setting: str, took_s: float, told: bool
) -> None:
    noise = random.Random(3)
    samples = {
        arm: [took_s + noise.gauss(0, 0.01) for _ in range(10)] for arm in ("as-is", setting)
    }
    outcome = judge(of_times(samples))
    assert outcome.winner is None
    assert ("A run took 1.4" in outcome.sentence) == told
    assert ("runs of 5 s or more may show a gain" in outcome.sentence) == told


@pytest.mark.parametrize(("period_s", "told"), [(2.0, True), (10.0, False)])
def test_periods_in_which_the_driver_still_learns_are_told(period_s: float, told: bool) -> None:
    """A switchback has no wall time."""
    noise = random.Random(3)
    samples = {arm: [5 + noise.gauss(0, 1) for _ in range(10)] for arm in ("as-is", "lightsleep")}
    trial = replace(
        of_times(samples),
        protocol={"runs": 10, "warmup": 1, "seed": 1, "order": [], "switchback_s": period_s},
        metrics={"p99_us": MetricResult("us", "lower", "p99", "", samples)},
    )
    sentence = judge(trial).sentence
    assert "no setting was shown to be better" in sentence
    assert ("A period took 2.00 s." in sentence) == told
    assert ("periods of 5 s or more may show a gain" in sentence) == told


def test_a_driver_that_is_there_follows_new_parameters_slowly() -> None:
    """It is not loaded for each run, and the runs side by side share what it learns."""
    setting = "lightsleep:weight=20"
    noise = random.Random(3)
    samples = {arm: [1.45 + noise.gauss(0, 0.01) for _ in range(10)] for arm in ("as-is", setting)}
    active = replace(of_times(samples), environment={"host": {"cpuidle_driver": "lightsleep"}})
    sentence = judge(active).sentence
    assert "lightsleep's driver stays loaded" in sentence
    assert "runs of 5 s or more may show a gain" in sentence
    assert "loaded for each" not in sentence


def test_two_settings_need_a_round_more_than_one(root: Path) -> None:
    words = ["--no-control", "-s", "lightsleep,lightsleep:fixed:100us", "-m", r"t=t (\d+):lower"]
    said = " ".join(attempt("-n", "6", *words, "--", *teller(root)).stdout.split())
    assert "of 2 settings one may do so by chance" in said
    assert "try again with 7 or more rounds" in said
    assert "times fewer" not in said
    said = " ".join(attempt("-n", "7", *words, "--", *teller(root)).stdout.split())
    assert "has 10.0 times fewer than as-is" in said


@pytest.mark.parametrize(("control", "needed"), [("--control", 10), ("--no-control", 6)])
def test_too_few_rounds_give_no_verdict(control: str, needed: int, root: Path) -> None:
    words = [control, "-m", r"t=t (\d+):lower", "--", *teller(root)]
    said = " ".join(attempt("-n", "2", *words).stdout.split())
    assert f"too few rounds to tell. Keep as-is, or try again with {needed} or more." in said
