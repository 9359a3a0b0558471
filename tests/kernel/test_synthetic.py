# SPDX-License-Identifier: GPL-2.0-only
"""cpuidle-synthetic in guests: its selftest on every kernel. What it refuses: test_driver.py."""

import pytest
from booted import boot
from kernels import FIRST, ON_X86_64
from ktap import run_selftest

from lightsleep.lab.boot.accel import Wanted
from lightsleep.lab.boot.machine import Machine

pytestmark = pytest.mark.boot

SELFTEST = "cpuidle-synthetic.sh"
ENOUGH_S = 300.0

# Each load attaches to tracepoints, so the kernel patches its code again and again. Under
# multi-threaded TCG that may go wrong; see lightsleep.lab.boot.splat.emulator_raced().
ACCEL: Wanted = "tcg-single"


@pytest.mark.parametrize(
    ("arch", "kernel"), [*ON_X86_64, pytest.param("aarch64", FIRST, marks=pytest.mark.more)]
)
def test_selftest(arch: str, kernel: str) -> None:
    machine = Machine(arch=arch, kernel=kernel, accel=ACCEL)
    with boot(machine, f"synthetic-{arch}-{kernel}", ENOUGH_S) as guest:
        result = run_selftest(guest, SELFTEST)
    assert not result.failed
    assert not result.skipped


def test_states_on_arm64() -> None:
    """An x86_64 CPU takes the interrupt that wakes it within the halt, an arm64 CPU after it."""
    machine = Machine(arch="aarch64", kernel=FIRST, accel=ACCEL)
    with boot(machine, "synthetic-states", ENOUGH_S) as guest:
        result = run_selftest(
            guest,
            SELFTEST,
            *("enters_each_state", "delays_a_woken_thread", "delays_timers"),
        )
    assert not result.failed
    assert not result.skipped
