# SPDX-License-Identifier: GPL-2.0-only
"""What the idle paths of module and series make of idle periods: see idle_periods_library.py."""

from collections.abc import Callable
from typing import Any

import pytest
from idle_periods_library import FFI, FILES, US, idle_path

SECOND = 10**9


@pytest.fixture(scope="module", params=FILES)
def library(request: pytest.FixtureRequest) -> Any:
    """Return the idle path of module or series."""
    return idle_path(request.param)


@pytest.fixture
def lib(library: Any) -> Any:
    """Return a CPU that polls for waits of 100 us, whose next deliberate halt is not at once."""
    library.begin(1)
    for _ in range(300):
        library.idle(100 * US, 0)
    assert library.policy().limit_ns > 100 * US
    until_deliberate(library)
    library.idle(100 * US, 0)
    return library


def until_deliberate(lib: Any, interrupt_ns: int = 0) -> None:
    """Let the CPU idle until it has halted for the experiment."""
    before = lib.deliberate_halts()
    while lib.deliberate_halts() == before:
        lib.idle(100 * US, interrupt_ns)


def policy(lib: Any) -> bytes:
    return bytes(FFI.buffer(lib.policy()))


def test_a_cpu_that_its_host_keeps_from_polling_learns_nothing(lib: Any) -> None:
    lib.contend(0, 10 * SECOND)
    lib.idle(100 * US, 0)  # accounts for the last one before
    before = policy(lib)
    for _ in range(500):
        lib.idle(250 * US, 0)
    assert policy(lib) == before


def test_a_period_counts_as_it_began(lib: Any) -> None:
    before = policy(lib)
    lib.contend(0, 50 * US)
    lib.idle(100 * US, 0)  # ends after the pause; accounts for one before
    assert policy(lib) != before
    before = policy(lib)
    lib.idle(100 * US, 0)
    assert policy(lib) == before
    lib.contend(0, SECOND)
    lib.idle(100 * US, 0)  # accounts for one that was polled
    assert policy(lib) != before


def test_a_deliberate_halt_counts_once_whatever_interrupts_it(lib: Any) -> None:
    before = lib.deliberate_halts()
    until_deliberate(lib, 50 * US)
    assert lib.deliberate_halts() == before + 1


def test_a_wakeup_after_an_interrupt_aborts_no_deliberate_halt(lib: Any) -> None:
    """It comes when the CPU is about to halt again."""
    until_deliberate(lib, 100 * US - 50)
    lib.idle(100 * US, 0)  # ends the cycle
    assert lib.aborts() == 0


@pytest.mark.parametrize("library", ["module"], indirect=True)
def test_polls_that_a_latency_request_demands_are_no_evidence(lib: Any) -> None:
    """They end as hits whatever the CPU waits for, and nothing is drawn meanwhile."""

    def learned() -> tuple[int, int, int]:
        return lib.polls(), lib.hits(), lib.cycles()

    lib.halt_takes(25 * US)
    lib.qos_limit_ns = 0
    lib.idle(100 * US, 0)  # accounts for the one before
    before, polls, hits = learned(), lib.shown_polls(), lib.shown_hits()
    for _ in range(100):
        lib.idle(1000 * US, 0)
    lib.qos_limit_ns = 2**63 - 1
    lib.idle(100 * US, 0)  # accounts for the one before
    assert lib.shown_polls() >= polls + 100
    assert lib.shown_hits() == hits + 101
    assert learned() == (before[0] + 1, before[1], before[2])


def cycles_around(lib: Any, demand: Callable[[bool], None], wait_us: int) -> int:
    """Return how many cycles count of 100 whose wait is demanded, and 10 after them."""
    demand(True)
    lib.idle(100 * US, 0)  # ends the one before
    before = int(lib.cycles())
    for _ in range(100):
        lib.idle(wait_us * US, 0)
    demand(False)
    for _ in range(10):
        lib.idle(100 * US, 0)
    return int(lib.cycles()) - before


def test_cycles_of_a_measurement_are_none_of_the_programs(lib: Any) -> None:
    assert cycles_around(lib, lib.force_polls, 100) == 9  # the tenth goes on


