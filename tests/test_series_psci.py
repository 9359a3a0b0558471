# SPDX-License-Identifier: GPL-2.0-only
"""Machines of arm64 whose firmware has idle states: POLL before them, and without.

The states are the same, entered by PSCI: psci_idle has them of a device tree, acpi_idle of ACPI.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from lightsleep.lab.acpi import CHANGED
from lightsleep.lab.guest import Guest, boot
from lightsleep.lab.initramfs import GUEST_MODULES
from lightsleep.lab.machine import Described, Machine

pytestmark = [pytest.mark.boot, pytest.mark.build, pytest.mark.more]

CPU = "/sys/devices/system/cpu"
BOOT_S = 600.0
PIPE = ("perf", "bench", "sched", "pipe", "-l", "2000")


@dataclass(frozen=True)
class Firmware:
    described: Described
    driver: str
    states: tuple[str, ...]
    option: str
    """What has the driver poll, for so many us."""

    def machine(self, kernel: str, append: str = "") -> Machine:
        return Machine(
            arch="aarch64", kernel=kernel, append=append, accel="tcg", idle_state=self.described
        )


TREE = Firmware("devicetree", "psci_idle", ("WFI", "cpu-sleep"), "cpuidle_psci.poll_us=200")
ACPI = Firmware("acpi", "acpi_idle", ("LPI-0", "LPI-1"), "processor.poll_us=200")
either = pytest.mark.parametrize("firmware", [TREE, ACPI], ids=["devicetree", "acpi"])


def of_states(guest: Guest, what: str, cpu: int = 0) -> list[str]:
    """Return an attribute of each of a CPU's idle states."""
    return guest.run(["sh", "-c", f"cat {CPU}/cpu{cpu}/cpuidle/state*/{what}"]).stdout.split()


def check_states(guest: Guest, states: list[str]) -> None:
    """Check the names of the states, and that the first and the last are in use."""
    assert of_states(guest, "name") == states
    before = [int(x) for x in of_states(guest, "usage")]
    guest.run(PIPE, timeout_s=120)
    guest.run(["sleep", "1"])
    after = [int(x) for x in of_states(guest, "usage")]
    assert after[0] > before[0]
    assert after[-1] > before[-1]


@either
@pytest.mark.parametrize("kernel", ["6.12", "6.12-series"])
def test_firmware_s_driver_has_the_cpus(kernel: str, firmware: Firmware) -> None:
    with boot(firmware.machine(kernel), f"psci-{firmware.described}", BOOT_S) as guest:
        assert guest.read_text(f"{CPU}/cpuidle/current_driver") == f"{firmware.driver}\n"
        check_states(guest, list(firmware.states))
        assert of_states(guest, "residency") == ["1", "500"]
        done = guest.run(["insmod", f"{GUEST_MODULES}/cpuidle_lightsleep.ko"], check=False)
        assert done.rc != 0
        assert f"the cpuidle driver {firmware.driver} is in use" in guest.run(["dmesg"]).stdout


@either
def test_it_polls_where_it_is_told_to(firmware: Firmware) -> None:
    machine = firmware.machine("6.12-series", firmware.option)
    with boot(machine, f"psci-poll-{firmware.described}", BOOT_S) as guest:
        assert guest.read_text(f"{CPU}/cpuidle/current_driver") == f"{firmware.driver}\n"
        check_states(guest, ["POLL", *firmware.states])
        assert of_states(guest, "residency") == ["0", "200", "500"]
        assert of_states(guest, "latency") == ["0", "1", "60"]
        event = "sched:sched_wake_idle_without_ipi"
        counted = guest.run(["perf", "stat", "-a", "-x,", "-e", event, *PIPE], timeout_s=120)
        # How many is a matter of what the governor expects; without POLL it is none.
        assert int(counted.stderr.split(",")[0]) > 0


def test_acpi_states_are_found_anew_behind_poll() -> None:
    def state_0() -> str:
        return guest.run(["stat", "-c", "%i", f"{CPU}/cpu0/cpuidle/state0"], check=False).stdout

    with boot(ACPI.machine("6.12-series", ACPI.option), "lpi-anew", BOOT_S) as guest:
        old, deadline = state_0(), time.monotonic() + 60
        # The folders of the states go and come as the driver has _LPI evaluated.
        guest.read_text(f"/sys/bus/acpi/devices/{CHANGED}:00/status")
        while state_0() in ("", old):
            assert time.monotonic() < deadline
        check_states(guest, ["POLL", *ACPI.states])

        for online in ("0", "1"):
            guest.write_text(f"{CPU}/cpu1/online", online)
        assert of_states(guest, "name", cpu=1) == ["POLL", *ACPI.states]
        check_states(guest, ["POLL", *ACPI.states])
