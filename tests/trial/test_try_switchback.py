# SPDX-License-Identifier: GPL-2.0-only
"""try --switchback: settings that alternate under a service that runs."""

import json
import re
import shlex
import statistics
import sys
from pathlib import Path

import fake_modules
import pytest
from trials import DRIVER, attempt, teller, tried

from lightsleep.compare.result import FORMAT
from lightsleep.errors import LightsleepError
from lightsleep.trial import switchback

SWITCH = ["--switchback", "100ms", "--for", "3300ms"]


def test_settings_alternate_under_a_service(root: Path, tmp_path: Path) -> None:
    before = fake_modules.snapshot(root)
    command = shlex.join(teller(root))
    document = tried(*SWITCH, "--metric-command", command, "-m", r"t_ms=t (\d+)")
    assert document["arms"] == ["as-is", "lightsleep", "as-is-again"]
    samples = document["metrics"]["t_ms"]["samples"]
    assert samples["lightsleep"] == [1.0] * 10
    assert samples["as-is"] == samples["as-is-again"] == [10.0] * 10
    protocol = document["protocol"]
    assert protocol["runs"] == 10
    assert (protocol["switchback_s"], protocol["carry_over_s"]) == (0.1, 0.025)
    assert "wall_s" not in document["metrics"]
    assert document["title"] == "Idle settings for what runs on this machine"
    assert fake_modules.snapshot(root) == before
    described = json.loads(FORMAT.described.read_text())["properties"]
    for part in ("protocol", "environment"):
        assert document[part].keys() <= described[part]["properties"].keys()


def test_the_rate_of_a_counter(root: Path) -> None:
    """It counts 1000 a second with lightsleep, 100 without."""
    # A shell is there at once: what starts late on a busy host, counts late.
    program = (
        "read up _ < /proc/uptime; n=${up%.*}${up#*.};"  # in units of 10 ms
        f"case $(cat {root / DRIVER}) in lightsleep) n=$((n * 10));; esac; echo n $n"
    )
    command = shlex.join(["sh", "-c", program])
    options = ["--metric-command", command, "-m", r"n=n ([\d.]+):rate:higher", "--no-control"]
    document = tried("--switchback", "200ms", "--for", "2800ms", *options)
    metric = document["metrics"]["n"]
    assert metric["better"] == "higher"
    # How exact it is, is up to the host; without :rate, both would count on, and be about equal.
    fast, slow = (statistics.median(metric["samples"][arm]) for arm in ("lightsleep", "as-is"))
    assert fast > 2 * slow > 0


def test_the_winner_of_a_switchback_is_enabled(root: Path) -> None:
    command = shlex.join(teller(root))
    result = attempt(*SWITCH, "--enable", "--metric-command", command, "-m", r"t=t (\d+):lower")
    assert result.exit_code == 0, result.output
    assert "lightsleep has 10.0 times fewer than as-is" in " ".join(result.stdout.split())
    assert (root / "sys/module/cpuidle_lightsleep").exists()


