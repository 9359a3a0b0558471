# SPDX-License-Identifier: GPL-2.0-only
"""What poll_limit.c promises, held against the very file that the kernel compiles."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from policy import binding
from policy.binding import PollLimit
from policy.cost import Ns, best_fixed_ns, optimum_ns, paid_ns, polled_share
from policy.patterns import PATTERNS, Pattern, exponential, mixture, periodic, trace

from lightsleep.errors import LightsleepError
from lightsleep.replay.poll_limit import Model

WARMUP = 16  # halt costs
US, MS, SECOND = 10**3, 10**6, 10**9
COSTS = [5 * US, 50 * US, 500 * US]
U64_MAX = 2**64 - 1

costs = st.one_of(st.sampled_from([1, 2, 511, 512, 513, *COSTS]), st.integers(1, 2 * MS))


def worst_window_ns(idle_ns: Ns, limit_ns: Ns, halt_cost_ns: int) -> int:
    """Over all windows, prefixes among them: how far the cost exceeds twice the optimum.

    Less 1 ns per period, which the policy takes the liberty of.
    """
    over = paid_ns(idle_ns, limit_ns, halt_cost_ns) - 2 * optimum_ns(idle_ns, halt_cost_ns) - 1
    account = np.concatenate([np.zeros(1, np.int64), np.cumsum(over)])
    return int((account - np.minimum.accumulate(account)).max())


def total(idle_ns: Ns, limit_ns: Ns | int, halt_cost_ns: int) -> int:
    return int(paid_ns(idle_ns, limit_ns, halt_cost_ns).sum())


# The promise.


@pytest.mark.parametrize("halt_cost_ns", COSTS)
@pytest.mark.parametrize("name", PATTERNS)
def test_no_window_costs_more_than_twice_the_optimum(name: str, halt_cost_ns: int) -> None:
    idle = trace(name, 20_000)
    for ceiling_ns in (halt_cost_ns, halt_cost_ns * 5 // 4, SECOND):
        limits = PollLimit(halt_cost_ns, ceiling_ns).replay(idle)
        assert worst_window_ns(idle, limits, halt_cost_ns) <= WARMUP * halt_cost_ns


# What an adversary who sees the limit L can answer: the next wake, given L and C.
ADVERSARIES = {
    "just too late": lambda limit, cost, i: limit + 1,
    "just in time": lambda limit, cost, i: limit,
    "at once": lambda limit, cost, i: 0,
    "costliest": lambda limit, cost, i: max(
        (0, 1, limit, limit + 1, 2 * cost + 1), key=lambda d: over_ns(d, limit, cost)
    ),
    "trains for long polls, then comes late": lambda limit, cost, i: (
        cost // 2 if i % 100 < 60 else limit + 1
    ),
    "trains for no polls, then comes at once": lambda limit, cost, i: (
        9 * cost if i % 100 < 60 else 1
    ),
    "trains for trials, then comes late": lambda limit, cost, i: limit + 1 if limit else 3 * cost,
}


def over_ns(idle_ns: int, limit_ns: int, cost_ns: int) -> int:
    paid = idle_ns if idle_ns <= limit_ns else limit_ns + cost_ns
    return paid - 2 * min(idle_ns, cost_ns)


def play(policy: PollLimit, periods: int, adversary: Any) -> tuple[Ns, Ns]:
    idle, limits = [], []
    for i in range(periods):
        limits.append(policy.limit_ns)
        idle.append(adversary(policy.limit_ns, policy.params.halt_cost_ns, i))
        policy.update(idle[-1])
    return np.array(idle, np.int64), np.array(limits, np.int64)


@pytest.mark.parametrize("halt_cost_ns", COSTS)
@pytest.mark.parametrize("name", ADVERSARIES)
def test_no_adversary_breaks_the_promise(name: str, halt_cost_ns: int) -> None:
    policy = PollLimit(halt_cost_ns, SECOND)
    idle, limits = play(policy, 3_000, ADVERSARIES[name])
    assert worst_window_ns(idle, limits, halt_cost_ns) <= WARMUP * halt_cost_ns


def test_the_account_is_what_keeps_the_promise() -> None:
    """Who is robbed at every step does lose the warm-up, so the bound is not met by chance."""
    idle, limits = play(PollLimit(50 * US, SECOND), 3_000, ADVERSARIES["costliest"])
    assert worst_window_ns(idle, limits, 50 * US) > (WARMUP - 2) * 50 * US


@pytest.mark.parametrize("halt_cost_ns", COSTS)
@pytest.mark.parametrize("name", ADVERSARIES)
def test_who_was_robbed_stops_polling_when_it_does_not_pay(name: str, halt_cost_ns: int) -> None:
    """With an empty account, C would be the limit for as long as all waits are longer."""
    policy = PollLimit(halt_cost_ns, SECOND)
    play(policy, 3_000, ADVERSARIES[name])
    limits = policy.replay(np.full(1_000, 20 * halt_cost_ns))
    assert not limits[800:].any()


@pytest.mark.parametrize("halt_cost_ns", COSTS)
def test_a_few_pauses_empty_the_memory(halt_cost_ns: int) -> None:
    policy = PollLimit(halt_cost_ns, SECOND)
    policy.replay(np.full(5_000, halt_cost_ns // 8))
    assert policy.limit_ns > 0
    assert not policy.replay(np.full(100, 65 * halt_cost_ns))[12:].any()


Move = Callable[[int, int], int]

MOVES: list[Move] = [
    lambda limit, cost: limit + 1,
    lambda limit, cost: limit,
    lambda limit, cost: 0,
    lambda limit, cost: 1,
    lambda limit, cost: cost // 2,
    lambda limit, cost: cost,
    lambda limit, cost: cost + 1,
    lambda limit, cost: 2 * cost + 1,
    lambda limit, cost: 9 * cost,
]


@given(
    cost=costs,
    extra=st.integers(0, 4 * MS),
    plan=st.lists(st.tuples(st.sampled_from(MOVES), st.integers(1, 70)), min_size=1, max_size=8),
)
@settings(max_examples=150, deadline=None)
def test_no_plan_breaks_the_promise(cost: int, extra: int, plan: list[tuple[Move, int]]) -> None:
    moves = [move for move, times in plan for _ in range(times)]
    policy = PollLimit(cost, cost + extra)
    idle, limits = play(policy, len(moves), lambda limit, cost, i: moves[i](limit, cost))
    assert worst_window_ns(idle, limits, cost) <= WARMUP * cost


# Where polling does not pay, nothing is polled.


@pytest.mark.parametrize("halt_cost_ns", COSTS)
@pytest.mark.parametrize("factor", [20, 100])
@pytest.mark.parametrize("pattern", [periodic, exponential])
def test_long_waits_are_not_polled(
    pattern: Callable[[int], Pattern], factor: int, halt_cost_ns: int
) -> None:
    idle = pattern(factor * halt_cost_ns)(np.random.default_rng(2), 20_000)
    limits = PollLimit(halt_cost_ns, SECOND).replay(idle)
    assert polled_share(idle[64:], limits[64:]) < 0.002
    assert total(idle[64:], limits[64:], halt_cost_ns) <= 1.05 * total(idle[64:], 0, halt_cost_ns)


@pytest.mark.parametrize("halt_cost_ns", COSTS)
def test_a_mostly_idle_cpu_never_tries(halt_cost_ns: int) -> None:
    idle = periodic(10 * MS)(np.random.default_rng(3), 20_000)
    limits = PollLimit(halt_cost_ns, SECOND).replay(idle)
    assert limits[0] == halt_cost_ns
    assert not limits[1:].any()


@pytest.mark.parametrize(("factor", "length"), [(1.5, 128), (3, 9)])
def test_trials_that_fail_become_rare(factor: float, length: int) -> None:
    """All periods are long enough not to pay and short enough to try.

    1.5C is caught by a trial, 3C is not: L = 2C costs 3C then, and eight such periods spend half
    of the warm-up, which ends the trial.
    """
    cost = 50 * US
    idle = np.full(200_000, int(factor * cost))
    limits = PollLimit(cost, SECOND).replay(idle)
    starts = np.flatnonzero((limits[1:] > 0) & (limits[:-1] == 0))
    ends = np.flatnonzero((limits[1:] == 0) & (limits[:-1] > 0))
    assert (ends - np.concatenate([[0], starts]) == length).all()
    waits = starts - ends[:-1] - 1
    assert waits.tolist()[:7] == [64, 128, 256, 512, 1024, 2048, 4096]
    assert set(waits.tolist()[7:]) == {4096}


@pytest.mark.parametrize("every", [8, 12, 16, 24, 50, 150, 200, 500])
@pytest.mark.parametrize("factor", [1.5, 3])
@pytest.mark.parametrize("cost", COSTS)
def test_a_rare_short_wait_makes_no_trials_that_fail_frequent(
    cost: int, factor: float, every: int
) -> None:
    """For some time after it, a short limit saves a little: no reason to try longer ones anew."""
    idle = np.where(np.arange(100_000) % every, int(factor * cost), cost // 100)
    limits = PollLimit(cost, SECOND).replay(idle)
    assert total(idle[5_000:], limits[5_000:], cost) <= 1.03 * total(idle[5_000:], 0, cost)


@pytest.mark.parametrize("jitter", [0.01, 0.1, 0.3])
@pytest.mark.parametrize(
    ("share", "short", "long"),
    [(0.6, 0.2, 2.5), (0.6, 0.3, 2.5), (0.55, 0.1, 3), (0.62, 0.16, 2.4)],
)
@pytest.mark.parametrize("cost", COSTS)
def test_noise_makes_no_trials_frequent(
    cost: int, share: float, short: float, long: float, jitter: float
) -> None:
    """By chance, a limit beyond the short waits may save a little, and then nothing."""
    rng = np.random.default_rng(7)
    waits = np.where(rng.random(60_000) < share, short, long) * rng.lognormal(0, jitter, 60_000)
    limits = PollLimit(cost, SECOND).replay((waits * cost).astype(np.int64))
    assert np.mean(limits[10_000:] >= 1.5 * cost) < 0.03


# Where it pays, it polls for long enough.


@pytest.mark.parametrize("halt_cost_ns", COSTS)
@pytest.mark.parametrize("share", [0.01, 0.1, 0.3, 0.43, 0.75])
def test_a_rhythm_is_caught_within_100_periods(share: float, halt_cost_ns: int) -> None:
    """After nothing, and after long waits that left the memory anywhere between two halvings."""
    idle = np.full(1_000, int(share * halt_cost_ns))
    for waits in (0, *range(3_000, 3_064, 2)):
        policy = PollLimit(halt_cost_ns, SECOND)
        policy.replay(np.full(waits, 50 * halt_cost_ns))
        assert policy.limit_ns == (0 if waits else halt_cost_ns)
        assert (policy.replay(idle)[100:] >= idle[100:]).all()


def with_rare_longer_waits(rng: np.random.Generator, n: int) -> Ns:
    """What a pipe ping-pong between two CPUs of an emulated guest looks like."""
    usual, longer = rng.uniform(4 * US, 8 * US, n), rng.uniform(16 * US, 32 * US, n)
    draw = rng.random(n)
    return np.select([draw < 0.92, draw < 0.99], [usual, longer], 200 * US).astype(np.int64)


@pytest.mark.parametrize(
    ("pattern", "slack"),
    [
        (with_rare_longer_waits, 1.10),
        (mixture(10 * US, 2 * MS, 0.1), 1.10),
        (mixture(10 * US, 2 * MS, 0.5), 1.15),
        (mixture(10 * US, 40 * US, 0.5), 1.10),
        (mixture(40 * US, 400 * US, 0.3), 1.15),
    ],
)
def test_a_mixture_costs_little_more_than_its_best_boundary(pattern: Pattern, slack: float) -> None:
    cost = 50 * US
    idle = pattern(np.random.default_rng(4), 30_000)
    limits = PollLimit(cost, SECOND).replay(idle)
    boundaries = [0, *(512 << b for b in range(15) if 512 << b <= 2 * cost), 2 * cost]
    best = min(total(idle, boundary, cost) for boundary in boundaries)
    assert total(idle[64:], limits[64:], cost) <= slack * best


@pytest.mark.parametrize("every", [10, 50, 100, 1000])
@pytest.mark.parametrize("cost", [100 * US, 400 * US])
def test_a_rare_short_wait_makes_no_polls_that_cost_more_than_none(every: int, cost: int) -> None:
    """A CPU at rest that a timer wakes, and now and then two interrupts in a row."""
    idle = np.where(np.arange(40_000) % every, 4 * MS, 300)
    limits = PollLimit(cost, SECOND).replay(idle)
    assert total(idle[256:], limits[256:], cost) <= 1.005 * total(idle[256:], 0, cost)


def test_a_rare_long_wait_does_not_cost_the_longer_ones() -> None:
    """One wait in a hundred is far too long; the seven in a hundred up to 32 us are caught."""
    idle = with_rare_longer_waits(np.random.default_rng(5), 30_000)
    limits = PollLimit(50 * US, SECOND).replay(idle)
    assert np.mean(limits[64:] >= 32 * US) > 0.95


# Two CPUs that wait for each other.


def ping_pong(work_ns: int, cost_ns: int, rounds: int, late: int) -> tuple[Ns, Ns]:
    """Both halt at first, one for ``late`` periods longer; return both CPUs' limits."""
    a, b = PollLimit(cost_ns, SECOND), PollLimit(cost_ns, SECOND)
    a.replay(np.full(200, work_ns + cost_ns))
    b.replay(np.full(200 + late, work_ns + cost_ns))
    limits = np.zeros((2, rounds), np.int64)
    b_wakes_in_ns = cost_ns
    for i in range(rounds):
        limits[:, i] = a.limit_ns, b.limit_ns
        idle_ns = work_ns + b_wakes_in_ns
        a_wakes_in_ns = 0 if idle_ns <= a.limit_ns else cost_ns
        a.update(idle_ns)
        idle_ns = work_ns + a_wakes_in_ns
        b_wakes_in_ns = 0 if idle_ns <= b.limit_ns else cost_ns
        b.update(idle_ns)
    return limits[0], limits[1]


