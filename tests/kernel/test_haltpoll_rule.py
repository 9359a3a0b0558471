# SPDX-License-Identifier: GPL-2.0-only
"""The lab's driver with the rule of cpuidle-haltpoll does what that rule says."""

from __future__ import annotations

import cffi
import numpy as np
import pytest
from booted import boot
from hypothesis import given
from hypothesis import strategies as st
from kernel_library import simulated
from paths import ROOT
from replays import limits

from lightsleep.lab.boot.machine import Machine
from lightsleep.replay.policies import Haltpoll

TRIES = 5
SELFTESTS = ROOT / "kernel/tools/testing/selftests/cpuidle"
SOURCE = """
#include "haltpoll_rule.h"
u64 next(u64 limit_ns, u64 halted_ns) { return haltpoll_next_limit_ns(limit_ns, halted_ns); }
"""

FFI = cffi.FFI()
FFI.cdef("uint64_t next(uint64_t limit_ns, uint64_t halted_ns);")
LIB = simulated(FFI, SOURCE, {}, flags=(f"-I{SELFTESTS}",))


@given(st.lists(st.integers(0, 500_000), max_size=50))
def test_it_is_the_rule_that_replay_has(idle_ns: list[int]) -> None:
    limit_ns, given_ns = 0, []
    for length_ns in idle_ns:
        given_ns.append(limit_ns)
        if length_ns > limit_ns:
            limit_ns = LIB.next(limit_ns, length_ns - limit_ns)
    assert limits(Haltpoll(), np.array(idle_ns, np.int64)).tolist() == given_ns


@pytest.mark.boot
@pytest.mark.alone
def test_a_guest_polls_by_it() -> None:
    with boot(Machine(accel="tcg", modules=("haltpoll_rule",)), "haltpoll", 300) as guest:
        folder = "/sys/devices/system/cpu"
        assert guest.read_text(f"{folder}/cpuidle/current_driver").strip() == "haltpoll_rule"

        def entered(state: int) -> int:
            cpus = guest.run(["sh", "-c", f"cat {folder}/cpu*/cpuidle/state{state}/usage"]).stdout
            return sum(map(int, cpus.split()))

        def polled_and_halted(*load: str) -> tuple[int, int]:
            polls, halts = entered(0), entered(1)
            guest.run(load)
            return entered(0) - polls, entered(1) - halts

        # A busy host delays wakeups beyond any limit, and makes interrupts where there were none.
        pipe = ("perf", "bench", "-f", "simple", "sched", "pipe", "-l", "2000")
        pipes = (polled_and_halted(*pipe) for _ in range(TRIES))
        assert any(polls > 1000 for polls, _ in pipes), "a pipe is woken sooner than the limit"
        rests = (polled_and_halted("sleep", "3") for _ in range(TRIES))
        assert any(halts > polls for polls, halts in rests), "at rest, the limit shrinks to 0"
        guest.run(["rmmod", "haltpoll_rule"])
