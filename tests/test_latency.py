# SPDX-License-Identifier: GPL-2.0-only
"""test_cpuidle_latency in guests: its selftest everywhere, with and without a device."""

import pytest
from kernels import FIRST, ON_X86_64
from ktap import run_selftest

from lightsleep.lab.accel import Wanted
from lightsleep.lab.config import ARCHES
from lightsleep.lab.guest import boot
from lightsleep.lab.machine import Devices, Machine

pytestmark = pytest.mark.boot

SELFTEST = "test-cpuidle_latency.sh"
ENOUGH_S = 300.0

# Each load attaches to tracepoints, so the kernel patches its code; see test_synthetic.py.
ACCEL: dict[str, Wanted] = {"x86_64": "tcg-single", "aarch64": "tcg", "ppc64le": "tcg"}

SKIPPED = {
    # Suspend can only be tested in a kernel with CONFIG_PM_DEBUG.
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
        "refuses_without_a_device",
    ],
}


@pytest.mark.parametrize(("arch", "kernel"), [*ON_X86_64, ("aarch64", FIRST), ("ppc64le", FIRST)])
def test_selftest(arch: str, kernel: str) -> None:
    device = f"virtio-rng-pci,bus={ARCHES[arch].bus}"
    machine = Machine(
        arch=arch, kernel=kernel, accel=ACCEL[arch], devices=Devices(device=(device,))
    )
    with boot(machine, f"latency-{arch}-{kernel}", ENOUGH_S) as guest:
        result = run_selftest(guest, SELFTEST)
    assert not result.failed
    assert result.skipped == SKIPPED[arch]


def test_without_a_device() -> None:
    with boot(Machine(accel=ACCEL["x86_64"]), "latency-no-device", ENOUGH_S) as guest:
        result = run_selftest(guest, SELFTEST, "wakes_by_device", "refuses_without_a_device")
    assert (result.skipped, result.passed) == (["wakes_by_device"], ["refuses_without_a_device"])


@pytest.mark.more
def test_ten_thousand_times_garbage() -> None:
    device = f"virtio-rng-pci,bus={ARCHES['x86_64'].bus}"
    machine = Machine(accel=ACCEL["x86_64"], devices=Devices(device=(device,)))
    with boot(machine, "latency-garbage", ENOUGH_S) as guest:
        result = run_selftest(guest, SELFTEST, "survives_garbage", GARBAGE=10_000)
    assert result.passed == ["survives_garbage"]
