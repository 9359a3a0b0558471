# SPDX-License-Identifier: GPL-2.0-only
"""wake_cost.c, the kernel's own file: does the experiment find what was put in, and only that?"""

from collections.abc import Callable
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_library import load

FFI, LIB = load(
    "wake_cost",
    """
    void live(struct wake_cost *wc, const s64 *cycle_ns, u32 cycles, s64 cost_ns)
    {
        s64 now_ns = 0;

        for (u32 i = 0; i < cycles; i++) {
            bool halts = wake_cost_begin(wc, now_ns, true);
            s64 length_ns = cycle_ns[i] + (halts ? cost_ns : 0);

            length_ns = length_ns < 0 ? 0 : length_ns;
            now_ns += length_ns;
            wake_cost_end(wc, length_ns);
        }
    }
    """,
)
SAMPLES = 64
NONE, POLLED, HALTED = range(3)
U32_MAX = 2**32 - 1
US = 1000

Cycles = Callable[[np.random.Generator, int], np.ndarray]


def compare(slow: list[int], fast: list[int]) -> tuple[int, int, int]:
    estimate = FFI.new("struct wake_cost_estimate *")
    LIB.wake_cost_compare(estimate, FFI.new("u32[]", slow), FFI.new("u32[]", fast))
    return estimate.lower_ns, estimate.cost_ns, estimate.upper_ns


def experiment(
    cycles: Cycles, cost_ns: int, periods: int, seed: int, taken_for_ns: int | None = None
) -> tuple[int, int, int]:
    """Run the experiment on a CPU where a halt lengthens its cycle by ``cost_ns``.

    ``taken_for_ns`` is what it is known to cost; without it, the truth.
    """
    wc = FFI.new("struct wake_cost *")
    LIB.wake_cost_init(wc, seed)
    wc.halt_cost_ns = max(0, cost_ns) if taken_for_ns is None else taken_for_ns
    cycle_ns = cycles(np.random.default_rng(seed), periods).astype(np.int64)
    LIB.live(wc, FFI.cast("s64 *", cycle_ns.ctypes.data), periods, cost_ns)
    assert min(wc.count[POLLED], wc.count[HALTED]) >= SAMPLES
    return compare(list(wc.cycle_ns[HALTED]), list(wc.cycle_ns[POLLED]))


# What a CPU may see, in ns: noisy answers, two sorts of work in turn, timers, random arrivals.
LOADS: dict[str, Cycles] = {
    "noisy peer": lambda rng, n: rng.lognormal(np.log(150 * US), 0.4, n),
    "two sorts in turn": lambda rng, n: np.tile([60 * US, 500 * US], n)[:n] + rng.normal(0, 5e3, n),
    "timer": lambda rng, n: 200 * US + rng.normal(0, 2e3, n),
    "one in ten disturbed": lambda rng, n: (
        np.where(rng.random(n) < 0.1, 4e6, 150e3) + rng.normal(0, 20e3, n)
    ),
}


@pytest.mark.parametrize("name", LOADS)
def test_finds_the_cost_of_a_halt_within_a_quarter(name: str) -> None:
    cost_ns = 100 * US
    found = [experiment(LOADS[name], cost_ns, 10_000, seed) for seed in range(60)]
    assert sum(lower <= cost_ns <= upper for lower, _, upper in found) >= 59
    assert sum(lower > 0 for lower, _, _ in found) >= 54
    assert abs(np.median([cost for _, cost, _ in found]) - cost_ns) <= cost_ns / 4


@pytest.mark.parametrize("name", LOADS)
def test_a_rhythm_of_the_load_is_no_effect(name: str) -> None:
    """The rest ends during a long cycle rather than a short one: what follows must not matter."""
    found = [experiment(LOADS[name], 0, 6_000, seed) for seed in range(40)]
    rested = [experiment(LOADS[name], 0, 10_000, seed, 50 * US) for seed in range(40)]
    for each in (found, rested):
        assert sum(lower > 0 or upper < 0 for lower, _, upper in each) <= 1
        assert abs(np.median([cost for _, cost, _ in each])) < 10 * US


