# SPDX-License-Identifier: GPL-2.0-only
"""What a replay recommends, and how it says so."""

from __future__ import annotations

import pytest
from replays import US

from lightsleep.replay import words
from lightsleep.replay.account import Outcome, Replay
from lightsleep.replay.policies import STOCK


def gaining(**by_block_us: tuple[int, int]) -> Replay:
    """A second of recording in which each policy gains so much in every second block of time."""
    outcomes = {STOCK: Outcome(STOCK), **{name: Outcome(name) for name in by_block_us}}
    for name, gained_us in {STOCK: (0, 0), **by_block_us}.items():
        for account in outcomes[name].ends():
            account.tally.paid_ns[:] = 10**7
            for first, gained in enumerate(gained_us):
                account.tally.paid_ns[first::2] -= gained * US
    return Replay(outcomes, span_ns=10**9, idle_ns=10**9, loop_share=0.0, wakes=1)


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        # 0.1 % of the time is 1 ms. The interval of 2 ms begins at 0.75, that of 0.8 ms at 0.8.
        ({"sure": (40, 40), "large": (230, -30)}, "Try large."),
        ({"large": (230, -30), "larger": (100, 100)}, "Try larger."),
        ({"sure": (40, 40)}, "less than 0.1 % of the recording's time. The best is sure, "),
        ({"sure": (40, 40), "vague": (1000, -900)}, "The best is sure, "),
        ({"vague": (1000, -900)}, "no policy is shown to be better. The nearest is vague, "),
    ],
)
def test_a_policy_is_recommended_that_is_better_and_by_enough(
    gains: dict[str, tuple[int, int]], said: str
) -> None:
    assert said in words.recommendation(gaining(**gains))
