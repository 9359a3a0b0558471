# SPDX-License-Identifier: GPL-2.0-only
"""host_contention.c, the kernel's own file: when does a CPU stop polling for its host's sake?"""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_library import load

FFI, LIB = load(
    "host_contention",
    """
    u64 pause_left_ns(const struct host_contention *hc, u64 now_ns)
    {
        return host_contention_left_ns(hc, now_ns);
    }
    """,
)
US, MS, SECOND = 10**3, 10**6, 10**9


class Host:
    """One CPU that polls for 1 ms at a time, of which the host takes a part."""

    def __init__(self) -> None:
        self.seen = FFI.new("struct host_contention *")
        self.now_ns = SECOND

    @property
    def contended(self) -> bool:
        return bool(self.now_ns < self.seen.until_ns)

    def poll(self, ran_ns: int, gap_ns: int, apart_ns: int = 0, account_ns: int = 0) -> None:
        self.now_ns += ran_ns + gap_ns + apart_ns
        LIB.host_contention_add(self.seen, self.now_ns, ran_ns, gap_ns, account_ns)


def test_a_quiet_host_is_never_contended() -> None:
    host = Host()
    for _ in range(10_000):
        host.poll(100 * US, 0, apart_ns=100 * US)
        assert not host.contended


def test_one_stolen_time_slice_decides_nothing() -> None:
    host = Host()
    for n in range(10_000):
        host.poll(100 * US, 4 * MS if n % 500 == 0 else 0)
        assert not host.contended


@pytest.mark.parametrize(("gap_ms", "expected_ms"), [(1, 30), (3, 20), (9, 30)])
def test_gaps_of_15_ms_are_an_answer_at_once(gap_ms: int, expected_ms: int) -> None:
    host = Host()
    host.poll(0, 0)
    passed_ms = 0
    while not host.contended:
        host.poll(1 * MS, gap_ms * MS)
        passed_ms += 1 + gap_ms
    assert passed_ms == expected_ms


@given(st.lists(st.tuples(st.integers(0, 10 * MS), st.integers(0, 8 * MS)), max_size=60))
def test_the_first_answer_is_what_60_ms_of_evidence_say(polls: list[tuple[int, int]]) -> None:
    host = Host()
    host.poll(0, 0)
    ran_ns = gap_ns = 0
    for ran, gap in polls:
        host.poll(ran, gap)
        ran_ns, gap_ns = ran_ns + ran, gap_ns + min(gap, 7 * MS)
        # Without any further gap, too, a quarter of the evidence would be gaps.
        certain = gap_ns >= max(ran_ns + gap_ns, 60 * MS) / 4
        assert host.contended == certain
        if certain or ran_ns + gap_ns >= 60 * MS:
            return