@pytest.mark.parametrize("name", LOADS)
def test_sees_that_polling_does_harm(name: str) -> None:
    found = [experiment(LOADS[name], -40 * US, 10_000, seed) for seed in range(60)]
    assert sum(lower <= -40 * US <= upper for lower, _, upper in found) >= 59
    assert sum(upper < 0 for _, _, upper in found) >= 30  # of 60; 65 % with the noisy peer


@pytest.mark.parametrize("burst", [12, 20, 40, 48, 64, 200])
@pytest.mark.parametrize("shape", ["warming up", "slow end", "slow begin"])
def test_bursts_are_no_effect(burst: int, shape: str) -> None:
    """A rest that ends in the pause between two bursts puts each draw on the same part of one."""
    cycle_ns = np.full(burst, 10.0 * US)
    if shape == "warming up":
        cycle_ns = np.linspace(20 * US, 10 * US, burst)
    elif shape == "slow end":
        cycle_ns[burst // 2 :] *= 2
    else:
        cycle_ns[: burst // 4] *= 2
    cycle_ns[-1] += 10_000 * US  # the pause

    def bursts(rng: np.random.Generator, n: int) -> np.ndarray:
        return np.resize(cycle_ns, n) + rng.normal(0, 100, n)

    periods = max(10_000, 150 * burst * 2)
    found = [experiment(bursts, 0, periods, seed, 50 * US) for seed in range(12)]
    assert sum(lower > 0 or upper < 0 for lower, _, upper in found) <= 1


def test_a_limit_that_is_too_low_does_not_justify_itself() -> None:
    """Few polls catch a wakeup: polled cycles halt as well, and hide what a halt costs."""
    cost_ns, limit_ns, hits = 100 * US, 60 * US, 0
    rng = np.random.default_rng(3)
    wc = FFI.new("struct wake_cost *")
    LIB.wake_cost_init(wc, 3)
    periods = rng.choice([40 * US, 150 * US], 10_000, p=[0.3, 0.7]).tolist()
    for period in periods:
        halts = LIB.wake_cost_begin(wc, 0, True)
        caught = not halts and period <= limit_ns
        hits += caught
        LIB.wake_cost_end(wc, period + int(abs(rng.normal(0, 20e3))) + (0 if caught else cost_ns))
    estimate = FFI.new("struct wake_cost_estimate *")
    LIB.wake_cost_compare(estimate, wc.cycle_ns[HALTED], wc.cycle_ns[POLLED])
    assert estimate.cost_ns < cost_ns / 2
    estimate.lower_ns = 1  # however sure of that it may be
    assert not LIB.wake_cost_tells(len(periods), hits, 0)
    assert LIB.wake_cost_tells(len(periods), len(periods) * 3 // 4, 0)
    assert [LIB.wake_cost_is_conclusive(estimate, x) for x in (False, True)] == [False, True]
    estimate.upper_ns = -1
    assert LIB.wake_cost_is_conclusive(estimate, False), "harm is harm"


def test_a_wait_that_ends_before_the_halt_begins_says_nothing_of_a_halt() -> None:
    """The way into a halt takes a while: a wakeup in that time costs little, a later one all."""
    way_in_ns, cost_ns = 20 * US, 100 * US
    rng = np.random.default_rng(5)

    def costs(short: float) -> tuple[int, int]:
        wc = FFI.new("struct wake_cost *")
        LIB.wake_cost_init(wc, 5)
        waits = rng.choice([10 * US, 30 * US], 10_000, p=[short, 1 - short])
        for wait in waits.tolist():
            lost = 0
            if LIB.wake_cost_begin(wc, 0, True):
                lost = cost_ns if wait > way_in_ns else 4 * US
                if wait <= way_in_ns:
                    LIB.wake_cost_halt_aborted(wc)
            LIB.wake_cost_end(wc, wait + int(abs(rng.normal(0, 1e3))) + lost)
        estimate = FFI.new("struct wake_cost_estimate *")
        LIB.wake_cost_compare(estimate, wc.cycle_ns[HALTED], wc.cycle_ns[POLLED])
        assert wc.aborts == sum(wc.was_aborted)
        tells = LIB.wake_cost_tells(1, 1, wc.aborts)
        return estimate.cost_ns, LIB.wake_cost_is_conclusive(estimate, tells)

    cost, tells = costs(short=0.9)
    assert cost < cost_ns / 4
    assert not tells
    cost, tells = costs(short=0.02)
    assert abs(cost - cost_ns) < cost_ns / 4
    assert tells


def test_random_arrivals_say_nothing_where_halting_costs_nothing() -> None:
    def arrivals(rng: np.random.Generator, n: int) -> np.ndarray:
        return rng.exponential(1e6, n)

    found = [experiment(arrivals, 0, 6_000, seed) for seed in range(300)]
    wrong = sum(lower > 0 or upper < 0 for lower, _, upper in found)
    assert wrong <= 2  # 0.1 % of 300 are expected


def test_one_cycle_in_32_is_a_deliberate_halt_and_later_one_in_128() -> None:
    wc = FFI.new("struct wake_cost *")
    LIB.wake_cost_init(wc, 1)
    halts = []
    for _ in range(100_000):
        halts.append(LIB.wake_cost_begin(wc, 0, True))
        LIB.wake_cost_end(wc, 1)
    assert SAMPLES / 40 <= sum(halts[: 32 * SAMPLES]) / 32 <= SAMPLES / 26
    assert 1 / 160 <= sum(halts[50_000:]) / 50_000 <= 1 / 110
    gaps = set(np.diff(np.flatnonzero(halts[50_000:])))
    assert len(gaps) > 50, "a rhythm of the load could be mistaken for an effect"


@pytest.mark.parametrize("cycle_ns", [5 * US, 50 * US, 500 * US])
def test_programs_lose_at_most_one_part_in_128_and_later_in_512(cycle_ns: int) -> None:
    cost_ns = 60 * US
    wc = FFI.new("struct wake_cost *")
    LIB.wake_cost_init(wc, 1)
    wc.halt_cost_ns = cost_ns
    now_ns = 0
    halts: list[int] = []
    while len(halts) < 3 * SAMPLES:
        halted = LIB.wake_cost_begin(wc, now_ns, True)
        now_ns += cycle_ns + (cost_ns if halted else 0)
        LIB.wake_cost_end(wc, cycle_ns)
        halts += [now_ns] if halted else []
    gathering, keeping = np.diff(halts[:SAMPLES]), np.diff(halts[SAMPLES + 1 :])
    assert cost_ns / gathering.mean() <= 1 / 128
    assert cost_ns / keeping.mean() <= 1 / 512
    # Nor are they asked much less often than that.
    for gaps, cycles, costs in ((gathering, 32, 128), (keeping, 128, 512)):
        assert gaps.mean() <= 1.1 * (cycles * cycle_ns + costs * cost_ns)
        assert gaps.std() > 0.2 * cycles * cycle_ns, "a rhythm could be mistaken for an effect"


def test_evidence_that_is_too_old_does_not_count_and_is_gathered_anew() -> None:
    wc = FFI.new("struct wake_cost *")
    LIB.wake_cost_init(wc, 1)
    halts = []
    for period in range(20_000):
        if period == 10_000:
            wc.fresh_from = wc.count
        halts.append(LIB.wake_cost_begin(wc, 0, True))
        LIB.wake_cost_end(wc, 1)
    before, after = np.array(halts[9_000:10_000]).sum(), np.array(halts[10_200:11_200]).sum()
    assert after > 2 * before


def test_a_cpu_that_does_not_poll_is_no_evidence_and_never_told_to_halt() -> None:
    wc = FFI.new("struct wake_cost *")
    LIB.wake_cost_init(wc, 1)
    for _ in range(1000):
        assert not LIB.wake_cost_begin(wc, 0, False)
        LIB.wake_cost_end(wc, 1)
    assert list(wc.count) == [0, 0, 0]


@pytest.mark.parametrize("seed", [0, 1, U32_MAX, U32_MAX - 1])
def test_every_seed_gives_gaps(seed: int) -> None:
    wc = FFI.new("struct wake_cost *")
    LIB.wake_cost_init(wc, seed)
    assert wc.random
    assert 8 <= wc.until_next < 24


def test_a_cycle_that_ends_twice_counts_once_and_a_long_one_is_cut() -> None:
    wc = FFI.new("struct wake_cost *")
    LIB.wake_cost_init(wc, 7)
    while not LIB.wake_cost_begin(wc, 0, True):
        pass
    LIB.wake_cost_end(wc, 2**63)
    LIB.wake_cost_end(wc, 5)
    assert wc.count[HALTED] == 1
    assert wc.cycle_ns[HALTED][0] == U32_MAX


samples = st.lists(
    st.one_of(st.integers(0, 1000), st.integers(0, U32_MAX)), min_size=SAMPLES, max_size=SAMPLES
)


@settings(max_examples=50, deadline=None)
@given(samples, samples)
def test_the_estimate_is_the_hodges_lehmann_estimate(slow: list[int], fast: list[int]) -> None:
    differences = np.sort(np.subtract.outer(np.array(slow), np.array(fast)).ravel())
    assert compare(slow, fast) == tuple(differences[[2048 - 690 - 1, 2048 - 1, 2048 + 690]])


def test_extremes() -> None:
    assert compare([U32_MAX] * SAMPLES, [0] * SAMPLES) == (U32_MAX,) * 3
    assert compare([0] * SAMPLES, [U32_MAX] * SAMPLES) == (-U32_MAX,) * 3
    assert compare([5] * SAMPLES, [5] * SAMPLES) == (0, 0, 0)


S = 10**9
CYCLES_NS, WAIT_MIN, WAIT_MAX, HELD_S = 3 * S, 3, 50, 60
PAUSES, CYCLES = 8192, 2176


class Probe:
    """One CPU, looked at once a second."""

    def __init__(self, now_ns: int = 0, cost_ns: int = 0) -> None:
        self.wc = FFI.new("struct wake_cost *")
        LIB.wake_cost_init(self.wc, 1)
        self.wc.halt_cost_ns = cost_ns
        self.state = FFI.new("struct wake_cost_probe *")
        self.now_ns, self.hits = now_ns, 0

    def look(
        self,
        cycles: int,
        hits: int = 0,
        answered: bool = False,
        after: int = S,
        asked: bool = True,
    ) -> bool:
        self.now_ns += after
        self.wc.cycles += cycles
        self.hits += hits
        on: bool = LIB.wake_cost_probe(self.state, self.wc, self.now_ns, self.hits, answered, asked)
        return on


def stretches(on: list[bool]) -> list[tuple[bool, int]]:
    return [(value, len(list(group))) for value, group in groupby(on)]


@pytest.mark.parametrize(("cost_us", "length_s"), [(0, 3), (50, 4), (1000, 12)])
def test_a_cpu_without_an_answer_probes_ever_more_rarely(cost_us: int, length_s: int) -> None:
    probe = Probe(cost_ns=cost_us * US)
    on = [probe.look(1000) for _ in range(7200)]
    lengths = stretches(on)
    assert {length for value, length in lengths[:-1] if value} == {length_s}
    waits = [length for value, length in lengths[:-1] if not value]
    exact_s = 3 + PAUSES * cost_us / 1e6
    expected = [min(WAIT_MIN * 2**n, WAIT_MAX) * exact_s for n in range(len(waits))]
    assert waits == [pytest.approx(each, abs=1) for each in expected]
    assert sum(on[1000:]) <= len(on[1000:]) / WAIT_MAX * 4 / 3  # rounded up to whole seconds


@pytest.mark.parametrize(
    ("what", "cycles", "hits", "answered", "asked", "cost_ns"),
    [
        ("too few cycles for an answer in time", 725, 0, False, True, 0),
        ("polls that catch most wakeups", 1000, 750, False, True, 0),
        ("an answer", 1000, 0, True, True, 0),
        ("nobody asks", 1000, 0, False, False, 0),
        ("no wakeup at all", 0, 0, False, True, 0),
        ("halts so dear that an answer takes too long", 1000, 0, False, True, 1001 * US),
    ],
)
def test_no_probe_where_none_is_needed(
    what: str, cycles: int, hits: int, answered: bool, asked: bool, cost_ns: int
) -> None:
    probe = Probe(cost_ns=cost_ns)
    assert not any(probe.look(cycles, hits, answered, asked=asked) for _ in range(600)), what


@pytest.mark.parametrize("cost_us", [0, 20, 50, 200, 1000])
@pytest.mark.parametrize("cycles_per_s", [730, 2000, 30_000])
def test_a_probe_is_long_enough_for_an_answer(cost_us: int, cycles_per_s: int) -> None:
    probe = Probe(cost_ns=cost_us * US)
    assert probe.look(cycles_per_s)
    for _ in range(probe.state.length_ns * cycles_per_s // S):
        LIB.wake_cost_begin(probe.wc, probe.now_ns, True)
        probe.now_ns += S // cycles_per_s
        LIB.wake_cost_end(probe.wc, S // cycles_per_s)
    assert min(probe.wc.count[POLLED], probe.wc.count[HALTED]) >= SAMPLES


def answered_for(seconds: int) -> list[bool]:
    """A CPU whose probes bring an answer in their first second, which holds for so long."""
    probe, left, on = Probe(), 0, []
    for _ in range(7200):
        on.append(probe.look(1000, answered=left > 0))
        left = seconds if on[-1] else left - 1
    return on


def test_answers_that_hold_for_a_moment_are_not_asked_for_again_and_again() -> None:
    assert sum(answered_for(5)[1000:]) <= 6200 / WAIT_MAX


def test_an_answer_that_holds_ends_the_long_waits() -> None:
    probe = Probe()
    for _ in range(700):
        probe.look(1000)
    while not probe.look(1000):
        pass
    for _ in range(HELD_S + 1):
        assert not probe.look(1000, 900, answered=True)
    # Gone again: not at once, but soon.
    on = [probe.look(1000) for _ in range(12)]
    assert on.index(True) == WAIT_MIN * 3 - 1
    assert max(length for value, length in stretches(answered_for(100)) if not value) < 125


def test_a_load_that_ends_in_a_probe_says_nothing_of_the_next() -> None:
    probe, waits = Probe(), []
    for _ in range(10):
        assert probe.look(1000)
        while probe.look(0):
            pass
        waits.append(probe.state.wait_ns)
        probe.look(0, after=20 * S)
    assert set(waits) == {WAIT_MIN * CYCLES_NS}


def test_nor_does_one_in_which_the_host_needs_the_core() -> None:
    probe, waits = Probe(), []
    for _ in range(10):
        while not probe.look(1000):
            pass
        assert not probe.look(1000, asked=False)
        waits.append(probe.state.wait_ns)
    assert set(waits) == {WAIT_MIN * CYCLES_NS}


def test_time_in_which_nobody_asks_is_no_time_for_which_an_answer_holds() -> None:
    probe = Probe()
    for _ in range(700):
        probe.look(1000)
    while not probe.look(1000):
        pass
    probe.look(1000, 900, answered=True)
    long_ns = probe.state.wait_ns
    assert long_ns > WAIT_MIN * CYCLES_NS
    for answered in (False, True):
        for _ in range(HELD_S + 1):
            probe.look(1000, answered=answered, asked=False)
    for _ in range(HELD_S - 1):
        probe.look(1000, answered=True)
        assert probe.state.wait_ns == long_ns
    probe.look(1000, answered=True)
    assert probe.state.wait_ns == 0


@given(
    start=st.integers(0, 2**62),
    cost_ns=st.integers(0, U32_MAX),
    steps=st.lists(
        st.tuples(
            st.integers(0, 2**40),
            st.integers(0, 2**33),
            st.integers(0, 2**33),
            st.booleans(),
            st.booleans(),
        ),
        max_size=50,
    ),
)
@settings(deadline=None)
def test_extremes_of_probes(
    start: int, cost_ns: int, steps: list[tuple[int, int, int, bool, bool]]
) -> None:
    """No step and no count, however large, makes a CPU probe that need not."""
    probe = Probe(start, cost_ns)
    was_on = False
    for after, hits, halts, answered, asked in steps:
        on = probe.look(hits + halts, hits, answered, after, asked)
        assert not (on and (answered or not asked))
        if on and not was_on:
            assert hits + halts > 0
            # Enough for an answer, and 1000 s count for no more.
            assert (hits + halts) * CYCLES_NS >= CYCLES * min(after, 1000 * S)
            assert 4 * hits < 3 * (hits + halts)
        was_on = on
