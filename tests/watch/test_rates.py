# SPDX-License-Identifier: GPL-2.0-only
"""Rates from two snapshots of counters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from watched import count, snapshot

from lightsleep.scan.model import PollStats
from lightsleep.watch.model import CpuCount, States
from lightsleep.watch.rates import CpuRates, rates, total


def one(before: CpuCount, after: CpuCount, span_s: float = 2.0) -> CpuRates:
    (found,) = rates(snapshot(10, before), snapshot(10 + span_s, after))
    return found


def test_shares_and_wakes() -> None:
    after = count(states=States((10, 30), (200_000, 1_200_000)), idle_s=1.5)
    found = one(count(states=States((0, 0), (0, 0))), after)
    assert found.state_shares == pytest.approx({"POLL": 0.1, "HALT": 0.6})
    assert found.busy_share == pytest.approx(0.25)
    assert found.asleep_share == pytest.approx(0.05)
    assert found.wakes_per_s == 15  # what ended polls is not known


@pytest.mark.parametrize("hits", [0, 400])
def test_polls_that_end_by_time_are_no_wakeups(hits: int) -> None:
    """As where a latency limit forbids halts: the CPU polls again and again."""
    own = [PollStats(0, 70, 0, 0, 0, 0, 0), PollStats(9000, 70 + hits, 0, 0, 0, 0, 0)]
    states = [States((0, 0), (0, 0)), States((10_000, 0), (2_000_000, 0))]
    before, after = (count(own=x, states=y) for x, y in zip(own, states, strict=True))
    assert one(before, after).wakes_per_s == hits / 2
    before, after = (x._replace(own=None) for x in (before, after))
    assert one(before, after).wakes_per_s == 0


def test_a_poll_in_vain_and_the_halt_after_it_are_one_wakeup() -> None:
    own = [PollStats(0, 0, 0, 0, 0, 0, 0), PollStats(200, 100, 100, 0, 0, 0, 0)]
    before, after = count(own=own[0]), count(own=own[1], states=States((200, 100), (9, 9)))
    assert one(before, after).wakes_per_s == 100


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [
        ((0, 0), (0, 0), 0),
        ((16_000, 9_000), (16_000, 7_000), 1),  # all of it in one pause
        ((16_000, 500), (16_000, 0), 0.25),  # it ended
        ((16_000, 0), (32_000, 15_000), 0.5),  # one began
        ((1_000, 500), (5_000, 3_500), 0.5),  # one ended, and one began: half a second of each
        ((16_000, 0), (4_000, 3_000), 0.5),  # the CPU came online again meanwhile
        ((16_000, 0), (16_000, 16_000), 0),  # it began between the reads of the two
        ((None, None), (1_000, 1_000), None),
    ],
)
def test_time_in_pauses(
    before: tuple[int | None, int | None], after: tuple[int, int], share: float | None
) -> None:
    """A pause counts in full when it begins; what is left of it has not passed."""
    found = one(count(own=paused(*before)), count(own=paused(*after)))
    assert found.paused_share == pytest.approx(share)
    assert found.pause_left_ms == after[1]


def paused(paused_ms: int | None, left_ms: int | None) -> PollStats:
    paused_ns = None if paused_ms is None else paused_ms * 1_000_000
    return PollStats(9, 9, 9, 9, 9, 9, 9, paused_ns=paused_ns, pause_left_ms=left_ms)


def test_a_cpu_that_sleeps_all_the_time_is_not_busy() -> None:
    found = one(count(), count(idle_s=2.0))
    assert (found.busy_share, found.asleep_share, found.wakes_per_s) == (0, 1, 0)


def test_a_sleep_that_began_long_ago_is_no_more_than_the_idle_time() -> None:
    found = one(count(), count(states=States((0, 1), (0, 60_000_000)), idle_s=1.0))
    assert found.state_shares == pytest.approx({"POLL": 0, "HALT": 0.5})
    assert found.asleep_share == 0


def test_polls_in_the_idle_loop_are_no_sleep() -> None:
    before = count(loop_polled_ns=0)
    halted = count(states=States((0, 9), (0, 1_000_000)), idle_s=2.0, loop_polled_ns=10**9)
    found = one(before, halted)
    assert (found.polled_share, found.asleep_share) == (0.5, 0)
    assert found.state_shares == {"POLL": 0, "HALT": 0.5}
    # Each wakeup may come in a poll, so that no state is entered.
    found = one(before, count(idle_s=2.0, loop_polled_ns=1_500_000_000))
    assert (found.polled_share, found.asleep_share, found.wakes_per_s) == (0.75, 0.25, 0)
    # lightsleep's driver may poll behind that.
    own, later = PollStats(0, 0, 0, 0, 0, 0, 0), PollStats(0, 0, 0, 10**9, 0, 0, 0)
    after = count(own=later, idle_s=2.0, loop_polled_ns=5 * 10**8)
    found = one(count(own=own, loop_polled_ns=0), after)
    assert found.polled_share == 0.75


@pytest.mark.parametrize("polled_s", [0.48, 0.7])
def test_interrupts_on_top_of_polls_take_no_time_from_a_state(polled_s: float) -> None:
    """They are busy time in /proc/stat, and polled time in the idle loop."""
    halted = States((0, 9), (0, 100_000))
    after = count(states=halted, idle_s=0.5, loop_polled_ns=int(polled_s * 1e9))
    found = one(count(loop_polled_ns=0), after, 1.0)
    assert found.state_shares == pytest.approx({"POLL": 0, "HALT": 0.1})
    assert (found.busy_share, found.polled_share) == (0.5, min(polled_s, 0.5))
    assert found.asleep_share == 0


def test_a_sleep_that_began_long_ago_leaves_polls_their_time() -> None:
    halted = States((0, 1), (0, 60_000_000))
    found = one(count(loop_polled_ns=0), count(states=halted, idle_s=1.8, loop_polled_ns=10**9))
    # Of the 1 s polled, 0.2 s at most was busy time.
    assert found.state_shares == pytest.approx({"POLL": 0, "HALT": 0.5})
    assert (found.polled_share, found.asleep_share) == (0.5, 0)


def test_a_cpu_that_spins_is_not_asleep() -> None:
    before, after = snapshot(10, count()), snapshot(12, count(idle_s=2.0))
    (found,) = rates(before, after._replace(spins="nohlt"))
    assert (found.busy_share, found.asleep_share) == (0, None)


def test_polls() -> None:
    before = PollStats(0, 0, 0, 0, 0, 50_000, 40_000)
    after = PollStats(1000, 700, 400, 200_000_000, 100_000_000, 60_000, 50_000)
    found = one(count(own=before, interrupts=(0, 0, 0)), count(own=after, interrupts=(100, 50, 50)))
    assert (found.polls_per_s, found.hits_per_s, found.halts_per_s, found.hit_rate) == (
        500,
        350,
        200,
        0.7,
    )
    assert (found.polled_share, found.wasted_share) == pytest.approx((0.1, 0.05))
    assert (found.limit_ns, found.halt_cost_ns) == (60_000, 50_000)
    assert found.lost_share == pytest.approx(200 * 50e-6)
    assert found.stores_per_s == 350 - 100  # an interrupt may have ended each of the others


def test_a_counter_that_starts_again_rose_from_zero() -> None:
    before = PollStats(9000, 0, 0, 0, 0, 0, 0)
    assert one(count(own=before), count(own=PollStats(10, 0, 0, 0, 0, 0, 0))).polls_per_s == 5


def test_a_sum() -> None:
    found = [
        CpuRates(0, busy_share=0.5, wakes_per_s=10, state_shares={"POLL": 0.5}),
        CpuRates(1, busy_share=0.1, wakes_per_s=30, state_shares={"HALT": 0.9}),
        CpuRates(2),
    ]
    whole = total(found)
    assert (whole.busy_share, whole.wakes_per_s, whole.polls_per_s, whole.limit_ns) == (
        0.3,
        40,
        None,
        None,
    )
    assert whole.state_shares == pytest.approx({"POLL": 0.5 / 3, "HALT": 0.3})


def test_cpus_come_and_go_and_time_stands_still() -> None:
    assert [x.cpu for x in rates(snapshot(1, count()), snapshot(2, count(), count()))] == [0]
    assert rates(snapshot(1, count()), snapshot(1, count())) == []
    assert total([]) == CpuRates(None)


COUNTERS = st.integers(0, 2**64 - 1)


@given(
    *[st.tuples(COUNTERS, COUNTERS, COUNTERS)] * 2,
    st.floats(1e-3, 1e6),
    st.floats(0, 1e9),
    st.booleans(),
)
def test_no_counter_makes_a_share_above_one(
    old: tuple[int, int, int],
    new: tuple[int, int, int],
    span_s: float,
    idle_s: float,
    counts_own: bool,
) -> None:
    own_old, own_new = (PollStats(*x, *x, 50_000) if counts_own else None for x in (old, new))
    found = one(
        count(states=States(old[:2], old[1:]), own=own_old, loop_polled_ns=old[0], idle_s=1.0),
        count(states=States(new[:2], new[1:]), own=own_new, loop_polled_ns=new[0], idle_s=idle_s),
        span_s,
    )
    shares = [found.busy_share, found.asleep_share, found.polled_share]
    shares += [found.wasted_share, found.lost_share] if counts_own else []
    assert all(x is not None and 0 <= x <= 1 for x in shares)
    assert all(0 <= x <= 1.000001 for x in found.state_shares.values())
    assert sum(found.state_shares.values()) <= 1.000001
