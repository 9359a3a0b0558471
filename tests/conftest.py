# SPDX-License-Identifier: GPL-2.0-only
"""What all tests share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from lightsleep.lab.guest import Guest

# A loaded machine is slow; that fails no test.
settings.register_profile("lightsleep", deadline=None)
settings.load_profile("lightsleep")

# A shell has its background jobs ignore SIGINT, nohup SIGHUP. What is ignored stays so in their
# children, and tests that send it to one would wait for ever; what a function handles does not.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)


@pytest.fixture(scope="session")
def booted_guest() -> Iterator[Guest]:
    """One guest, booted once, for all tests that leave it as they found it."""
    from lightsleep.lab.guest import Machine, boot

    with boot(Machine(accel="tcg"), "shared", timeout_s=300) as guest:
        yield guest
