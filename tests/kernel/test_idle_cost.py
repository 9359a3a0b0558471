# SPDX-License-Identifier: GPL-2.0-only
"""idle_cost.c, the kernel's own file: which cost counts, and when is it measured?"""

import errno
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from idle_cost_library import FFI, LIB, of_series

US = 1000
ASSUMED_NS = 25 * US
ERESTARTSYS = 512


@pytest.fixture(autouse=True)
def _anew() -> None:
    LIB.begin()


# The wakeup itself.


@pytest.mark.parametrize(
    ("programs_us", "cost_us", "wakeup_us"), [(104, 104, 30), (10, 10, 10), (-5, 0, 0)]
)
def test_a_wakeup_takes_no_more_than_the_machine_and_the_programs_lose(
    programs_us: int, cost_us: int, wakeup_us: int
) -> None:
    """What a waker does, and cold caches, cost programs more: none of that is idle time."""
    assert LIB.measure(0, 30 * US, US) == 0
    assert (LIB.cost_ns(), LIB.wakeup_ns()) == (30 * US, 30 * US)
    LIB.programs_lose(programs_us * US, 2 * programs_us * US)
    assert (LIB.cost_ns(), LIB.wakeup_ns()) == (cost_us * US, wakeup_us * US)


# What is assumed before the first result.


def test_a_busy_machine_has_an_assumed_cost() -> None:
    assert LIB.measure(-errno.EAGAIN, 0, 0) == -errno.EAGAIN
    assert (LIB.cost_ns(), LIB.advertised_ns) == (ASSUMED_NS, ASSUMED_NS)


@pytest.mark.parametrize("why", ["is_stopped", "is_paused"])
def test_where_no_cpu_is_to_poll_nothing_is_measured_unasked(why: str) -> None:
    before = LIB.measurements
    setattr(LIB, why, True)
    LIB.its_time_comes()
    assert LIB.measurements == before
    assert LIB.measure(0, 50 * US, US) == 0  # somebody asks
    setattr(LIB, why, False)
    LIB.its_time_comes()
    assert LIB.measurements == before + 2


def test_a_measurement_that_waits_for_the_host_follows_soon() -> None:
    LIB.measure(0, 50 * US, US)
    assert [LIB.its_time_comes() for _ in range(3)] == [20, 600, 600]
    LIB.is_paused = True
    assert [LIB.its_time_comes() for _ in range(3)] == [20, 20, 20]
    LIB.is_paused = False
    assert LIB.its_time_comes() == 600
    LIB.is_stopped = True
    assert LIB.its_time_comes() == 600


# While there is no result, the log says why.

BUSY, LATE, FORBIDDEN = -errno.EAGAIN, -errno.ETIMEDOUT, -errno.EPERM


def warnings(*endings: int) -> int:
    """Return how often the log warns while measurements end so, or noise hides the cost (0)."""
    before = LIB.warnings
    for ending in endings:
        LIB.measure(ending, 10 * US, 30 * US)
        LIB.its_time_comes()
    return int(LIB.warnings - before)


def test_the_log_has_each_reason_once_until_there_is_a_result() -> None:
    assert warnings(BUSY, 0, BUSY, LATE, 0, BUSY) == 2
    assert warnings(FORBIDDEN, LATE, FORBIDDEN) == 1
    LIB.measure(0, 100 * US, US)
    assert warnings(BUSY, FORBIDDEN) == 0
    assert warnings(0, 0) == 1, "three refute the result"
    assert warnings(BUSY, 0, LATE) == 1


def text(of: Any) -> str:
    found = FFI.string(of)
    assert isinstance(found, bytes)
    return found.decode()


def test_all_that_keeps_cpus_from_being_measured_may_be_why_none_is() -> None:
    warnings(FORBIDDEN)
    said = text(LIB.log_line)
    for why in ("isolation", "disabled state", "latency limit", "idle device"):
        assert why in said


@pytest.mark.parametrize("ending", [BUSY, LATE])
def test_where_the_idle_loop_polls_anyway_the_log_blames_no_load(ending: int) -> None:
    """No CPU halts as it is told. Or all spin, so that a host without enough cores delays them."""
    lib = of_series()
    lib.begin()
    lib.start(ending)
    assert (lib.warnings, "the machine is busy" in text(lib.log_line)) == (1, True)
    lib.begin()
    lib.is_stopped = True
    lib.start(ending)
    assert lib.warnings == 0
    assert text(lib.log_line).startswith("nothing is measured while the idle loop polls anyway")


# Where noise hides the cost, its bound counts.


