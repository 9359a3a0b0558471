# SPDX-License-Identifier: GPL-2.0-only
"""Arms that several experiments have: a stock kernel, and what its idle CPUs can do instead."""

from lightsleep.lab.run.experiment import Arm

NEVER_HALT = "idle=poll nohlt"
"""Idle CPUs spin: x86 knows the first option, arm64 and POWER the second."""

STOCK = Arm("stock", "baseline", "the kernel as it is: idle CPUs halt at once")
LIGHTSLEEP = Arm(
    "lightsleep",
    "treatment",
    "the same kernel with cpuidle-lightsleep: idle CPUs poll first, then halt",
    modules=("cpuidle_lightsleep",),
)
FIXED_100US = Arm(
    "fixed-100us",
    "treatment",
    "the same driver with a constant limit: idle CPUs poll up to 100 us, then halt",
    modules=("cpuidle_lightsleep mode=fixed poll_limit_us=100",),
)
"""As long as the first proposal for arm64 polls."""
HALTPOLL = Arm(
    "haltpoll",
    "treatment",
    "the same kernel with a driver that has the rule of cpuidle-haltpoll, with its defaults",
    modules=("haltpoll_rule",),
)
IDLE_POLL = Arm(
    "idle=poll",
    "limit",
    "the same kernel booted with idle=poll (on arm64 and POWER nohlt): idle CPUs never halt",
    append=NEVER_HALT,
    spins=True,
)
STOCK_AGAIN = Arm("stock-again", "control", "a second guest booted exactly as stock")
