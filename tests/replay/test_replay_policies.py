# SPDX-License-Identifier: GPL-2.0-only
"""Policies of a replay decide as described, or as the module does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from replays import ENGINES, NO_COSTS, US, limits, metadata, needs_compiler, period
from scan_trees import unfold

from lightsleep.periods.source import as_batch
from lightsleep.replay.account import replay
from lightsleep.replay.cli import replay_command
from lightsleep.replay.engine import Engine
from lightsleep.replay.policies import CEILING_NS, WAIT_WEIGHT, Haltpoll, parse, setting_of
from lightsleep.scan.collect import collect
from lightsleep.settings import catalogue
from lightsleep.sources import KERNEL


@pytest.mark.parametrize("make_engine", ENGINES)
def test_a_halt_as_long_as_its_own_exit_makes_haltpoll_poll(
    make_engine: Callable[[], Engine],
) -> None:
    """A halt of 40 us that took 40 us to leave: there was no idle time, but there was a halt."""
    rows = [period(1000 * n, 40) for n in range(2)]
    outcome = replay(
        metadata(), NO_COSTS, [as_batch("host", rows)], parse("haltpoll"), engine=make_engine()
    ).outcomes["haltpoll"]
    assert outcome.recorded.tally["hits"] == 2  # it had learned from both before


def test_haltpoll_grows_and_shrinks_as_documented() -> None:
    policy = Haltpoll()
    periods_us = [30, 45, 120, 250, 30, 1000, 5000, 5000, 60]
    found = limits(policy, np.array(periods_us) * US)
    # 0: missed by 30, begin with 50. 45: caught. 120: missed by 70, double. 250: missed by 150,
    # double. 30: caught. 1000, 5000: in vain, halve to 100, to 50. 5000: in vain, 25 is below 50.
    assert (found // US).tolist() == [0, 50, 50, 100, 200, 200, 100, 50, 0]
    assert policy.limit_ns == 50 * US


@pytest.mark.parametrize(
    ("policy", "after_us"),
    [
        (Haltpoll(limit_ns=200 * US, allow_shrink=False), 200),
        (Haltpoll(limit_ns=200 * US, shrink=0), 0),
        (Haltpoll(limit_ns=200 * US, shrink=4), 50),
    ],
)
def test_haltpoll_parameters(policy: Haltpoll, after_us: int) -> None:
    limits(policy, np.array([10_000 * US]))
    assert policy.limit_ns == after_us * US


@pytest.mark.parametrize("weight", [WAIT_WEIGHT, 20])
def test_try_knows_the_settings_of_the_default_policies(weight: int, tmp_path: Path) -> None:
    (names,) = (x.default for x in replay_command.params if x.name == "policies")
    machines = {"lightsleep": "lightsleep-guest", "haltpoll": "kvm-haltpoll"}
    for name in set(str(names).split(",")) - {"stock"}:
        setting = setting_of(name, weight)
        assert setting
        kind = setting.partition(":")[0]
        root = unfold(machines[kind], tmp_path / kind)
        assert catalogue.plan(setting, collect(root)[0], root)
    assert setting_of("lightsleep", 20) == "lightsleep:weight=20"
    assert setting_of("fixed:1.5ms") == "lightsleep:fixed:1500us"


@pytest.mark.parametrize("name", ["stock", "fixed:0us", "fixed:1ns", "fixed:20ms", "teo@6.12"])
def test_what_no_setting_does_has_none(name: str) -> None:
    assert setting_of(name) is None


@needs_compiler
def test_lightsleep_is_the_module_s_own_policy() -> None:
    from policy.binding import PollLimit

    rng = np.random.default_rng(1)
    idle_ns = rng.integers(1, 300_000, 5000)
    make = parse("lightsleep")["lightsleep"]
    assert callable(make)
    policy = make(10_000, 4)
    found = []
    for length_ns in idle_ns.tolist():
        found.append(policy.limit_ns)
        if policy.limit_ns and length_ns <= policy.limit_ns:
            policy.learn(length_ns)
        else:  # a halt is longer by what it costs
            policy.learn(policy.limit_ns, length_ns - policy.limit_ns + 10_000)
    assert found == PollLimit(40_000, CEILING_NS).replay(idle_ns).tolist()


def test_the_defaults_are_the_module_s() -> None:
    header = (KERNEL / "drivers/cpuidle/lightsleep.h").read_text()
    parameters = (KERNEL / "drivers/cpuidle/lightsleep_sysfs.c").read_text()
    assert re.search(rf"POLL_LIMIT_US_MAX\s+{CEILING_NS // US}\n", header)
    assert re.search(rf"WAIT_WEIGHT_DEFAULT\s+{WAIT_WEIGHT}\n", parameters)


@pytest.mark.parametrize(
    "names", ["", "teo", "fixed", "fixed:", "fixed:5", "fixed:-1us", "stock,,"]
)
def test_what_is_no_policy(names: str) -> None:
    done = CliRunner().invoke(replay_command, ["x", "--policies", names])
    assert done.exit_code == 2
    assert "there are: stock, lightsleep, haltpoll, fixed:TIME" in " ".join(done.output.split())
