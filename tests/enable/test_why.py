# SPDX-License-Identifier: GPL-2.0-only
"""Why a CPU does not poll."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from lightsleep.enable.why import always_polling, always_polls, not_polling
from lightsleep.scan.collect import collect
from lightsleep.scan.facts import LIGHTSLEEP_DRIVER
from lightsleep.scan.model import Cpu, Cpuidle, Haltpoll, Lightsleep, PollStats, Scan, State

COUNTS = PollStats(9, 5, 4, 90, 40, 100_000, 25_000, 0, 3, 30_000)
STATES = [
    State(number, name, None, number, number, False, None, 1, 1, 0, 0, 0, None)
    for number, name in enumerate(("POLL", "HALT"))
]
CPU = Cpu(3, STATES, None, [3], COUNTS)
PARAMETERS = Lightsleep(mode="adaptive", poll_limit_us=0, halt_cost_ns=25_000, wait_weight=4)
with tempfile.TemporaryDirectory() as _tree:
    Path(_tree, "sys/devices/system/cpu").mkdir(parents=True)
    SCAN = replace(
        collect(Path(_tree))[0],
        cpuidle=Cpuidle(LIGHTSLEEP_DRIVER, "menu", []),
        lightsleep=PARAMETERS,
    )


def off(name: str) -> list[State]:
    return [replace(x, disabled=x.name == name) for x in STATES]


@pytest.mark.parametrize(
    ("cpu", "reason"),
    [
        (CPU, None),
        (replace(CPU, lightsleep=None), "no statistics: see dmesg"),
        (replace(CPU, states=off("POLL")), "POLL is disabled"),
        (replace(CPU, states=off("HALT")), None),
        (replace(CPU, states=off("HALT"), lightsleep=replace(COUNTS, contended=1)), None),
        (replace(CPU, resume_latency_us=0, lightsleep=replace(COUNTS, limit_ns=0)), None),
        (
            replace(CPU, resume_latency_us=2, lightsleep=replace(COUNTS, limit_ns=0)),
            "idle for too long",
        ),
        (
            replace(CPU, resume_latency_us=0, lightsleep=replace(COUNTS, contended=1)),
            "the host needs the core",
        ),
        (replace(CPU, lightsleep=replace(COUNTS, contended=1)), "the host needs the core"),
        (
            replace(CPU, lightsleep=replace(COUNTS, program_cost_upper_ns=-1)),
            "polls slow its programs",
        ),
        (
            replace(CPU, lightsleep=replace(COUNTS, limit_ns=0, halt_cost_ns=0)),
            "the cost of a halt is 0",
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
    assert not_polling(cpu, SCAN) == reason


def test_mode_off_is_the_reason_on_every_cpu() -> None:
    scan = replace(SCAN, lightsleep=replace(PARAMETERS, mode="off"))
    assert not_polling(CPU, scan) == "mode is off"
    assert not_polling(replace(CPU, states=off("POLL")), scan) == "mode is off"
    busy_host = replace(CPU, resume_latency_us=0, lightsleep=replace(COUNTS, contended=1))
    assert not_polling(busy_host, scan) == "mode is off"


def test_a_system_wide_latency_limit_keeps_cpus_polling() -> None:
    cpu = replace(CPU, lightsleep=replace(COUNTS, limit_ns=0))
    scan = replace(SCAN, latency_limit_us=0)
    assert not_polling(cpu, scan) is None
    assert not_polling(cpu, replace(scan, latency_limit_us=1)) == "idle for too long"


UNREADABLE = {"dev/cpu_dma_latency": "Permission denied"}


@pytest.mark.parametrize(
    ("counts", "why"),
    [
        (replace(COUNTS, limit_ns=0), "idle for too long"),
        (replace(COUNTS, limit_ns=0, halt_cost_ns=0), "the cost of a halt is 0"),
    ],
)
def test_a_limit_that_only_root_may_read_may_be_why_it_polls(counts: PollStats, why: str) -> None:
    cpu, scan = replace(CPU, lightsleep=counts), replace(SCAN, problems=UNREADABLE)
    assert not_polling(cpu, SCAN) == why
    assert not_polling(cpu, scan) == f"{why}, or a latency limit keeps it polling (root sees)"


def test_what_no_latency_limit_changes_is_no_guess_without_root() -> None:
    scan = replace(SCAN, problems=UNREADABLE)
    cpu = replace(CPU, lightsleep=replace(COUNTS, limit_ns=0))
    assert not_polling(CPU, scan) is None
    short = replace(scan, lightsleep=replace(PARAMETERS, host_is_short=True))
    assert not_polling(cpu, short) == "idle for too long"


def test_a_latency_limit_is_not_heeded_when_off() -> None:
    cpu = replace(CPU, lightsleep=replace(COUNTS, limit_ns=0))
    scan = replace(SCAN, latency_limit_us=0)
    off = replace(scan, lightsleep=replace(PARAMETERS, mode="off"))
    assert not_polling(cpu, off) == "mode is off"


NO_LIMIT_COUNTS = "the host is short of cores: no latency limit counts"


@pytest.mark.parametrize(
    ("limit_us", "counts", "reason"),
    [
        (0, replace(COUNTS, limit_ns=0), NO_LIMIT_COUNTS),
        (0, replace(COUNTS, limit_ns=0, halt_cost_ns=0), NO_LIMIT_COUNTS),
        (0, COUNTS, None),  # for as long as it would without a latency limit
        (0, replace(COUNTS, limit_ns=0, program_cost_upper_ns=-1), NO_LIMIT_COUNTS),
        (0, replace(COUNTS, contended=1, limit_ns=0), "the host needs the core"),
        (1, replace(COUNTS, limit_ns=0), "idle for too long"),
        (None, replace(COUNTS, limit_ns=0), "idle for too long"),
    ],
)
def test_where_the_host_is_short_of_cores_no_latency_limit_counts(
    limit_us: int | None, counts: PollStats, reason: str | None
) -> None:
    short = replace(PARAMETERS, host_is_short=True)
    scan = replace(SCAN, latency_limit_us=limit_us, lightsleep=short)
    assert not_polling(replace(CPU, lightsleep=counts), scan) == reason


def test_in_mode_fixed_a_pause_ends_what_a_latency_limit_asks_for() -> None:
    """A poll limit of 0: the mode follows the cost, and that is 0."""
    counts = replace(COUNTS, contended=1, limit_ns=0, halt_cost_ns=0)
    fixed = replace(PARAMETERS, mode="fixed")
    scan = replace(SCAN, latency_limit_us=0, lightsleep=fixed)
    assert not_polling(replace(CPU, lightsleep=counts), scan) == "the host needs the core"


def under(governor: str, limit_us: int) -> Scan:
    return replace(
        SCAN, cpuidle=Cpuidle(LIGHTSLEEP_DRIVER, governor, []), latency_limit_us=limit_us
    )


@pytest.mark.parametrize("governor", ["menu", "teo", "ladder"])
def test_where_poll_is_disabled_no_latency_limit_above_0_keeps_a_cpu_polling(governor: str) -> None:
    states = [replace(STATES[0], disabled=True), replace(STATES[1], latency_us=65)]
    cpu = replace(CPU, states=states, lightsleep=replace(COUNTS, limit_ns=0))
    assert not_polling(cpu, under(governor, 10)) == "POLL is disabled"
    # teo takes HALT, which alone is left.
    forced = None if governor != "teo" else "POLL is disabled"
    assert not_polling(cpu, under(governor, 0)) == forced
    assert not_polling(replace(cpu, states=[STATES[0], states[1]]), under(governor, 10)) is None


def test_the_governor_haltpoll_may_choose_poll_though_it_is_disabled() -> None:
    states = [replace(STATES[0], disabled=True), replace(STATES[1], latency_us=65)]
    cpu, scan = replace(CPU, states=states), under("haltpoll", 10)
    maybe = "POLL is disabled, unless the governor haltpoll chooses it"
    assert not_polling(cpu, scan) == maybe
    assert not_polling(cpu, under("haltpoll", 65)) == "POLL is disabled"
    assert not_polling(cpu, under("haltpoll", 0)) is None
    busy_host = replace(cpu, lightsleep=replace(COUNTS, contended=1))
    assert not_polling(busy_host, scan) == "POLL is disabled"
    never = replace(scan, haltpoll=Haltpoll(0, None, None, None, None, None))
    assert not_polling(cpu, never) == "POLL is disabled"


def test_in_mode_fixed_a_cpu_polls_whatever_it_has_learned() -> None:
    learned = replace(COUNTS, contended=1, program_cost_upper_ns=-1)
    cpu = replace(CPU, lightsleep=learned)
    assert SCAN.lightsleep
    fixed = replace(SCAN, lightsleep=replace(SCAN.lightsleep, mode="fixed"))
    assert not_polling(cpu, SCAN) == "the host needs the core"
    assert not_polling(cpu, fixed) is None


@pytest.mark.parametrize(
    ("cpu", "reason"),
    [
        (CPU, None),
        (replace(CPU, lightsleep=None, states=off("HALT")), None),
        (replace(CPU, states=off("HALT"), resume_latency_us=0), "HALT is disabled"),
        (replace(CPU, resume_latency_us=0), "a latency limit forbids it"),
        (replace(CPU, resume_latency_us=0, lightsleep=replace(COUNTS, contended=1)), None),
    ],
)
def test_why_a_cpu_always_polls(cpu: Cpu, reason: str | None) -> None:
    assert always_polling(cpu, SCAN) == reason


def test_cpus_that_always_poll_are_named_by_reason() -> None:
    assert always_polls(SCAN) == ""
    held = [replace(CPU, number=number, resume_latency_us=0) for number in (0, 1, 3)]
    halt_off = replace(CPU, number=2, states=off("HALT"))
    assert always_polls(replace(SCAN, cpus=[*held, halt_off, CPU])) == (
        "CPU 2 may not halt: HALT is disabled; CPU 0-1,3 may not halt: a latency limit forbids it "
        "(sudo lightsleep scan names who holds it)"
    )