@pytest.mark.parametrize("library", ["module"], indirect=True)
def test_cycles_of_idle_injection_are_none_of_the_programs(lib: Any) -> None:
    assert cycles_around(lib, lib.tell_to_idle, 5000) == 9


@pytest.mark.parametrize("library", ["series"], indirect=True)
def test_a_cycle_with_injected_idle_time_is_no_evidence(lib: Any) -> None:
    drawn = lib.halted_cycles(), lib.polled_cycles()
    for _ in range(3000):
        lib.idle(100 * US, 0)
        lib.inject(6000 * US)
    assert (lib.halted_cycles(), lib.polled_cycles()) == drawn
    for _ in range(3000):
        lib.idle(100 * US, 0)
    assert lib.halted_cycles() > drawn[0]


def test_time_that_the_host_took_was_not_polled(lib: Any) -> None:
    lib.idle(100 * US, 0)  # accounts for the last one before
    polled_ns, wasted_ns, limit_ns = lib.polled_ns(), lib.wasted_ns(), lib.policy().limit_ns
    lib.host_takes_ns = 5 * SECOND
    lib.idle(10 * SECOND, 0)
    lib.idle(100 * US, 0)  # accounts for the one before
    assert lib.polled_ns() - polled_ns < 2 * limit_ns + 100 * US
    assert lib.wasted_ns() - wasted_ns < limit_ns


def test_a_call_puts_a_deliberate_halt_off_and_does_not_end_it(lib: Any) -> None:
    before, halts = lib.halted_cycles(), lib.deliberate_halts()
    for _ in range(3000):
        lib.call(1, 50)  # when the CPU is about to halt
        lib.idle(100 * US, 0)
    lib.call(1, 50)  # ends the last one
    assert lib.halted_cycles() - before > 5
    assert lib.deliberate_halts() - halts == lib.halted_cycles() - before
    assert lib.aborts() == 0


@pytest.mark.parametrize("library", ["module"], indirect=True)
def test_a_wakeup_before_a_deliberate_halt_aborts_it(lib: Any) -> None:
    before = lib.halted_cycles()
    for _ in range(3000):
        lib.idle(50, 0)
    assert lib.halted_cycles() - before == lib.aborts() > 5


def test_calls_that_wake_no_task_are_one_period_that_is_polled_once(lib: Any) -> None:
    polls, hits, polled_ns = lib.polls(), lib.hits(), lib.polled_ns()
    before, limit_ns = policy(lib), lib.policy().limit_ns
    lib.call(1, 30 * US)  # accounts for the last one before
    after = policy(lib)
    lib.call(1000, 30 * US)
    assert policy(lib) == after != before
    assert lib.polls() == polls + 1
    assert lib.hits() == hits + 1  # that of the last one before
    assert limit_ns <= lib.polled_ns() - polled_ns <= limit_ns + 200 * US
    # And a task that comes soon after a call is caught by what is left of the limit.
    lib.idle(100 * US, 0)
    hits = lib.hits()
    lib.call(1, 30 * US)
    lib.idle(30 * US, 0)
    lib.idle(100 * US, 0)  # accounts for the one before
    assert lib.hits() == hits + 1


@pytest.mark.parametrize("reading_ns", [20, 300, 1 * US, 5 * US])
def test_a_poll_spends_little_time_with_a_slow_clock(lib: Any, reading_ns: int) -> None:
    """As HPET or the ACPI PM timer, where x86 has no usable TSC."""
    for_ns, hits = lib.policy().limit_ns - 10 * US, lib.hits()
    assert for_ns > 100 * US
    lib.reading_takes_ns, lib.readings = reading_ns, 0
    lib.idle(for_ns, 0)
    assert lib.readings * reading_ns < 0.2 * for_ns
    assert lib.gap_ns() == 0
    lib.idle(100 * US, 0)  # accounts for the one before
    assert lib.hits() > hits


