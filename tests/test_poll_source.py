# SPDX-License-Identifier: GPL-2.0-only
"""poll_source in guests: with a device that is a word in memory."""

import pytest
from ktap import run_selftest

from lightsleep.lab.accel import Wanted
from lightsleep.lab.config import KERNELS
from lightsleep.lab.guest import Machine, boot

pytestmark = pytest.mark.boot

ENOUGH_S = 300.0

# The first source and the last one patch the kernel's code: see test_synthetic.py.
ACCEL: Wanted = "tcg-single"


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_word_in_memory(kernel: str) -> None:
    with boot(Machine(kernel=kernel, accel=ACCEL), f"poll-source-{kernel}", ENOUGH_S) as guest:
        result = run_selftest(guest, "poll_source.sh")
    assert not result.failed
    # There, a halted CPU may wake as fast as one that polls.
    assert set(result.skipped) <= {"is_a_wake_to_learn_from"}
