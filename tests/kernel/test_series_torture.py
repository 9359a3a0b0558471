# SPDX-License-Identifier: GPL-2.0-only
"""The kernel's own torture of calls, RCU and locks, with CPUs that poll and come and go."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from intree import insmod

from lightsleep.lab.boot.guest import GuestFailed, boot
from lightsleep.lab.boot.machine import Machine

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


KNOWN = "Dying CPU not properly vacated!"
"""See docs/kernel-series.md, Known limits."""


@contextmanager
def known_to_warn() -> Iterator[None]:
    """Expect to fail where a guest did because its kernel warned of KNOWN.

    It may have warned of more: the log that the failure names tells.
    """
    try:
        yield
    except GuestFailed as error:
        if KNOWN in error.message:
            pytest.xfail(error.message)
        raise


@pytest.mark.boot
@pytest.mark.build
@pytest.mark.more
@pytest.mark.parametrize("torture", TORTURES)
@pytest.mark.parametrize(
    ("arch", "kernel"),
    [("x86_64", KERNEL), ("aarch64", KERNEL), ("x86_64", f"{KERNEL}-debug")],
)
def test_torture(arch: str, kernel: str, torture: str) -> None:
    if kernel.endswith("debug") and torture in NOT_IN_DEBUG:
        pytest.skip(f"{torture} of 6.12 does what lockdep does not allow")
    machine = Machine(arch=arch, kernel=kernel, append="idle_poll.enabled=1", vcpus=4, accel="tcg")
    with known_to_warn(), boot(machine, f"{torture}-{kernel}-{arch}", 600) as guest:
        insmod(guest, torture, *TORTURES[torture], *HOTPLUG)
        time.sleep(TORTURE_S)
        guest.run(["rmmod", torture], timeout_s=300)
        log = [x for x in guest.run(["dmesg"]).stdout.splitlines() if "torture:" in x]
        last = "\n".join(log[-6:])
        print(last)
        assert "End of test: SUCCESS" in last


@pytest.mark.parametrize(
    ("warned", "ends_in"),
    [(KNOWN, pytest.xfail.Exception), ("WARNING: suspicious RCU usage", GuestFailed)],
)
def test_only_one_warning_is_known(warned: str, ends_in: type[BaseException]) -> None:
    with pytest.raises(ends_in, match=warned), known_to_warn():
        raise GuestFailed(f"guest: its kernel complained, first on console line 9\n  | {warned}")