def test_pauses_grow_to_16_s_and_begin_small_again() -> None:
    host = Host()
    pauses = []
    for _ in range(5):
        while not host.contended:
            host.poll(1 * MS, 3 * MS)
        pauses.append((host.seen.until_ns - host.now_ns) // SECOND)
        host.now_ns = host.seen.until_ns
    assert pauses == [1, 4, 16, 16, 16]
    assert host.seen.paused_ns == sum(pauses) * SECOND
    for _ in range(100):
        host.poll(1 * MS, 0)
    while not host.contended:
        host.poll(1 * MS, 3 * MS)
    assert host.seen.until_ns - host.now_ns == SECOND


def test_what_is_left_of_a_pause_ends_with_it() -> None:
    host = Host()
    assert LIB.pause_left_ns(host.seen, host.now_ns) == 0
    while not host.contended:
        host.poll(1 * MS, 3 * MS)
    assert host.seen.paused_ns == SECOND, "all of it, from its begin on"
    begin_ns, end_ns = host.now_ns, host.seen.until_ns
    times_ns = (begin_ns - 1, begin_ns, end_ns - 1, end_ns, end_ns + 1, 2**64 - 1)
    left_ns = [LIB.pause_left_ns(host.seen, x) for x in times_ns]
    assert left_ns == [SECOND + 1, SECOND, 1, 0, 0, 0]


def paused() -> Host:
    """Return a host that was found contended, with a CPU that looks again."""
    host = Host()
    while not host.contended:
        host.poll(1 * MS, 3 * MS)
    host.now_ns = host.seen.until_ns + SECOND
    host.poll(0, 0)
    return host


def test_after_a_pause_half_of_the_evidence_is_enough_for_the_same_answer() -> None:
    host = paused()
    host.poll(5 * MS, 5 * MS)
    assert not host.contended
    host.poll(1 * MS, 3 * MS)
    assert host.contended


@pytest.mark.parametrize("slice_ms", [4, 5, 100])
@pytest.mark.parametrize("at", range(0, 40, 3))
def test_after_a_pause_one_stolen_time_slice_in_40_ms_decides_nothing(
    at: int, slice_ms: int
) -> None:
    host = paused()
    for n in range(100):
        host.poll(1 * MS, slice_ms * MS if n % 40 == at else 0)
        assert not host.contended
    while not host.contended:
        host.poll(1 * MS, 3 * MS)
    assert host.seen.until_ns - host.now_ns == SECOND  # it was found free meanwhile


@pytest.mark.parametrize("apart_ns", [0, 30 * MS])
def test_all_of_the_evidence_is_asked_for_after_30_ms(apart_ns: int) -> None:
    """Also where the CPU polls so little that no answer follows."""
    host = paused()
    for _ in range(30):
        host.poll(1 * MS, 0, apart_ns)
    host.poll(0, 3 * MS, 2 * SECOND)
    for _ in range(4):
        host.poll(0, 3 * MS)
        assert not host.contended
    host.poll(0, 3 * MS)
    assert host.contended


def test_after_a_minute_all_of_the_evidence_is_asked_for() -> None:
    host = paused()
    host.now_ns += 61 * SECOND
    host.poll(0, 0)
    for _ in range(4):
        host.poll(0, 3 * MS)
        assert not host.contended
    host.poll(0, 3 * MS)
    assert host.contended


@pytest.mark.parametrize("slice_ms", [3.5, 5, 6, 10])
@pytest.mark.parametrize("polls_pct", [3, 10, 50])
def test_a_host_that_takes_little_is_polled_on_most_of_the_time(
    polls_pct: int, slice_ms: float
) -> None:
    rng = random.Random(1)
    paused_s = 0
    for _ in range(20):
        host = paused()
        while host.now_ns < 61 * SECOND:
            if host.contended:
                paused_s += (host.seen.until_ns - host.now_ns) / SECOND
                host.now_ns = host.seen.until_ns
            # 5 % of the time
            gap_ns = int(slice_ms * MS) if rng.random() < 0.05 / (0.95 * slice_ms) else 0
            host.poll(1 * MS, gap_ns, apart_ns=(100 - polls_pct) * MS // polls_pct)
    assert paused_s / (20 * 60) < 0.25


@pytest.mark.parametrize("polls_pct", [1, 3, 20])
@pytest.mark.parametrize(("every_s", "at_most"), [(20, 0.1), (60, 0.05)])
def test_a_second_of_host_load_now_and_then_costs_about_a_second(
    every_s: int, at_most: float, polls_pct: int
) -> None:
    """However little the CPU polls: the time between is enough to find the host free."""
    host = Host()
    begin_ns, paused_ns, ran_ns = host.now_ns, 0, 200 * US
    while host.now_ns - begin_ns < 1800 * SECOND:
        if host.contended:
            paused_ns += host.seen.until_ns - host.now_ns
            host.now_ns = host.seen.until_ns
        passed_ns = host.now_ns - begin_ns
        busy = passed_ns % (every_s * SECOND) < SECOND and passed_ns // (4 * MS) % 2
        host.poll(ran_ns, 4 * MS if busy else 0, apart_ns=ran_ns * (100 - polls_pct) // polls_pct)
    assert paused_ns / (1800 * SECOND) < at_most


@pytest.mark.parametrize("polls_pct", [1, 3, 20])
def test_a_host_that_stays_busy_has_pauses_nearly_all_of_the_time(polls_pct: int) -> None:
    rng = random.Random(1)
    host = Host()
    begin_ns, paused_ns = host.now_ns, 0
    while host.now_ns - begin_ns < 600 * SECOND:
        if host.contended:
            paused_ns += host.seen.until_ns - host.now_ns
            host.now_ns = host.seen.until_ns
        gap_ns = 4 * MS if rng.random() < 0.3 else 0
        host.poll(1 * MS, gap_ns, apart_ns=(100 - polls_pct) * MS // polls_pct)
    assert paused_ns / (600 * SECOND) > 0.85


@pytest.mark.parametrize(("own_ms", "taken_ms"), [(4, 4), (4, 12), (12, 12), (15, 15), (20, 10)])
def test_a_host_that_takes_a_third_and_more_is_found_soon_whatever_its_slices(
    own_ms: int, taken_ms: int
) -> None:
    host = Host()
    for n in range(1000):
        host.poll(1 * MS, taken_ms * MS if n % own_ms == 0 else 0)
        if host.contended:
            break
    assert host.now_ns - SECOND < 0.3 * SECOND


def test_an_overcommitted_host_loses_little_in_the_long_run() -> None:
    host = Host()
    begin_ns, polled_ns = host.now_ns, 0
    while host.now_ns - begin_ns < 3600 * SECOND:
        if host.contended:
            host.now_ns = host.seen.until_ns
        host.poll(1 * MS, 3 * MS)
        polled_ns += 1 * MS
    assert polled_ns / (host.now_ns - begin_ns) < 0.0003


def test_rare_theft_over_hours_is_forgotten() -> None:
    host = Host()
    for _ in range(10_000):
        host.poll(100 * US, 5 * MS, apart_ns=2 * SECOND)
        assert not host.contended


def test_a_guest_that_was_stopped_for_an_hour_polls_on() -> None:
    host = Host()
    for n in range(1_000):
        host.poll(100 * US, 3600 * SECOND if n == 500 else 0, apart_ns=100 * US)
        assert not host.contended


def test_the_hypervisors_account_alone_is_enough_from_a_quarter_of_all_time() -> None:
    for taken_ms, expected in ((1.5, False), (4, True)):
        host = Host()
        for _ in range(60):
            host.poll(0, 0, apart_ns=10 * MS, account_ns=int(taken_ms * MS))
        assert (host.seen.pauses > 0) == expected


@pytest.mark.parametrize("taken_ms", [15, 300, 3_600_000])
def test_one_time_in_the_hypervisors_account_decides_nothing(taken_ms: int) -> None:
    host = Host()
    for n in range(1_000):
        taken_ns = taken_ms * MS if n % 100 == 3 else 0
        host.poll(100 * US, 0, apart_ns=10 * MS + taken_ns, account_ns=taken_ns)
        assert not host.contended


def test_pauses_that_are_minutes_apart_do_not_add_up() -> None:
    host = Host()
    for _ in range(5):
        while not host.contended:
            host.poll(1 * MS, 3 * MS)
        assert host.seen.until_ns - host.now_ns == SECOND
        host.now_ns = host.seen.until_ns
        for _ in range(59):  # too little is polled to find the host free
            host.poll(1 * MS, 0, apart_ns=SECOND + 50 * MS)


def test_a_pause_ends_although_the_host_goes_on_taking_time_from_a_busy_cpu() -> None:
    host = Host()
    while not host.contended:
        host.poll(1 * MS, 3 * MS)
    until_ns = host.seen.until_ns
    while host.contended:
        host.poll(0, 0, apart_ns=10 * MS, account_ns=4 * MS)
    assert host.seen.until_ns == until_ns
    assert host.seen.pauses == 1


@given(st.lists(st.tuples(*itertools.repeat(st.integers(0, 2**62), 4)), max_size=50))
def test_any_evidence_leaves_a_state_that_ends(evidence: list[tuple[int, int, int, int]]) -> None:
    seen = FFI.new("struct host_contention *")
    for now_ns, ran_ns, gap_ns, account_ns in evidence:
        LIB.host_contention_add(seen, now_ns, ran_ns, gap_ns, account_ns)
        assert seen.until_ns <= now_ns + 16 * SECOND or seen.until_ns <= 2**62 + 16 * SECOND
        assert seen.pause_ns in (0, 1 * SECOND, 4 * SECOND, 16 * SECOND)
        assert seen.pauses * SECOND <= seen.paused_ns <= seen.pauses * 16 * SECOND