@pytest.mark.parametrize("library", ["module"], indirect=True)
def test_work_of_a_device_ends_a_period_and_no_other_interrupt_does(lib: Any) -> None:
    def polls_meanwhile(work: int) -> int:
        before = lib.polls()
        lib.interrupts(100, 30 * US, work)
        return int(lib.polls() - before)

    assert polls_meanwhile(0) <= 2
    assert polls_meanwhile(1) >= 50


@pytest.mark.parametrize("library", ["module"], indirect=True)
def test_no_result_takes_halts_from_cpus_whose_limit_allows_them(library: Any) -> None:
    library.begin(2)
    library.halt_takes(25 * US)
    assert library.advertised_us() == 32
    library.qos_limit_ns = 32 * US  # as who reads that may ask for
    library.halt_takes(60 * US)
    assert library.advertised_us() == 32
    library.qos_limit_ns = 50 * US
    library.halt_takes(60 * US)
    assert library.advertised_us() == 50
    library.qos_limit_ns = 20 * US  # forbids HALT anyway
    library.halt_takes(60 * US)
    assert library.advertised_us() == 75
    library.qos_limit_ns = 80 * US
    library.halt_takes(10 * US)
    assert library.advertised_us() == 13


def result(library: Any, halt_us: int) -> tuple[int, int]:
    """Return how often the log warns of a result, and what is advertised then, in us."""
    before = library.warnings_once
    library.halt_takes(halt_us * US)
    return library.warnings_once - before, library.advertised_us()


@pytest.mark.parametrize("library", ["module"], indirect=True)
def test_the_log_says_where_halt_takes_longer_than_a_limit_that_allows_it(library: Any) -> None:
    library.begin(2)
    library.halt_takes(25 * US)
    library.qos_limit_ns = 32 * US
    allowed = [result(library, x) for x in (25, 32, 33, 60)]
    assert allowed == [(0, 32), (0, 32), (1, 32), (1, 32)]
    library.qos_limit_ns = 20 * US  # forbids HALT anyway
    assert result(library, 40) == (0, 50)


@pytest.mark.parametrize("library", ["module"], indirect=True)
def test_a_limit_that_a_result_keeps_is_not_too_low(library: Any) -> None:
    """The margin is no time that a halt takes."""
    library.begin(2)
    for halt_us in (1, 16):
        library.halt_takes(halt_us * US)
    assert library.advertised_us() == 20
    library.qos_limit_ns = 30 * US
    assert [result(library, x) for x in (26, 60)] == [(0, 30), (1, 30)]
    said = bytes(FFI.buffer(library.warned))
    assert said.startswith(b"HALT takes 60 us now; a latency limit of 30 us allows it")


@pytest.mark.parametrize("library", ["module"], indirect=True)
def test_a_cpu_that_idles_without_the_driver_is_not_measured(library: Any) -> None:
    library.begin(2)
    library.memory_is_short = True
    library.come_online(1)
    library.memory_is_short = False
    assert [library.is_measured(x) for x in (0, 1)] == [True, False]
    library.come_online(1)
    assert library.is_measured(1)


@pytest.mark.parametrize(
    ("cpus", "enough"), [(1, 1), (2, 2), (3, 2), (8, 2), (9, 3), (12, 3), (13, 4)]
)
def test_the_machine_is_not_measured_where_a_quarter_of_its_cpus_want_for_cores(
    library: Any, cpus: int, enough: int
) -> None:
    library.begin(cpus)
    for cpu in range(enough):
        assert library.measures()
        library.contend(cpu, SECOND)
        library.judge()
    assert not library.measures()


def test_nor_where_their_pauses_outlast_what_counts_for_the_host(library: Any) -> None:
    """It counts as short for 16 s; a pause that began later goes on after that."""
    library.begin(2)

    def contend_all(seconds: int) -> None:
        for cpu in range(2):
            library.contend(cpu, seconds * SECOND)
            library.judge()

    contend_all(1)
    library.idle(5 * SECOND, 0)
    contend_all(16)
    library.idle(12 * SECOND, 0)
    assert not library.measures()
    library.idle(5 * SECOND, 0)
    assert library.measures()