@pytest.mark.parametrize(("cost_us", "margin_us", "assumed_us"), [(1, 2, 3), (10, 30, 25)])
def test_no_more_than_the_bound_is_assumed(cost_us: int, margin_us: int, assumed_us: int) -> None:
    assert LIB.measure(0, cost_us * US, margin_us * US) == -errno.EAGAIN
    assert (LIB.cost_ns(), LIB.idle_cost_machine_ns()) == (assumed_us * US, 0)
    assert LIB.advertised_ns == ASSUMED_NS, "of the worst case, a bound says nothing"
    waits = [LIB.its_time_comes() for _ in range(8)]
    assert (waits[0], waits[-1]) == (1, 60)
    said = f"cannot tell it from 0; at most {(cost_us + margin_us) * US} ns (error -11)"
    assert said in text(LIB.log_line)


@pytest.mark.parametrize(
    ("cost_us", "margin_us", "said"),
    [
        (40, 5, "40000 ns"),
        (1, 3, "cannot tell it from 0; at most 4000 ns"),
        (10, 90, "cannot tell it from 0; at most 100000 ns"),
        (-20, 1, "polls make wakeups slower"),
    ],
)
def test_debugfs_says_what_the_last_measurement_says(
    cost_us: int, margin_us: int, said: str
) -> None:
    LIB.measure(0, cost_us * US, margin_us * US)
    LIB.wait(5)
    LIB.measure_found(-errno.ETIMEDOUT)
    lines = text(LIB.shown()).splitlines()
    assert len(lines) == 5
    assert lines[-1] == f"5 s ago: {said}"


# Where polls made wakeups slower, no CPU polls until three bounds refute it.

HARMED = "0 ns is assumed{}, as polls made wakeups slower before"


def test_log_and_debugfs_say_that_polls_did_harm_until_noise_refutes_it() -> None:
    LIB.measure(0, -20 * US, US)
    LIB.measure(0, 10 * US, 30 * US)
    LIB.its_time_comes()
    assert text(LIB.log_line).endswith(f"s, and {HARMED.format(' until then')}\n")
    assert text(LIB.shown()).endswith(f"at most 40000 ns; {HARMED.format('')}\n")
    assert (LIB.cost_ns(), LIB.advertised_ns) == (0, 0)
    LIB.its_time_comes()
    assert text(LIB.log_line).endswith(f"s, and {ASSUMED_NS} ns is assumed until then\n")
    assert text(LIB.shown()).endswith("at most 40000 ns\n")
    assert (LIB.cost_ns(), LIB.advertised_ns) == (ASSUMED_NS, ASSUMED_NS)


def test_a_busy_machine_does_not_hide_that_polls_did_harm() -> None:
    LIB.measure(0, -20 * US, US)
    LIB.measure_found(BUSY)
    LIB.its_time_comes()
    assert "the machine is busy" in text(LIB.log_line)
    assert text(LIB.log_line).endswith(f"s, and {HARMED.format(' until then')}\n")


def test_the_log_says_once_that_polls_do_harm() -> None:
    LIB.measure(0, -20 * US, US)
    before = LIB.warnings
    LIB.its_time_comes()
    assert "polls make wakeups slower (error -16)" in text(LIB.log_line)
    assert text(LIB.log_line).endswith("s, and 0 ns is assumed until then\n")
    LIB.its_time_comes()
    assert LIB.warnings == before + 1


# Many may ask for a measurement at a time.


def test_who_is_killed_while_another_one_measures_waits_no_more() -> None:
    before = LIB.measurements
    LIB.is_killed = True
    assert LIB.measure_found(0) == -ERESTARTSYS
    assert LIB.measurements == before


def test_all_who_wait_share_one_measurement_that_began_after_they_asked() -> None:
    for n in range(3):
        LIB.find(n, 50 * US, US)
    before, waiting = LIB.measurements, 8
    LIB.ends_after_writers = 1 + waiting  # the first one measures until all others have asked
    with ThreadPoolExecutor(1 + waiting) as threads:
        first = threads.submit(LIB.measure_found, 0)
        while LIB.measurements == before:
            time.sleep(0.001)
        ends = list(threads.map(LIB.measure_found, [0] * waiting))
    assert [first.result(), *ends] == [0] * (1 + waiting)
    assert LIB.measurements == before + 2
    assert LIB.measure_found(-errno.ETIMEDOUT) == -errno.ETIMEDOUT, "who asks later has its own"
    assert LIB.measurements == before + 3


def test_who_is_killed_while_it_measures_answers_nobody_else() -> None:
    for n in range(3):
        LIB.find(n, 50 * US, US)
    before = LIB.measurements
    LIB.ends_after_writers = 3
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(LIB.measure_found, 0)
        while LIB.measurements == before:
            time.sleep(0.001)
        ends = list(threads.map(LIB.measure_found, [-errno.EINTR] * 2))
    assert first.result() == -errno.EINTR  # what the latest caller of the three set
    assert ends == [-errno.EINTR] * 2
    assert LIB.measurements == before + 3
