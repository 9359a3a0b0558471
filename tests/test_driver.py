# SPDX-License-Identifier: GPL-2.0-only
"""cpuidle-lightsleep in guests: its selftest on every kernel, and what it refuses."""

import pytest
from kernels import EACH_KERNEL
from ktap import run_selftest

from lightsleep.lab.guest import Machine, boot

pytestmark = pytest.mark.boot

SELFTEST = "cpuidle-lightsleep.sh"
ENOUGH_S = 300.0
SKIPS_ON_A_BUSY_HOST = {
    "obeys_latency_qos",
    "obeys_resume_latency",
    "says_why_it_cannot_measure",
}


@pytest.mark.parametrize("kernel", EACH_KERNEL)
def test_selftest(kernel: str) -> None:
    with boot(Machine(kernel=kernel, accel="tcg"), f"driver-{kernel}", ENOUGH_S) as guest:
        result = run_selftest(guest, SELFTEST)
    assert not result.failed
    assert set(result.skipped) <= SKIPS_ON_A_BUSY_HOST


def test_hotplug_of_every_cpu_with_more_of_them() -> None:
    with boot(Machine(vcpus=4, accel="tcg"), "driver-4-cpus", ENOUGH_S) as guest:
        result = run_selftest(
            guest, SELFTEST, "survives_hotplug_under_load", "measures_during_hotplug"
        )
    assert not result.failed
    assert not result.skipped


def test_a_single_cpu_measures_by_timer() -> None:
    with boot(Machine(vcpus=1, accel="tcg"), "driver-1-cpu", ENOUGH_S) as guest:
        result = run_selftest(
            guest, SELFTEST, "binds_and_names_its_states", "measures_the_halt_cost"
        )
    assert not result.failed


def test_a_poll_ends_where_the_clock_of_the_scheduler_stands_still_without_the_tick() -> None:
    with boot(Machine(append="tsc=unstable", accel="tcg"), "driver-clock", ENOUGH_S) as guest:
        result = run_selftest(guest, SELFTEST, "halts_after_the_longest_poll")
    assert not result.failed


@pytest.mark.parametrize("option", ["idle=poll", "idle=halt", "idle=nomwait"])
def test_refuses_an_idle_override_by_name(option: str) -> None:
    with boot(Machine(append=option, accel="tcg"), "driver-override", ENOUGH_S) as guest:
        result = run_selftest(guest, SELFTEST, "refuses_idle_override")
    assert result.passed == ["refuses_idle_override"]


def test_refuses_without_cpuidle() -> None:
    with boot(Machine(append="cpuidle.off=1", accel="tcg"), "driver-off", ENOUGH_S) as guest:
        result = run_selftest(guest, SELFTEST, "refuses_without_cpuidle")
    assert result.passed == ["refuses_without_cpuidle"]
