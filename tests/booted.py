# SPDX-License-Identifier: GPL-2.0-only
"""Guests for tests that do not care how they booted: the first of a kind boots, others go on."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

from lightsleep.lab.boot import guest
from lightsleep.lab.boot.machine import Machine

SNAPSHOTS = "LIGHTSLEEP_TEST_SNAPSHOTS"
"""The variable that names the folder which all processes of a test run share: make check has one
for its parts, and conftest.py makes one where there is none."""


def boot(
    machine: Machine, name: str = "guest", timeout_s: float | None = None
) -> AbstractContextManager[guest.Guest]:
    """Do what guest.boot() does, from a snapshot where a guest like this one has booted before."""
    return guest.boot(machine, name, timeout_s, Path(os.environ[SNAPSHOTS]))
