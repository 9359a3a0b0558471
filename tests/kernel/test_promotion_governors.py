# SPDX-License-Identifier: GPL-2.0-only
"""That governors learn nothing from promotions: theirs and ours, as the kernel compiles them.

menu, teo, ladder and promote.c run in user space, on one simulated CPU (lightsleep/governors), so
that a hundred thousand idle periods take a moment and every one of them is the same each time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightsleep.governors import build
from lightsleep.governors.build import GOVERNORS
from lightsleep.lab.kernels.config import SERIES_KERNELS, BuiltKernel
from lightsleep.lab.kernels.source import kernel_source

pytestmark = pytest.mark.build

SANITIZED = ("-fsanitize=undefined", "-fsanitize-undefined-trap-on-error")
OURS = [kernel for kernel in SERIES_KERNELS if kernel.patched]
STATES = {
    "powernv": ((1, 10), (2, 20), (5, 50)),
    "x86": ((2, 2), (30, 100), (130, 600)),
    "slow": ((1, 10), (16, 60), (32, 120)),
}

WORK = Path(__file__).with_name("interrupt_work.c")

FAR_NS = 10**9
"""To the next timer, where it is not what wakes the CPU."""

States = Sequence[tuple[int, int]]
"""Of each: latency and residency, in us."""

Periods = list[tuple[int, int, bool]]
"""Of each: idle_ns, busy_ns, and whether a timer ends it."""


@pytest.fixture(scope="session", params=OURS, ids=lambda kernel: kernel.version)
def kernel(request: pytest.FixtureRequest) -> BuiltKernel:
    """Return a kernel whose source is here."""
    kernel: BuiltKernel = request.param
    kernel_source(kernel.version, kernel.suite, kernel.target)
    return kernel


@pytest.fixture(scope="session")
def library(kernel: BuiltKernel) -> tuple[Any, Any]:
    return build.load(build.library_file(kernel.version, SANITIZED))


@pytest.fixture(scope="session")
def working(kernel: BuiltKernel) -> tuple[Any, Any]:
    """Return the library of a CPU whose interrupts have work: machine_work() says how long."""
    ffi, lib = build.load(build.library_file(kernel.version, SANITIZED, WORK))
    ffi.cdef("void machine_work(uint64_t ns);")
    return ffi, lib


@dataclass(frozen=True)
class Run:
    """What became of idle periods; ``chosen`` and ``time`` by state, in %."""

    chosen: list[float]
    """What the governor chose as each period began."""
    raised: list[int]
    """Of each period: how much deeper the state was that its end found the CPU in."""
    time: list[float]
    wakes: int
    promotions: int


class Machine:
    """A CPU with one governor, which goes on learning from one run to the next."""

    def __init__(self, library: tuple[Any, Any], governor: str, states: States) -> None:
        self.ffi, self.lib = library
        self.count = len(states)
        rows = [(latency * 1000, residency * 1000, 0) for latency, residency in states]
        self.lib.machine_start(
            governor.encode(), self.ffi.new("struct cpuidle_state[]", rows), self.count
        )

    def allow(self, states: Sequence[bool], limit_us: int) -> None:
        self.lib.machine_allow(self.ffi.new("bool[]", states), limit_us * 1000)

    def run(
        self,
        periods: Periods,
        promote: bool,
        nobody: Sequence[bool] = (),
        far_ns: int = FAR_NS,
    ) -> Run:
        """Run ``periods``; ``nobody``, of each: no task is woken, the CPU stays in idle.

        ``far_ns`` is the time to the next timer, where that is not what ends the period.
        """
        self.lib.machine_promote(promote)
        made = self.ffi.new("struct choice[]", len(periods))
        totals = self.ffi.new("struct totals *")
        given: list[tuple[int, ...]]
        given = [(idle, busy, idle if timer else far_ns) for idle, busy, timer in periods]
        if nobody:
            resumes = (False, *nobody[:-1])
            given = [(*x, y, False, z) for x, y, z in zip(given, nobody, resumes, strict=True)]
        self.lib.machine_run(self.ffi.new("struct period[]", given), made, len(given), totals)
        assert (totals.empty, totals.forbidden, totals.untrue) == (0, 0, 0)
        chosen, all_ns = [x.first for x in made if x.first >= 0], sum(totals.time_ns)
        return Run(
            [100 * chosen.count(i) / max(1, len(chosen)) for i in range(self.count)],
            [x.last - x.first for x in made],
            [100 * totals.time_ns[i] / max(1, all_ns) for i in range(self.count)],
            totals.wakes,
            totals.promotions,
        )


def usual(count: int, seed: int) -> Periods:
    """Bursts of interrupts, timers, single wakes and pauses, as a machine at work has them."""
    chance = random.Random(seed)
    kinds = ((8, 5, 60, False), (4, 20, 2000, True), (2, 50, 5000, False), (1, 2000, 200000, True))
    periods: Periods = []
    while len(periods) < count:
        burst, low_us, high_us, timer = chance.choices(kinds, (3, 3, 2, 1))[0]
        for _ in range(burst):
            idle_us = math.exp(chance.uniform(math.log(low_us), math.log(high_us)))
            periods.append((int(1000 * idle_us), chance.randrange(5000, 60000), timer))
    return periods[:count]


def misled(count: int, burst: int, silence_us: int) -> Periods:
    """Bursts that make a governor expect the next one soon, each with a silence behind it."""
    one = [(10_000, 11_000, False)] * burst + [(silence_us * 1000, 13_000, False)]
    return one * count


def furthest(one: Iterable[float], other: Iterable[float]) -> float:
    return max(abs(x - y) for x, y in zip(one, other, strict=True))


@pytest.mark.parametrize("states", STATES)
@pytest.mark.parametrize("governor", GOVERNORS)
def test_a_usual_load_is_taken_as_without(
    library: tuple[Any, Any], governor: str, states: str
) -> None:
    periods = usual(20_000, 1)
    without = Machine(library, governor, STATES[states]).run(periods, False)
    promoted = Machine(library, governor, STATES[states]).run(periods, True)
    assert without.promotions == 0
    assert promoted.promotions > 0
    assert furthest(promoted.chosen, without.chosen) < 1
    assert promoted.time[-1] > without.time[-1]


@pytest.mark.parametrize("states", STATES)
@pytest.mark.parametrize("governor", GOVERNORS)
def test_ten_thousand_promotions_change_no_choice_afterwards(
    library: tuple[Any, Any], governor: str, states: str
) -> None:
    machine = Machine(library, governor, STATES[states])
    before = machine.run(usual(20_000, 1), True)
    # ladder looks at latencies only: the states of powernv do not mislead it.
    promotions = machine.run(misled(10_000, 8, 2000), True).promotions
    assert promotions >= 10_000 or (governor, states) == ("ladder", "powernv")
    after = machine.run(usual(20_000, 1), True)
    assert furthest(before.chosen, after.chosen) < 1


@pytest.mark.parametrize("silence_us", [500, 3_000, 20_000, 200_000])
@pytest.mark.parametrize("states", STATES)
@pytest.mark.parametrize("governor", GOVERNORS)
def test_ticks_teach_what_they_teach_without(
    library: tuple[Any, Any], governor: str, states: str, silence_us: int
) -> None:
    """Were the tick stopped for a promoted CPU, teo would choose otherwise in every fifth case."""
    periods = misled(2000, 8, silence_us)
    without = Machine(library, governor, STATES[states]).run(periods, False)
    promoted = Machine(library, governor, STATES[states]).run(periods, True)
    assert furthest(promoted.chosen, without.chosen) < 5
    # Two promotions per silence, and those ticks that the governor kept; teo of 7.3 keeps one more.
    assert promoted.wakes <= without.wakes + 3.1 * 2000


@pytest.mark.parametrize("governor", GOVERNORS)
def test_the_work_of_an_interrupt_is_no_sleep(working: tuple[Any, Any], governor: str) -> None:
    """As of a router: a packet ends a sleep long before the timer, and keeps the CPU for longer."""
    machine = Machine(working, governor, STATES["slow"])
    periods = [*[(10_000, 11_000, False)] * 8, (10_000, 0, False)] * 1000
    nobody = [*[False] * 8, True] * 1000
    for work_ns in (0, 300_000):
        machine.lib.machine_work(work_ns)
        run = machine.run(periods, True, nobody)
        assert run.time[0] > 40  # where the timer is armed
        assert run.promotions == 0


@pytest.mark.parametrize(("silence_us", "far_ns"), [(150, 10**6), (6_000, FAR_NS)])
@pytest.mark.parametrize("governor", GOVERNORS)
def test_the_work_of_an_interrupt_keeps_no_cpu_in_a_deep_state(
    working: tuple[Any, Any], governor: str, silence_us: int, far_ns: int
) -> None:
    """A packet ends a promoted sleep, or one that was raised after a tick.

    It keeps the CPU for longer than until the next tick or timer. Then the governor decides, except
    for the few packets that come together with the tick.
    """
    machine = Machine(working, governor, STATES["slow"])
    nobody = [*[False] * 8, True, False] * 1000
    periods = [*[(10_000, 11_000, False)] * 8, (silence_us * 1000, 11_000, False)]
    periods = [*periods, (10_000, 0, False)] * 1000
    machine.lib.machine_work(5_000_000)
    run = machine.run(periods, True, nobody, far_ns)
    assert run.raised[8::10].count(0) < 50  # promoted, or raised
    assert run.promotions < 2.1 * 1000  # after a tick: raised
    assert sum(x > 0 for x in run.raised[9::10]) < 50


short_us = st.integers(0, 300)
any_state = st.tuples(short_us, short_us)
any_period = st.tuples(
    st.one_of(st.integers(0, 10**6), st.integers(0, 10**8)), st.integers(0, 10**6), st.booleans()
)
any_setting = st.tuples(
    st.lists(st.booleans(), min_size=10, max_size=10), short_us, st.booleans(), st.integers(1, 20)
)


@given(
    governor=st.sampled_from(GOVERNORS),
    states=st.lists(any_state, min_size=2, max_size=10),
    settings=st.lists(any_setting, min_size=1, max_size=8),
    periods=st.lists(any_period, min_size=1, max_size=8),
)
@hypothesis.settings(deadline=None, max_examples=200)
def test_settings_hold_and_the_governor_is_told_the_truth_whatever_comes(
    library: tuple[Any, Any],
    governor: str,
    states: States,
    settings: list[tuple[list[bool], int, bool, int]],
    periods: Periods,
) -> None:
    """run() checks both. The states are in no order; settings change while the CPU is not idle."""
    machine = Machine(library, governor, states)
    for allowed, limit_us, promote, times in settings:
        machine.allow(allowed[: len(states)], limit_us)
        machine.run(periods * times, promote)
