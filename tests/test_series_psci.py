# SPDX-License-Identifier: GPL-2.0-only
"""Machines of arm64 whose firmware has idle states: psci_idle, with POLL and without."""

from __future__ import annotations

import pytest

from lightsleep.lab.guest import Guest, Machine, boot
from lightsleep.lab.initramfs import GUEST_MODULES

pytestmark = [pytest.mark.boot, pytest.mark.build, pytest.mark.more]

CPUIDLE = "/sys/devices/system/cpu/cpu0/cpuidle"
BOOT_S = 600.0


def machine(kernel: str, append: str = "") -> Machine:
    return Machine(arch="aarch64", kernel=kernel, append=append, accel="tcg", idle_state=True)


def states(guest: Guest) -> list[str]:
    """Return the names of CPU 0's idle states; it was in the first and in the last."""
    assert guest.read_text("/sys/devices/system/cpu/cpuidle/current_driver") == "psci_idle\n"
    guest.run(["perf", "bench", "sched", "pipe", "-l", "2000"], timeout_s=120)
    guest.run(["sleep", "1"])
    names = guest.run(["sh", "-c", f"cat {CPUIDLE}/state*/name"]).stdout.split()
    usage = guest.run(["sh", "-c", f"cat {CPUIDLE}/state*/usage"]).stdout.split()
    assert int(usage[0]) > 0
    assert int(usage[-1]) > 0
    return names


@pytest.mark.parametrize("kernel", ["6.12", "6.12-series"])
def test_psci_idle_has_the_cpus(kernel: str) -> None:
    with boot(machine(kernel), "psci", BOOT_S) as guest:
        assert states(guest) == ["WFI", "cpu-sleep"]
        done = guest.run(["insmod", f"{GUEST_MODULES}/cpuidle_lightsleep.ko"], check=False)
        assert done.rc != 0
        assert "idled by psci_idle already" in guest.run(["dmesg"]).stdout


def test_psci_idle_polls_where_it_is_told_to() -> None:
    append = "cpuidle_psci.poll_us=200"
    with boot(machine("6.12-series", append), "psci-poll", BOOT_S) as guest:
        assert states(guest) == ["POLL", "WFI", "cpu-sleep"]
        event = "sched:sched_wake_idle_without_ipi"
        pipe = ["perf", "bench", "sched", "pipe", "-l", "2000"]
        counted = guest.run(["perf", "stat", "-a", "-x,", "-e", event, *pipe], timeout_s=120)
        assert int(counted.stderr.split(",")[0]) > 100
