# SPDX-License-Identifier: GPL-2.0-only
"""cpuidle-synthetic in guests: its selftest on every kernel, and what it refuses."""

import pytest
from ktap import run_selftest

from lightsleep.lab.config import KERNELS
from lightsleep.lab.guest import Machine, boot

pytestmark = pytest.mark.boot

SELFTEST = "cpuidle-synthetic.sh"
ENOUGH_S = 300.0


@pytest.mark.parametrize("kernel", KERNELS)
def test_selftest(kernel: str) -> None:
    with boot(Machine(kernel=kernel, accel="tcg"), f"synthetic-{kernel}", ENOUGH_S) as guest:
        result = run_selftest(guest, SELFTEST)
    assert not result.failed
    assert not result.skipped


def test_refuses_an_idle_override_by_name() -> None:
    with boot(Machine(append="idle=poll", accel="tcg"), "synthetic-idle", ENOUGH_S) as guest:
        result = run_selftest(guest, SELFTEST, "refuses_idle_override")
    assert result.passed == ["refuses_idle_override"]