@pytest.mark.parametrize("halt_cost_ns", COSTS)
@pytest.mark.parametrize("work", [0.02, 0.2, 0.5, 0.7])
@pytest.mark.parametrize("late", [0, 1, 17, 60, 500])
def test_two_cpus_find_out_of_halting_for_each_other(
    late: int, work: float, halt_cost_ns: int
) -> None:
    work_ns = int(work * halt_cost_ns)
    for limits in ping_pong(work_ns, halt_cost_ns, 2_000, late):
        assert (limits[-1_000:] >= work_ns).all()


@pytest.mark.parametrize("work", [1.5, 2.5, 5.0])
def test_two_cpus_with_much_work_do_not_poll(work: float) -> None:
    cost = 50 * US
    for limits in ping_pong(int(work * cost), cost, 20_000, 60):
        assert np.count_nonzero(limits[10_000:]) <= 3 * 128  # trials, one in 4096 periods


# Bounds, whatever comes.


def state_type() -> np.dtype[np.void]:
    """struct poll_limit, as numpy sees it."""
    ffi, _ = binding.library()
    members = []
    for name, member in ffi.typeof("struct poll_limit").fields:
        element, length = member.type, 1
        if element.kind == "array":
            element, length = element.item, element.length
        members.append((name, f"u{ffi.sizeof(element)}", (length,) if length > 1 else ()))
    return np.dtype(members, align=True)


