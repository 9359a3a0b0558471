# SPDX-License-Identifier: GPL-2.0-only
"""What cpuidle-lightsleep measures that a halt costs, and what follows: its selftest in guests."""

import time
from dataclasses import replace

import pytest
from booted import boot
from kernels import EACH_KERNEL
from ktap import SKIP_BESIDE_OTHER_WORK, Result, run_selftest
from partitions import NOTICED_S, isolated, talk
from test_driver import SKIP_WITHOUT_CORES as DRIVER_SKIPS_WITHOUT_CORES

from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.boot.hosttime import Load
from lightsleep.lab.boot.machine import Machine

pytestmark = pytest.mark.boot

FOUR_CPUS = Machine(vcpus=4, accel="tcg")
ISOLATED = Machine(vcpus=3, append="isolcpus=1-2", accel="tcg")
ONE_CPU = Machine(vcpus=1, accel="tcg")
OTHER_CLOCK = Machine(append="tsc=unstable", accel="tcg")

DRIVER = "cpuidle-lightsleep.sh"
SELFTEST = "cpuidle-lightsleep-cost.sh"
ENOUGH_S = 300.0
SELFTEST_S = 900.0
"""On a busy host, each attempt to measure takes 2 s, and there may be hundreds."""
SKIP_WITHOUT_CORES = {"says_why_it_cannot_measure"}
"""Where the guest's CPUs notice that their host is short of cores."""
SKIP_BY_COST = {"probes_where_polls_are_too_short"}
"""Where wakeups take so long, or halts cost so much or so little, that there is no such wait."""
SKIP_ELSEWHERE = {"goes_offline_while_a_measurement_waits", "leaves_isolated_cpus_alone"}
"""Those that need more CPUs, or an isolated one."""
BUSY_PCT = 10.0
"""Other work on the host, in % of all its CPUs, that may drown it."""


def selftest(guest: Guest, *tests: str) -> Result:
    """Run the selftest; none may fail, or skip without a reason."""
    load = Load([guest.vm.process.pid])
    result = run_selftest(guest, SELFTEST, *tests, timeout_s=SELFTEST_S)
    other_pct = load.percent()
    assert not result.failed
    drowned = SKIP_BESIDE_OTHER_WORK if other_pct >= BUSY_PCT else set()
    expected = SKIP_WITHOUT_CORES | SKIP_BY_COST | SKIP_ELSEWHERE | drowned
    assert set(result.skipped) <= expected, f"{other_pct:.0f} % other work"
    return result


@pytest.mark.parametrize(
    "machine", [FOUR_CPUS, ISOLATED, ONE_CPU, OTHER_CLOCK], ids=["4", "isolated", "1", "clock"]
)
def test_it_boots(machine: Machine) -> None:
    """Beside other guests, in make check: the tests that are alone go on from there."""
    with boot(machine, "driver-boot", ENOUGH_S):
        pass


@pytest.mark.alone
@pytest.mark.parametrize("kernel", EACH_KERNEL)
def test_selftest(kernel: str) -> None:
    with boot(Machine(kernel=kernel, accel="tcg"), f"cost-{kernel}", ENOUGH_S) as guest:
        # Beside other guests, the driver may find its host short of cores, and these skip.
        polls = run_selftest(guest, DRIVER, *sorted(DRIVER_SKIPS_WITHOUT_CORES))
        selftest(guest)
    assert not polls.failed


@pytest.mark.alone
def test_hotplug_of_every_cpu_with_more_of_them() -> None:
    with boot(FOUR_CPUS, "driver-4-cpus", ENOUGH_S) as guest:
        driver = run_selftest(guest, DRIVER, "survives_hotplug_under_load")
        measured = selftest(
            guest, "measures_during_hotplug", "goes_offline_while_a_measurement_waits"
        )
    assert not driver.failed
    assert not measured.skipped


@pytest.mark.alone
def test_work_keeps_off_isolated_cpus() -> None:
    with boot(ISOLATED, "driver-isolated", ENOUGH_S) as guest:
        result = selftest(guest, "leaves_isolated_cpus_alone")
    assert not result.skipped


@pytest.mark.alone
def test_a_cpu_that_a_partition_isolates_is_not_asked() -> None:
    machine = replace(FOUR_CPUS, modules=("cpuidle_lightsleep",))
    with boot(machine, "driver-partition", ENOUGH_S) as guest:

        def asked() -> bool:
            """Return whether CPU 1 halts deliberately in one of ten talks."""
            file = "/sys/devices/system/cpu/cpu1/lightsleep/deliberate_halts"
            before = int(guest.read_text(file))
            for _ in range(10):
                talk(guest)
                if int(guest.read_text(file)) > before:
                    return True
            return False

        assert asked()
        with isolated(guest):
            time.sleep(NOTICED_S)
            assert not asked()
        time.sleep(NOTICED_S)
        assert asked()


@pytest.mark.alone
def test_a_single_cpu_measures_by_timer() -> None:
    with boot(ONE_CPU, "driver-1-cpu", ENOUGH_S) as guest:
        driver = run_selftest(guest, DRIVER, "binds_and_names_its_states")
        selftest(guest, "measures_the_halt_cost")
    assert driver.passed == ["binds_and_names_its_states"]


@pytest.mark.alone
def test_a_poll_ends_where_the_clock_of_the_scheduler_stands_still_without_the_tick() -> None:
    with boot(OTHER_CLOCK, "driver-clock", ENOUGH_S) as guest:
        selftest(guest, "halts_after_the_longest_poll")
