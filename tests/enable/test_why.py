# SPDX-License-Identifier: GPL-2.0-only
"""Why a CPU does not poll."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lightsleep.enable.why import not_polling
from lightsleep.scan.model import Cpu, Lightsleep, PollStats, State

COUNTS = PollStats(9, 5, 4, 90, 40, 100_000, 25_000, 0, 3, 30_000)
STATES = [
    State(number, name, None, 0, 0, False, None, 1, 1, 0, 0, 0, None, None)
    for number, name in enumerate(("POLL", "HALT"))
]
CPU = Cpu(3, STATES, None, [3], COUNTS)
PARAMETERS = Lightsleep(mode="adaptive", poll_limit_us=0, halt_cost_ns=25_000, wait_weight=4)


def off(name: str) -> list[State]:
    return [replace(x, disabled=x.name == name) for x in STATES]


@pytest.mark.parametrize(
    ("cpu", "reason"),
    [
        (CPU, None),
        (replace(CPU, lightsleep=None), "not registered: see dmesg"),
        (replace(CPU, states=off("POLL")), "POLL is disabled"),
        (replace(CPU, states=off("HALT")), None),
        (replace(CPU, lightsleep=replace(COUNTS, contended=1)), "the host needs the core"),
        (
            replace(CPU, lightsleep=replace(COUNTS, program_cost_upper_ns=-1)),
            "polls slow its programs",
        ),
        (
            replace(CPU, lightsleep=replace(COUNTS, limit_ns=0, halt_cost_ns=0)),
            "a halt costs nothing",
        ),
        (replace(CPU, lightsleep=replace(COUNTS, limit_ns=0)), "idle for too long"),
        # Drivers before these files were there.
        (
            replace(CPU, lightsleep=PollStats(9, 5, 4, 90, 40, 0, 25_000)),
            "idle for too long",
        ),
    ],
)
def test_the_first_reason_that_applies(cpu: Cpu, reason: str | None) -> None:
    assert not_polling(cpu, PARAMETERS) == reason


def test_mode_off_is_the_reason_on_every_cpu() -> None:
    parameters = replace(PARAMETERS, mode="off")
    assert not_polling(CPU, parameters) == "mode is off"
    assert not_polling(replace(CPU, states=off("POLL")), parameters) == "mode is off"
