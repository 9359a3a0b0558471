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

LEFT = """\
cd /sys/kernel/tracing
mount -t tracefs none . 2> /dev/null || busybox mount -t tracefs none . 2> /dev/null
cd /sys/kernel/tracing
cat tracing_on options/record-cmd events/timer/enable
ls instances
ls -d /tmp/timers /tmp/there /tmp/back /tmp/tmp.* 2> /dev/null
true
"""
"""Prints what the tracer does, and what a test that runs as root must not have left."""


@pytest.mark.parametrize(
    ("arch", "kernel"), [*ON_X86_64, pytest.param("aarch64", FIRST, marks=pytest.mark.more)]
)
def test_selftest(arch: str, kernel: str) -> None:
    machine = Machine(arch=arch, kernel=kernel, accel=ACCEL)
    with boot(machine, f"synthetic-{arch}-{kernel}", ENOUGH_S) as guest:
        before = guest.run(["sh", "-c", LEFT]).stdout
        result = run_selftest(guest, SELFTEST)
        after = guest.run(["sh", "-c", LEFT]).stdout
    assert not result.failed
    assert not result.skipped
    assert before.startswith("1\n1\n0\n")
    assert after == before


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
