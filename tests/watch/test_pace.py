# SPDX-License-Identifier: GPL-2.0-only
"""How often ``lightsleep watch`` looks: as often as its share of a CPU allows."""

import itertools

import pytest

from lightsleep.watch import pace


@pytest.mark.parametrize(
    ("spent_s", "between_s", "wanted_s"),
    [
        (0.0, (1, 10), 1),
        (0.0009, (1, 10), 1),
        (0.0011, (1, 10), 2),
        (0.0042, (1, 10), 5),
        (0.01, (15, 60), 15),
        (9.0, (1, 10), 10),
    ],
)
def test_the_interval_follows_from_what_a_round_costs(
    spent_s: float, between_s: tuple[int, int], wanted_s: int
) -> None:
    assert pace.pause_s(spent_s, between_s) == wanted_s
    assert wanted_s == between_s[1] or spent_s <= pace.SHARE * wanted_s


class Clocks:
    """Clocks that only move when somebody waits or works."""

    def __init__(self) -> None:
        self.now_s, self.worked_s = 0.0, 0.0

    def monotonic(self) -> float:
        return self.now_s

    def process_time(self) -> float:
        return self.worked_s

    def sleep(self, time_s: float) -> None:
        self.now_s += time_s

    def work(self, time_s: float) -> None:
        self.now_s += time_s
        self.worked_s += time_s


@pytest.mark.parametrize("cost_s", [0.0001, 0.0007, 0.002, 0.005, 0.0295])
def test_watch_stays_below_its_share_of_a_cpu(
    cost_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = Clocks()
    monkeypatch.setattr(pace, "time", clocks)
    rounds = pace.paced(None, pace.LIVE_S, None)
    for number, _ in zip(range(500), rounds, strict=False):
        clocks.work(cost_s)
        if number == 1:
            assert clocks.now_s <= pace.LIVE_S[0] + 2 * cost_s  # the first view comes at once
            start_s, clocks.worked_s = clocks.now_s, 0.0
    assert clocks.worked_s <= pace.SHARE * (clocks.now_s - start_s)


@pytest.mark.parametrize("steady", [False, True])
def test_a_round_that_costs_far_more_changes_no_interval(
    steady: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks, starts = Clocks(), []
    monkeypatch.setattr(pace, "time", clocks)
    for number, _ in zip(range(60), pace.paced(None, (1, 30), None, steady), strict=False):
        starts.append(clocks.now_s)
        clocks.work(0.05 if number % 7 == 5 else 0.0005)
    assert {round(b - a) for a, b in itertools.pairwise(starts)} == {1}


def test_an_interval_that_prometheus_sees_gets_no_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks, starts = Clocks(), []
    monkeypatch.setattr(pace, "time", clocks)
    for number, _ in zip(range(90), pace.paced(None, (1, 30), None, steady=True), strict=False):
        starts.append(clocks.now_s)
        clocks.work(0.0045 if 30 < number < 60 else 0.0015)
    intervals = [round(b - a) for a, b in itertools.pairwise(starts)]
    assert intervals == sorted(intervals)
    assert set(intervals) == {1, 2, 5}


def test_who_counts_does_not_wait_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks()
    monkeypatch.setattr(pace, "time", clocks)
    for _ in pace.paced(None, pace.LIVE_S, 4):
        clocks.work(0.5)
    assert clocks.now_s == pytest.approx(3 * pace.LIVE_S[0] + 0.5)


def test_a_given_interval_is_kept_and_missed_rounds_are_not_made_up_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks, starts = Clocks(), []
    monkeypatch.setattr(pace, "time", clocks)
    for number, _ in enumerate(pace.paced(2.0, pace.LIVE_S, 6)):
        starts.append(clocks.now_s)
        clocks.work(7.0 if number == 2 else 0.5)
    assert starts == [0, 2, 4, 11, 13, 15]