def test_without_a_number_of_the_service_no_setting_wins(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting that slows the service down makes the machine less busy: no reason to take it."""

    def period(*_: object) -> dict[str, float]:
        return {"busy_pct": 10.0 if "lightsleep" in (root / DRIVER).read_text() else 50.0}

    monkeypatch.setattr(switchback, "period", period)
    result = attempt(*SWITCH)
    assert result.exit_code == 0, result.output
    assert "so no setting wins. Name a number" in " ".join(result.stdout.split())


def test_slow_periods_end_it_in_time(root: Path) -> None:
    command = shlex.join(["sh", "-c", "sleep 0.2; echo t 5"])
    options = ["--metric-command", command, "-m", r"t=t (\d+):lower", "--no-control"]
    document = tried("--switchback", "100ms", "--for", "4s", *options)
    assert 6 <= document["protocol"]["runs"] < 12
    (note,) = document["environment"]["notes"]
    assert re.match(r"\d+ of 19 rounds were run: .*took the rest of --for, or more$", note)


def test_periods_too_slow_for_a_verdict_are_told_after_the_first_round(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switchback, "LATE", 1.25)
    before, count = fake_modules.snapshot(root), tmp_path / "count"
    command = shlex.join(["sh", "-c", f"echo x >> {count}; sleep 0.5; echo t 5"])
    result = attempt(*SWITCH, "--metric-command", command, "-m", r"t=t (\d+):lower")
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert re.search(r"a round takes [\d.]+ s, .* --for must be \d+s or longer", said)
    assert len(count.read_text().split()) == 3
    assert fake_modules.snapshot(root) == before


@pytest.mark.parametrize(
    ("rounds", "elapsed_s", "wanted"),
    [
        (1, 37, True),
        (5, 180, True),
        (5, 1000, True),  # slow rounds, of which the first was none
        (9, 310, True),
        (10, 299, True),
        (10, 300, False),
    ],
)
def test_enough_rounds_and_no_more_than_fit(rounds: int, elapsed_s: float, wanted: bool) -> None:
    plan = switchback.plan(10, 300, 3, "", [], 9)
    assert plan.goes_on(rounds, elapsed_s) == wanted


def test_only_the_first_round_says_that_the_time_is_too_short() -> None:
    plan = switchback.plan(10, 300, 3, "", [], 9)
    with pytest.raises(LightsleepError, match=r"a round takes 38 s, .* must be 380s or longer"):
        plan.goes_on(1, 38)


def test_a_metric_command_that_never_ends(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switchback, "ASK_S", 0.1)
    before = fake_modules.snapshot(root)
    result = attempt(*SWITCH, "--metric-command", "sleep 1000", "-m", "t_ms=x")
    assert result.exit_code == 1
    assert "--metric-command has not ended after 0.1 s" in " ".join(result.output.split())
    assert fake_modules.snapshot(root) == before


def test_a_metric_command_that_is_not_there_is_told_before_anything_is_changed(root: Path) -> None:
    result = attempt(*SWITCH, "--metric-command", "no-such-program -x", "-m", "t_ms=x")
    assert result.exit_code == 1
    said = "--metric-command: cannot run no-such-program: there is no such program"
    assert said in " ".join(result.output.split())
    assert not (root / "run/lightsleep").exists()


def test_a_counter_that_falls_ends_it(root: Path) -> None:
    before = fake_modules.snapshot(root)
    program = "import time; print('n', 1e9 - time.monotonic())"
    command = shlex.join([sys.executable, "-c", program])
    result = attempt(*SWITCH, "--metric-command", command, "-m", r"n=n ([\d.]+):rate:lower")
    assert result.exit_code == 1
    assert "the counter fell" in " ".join(result.output.split())
    assert fake_modules.snapshot(root) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--switchback", "1s"], "needs --for"),
        (["--for", "1m", "--", "true"], "belong to --switchback"),
        (["--metric-command", "x", "--", "true"], "belong to --switchback"),
        ([], "either a COMMAND"),
        ([*SWITCH, "--", "true"], "either a COMMAND"),
        (["--switchback", "10s", "--for", "1m"], "need 330 s for a verdict"),
        (["--switchback", "1s", "--for", "99999h"], "1000 is the maximum"),
        (["--switchback", "0s", "--for", "1m"], "no time such as"),
        (["--switchback", "5", "--for", "1m"], "no time such as"),
        ([*SWITCH, "-m", "t_ms=x"], "give both"),
        ([*SWITCH, "--metric-command", "true"], "give both"),
        ([*SWITCH, "--metric-command", "'", "-m", "t_ms=x"], "No closing quotation"),
        (["--switchback", "99ms", "--for", "1h"], "a period is 0.1 s or longer"),
        ([*SWITCH, "-n", "10"], "--rounds is of a COMMAND"),
        ([*SWITCH, "--enable"], "--enable needs --metric-command and --metric"),
        (["-m", "n=x:rate:lower", "--", "true"], "a rate needs --switchback"),
    ],
)
def test_words_that_mean_no_switchback(words: list[str], said: str, root: Path) -> None:
    before = fake_modules.snapshot(root)
    result = attempt(*words)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
    assert fake_modules.snapshot(root) == before
