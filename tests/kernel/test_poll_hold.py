# SPDX-License-Identifier: GPL-2.0-only
"""poll_hold.h, the kernel's own file: how long holds last, and which are skipped."""

from __future__ import annotations

from typing import Any

import cffi
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_library import simulated

WRAPPED = """
#include <linux/idle_poll/poll_hold.h>

void init(struct poll_hold *hold) { poll_hold_init(hold); }
void moved(struct poll_hold *hold) { poll_hold_moved(hold); }
_Bool skip(struct poll_hold *hold) { return poll_hold_skip(hold); }
u64 lasts_ns(const struct poll_hold *hold, u64 most_ns) { return poll_hold_ns(hold, most_ns); }
void ended(struct poll_hold *hold, u64 held_ns, _Bool by_poll)
{
	poll_hold_ended(hold, held_ns, by_poll);
}
"""
FFI = cffi.FFI()
FFI.cdef("""
struct poll_hold { uint64_t gap_ns; unsigned int skips, skips_next; };
void init(struct poll_hold *hold); void moved(struct poll_hold *hold);
bool skip(struct poll_hold *hold);
uint64_t lasts_ns(const struct poll_hold *hold, uint64_t most_ns);
void ended(struct poll_hold *hold, uint64_t held_ns, bool by_poll);
""")
MOST_NS = 2_000_000


@pytest.fixture(scope="module")
def lib() -> Any:
    return simulated(FFI, WRAPPED, {})


@pytest.fixture
def hold(lib: Any) -> Any:
    new = FFI.new("struct poll_hold *")
    lib.init(new)
    return new


def skipped(lib: Any, hold: Any) -> int:
    """Return how many holds are skipped until one is not."""
    count = 0
    while lib.skip(hold):
        count += 1
    return count


def test_lasts_ten_times_as_long_as_usual_and_no_longer_than_allowed(lib: Any, hold: Any) -> None:
    assert lib.lasts_ns(hold, MOST_NS) == MOST_NS  # nothing is known
    lib.ended(hold, 50_000, True)
    assert lib.lasts_ns(hold, MOST_NS) == 500_000
    assert lib.lasts_ns(hold, 1000) == 1000
    lib.moved(hold)
    assert lib.lasts_ns(hold, MOST_NS) == MOST_NS


def test_mistakes_double_what_is_skipped_and_holds_in_time_shorten_it(lib: Any, hold: Any) -> None:
    assert skipped(lib, hold) == 0
    after_each = []
    for _ in range(10):
        lib.ended(hold, MOST_NS, False)
        after_each.append(skipped(lib, hold))
    assert after_each == [8, 16, 32, 64, 128, 256, 512, 1024, 1024, 1024]
    for _ in range(100):
        lib.ended(hold, 1000, True)
    assert skipped(lib, hold) == 0
    lib.ended(hold, MOST_NS, False)
    assert skipped(lib, hold) == 8


@pytest.mark.parametrize(("held_ns", "skips"), [(4 * 50_000, 0), (4 * 50_000 + 1, 8)])
def test_a_poll_that_comes_late_is_a_mistake(lib: Any, hold: Any, held_ns: int, skips: int) -> None:
    lib.ended(hold, 50_000, True)
    lib.ended(hold, held_ns, True)
    assert skipped(lib, hold) == skips


def test_what_is_usual_is_learned_from_polls_and_not_from_the_timer(lib: Any, hold: Any) -> None:
    lib.ended(hold, MOST_NS, False)  # the bound, and no time that the CPU needed
    assert lib.lasts_ns(hold, MOST_NS) == MOST_NS
    lib.ended(hold, 40_000, True)
    assert lib.lasts_ns(hold, MOST_NS) == 400_000


@given(st.lists(st.tuples(st.integers(0, 10**10), st.booleans()), max_size=50))
def test_one_hold_makes_the_next_at_most_an_eighth_longer(
    lib: Any, holds: list[tuple[int, bool]]
) -> None:
    hold: Any = FFI.new("struct poll_hold *")
    lib.init(hold)
    for held_ns, by_poll in holds:
        before_ns = hold.gap_ns
        lib.ended(hold, held_ns, by_poll)
        assert hold.gap_ns <= (before_ns + before_ns / 8 + 1 if before_ns else held_ns)
        assert 8 <= hold.skips_next <= 1024
        assert skipped(lib, hold) <= 1024
        assert lib.lasts_ns(hold, MOST_NS) <= MOST_NS
