# SPDX-License-Identifier: GPL-2.0-only
"""cpuidle-lightsleep in guests: its selftest on every kernel, and what it refuses."""

import pytest
from kernels import EACH_KERNEL
from ktap import SKIP_BESIDE_OTHER_WORK, Result, run_selftest

from lightsleep.lab.boot.guest import Guest, boot
from lightsleep.lab.boot.hosttime import Load
from lightsleep.lab.boot.machine import Machine

pytestmark = pytest.mark.boot

SELFTEST = "cpuidle-lightsleep.sh"
ENOUGH_S = 300.0
SELFTEST_S = 1800.0
"""On a busy host, each attempt to measure takes 2 s, and there are a hundred."""
SKIP_WITHOUT_CORES = {"obeys_latency_qos", "obeys_resume_latency", "says_why_it_cannot_measure"}
"""Where the guest's CPUs notice that their host is short of cores."""
SKIP_ELSEWHERE = {"goes_offline_while_a_measurement_waits", "leaves_isolated_cpus_alone"}
"""Those that need more CPUs, or an isolated one."""
BUSY_PCT = 10.0
"""Other work on the host, in % of all its CPUs, that may drown it."""


def selftest(guest: Guest, *tests: str) -> Result:
    """Run the driver's selftest; none may fail, or skip without a reason."""
    load = Load([guest.vm.process.pid])
    result = run_selftest(guest, SELFTEST, *tests, timeout_s=SELFTEST_S)
    other_pct = load.percent()
    assert not result.failed
    drowned = SKIP_BESIDE_OTHER_WORK if other_pct >= BUSY_PCT else set()
    expected = SKIP_WITHOUT_CORES | SKIP_ELSEWHERE | drowned
    assert set(result.skipped) <= expected, f"{other_pct:.0f} % other work"
    return result


@pytest.mark.parametrize("kernel", EACH_KERNEL)
def test_selftest(kernel: str) -> None:
    with boot(Machine(kernel=kernel, accel="tcg"), f"driver-{kernel}", ENOUGH_S) as guest:
        selftest(guest)


def test_hotplug_of_every_cpu_with_more_of_them() -> None:
    with boot(Machine(vcpus=4, accel="tcg"), "driver-4-cpus", ENOUGH_S) as guest:
        result = selftest(
            guest,
            *("survives_hotplug_under_load", "measures_during_hotplug"),
            "goes_offline_while_a_measurement_waits",
        )
    assert not result.skipped


def test_work_keeps_off_an_isolated_cpu() -> None:
    with boot(Machine(append="isolcpus=1", accel="tcg"), "driver-isolated", ENOUGH_S) as guest:
        result = selftest(guest, "leaves_isolated_cpus_alone")
    assert not result.skipped


def test_a_single_cpu_measures_by_timer() -> None:
    with boot(Machine(vcpus=1, accel="tcg"), "driver-1-cpu", ENOUGH_S) as guest:
        selftest(guest, "binds_and_names_its_states", "measures_the_halt_cost")


def test_a_poll_ends_where_the_clock_of_the_scheduler_stands_still_without_the_tick() -> None:
    with boot(Machine(append="tsc=unstable", accel="tcg"), "driver-clock", ENOUGH_S) as guest:
        selftest(guest, "halts_after_the_longest_poll")


@pytest.mark.parametrize("option", ["idle=poll", "idle=halt", "idle=nomwait"])
def test_refuses_an_idle_override_by_name(option: str) -> None:
    with boot(Machine(append=option, accel="tcg"), "driver-override", ENOUGH_S) as guest:
        result = run_selftest(guest, SELFTEST, "refuses_idle_override")
    assert result.passed == ["refuses_idle_override"]


@pytest.mark.parametrize(("words", "loads"), [("idle=yield", False), ("idle=nop idle=wfi", True)])
def test_halts_on_arm64_as_the_command_line_says(words: str, loads: bool) -> None:
    machine = Machine(arch="aarch64", kernel="backports", append=words, accel="tcg")
    with boot(machine, "driver-arm64-override", ENOUGH_S) as guest:
        if loads:
            selftest(guest, "binds_and_names_its_states")
            return
        result = run_selftest(guest, SELFTEST, "refuses_idle_override")
    assert result.passed == ["refuses_idle_override"]


def test_refuses_without_cpuidle() -> None:
    with boot(Machine(append="cpuidle.off=1", accel="tcg"), "driver-off", ENOUGH_S) as guest:
        result = run_selftest(guest, SELFTEST, "refuses_without_cpuidle")
    assert result.passed == ["refuses_without_cpuidle"]


@pytest.mark.more
def test_refuses_where_halting_stops_the_timer() -> None:
    # Kernels before 6.15 have no option that makes a CPU one of those.
    machine = Machine(kernel="backports", append="setcpuid=apic_c1e", accel="tcg")
    with boot(machine, "driver-c1e", ENOUGH_S) as guest:
        result = run_selftest(guest, SELFTEST, "refuses_where_halting_stops_the_timer")
    assert result.passed == ["refuses_where_halting_stops_the_timer"]
