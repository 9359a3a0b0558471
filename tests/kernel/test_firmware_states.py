# SPDX-License-Identifier: GPL-2.0-only
"""Machines of arm64 whose firmware has idle states, as servers are.

The states are the same, entered by PSCI: psci_idle has them of a device tree, acpi_idle of ACPI.
The idle loop polls before either.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from ktap import run_selftest

from lightsleep.lab.boot.guest import Guest, boot
from lightsleep.lab.boot.initramfs import GUEST_MODULES
from lightsleep.lab.boot.machine import Described, Machine

pytestmark = [pytest.mark.boot, pytest.mark.build, pytest.mark.more]

CPU = "/sys/devices/system/cpu"
BOOT_S = 600.0
PIPE = ("perf", "bench", "sched", "pipe", "-l", "2000")


@dataclass(frozen=True)
class Firmware:
    described: Described
    driver: str
    states: tuple[str, ...]

    def machine(self, kernel: str, append: str = "") -> Machine:
        return Machine(
            arch="aarch64", kernel=kernel, append=append, accel="tcg", idle_state=self.described
        )


TREE = Firmware("devicetree", "psci_idle", ("WFI", "cpu-sleep"))
ACPI = Firmware("acpi", "acpi_idle", ("LPI-0", "LPI-1"))
either = pytest.mark.parametrize("firmware", [TREE, ACPI], ids=["devicetree", "acpi"])


def of_states(guest: Guest, what: str) -> list[str]:
    """Return an attribute of each of the first CPU's idle states."""
    return guest.run(["sh", "-c", f"cat {CPU}/cpu0/cpuidle/state*/{what}"]).stdout.split()


def check_states(guest: Guest, firmware: Firmware) -> None:
    """Check the driver, the names and order of the states, and that both are in use."""
    assert guest.read_text(f"{CPU}/cpuidle/current_driver") == f"{firmware.driver}\n"
    assert of_states(guest, "name") == list(firmware.states)
    assert of_states(guest, "residency") == ["1", "500"]
    before = [int(x) for x in of_states(guest, "usage")]
    guest.run(PIPE, timeout_s=120)
    guest.run(["sleep", "1"])
    after = [int(x) for x in of_states(guest, "usage")]
    assert all(now > then for now, then in zip(after, before, strict=True))


@either
@pytest.mark.parametrize("kernel", ["6.12", "6.12-series"])
def test_firmware_s_driver_has_the_cpus(kernel: str, firmware: Firmware) -> None:
    with boot(firmware.machine(kernel), f"psci-{firmware.described}", BOOT_S) as guest:
        check_states(guest, firmware)
        done = guest.run(["insmod", f"{GUEST_MODULES}/cpuidle_lightsleep.ko"], check=False)
        assert done.rc != 0
        assert f"the cpuidle driver {firmware.driver} is in use" in guest.run(["dmesg"]).stdout


@either
def test_the_idle_loop_polls_before_firmware_s_states(firmware: Firmware) -> None:
    machine = firmware.machine("6.12-series", "idle_poll.enabled=1")
    with boot(machine, f"idle-poll-{firmware.described}", BOOT_S) as guest:
        check_states(guest, firmware)
        result = run_selftest(guest, "idle_poll.sh", "polls_when_on", "does_not_poll_at_rest")
        assert (result.failed, result.skipped) == ({}, [])
        assert guest.read_text(f"{CPU}/cpuidle/current_driver") == f"{firmware.driver}\n"
