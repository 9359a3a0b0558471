# SPDX-License-Identifier: GPL-2.0-only
"""Runs virtio_poll_blk.sh and virtio_poll_net.sh in guests with virtio devices."""

from __future__ import annotations

import time
from collections.abc import Collection

import pytest
from ktap import Result, run_selftest

from lightsleep.lab.boot.guest import Guest

DISKS, NETWORKS = "virtio_poll_blk.sh", "virtio_poll_net.sh"

TRIES = 3
"""A source that exceeds its budget of time is switched off. A host that stops the guest meanwhile
makes it look slow."""

ROUNDS = 20
"""How often a device, a CPU or the module comes and goes."""

PAUSES = "cat /sys/devices/system/cpu/cpu*/idle_poll/contention_pauses"
PAUSE_S = 4.0


def set_up_network(guest: Guest) -> None:
    """Give the guest an address in QEMU's own network, which it keeps. It has none before."""
    for words in (("addr", "add", "10.0.2.15/24", "dev", "eth0"), ("link", "set", "eth0", "up")):
        guest.run(["busybox", "ip", *words])


def run_virtio(guest: Guest, script: str, *tests: str, rounds: int = ROUNDS) -> Result:
    """Run a selftest, all of it or only ``tests``, with QEMU's own network to talk to."""
    return run_selftest(guest, script, *tests, tries=TRIES, PEER="10.0.2.2", ROUNDS=rounds)


def pauses(guest: Guest) -> str:
    """Return how often each CPU left its core to the host, in words."""
    return guest.run(["sh", "-c", PAUSES]).stdout


def check_polled(
    guest: Guest, script: str, test: str, passed: Collection[str], before: str
) -> None:
    """Check that looks find something in ``test``, at last, unless the host needs its cores.

    ``passed`` are the tests that have passed already, ``before`` are pauses() from before them.
    """
    tries = 0
    while test not in passed:
        if tries == 5:
            if pauses(guest) != before:
                pytest.skip("the host needs its cores")
            pytest.fail(f"{test}: no look ever found anything")
        time.sleep(PAUSE_S)
        again = run_virtio(guest, script, test)
        assert not again.failed
        passed = again.passed
        tries += 1
