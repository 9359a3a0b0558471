# SPDX-License-Identifier: GPL-2.0-only
"""test_cpuidle_latency in guests: its selftest everywhere, with and without a device."""

import pytest
from kernels import FIRST, ON_X86_64, RT
from ktap import run_selftest

from lightsleep.lab.boot.accel import Wanted
from lightsleep.lab.boot.guest import boot
from lightsleep.lab.boot.machine import Devices, Machine
from lightsleep.lab.kernels.config import ARCHES

pytestmark = pytest.mark.boot

SELFTEST = "test-cpuidle_latency.sh"
ENOUGH_S = 300.0

# Each load attaches to tracepoints, so the kernel patches its code; see test_synthetic.py.
ACCEL: dict[str, Wanted] = {"x86_64": "tcg-single", "aarch64": "tcg", "ppc64le": "tcg"}

SKIPPED = {
    # Suspend can only be tested in a kernel with CONFIG_PM_DEBUG, as that with PREEMPT_RT.
    "x86_64": ["refuses_without_a_device", "survives_suspend"],
    # A stock kernel does not spare a CPU that polls the interrupt.
    "aarch64": [
        "wakes_by_store_who_polls",
        "agrees_with_the_scheduler",
        "refuses_without_a_device",
        "survives_suspend",
    ],
    # The firmware's own idle driver has the CPUs.
    "ppc64le": [
        "wakes_by_store_who_polls",
        "agrees_with_the_scheduler",
        "ends_with_a_wake_that_does_not_come",
        "ends_with_a_wake_that_comes_late",
        "refuses_without_a_device",
    ],
}

SETTINGS = """
    event=events/sched/sched_wake_idle_without_ipi
    mountpoint -q /sys/kernel/tracing || mount -t tracefs none /sys/kernel/tracing
    cd /sys/kernel/tracing
    cat trace_clock $event/enable $event/filter /proc/sys/kernel/sched_rt_runtime_us
    [ ! -e /sys/power/pm_test ] || cat /sys/power/pm_test
"""


def with_device(arch: str, append: str = "", kernel: str = FIRST) -> Machine:
    device = f"virtio-rng-pci,bus={ARCHES[arch].bus}"
    return Machine(
        arch=arch,
        kernel=kernel,
        append=append,
        accel=ACCEL[arch],
        devices=Devices(device=(device,)),
    )


@pytest.mark.parametrize(("arch", "kernel"), [*ON_X86_64, ("aarch64", FIRST), ("ppc64le", FIRST)])
def test_selftest(arch: str, kernel: str) -> None:
    with boot(with_device(arch, kernel=kernel), f"latency-{arch}-{kernel}", ENOUGH_S) as guest:
        before = guest.run(["sh", "-c", SETTINGS]).stdout
        result = run_selftest(guest, SELFTEST)
        after = guest.run(["sh", "-c", SETTINGS]).stdout
    assert not result.failed
    assert result.skipped == SKIPPED[arch][: 1 if kernel == RT else None]
    assert after == before


def test_where_interrupts_are_threads() -> None:
    with boot(with_device("x86_64", "threadirqs"), "latency-threadirqs", ENOUGH_S) as guest:
        result = run_selftest(guest, SELFTEST, "wakes_by_device", "ends_with_the_device")
    assert result.passed == ["wakes_by_device", "ends_with_the_device"]


def test_without_a_device() -> None:
    with boot(Machine(accel=ACCEL["x86_64"]), "latency-no-device", ENOUGH_S) as guest:
        result = run_selftest(guest, SELFTEST, "wakes_by_device", "refuses_without_a_device")
    assert (result.skipped, result.passed) == (["wakes_by_device"], ["refuses_without_a_device"])


@pytest.mark.more
def test_ten_thousand_times_garbage() -> None:
    with boot(with_device("x86_64"), "latency-garbage", ENOUGH_S) as guest:
        result = run_selftest(guest, SELFTEST, "survives_garbage", GARBAGE=10_000)
    assert result.passed == ["survives_garbage"]
