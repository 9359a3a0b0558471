# SPDX-License-Identifier: GPL-2.0-only
"""The kernel's own torture of function calls and of RCU, with CPUs that poll and come and go."""

from __future__ import annotations

import base64
import os
import time

import pytest

from lightsleep.lab.build import any_tree
from lightsleep.lab.config import ARCHES
from lightsleep.lab.guest import Guest, Machine, boot
from lightsleep.lab.initramfs import with_dependencies

pytestmark = [pytest.mark.boot, pytest.mark.build, pytest.mark.more]

KERNEL = "6.12-series"
TORTURE_S = float(os.environ.get("LIGHTSLEEP_TORTURE_S", "60"))
"""Longer is better; the kernel's developers take half an hour and more."""

HOTPLUG = ("onoff_interval=1", "onoff_holdoff=5")
IDLE = {
    "lightsleep": ("", ("cpuidle_lightsleep",)),
    "idle=poll": ("idle=poll", ()),
}
"""How the CPUs poll: kernel parameters, modules."""


def insmod(guest: Guest, arch: str, name: str, *parameters: str) -> None:
    """Load a module of the guest's kernel, and what it needs."""
    tree = any_tree(ARCHES[arch], ARCHES[arch].built[KERNEL])
    for file in with_dependencies(tree, [name]):
        guest.write_text("/run/module", base64.b64encode(file.read_bytes()).decode())
        guest.run(["sh", "-c", "base64 -d /run/module > /run/module.ko"])
        own = parameters if file.stem == name else ()
        guest.run(["insmod", "/run/module.ko", *own])


@pytest.mark.parametrize("idle", IDLE)
@pytest.mark.parametrize("torture", ["scftorture", "rcutorture"])
@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_torture(arch: str, torture: str, idle: str) -> None:
    append, modules = IDLE[idle]
    machine = Machine(
        arch=arch, kernel=KERNEL, append=append, modules=modules, vcpus=4, accel="tcg"
    )
    with boot(machine, f"{torture}-{arch}", 600) as guest:
        insmod(guest, arch, torture, *HOTPLUG)
        time.sleep(TORTURE_S)
        guest.run(["rmmod", torture], timeout_s=300)
        log = [x for x in guest.run(["dmesg"]).stdout.splitlines() if "-torture:" in x]
        end = next(line for line in reversed(log) if "End of test" in line)
        print(*log[-6:], sep="\n")
        assert "End of test: SUCCESS" in end