@pytest.fixture(scope="session")
def sanitised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that dies of an overflow, a bad shift or a bad access in the policy."""
    program = tmp_path_factory.mktemp("policy") / "poll_limit_trace"
    flags = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    binding.compile_policy(binding.TRACE, program, flags)
    return program


def run(program: Path, periods: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    done = subprocess.run([program], input=periods.tobytes(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return np.frombuffer(done.stdout, state_type())


EXTREMES = [0, 1, 2, 511, 512, 513, 2**22, 2**23 - 1, 2**23, 2**23 + 1, SECOND, 2**32, 2**63]
EXTREMES += [U64_MAX // 2, U64_MAX - 1, U64_MAX]


def wild(rng: np.random.Generator, n: int) -> npt.NDArray[np.uint64]:
    """Extremes among numbers of every magnitude."""
    any_size = rng.integers(0, U64_MAX, n, np.uint64, endpoint=True) >> rng.integers(
        0, 64, n, np.uint64
    )
    return np.where(rng.random(n) < 0.3, rng.choice(np.array(EXTREMES, np.uint64), n), any_size)


@pytest.mark.parametrize("held", [1, 50, 2_000])
def test_bounds_hold_whatever_comes(sanitised: Path, held: int) -> None:
    """Parameters change every ``held`` periods."""
    rng = np.random.default_rng(held)
    periods = np.zeros(20_000, binding.PERIOD)
    for name in ("halt_cost_ns", "ceiling_ns"):
        periods[name] = np.repeat(wild(rng, 20_000 // held), held)
    periods["idle_ns"] = wild(rng, 20_000)
    near = rng.random(20_000) < 0.5
    periods["idle_ns"][near] = rng.integers(0, 2**18, near.sum())
    state = run(sanitised, periods)

    cost = np.minimum(periods["halt_cost_ns"], SECOND)
    assert len(state) == len(periods)
    assert (state["limit_ns"] <= np.minimum(2 * cost, periods["ceiling_ns"])).all()
    assert (state["limit_ns"][cost == 0] == 0).all()
    assert (state["credit_ns"] <= WARMUP * cost).all()
    assert (state["total"] == state["weight"].sum(axis=1)).all()
    assert (state["total"] <= 128 * 16).all()
    assert (state["trial_left"] <= 128).all()
    assert (state["trial_backoff"] >= 64).all()
    assert (state["trial_backoff"] <= 4096).all()

    # Each bucket holds what belongs into it; halving costs at most one unit of weight.
    end = np.uint64(512) << np.arange(15, dtype=np.uint64)
    begin = np.concatenate([np.zeros(1, np.uint64), end[:-1]])
    weight, sum_ns = state["weight"][:, :15].astype(np.uint64), state["sum_ns"]
    assert (sum_ns[:, :15] >= weight * begin).all()
    assert (sum_ns[:, :15] <= (weight + 1) * end).all()
    assert not sum_ns[:, :15][weight == 0].any()
    assert not sum_ns[:, 15].any()

    # What the compiler made of it for speed does the same.
    policy = PollLimit(int(periods["halt_cost_ns"][0]), int(periods["ceiling_ns"][0]))
    for period, after in zip(periods[:4_000], state, strict=False):
        policy.params.halt_cost_ns, policy.params.ceiling_ns = period["halt_cost_ns"], period[1]
        assert policy.update(int(period["idle_ns"])) == after["limit_ns"]


# The essay, read independently.

any_u64 = st.one_of(st.sampled_from(EXTREMES), st.integers(0, 2**20), st.integers(0, U64_MAX))
parameters = st.tuples(st.one_of(costs, any_u64), any_u64)


@given(
    plan=st.lists(
        st.tuples(parameters, st.lists(any_u64, min_size=1, max_size=12), st.integers(1, 20)),
        min_size=1,
        max_size=5,
    )
)
@example(plan=[((1, 0), [0, 511], 1), ((1, 1), [0], 1)])  # no limit but 0 saves nothing
@settings(max_examples=200, deadline=None)
def test_the_code_does_what_the_essay_says(
    plan: list[tuple[tuple[int, int], list[int], int]],
) -> None:
    (cost, ceiling), _, _ = plan[0]
    policy, model = PollLimit(cost, ceiling), Model(cost, ceiling)
    assert policy.limit_ns == model.limit_ns
    for (cost, ceiling), durations, times in plan:
        policy.params.halt_cost_ns, policy.params.ceiling_ns = cost, ceiling
        for idle_ns in durations * times:
            assert policy.update(idle_ns) == model.update(cost, ceiling, idle_ns)
            assert policy.state.credit_ns == model.account_ns


@pytest.mark.parametrize("name", PATTERNS)
def test_the_code_does_what_the_essay_says_of_real_patterns(name: str) -> None:
    model = Model(50 * US, 200 * US)
    idle = trace(name, 1_000)
    expected = [model.limit_ns]
    expected += [model.update(50 * US, 200 * US, idle_ns) for idle_ns in idle.tolist()]
    assert PollLimit(50 * US, 200 * US).replay(idle).tolist() == expected[:-1]


# The tools of this proof.


@given(
    idle=st.lists(st.integers(0, 300), min_size=1, max_size=30),
    cost=st.integers(1, 100),
)
def test_no_fixed_limit_beats_the_best_one(idle: list[int], cost: int) -> None:
    durations = np.array(idle, np.int64)
    best = total(durations, best_fixed_ns(durations, cost), cost)
    assert best == min(total(durations, limit, cost) for limit in range(302))


def test_the_model_of_cost_by_hand() -> None:
    idle = np.array([10, 20, 21, 1_000])
    assert paid_ns(idle, 20, 50).tolist() == [10, 20, 70, 70]
    assert paid_ns(idle, np.array([0, 19, 30, 2_000]), 50).tolist() == [50, 69, 21, 1_000]
    assert optimum_ns(idle, 50).tolist() == [10, 20, 21, 50]
    assert polled_share(idle, 20) == pytest.approx(70 / 1_051)


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(LightsleepError, match="no-such-compiler: install one or set CC"):
        binding.compile_policy(tmp_path / "none.c", tmp_path / "none", [])
