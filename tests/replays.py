# SPDX-License-Identifier: GPL-2.0-only
"""Idle periods and machines that are made up, and what replays them."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from click.testing import CliRunner, Result
from recordings import RECORDINGS

from lightsleep.periods.build import Row
from lightsleep.periods.model import Metadata
from lightsleep.replay.cli import replay_command
from lightsleep.replay.costs import Costs
from lightsleep.replay.engine import CompiledEngine, PythonEngine
from lightsleep.replay.policies import Policy
from lightsleep.replay.rows import Ns

POLL, HALT, DEEP = 0, 1, 2
ADVERTISED = (("POLL", 0, 0), ("C1", 10, 20), ("C6", 100, 300))
US = 1000
NO_COSTS = Costs(None, {(0, HALT): 40_000.0}, 40_000, {})

needs_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")

ENGINES = [PythonEngine, pytest.param(CompiledEngine, marks=needs_compiler)]


def metadata() -> Metadata:
    made = Metadata("host", "made up", first_ns=0, last_ns=1_000_000_000)
    for cpu in range(3):
        for state, name in ((POLL, "POLL"), (HALT, "HALT")):
            row = {"cpu": cpu, "state": state, "name": name, "polls": state == POLL}
            row |= {"advertised_us": None, "residency_us": None}
            made.add_state(row | {"disabled": False})
    return made


def period(
    at_us: int,
    length_us: int,
    state: int = HALT,
    wait_us: int | None = 40,
    pair: tuple[int, int] = (7, 8),
    cpu: int = 0,
    cause: str = "ipi",
    by_itself: bool | None = None,
) -> Row:
    """Return a row. By default, the CPU's own timers and devices wake tasks on the CPU itself."""
    who = (None, None, None, None) if wait_us is None else ("a", pair[0], "b", pair[1])
    waited = None if wait_us is None else wait_us * US
    if by_itself is None:
        by_itself = cause in ("timer", "tick", "device")
    waker_cpu = None if wait_us is None else cpu if by_itself else cpu + 1
    row = (cpu, at_us * US, length_us * US, state, None, cause, *who, waited, None, None)
    return (*row, waker_cpu)


def judged(disabled: tuple[int, ...] = ()) -> Metadata:
    """Return metadata of CPUs with the states POLL, C1 and C6, of which some are disabled."""
    made = Metadata("host", "made up", first_ns=0, last_ns=1_000_000_000)
    for cpu in range(3):
        for state, (name, latency_us, residency_us) in enumerate(ADVERTISED):
            row = {"cpu": cpu, "state": state, "name": name, "polls": state == POLL}
            row |= {"advertised_us": latency_us, "residency_us": residency_us}
            made.add_state(row | {"disabled": state in disabled})
    return made


def run(*arguments: object) -> Result:
    return CliRunner().invoke(replay_command, [str(x) for x in arguments])


MENU = RECORDINGS / "menu.parquet"
"""C1, C1E and C6 of 20, 60 and 300 us, with residencies of 40, 200 and 900, governed by menu of
Debian's 6.12."""


def limits(policy: Policy, idle_ns: Ns) -> Ns:
    """Return how long a policy polls in each of these periods, from which it learns.

    Halts cost no time.
    """
    given = []
    for length_ns in idle_ns.tolist():
        given.append(policy.limit_ns)
        polled_ns = min(length_ns, policy.limit_ns)
        halts = not policy.limit_ns or length_ns > polled_ns
        policy.learn(polled_ns, length_ns - polled_ns if halts else None)
    return np.array(given, np.int64)


def timed(row: Row, timer_us: int | None) -> Row:
    """Return a row before which the governor was told how long it is until the next timer."""
    return (*row[:4], None if timer_us is None else timer_us * US, *row[5:])
