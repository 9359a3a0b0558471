# SPDX-License-Identifier: GPL-2.0-only
"""What a replay recommends, and how it says so."""

from __future__ import annotations

import dataclasses
import io

import pytest
from replays import NO_COSTS, US, metadata, period
from rich.console import Console

from lightsleep.periods.model import AWAKE
from lightsleep.periods.source import as_batch
from lightsleep.replay import words
from lightsleep.replay.account import Outcome, Replay
from lightsleep.replay.costs import Costs
from lightsleep.replay.evidence import costs_of
from lightsleep.replay.policies import STOCK
from lightsleep.replay.tally import SUMS


def gaining(**by_block_us: tuple[int, int]) -> Replay:
    """A second of recording in which each policy gains so much in every second block of time."""
    outcomes = {STOCK: Outcome(STOCK), **{name: Outcome(name) for name in by_block_us}}
    for name, gained_us in {STOCK: (0, 0), **by_block_us}.items():
        for account in outcomes[name].ends():
            account.tally.paid_ns[:] = 10**7
            for first, gained in enumerate(gained_us):
                account.tally.paid_ns[first::2] -= gained * US
    return Replay(outcomes, span_ns=10**9, idle_ns=10**9, wakes=1)


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        # 0.1 % of the time is 1 ms. The interval of 2 ms begins at 0.75, that of 0.8 ms at 0.8.
        ({"sure": (40, 40), "large": (230, -30)}, "Try large."),
        ({"large": (230, -30), "larger": (100, 100)}, "Try larger."),
        ({"sure": (40, 40)}, "less than 0.1 % of the recording's time. The best is sure. "),
        ({"sure": (40, 40), "vague": (1000, -900)}, "The best is sure. "),
        ({"vague": (1000, -900)}, "no policy is shown to be better. The nearest is vague. "),
    ],
)
def test_a_policy_is_recommended_that_is_better_and_by_enough(
    gains: dict[str, tuple[int, int]], said: str
) -> None:
    assert said in words.recommendation(gaining(**gains), [])


def test_what_is_recommended_is_told_in_time_before_it_is_weighed() -> None:
    said = words.recommendation(gaining(large=(230, -30)), [])
    assert said.startswith("Try large. In 1.00 s, tasks would have waited ")
    assert said.index("CPUs would have polled") < said.index("Its regret is 2.00 ms lower than")


def test_both_ends_of_a_policy_are_told_beside_both_ends_of_stock() -> None:
    made = gaining(large=(230, -30))
    for name, ends_ms in {STOCK: (40, 100), "large": (20, 50)}.items():
        for account, waited_ms in zip(made.outcomes[name].ends(), ends_ms, strict=True):
            account.tally.data[SUMS.index("waited_ns")] = waited_ms * 10**6
    said = words.recommendation(made, [])
    assert "waited 20.0 ms to 50.0 ms instead of 40.0 ms to 100 ms, and CPUs" in said


@pytest.mark.parametrize(("width", "folded"), [(80, True), (120, False)])
def test_ranges_are_folded_where_the_terminal_is_narrow(width: int, folded: bool) -> None:
    console = Console(file=io.StringIO(), width=width)
    costs = ("79.8 ms to 83.0 ms", "0.00", "200", "97.6 ms to 98.4 ms", "1.64 to 1.68 %")
    row = ("fixed:200us", *costs, "8,783", "290 ms to 297 ms")
    console.print(words._table(console, words.PRICED, [row]), crop=False)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(len(line.rstrip()) for line in lines) <= width
    assert ("290 ms to 297 ms" in lines[-1]) != folded
    assert any("290 ms to" in line for line in lines)


KNOWN = dataclasses.replace(NO_COSTS, reference_ns=5_000.0)


@pytest.mark.parametrize(
    ("costs", "at_most", "asked"),
    [
        (KNOWN, False, False),
        (dataclasses.replace(KNOWN, doubted=True), False, True),
        (NO_COSTS, True, True),
        (dataclasses.replace(NO_COSTS, supposed_ns=5_000.0), False, False),
        (dataclasses.replace(NO_COSTS, given=True), False, False),
    ],
)
def test_a_gain_is_no_more_certain_than_what_a_halt_costs(
    costs: Costs, at_most: bool, asked: bool
) -> None:
    gains = gaining(large=(230, -30))
    for known in ([("a.dat", costs)], [("b.dat", KNOWN), ("a.dat", costs)]):
        said = words.recommendation(gains, known)
        assert ("regret is at most 2.00 ms lower" in said) == at_most
        assert ("regret is 2.00 ms lower" in said) != at_most
        assert ("--halt-cost" in said) == asked


def test_a_doubted_reference_is_known_to_who_recommends() -> None:
    halts = [period(1000 * n, 100, wait_us=7) for n in range(2000)]
    for late, doubted in ((0, False), (20, True)):
        waits_us = [2] * (40 - late) + [20] * late
        awake = [period(3_000_000 + n, 0, AWAKE, wait) for n, wait in enumerate(waits_us)]
        costs = costs_of(metadata(), [as_batch("host", [*halts, *awake])])
        assert costs
        assert costs.doubted == doubted
        assert not costs.at_most


def test_governors_are_not_compared_with_policies_that_poll() -> None:
    made = gaining(**{"fixed:50us": (40, 40), "haltpoll": (40, 40), "teo@6.12": (230, 230)})
    polled_and_waited = {STOCK: (0, 90), "fixed:50us": (10, 50), "haltpoll": (20, 60)}
    for name, (polled_ns, waited_ns) in (polled_and_waited | {"teo@6.12": (0, 10)}).items():
        recorded = made.outcomes[name].recorded.tally
        recorded.data[SUMS.index("polled_ns")] = polled_ns
        recorded.data[SUMS.index("waited_ns")] = waited_ns
    assert words.front(made) == {STOCK, "fixed:50us"}
    assert "teo" not in words.recommendation(made, [])


def test_what_promotion_does_not_know_of_states_is_said_where_it_is_replayed() -> None:
    for name, told in (("teo@6.12", 0), ("teo@6.12+promote", 1), ("fixed:50us", 0)):
        notes = words.notes(gaining(**{name: (1, 1)}), [])
        assert sum("stops the CPU's timer" in note for note in notes) == told
