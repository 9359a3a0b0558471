# SPDX-License-Identifier: GPL-2.0-only
"""test_cpuidle_latency in guests: its selftest on every kernel, with and without a device."""

import pytest
from ktap import run_selftest

from lightsleep.lab.accel import Wanted
from lightsleep.lab.config import KERNELS
from lightsleep.lab.guest import Machine, boot

pytestmark = pytest.mark.boot

SELFTEST = "test-cpuidle_latency.sh"
ENOUGH_S = 300.0
DEVICES = ("virtio-rng-pci",)

# Each load attaches to tracepoints, so the kernel patches its code; see test_synthetic.py.
ACCEL: Wanted = "tcg-single"


@pytest.mark.parametrize("kernel", KERNELS)
def test_selftest(kernel: str) -> None:
    machine = Machine(kernel=kernel, accel=ACCEL, devices=DEVICES)
    with boot(machine, f"latency-{kernel}", ENOUGH_S) as guest:
        result = run_selftest(guest, SELFTEST)
    assert not result.failed
    assert result.skipped == ["refuses_without_a_device"]


def test_without_a_device() -> None:
    with boot(Machine(accel=ACCEL), "latency-no-device", ENOUGH_S) as guest:
        result = run_selftest(guest, SELFTEST, "names_its_sources", "refuses_without_a_device")
    assert result.passed == ["names_its_sources", "refuses_without_a_device"]
