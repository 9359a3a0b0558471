# SPDX-License-Identifier: GPL-2.0-only
"""Suspends a guest to idle, and wakes it by its power button."""

from __future__ import annotations

import time

from lightsleep.lab.boot.guest import Guest

SUSPEND_APPEND = "no_console_suspend ignore_loglevel"
"""What tells from outside how far a guest has got."""

ENOUGH_S = 1200.0


def console_says(guest: Guest, what: str, times: int) -> None:
    """Wait until the console has said ``what`` so many times."""
    deadline = time.monotonic() + ENOUGH_S
    while guest.vm.console().count(what) < times:
        assert time.monotonic() < deadline, guest.vm.console()
        time.sleep(0.1)


def suspend_to_idle(guest: Guest, number: int, for_s: float = 1) -> None:
    """Suspend and wake a guest that was booted with SUSPEND_APPEND, for the ``number``-th time."""
    guest.write_text("/sys/power/pm_debug_messages", "1")
    guest.run(["sh", "-c", "(sleep 1; echo freeze > /sys/power/state) &"])
    console_says(guest, "PM: suspend-to-idle", number)
    time.sleep(for_s)
    guest.vm.qmp("system_powerdown")
    console_says(guest, "PM: suspend exit", number)
    assert guest.read_text("/sys/power/suspend_stats/success") == f"{number}\n"
