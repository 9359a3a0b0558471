# SPDX-License-Identifier: GPL-2.0-only
"""The kernel's own torture of calls, RCU and locks, with CPUs that poll and come and go."""

from __future__ import annotations

import os
import re
import time
from itertools import pairwise

import pytest
from intree import insmod

from lightsleep.lab.boot.guest import boot
from lightsleep.lab.boot.machine import Machine

pytestmark = [pytest.mark.boot, pytest.mark.build, pytest.mark.more]

KERNEL = "6.12-series"
TORTURE_S = float(os.environ.get("LIGHTSLEEP_TORTURE_S", "300"))

HOTPLUG = ("onoff_interval=100", "onoff_holdoff=5")
"""In jiffies: a CPU goes or comes every 0.4 s; and in s."""

TORTURES = {
    # Two CPUs call, and find the others idle.
    "scftorture": ("nthreads=2",),
    "rcutorture": (),
    "locktorture": (),
}


NOT_IN_DEBUG = {"scftorture"}
"""In 6.12 it frees memory in the interrupt of a function call, which lockdep does not allow where
it checks the nesting of locks that sleep with PREEMPT_RT. (Its scf_handler() is in the trace.)"""


COMPLAINT = re.compile("BUG:|WARNING:")
KNOWN = "Dying CPU not properly vacated!"
"""See docs/kernel-series.md, Known limits. The kernel says it right before its WARNING."""


@pytest.mark.parametrize("torture", TORTURES)
@pytest.mark.parametrize(
    ("arch", "kernel"),
    [("x86_64", KERNEL), ("aarch64", KERNEL), ("x86_64", f"{KERNEL}-debug")],
)
def test_torture(arch: str, kernel: str, torture: str) -> None:
    if kernel.endswith("debug") and torture in NOT_IN_DEBUG:
        pytest.skip(f"{torture} of 6.12 does what lockdep does not allow")
    machine = Machine(arch=arch, kernel=kernel, append="idle_poll.enabled=1", vcpus=4, accel="tcg")
    with boot(machine, f"{torture}-{kernel}-{arch}", 600) as guest:
        guest.run(["dmesg", "--clear"])
        insmod(guest, torture, *TORTURES[torture], *HOTPLUG)
        time.sleep(TORTURE_S)
        guest.run(["rmmod", torture], timeout_s=300)
        log = guest.run(["dmesg"]).stdout.splitlines()
    last = "\n".join([x for x in log if "torture:" in x][-6:])
    complaints = [f"{before}\n{x}" for before, x in pairwise(["", *log]) if COMPLAINT.search(x)]
    print(last, *complaints, sep="\n")
    assert "End of test: SUCCESS" in last
    assert not [x for x in complaints if KNOWN not in x]
    if complaints:
        pytest.xfail(KNOWN)
