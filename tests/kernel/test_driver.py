# SPDX-License-Identifier: GPL-2.0-only
"""cpuidle-lightsleep in guests: its selftest on every kernel, and what it refuses."""

import pytest
from booted import boot
from kernels import EACH_KERNEL, FIRST
from ktap import all_but, run_selftest

from lightsleep.lab.boot.machine import Machine

pytestmark = pytest.mark.boot

SELFTEST = "cpuidle-lightsleep.sh"
ENOUGH_S = 300.0
SELFTEST_S = 1800.0
"""On a busy host, each load tries to measure for 2 s."""
FEWER_ROUNDS, ROUNDS = 5, 100
"""How often to load and unload: in make check, beside other tests, and in check-more."""
SELFTESTS = SELFTEST, "cpuidle-synthetic.sh"
"""Of drivers that refuse to load where the command line says how CPUs idle."""

SKIP_WITHOUT_CORES = {
    *("enters_both_states", "obeys_latency_qos", "obeys_resume_latency"),
    *("counts_a_period_once", "polls_for_no_request_where_polls_are_forbidden"),
}
"""Where the guest's CPUs notice that their host is short of cores, as beside other guests:
test_driver_cost.py runs these alone."""


@pytest.mark.parametrize("kernel", EACH_KERNEL)
def test_selftest(kernel: str) -> None:
    with boot(Machine(kernel=kernel, accel="tcg"), f"driver-{kernel}", ENOUGH_S) as guest:
        rounds = FEWER_ROUNDS if kernel == FIRST else ROUNDS
        names = all_but(SELFTEST, SKIP_WITHOUT_CORES)
        result = run_selftest(guest, SELFTEST, *names, timeout_s=SELFTEST_S, ROUNDS=rounds)
    assert not result.failed
    assert not result.skipped


def test_suspend_to_idle_is_not_polled() -> None:
    with boot(Machine(accel="tcg"), "driver-suspend", ENOUGH_S) as guest:
        result = run_selftest(guest, SELFTEST, "does_not_poll_in_suspend_to_idle")
    assert result.passed == ["does_not_poll_in_suspend_to_idle"]


# The drivers refuse each in the same place: make check boots a guest for one of them.
@pytest.mark.parametrize(
    "option",
    [
        "idle=poll",
        pytest.param("idle=halt", marks=pytest.mark.more),
        pytest.param("idle=nomwait", marks=pytest.mark.more),
    ],
)
def test_refuses_an_idle_override_by_name(option: str) -> None:
    with boot(Machine(append=option, accel="tcg"), "driver-override", ENOUGH_S) as guest:
        results = [run_selftest(guest, x, "refuses_idle_override") for x in SELFTESTS]
    assert [x.passed for x in results] == [["refuses_idle_override"]] * 2


@pytest.mark.more
@pytest.mark.parametrize(("words", "loads"), [("idle=yield", False), ("idle=nop idle=wfi", True)])
def test_halts_on_arm64_as_the_command_line_says(words: str, loads: bool) -> None:
    machine = Machine(arch="aarch64", kernel="backports", append=words, accel="tcg")
    with boot(machine, "driver-arm64-override", ENOUGH_S) as guest:
        if loads:
            result = run_selftest(guest, SELFTEST, "binds_and_names_its_states")
            assert result.passed == ["binds_and_names_its_states"]
            return
        result = run_selftest(guest, SELFTEST, "refuses_idle_override")
    assert result.passed == ["refuses_idle_override"]


# The function that refuses is the one of those options, which is left at another line.
@pytest.mark.more
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
