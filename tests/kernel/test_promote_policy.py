# SPDX-License-Identifier: GPL-2.0-only
"""What promote_policy.c promises, held against the very file that the kernel compiles."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import cffi
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_library import load, simulated

from lightsleep.compiled import KERNEL, compile_kernel_files

FFI, LIB = load("promote_policy")
TRACE = Path(__file__).with_name("promote_trace.c")
"""A program that reads questions and writes answers."""

US = 10**3
NEVER = 2**63 - 1  # KTIME_MAX: the clock has no event
U64_MAX = 2**64 - 1
STATES_MAX = 10


@dataclass(frozen=True)
class State:
    """An idle state, as a driver advertises it and a user wants it."""

    residency_ns: int
    latency_ns: int
    allowed: bool = True
    leavable: bool = True


class Plan:
    """The plan of one CPU. States are named by their index, by depth."""

    def __init__(self, states: Sequence[State]) -> None:
        self._states = FFI.new("struct promote_state[]", [(*astuple(s), 0, 0) for s in states])
        LIB.promote_plan(self._states, len(states))

    def timeout_ns(self, index: int, event_ns: int) -> int:
        """Return when a timer is to end a sleep in that state, in ns; 0: never.

        ``event_ns`` is the time until the clock's next event.
        """
        return int(LIB.promote_timeout(self._states, index, event_ns))

    def floor(self, index: int, limit_ns: int) -> int | None:
        """Return the state that comes after that one under a latency limit, if there is one."""
        floor = int(LIB.promote_floor(self._states, index, limit_ns))
        return None if floor < 0 else floor

    def returns(self, index: int, reached: int, limit_ns: int, event_ns: int) -> bool:
        """Return whether a CPU that had been promoted to ``reached`` goes back there.

        A governor has chosen ``index`` meanwhile, a shallower state.
        """
        return bool(LIB.promote_returns(self._states, index, reached, limit_ns, event_ns))


POWERNV = [
    State(0, 0, leavable=False),  # snooze, which polls
    State(10 * US, US),  # stop0_lite
    State(20 * US, 2 * US),  # stop0
    State(50 * US, 5 * US),  # stop1
]

extremes = st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**32, NEVER - 1, NEVER, 2**63, U64_MAX])
any_ns = st.one_of(extremes, st.integers(0, 2**24), st.integers(0, U64_MAX))
any_states = st.lists(
    st.builds(State, any_ns, any_ns, st.booleans(), st.booleans()), min_size=1, max_size=STATES_MAX
)


@st.composite
def rising_states(draw: st.DrawFn) -> list[State]:
    """States as real drivers have them: the deeper, the slower."""
    count = draw(st.integers(1, STATES_MAX))
    latencies = sorted(draw(st.lists(st.integers(0, 2**24), min_size=count, max_size=count)))
    extra = sorted(draw(st.lists(st.integers(0, 2**26), min_size=count, max_size=count)))
    flags = draw(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=count, max_size=count))
    return [
        State(latency + more, latency, *flag)
        for latency, more, flag in zip(latencies, extra, flags, strict=True)
    ]


def deeper(states: list[State], index: int) -> list[int]:
    return [i for i in range(index + 1, len(states)) if states[i].allowed]


def test_the_seeds_platform() -> None:
    plan = Plan(POWERNV)
    assert plan.timeout_ns(0, NEVER) == 0
    assert plan.timeout_ns(1, NEVER) == (20 + 2 * 2) * US
    assert plan.timeout_ns(2, NEVER) == (50 + 2 * 5) * US
    assert plan.timeout_ns(3, NEVER) == 0
    assert [plan.floor(i, NEVER) for i in range(4)] == [1, 2, 3, None]


def test_an_event_that_leaves_no_time_for_the_deeper_state_is_not_doubled() -> None:
    plan = Plan(POWERNV)
    assert plan.timeout_ns(1, 0) == 0
    assert plan.timeout_ns(1, 44 * US) == 0
    assert plan.timeout_ns(1, 44 * US + 1) == 24 * US


def test_a_disabled_state_is_passed_over() -> None:
    plan = Plan([*POWERNV[:2], State(20 * US, 2 * US, allowed=False), POWERNV[3]])
    assert plan.floor(1, NEVER) == 3
    assert plan.timeout_ns(1, NEVER) == 60 * US
    # It may be entered all the same, where a governor has not noticed yet.
    assert plan.floor(2, NEVER) == 3


def test_the_latency_limit_holds() -> None:
    plan = Plan(POWERNV)
    assert plan.floor(2, 5 * US) == 3
    assert plan.floor(2, 5 * US - 1) is None
    assert plan.floor(1, 0) is None


@given(timeout_ns=any_ns, slept_ns=any_ns)
def test_a_timer_that_expired_after_a_short_sleep_did_not_end_it(
    timeout_ns: int, slept_ns: int
) -> None:
    """It expired during the work of the interrupt that did."""
    assert LIB.promote_ended(timeout_ns, slept_ns) == (slept_ns >= timeout_ns // 2)


@given(states=any_states, event_ns=any_ns)
def test_never_armed_without_anywhere_to_go(states: list[State], event_ns: int) -> None:
    plan = Plan(states)
    for index, state in enumerate(states):
        if not deeper(states, index) or not state.leavable:
            assert plan.timeout_ns(index, event_ns) == 0


@given(states=any_states, event_ns=any_ns)
def test_the_timeout_is_the_formula_and_fits_before_the_event(
    states: list[State], event_ns: int
) -> None:
    plan = Plan(states)
    for index, state in enumerate(states):
        timeout_ns = plan.timeout_ns(index, event_ns)
        if not timeout_ns:
            continue
        to = states[deeper(states, index)[0]]
        assert state.leavable
        assert timeout_ns == to.residency_ns + 2 * to.latency_ns  # did not wrap
        assert timeout_ns + to.residency_ns < event_ns


@given(states=any_states, limit_ns=any_ns)
def test_the_floor_is_deeper_allowed_and_within_the_limit(
    states: list[State], limit_ns: int
) -> None:
    plan = Plan(states)
    for index in range(len(states)):
        floor = plan.floor(index, limit_ns)
        there = deeper(states, index)
        if there and states[there[0]].latency_ns <= limit_ns:
            assert floor == there[0]
        else:
            assert floor is None


@given(states=rising_states())
def test_the_deeper_the_longer(states: list[State]) -> None:
    plan = Plan(states)
    timeouts = [t for i in range(len(states)) if (t := plan.timeout_ns(i, NEVER))]
    assert timeouts == sorted(timeouts)


@given(states=rising_states(), start=st.integers(0, STATES_MAX - 1), limit_ns=st.integers(0, 2**25))
def test_the_deepest_state_takes_one_step_for_each_on_the_way(
    states: list[State], start: int, limit_ns: int
) -> None:
    start %= len(states)
    plan = Plan(states)
    way = [start]
    while (floor := plan.floor(way[-1], limit_ns)) is not None:
        way.append(floor)
    assert way[1:] == [i for i in deeper(states, start) if states[i].latency_ns <= limit_ns]


@given(states=any_states, limit_ns=any_ns, event_ns=any_ns)
def test_a_cpu_goes_back_to_where_it_was_promoted_to_unless_that_has_changed(
    states: list[State], limit_ns: int, event_ns: int
) -> None:
    plan = Plan(states)
    for index, state in enumerate(states):
        there = deeper(states, index)
        leaves = state.leavable and there
        if there and not states[there[0]].residency_ns + states[there[0]].latency_ns:
            leaves = False  # a timeout of 0 is none
        for reached in range(index + 1, len(states)):
            to = states[reached]
            fits = to.allowed and to.latency_ns <= limit_ns and to.residency_ns < event_ns
            assert plan.returns(index, reached, limit_ns, event_ns) == bool(leaves and fits)


PROMOTE, POLLING, COUPLED, TIMER_STOP = (1 << n for n in range(4))
CPUIDLE_H = f"""
#include <stdbool.h>
#define CPUIDLE_FLAG_PROMOTE {PROMOTE}
#define CPUIDLE_FLAG_POLLING {POLLING}
#define CPUIDLE_FLAG_COUPLED {COUPLED}
#define CPUIDLE_FLAG_TIMER_STOP {TIMER_STOP}
struct cpuidle_device;
struct cpuidle_state {{ unsigned int flags; }};
"""
LEAVES = """
#define CONFIG_CPU_IDLE_PROMOTE
#include "promote.h"
bool leaves(unsigned int flags)
{
	const struct cpuidle_state state = { .flags = flags };

	return cpuidle_promote_leaves(&state);
}
"""


def test_states_that_poll_or_stop_the_timer_or_are_coupled_are_not_left_whoever_asks() -> None:
    ffi = cffi.FFI()
    ffi.cdef("bool leaves(unsigned int flags);")
    lib = simulated(ffi, LEAVES, {"linux/cpuidle.h": CPUIDLE_H})
    assert [x for x in range(16) if lib.leaves(x)] == [PROMOTE]


@pytest.mark.parametrize("base", ["6.12", "7.3"])
def test_a_state_has_the_counter_if_it_is_left(base: str) -> None:
    patch = KERNEL.parents[1] / "patches" / base / "promotion/cpuidle-promote.patch"
    assert "+\tif (cpuidle_promote_leaves(kobj->state) &&\n" in patch.read_text()


@pytest.fixture(scope="session")
def sanitised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that dies of an overflow or a bad access in the policy."""
    program = tmp_path_factory.mktemp("policy") / "promote_trace"
    flags = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    compile_kernel_files([TRACE, KERNEL / "promote_policy.c"], program, flags)
    return program


QUESTION, STATE, ANSWER = struct.Struct("=QQII"), struct.Struct("=QQ??6xQi4x"), struct.Struct("=Qq")

questions = st.tuples(any_states, any_ns, any_ns, st.integers(0, STATES_MAX - 1))


@given(asked=st.lists(questions, min_size=1, max_size=40))
@settings(max_examples=30, deadline=None)
def test_nothing_is_undefined_whatever_comes(
    sanitised: Path, asked: list[tuple[list[State], int, int, int]]
) -> None:
    text, expected = b"", []
    for states, event_ns, limit_ns, index in asked:
        index %= len(states)
        text += QUESTION.pack(event_ns, limit_ns, len(states), index)
        for s in states:
            text += STATE.pack(s.residency_ns, s.latency_ns, s.allowed, s.leavable, 7, 7)
        text += bytes(STATE.size * (STATES_MAX - len(states)))
        plan = Plan(states)
        floor = plan.floor(index, limit_ns)
        expected.append((plan.timeout_ns(index, event_ns), -1 if floor is None else floor))
    done = subprocess.run([sanitised], input=text, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert list(ANSWER.iter_unpack(done.stdout)) == expected
