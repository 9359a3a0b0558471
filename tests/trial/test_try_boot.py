# SPDX-License-Identifier: GPL-2.0-only
"""As a user would, in a stock guest: scan, enable, watch, try, disable; then all is as before."""

from __future__ import annotations

import json
import random
import textwrap
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from booted import boot

from lightsleep.compare.result import FORMAT
from lightsleep.document import load
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.boot.initramfs import INSTALL_DRIVER
from lightsleep.lab.boot.machine import Machine
from lightsleep.lab.loads.programs.run import starter
from lightsleep.lab.loads.programs.servers import REDIS
from lightsleep.trial.verdict import judge

pytestmark = pytest.mark.boot

ENOUGH_S = 300.0
WATCH_SCHEMA = resources.files("lightsleep.watch") / "watch.schema.json"
LIGHTSLEEP = ("python3", "-m", "lightsleep")

# Modules, files in /etc, and every setting of idle in sysfs; counters differ.
STATE = """\
    cut -d' ' -f1 /proc/modules | sort
    find /etc -type f -exec md5sum {} + | sort
    cd /sys/devices/system/cpu
    grep -s . cpuidle/* cpu*/cpuidle/state*/disable
    ls /sys/module
"""

# Kills try once the module is loaded, and waits until nobody holds the lock.
KILL = """\
    python3 -m lightsleep try -n 50 -- sleep 0.1 >/dev/null 2>&1 &
    until [ -d /sys/module/cpuidle_lightsleep ]; do sleep 0.05; kill -0 $! || exit 99; done
    kill -KILL $!
    flock /run/lightsleep/lock true
"""


# The same at any moment; a moment may be too early for there to be a lock.
KILL_AT = """\
    python3 -m lightsleep try -s lightsleep+governor:ladder -n 50 -- sleep 0.1 >/dev/null 2>&1 &
    if [ {after_a_change} = True ]; then
        until [ -d /sys/module/cpuidle_lightsleep ]; do sleep 0.05; kill -0 $! || exit 99; done
    fi
    sleep {moment_s:.2f}
    kill -KILL $!
    wait $! || true
    [ ! -e /run/lightsleep/lock ] || flock /run/lightsleep/lock true
"""
MOMENTS = 100
LAST_S = 12.0
"""When try, emulated, has long begun to switch."""

SERVICE_LOAD = "while :; do redis-benchmark -t get -q -c 1 -n 2000; done > /dev/null 2>&1 &"
# A round of 9 s takes 18 s where the host is busy, and a verdict needs 11 of them.
SWITCHBACK = ("--switchback", "3s", "--for", "240s", "--metric-command", "redis-cli info stats")
RATE = ("-m", r"rps=total_commands_processed:(\d+):rate:higher")


def shell(guest: Guest, script: str) -> str:
    return guest.run(["bash", "-c", textwrap.dedent(script)], timeout_s=ENOUGH_S).stdout


def said(guest: Guest, *words: str, status: int = 0) -> str:
    done = guest.run([*LIGHTSLEEP, *words], timeout_s=ENOUGH_S, check=False)
    assert done.rc == status, done.stdout + done.stderr
    return done.stdout


def asked(guest: Guest, *words: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(said(guest, *words))
    return document


def test_a_user_tries_enables_and_disables() -> None:
    with boot(Machine(accel="tcg"), "try", ENOUGH_S) as guest:
        assert "is not installed" in said(guest, "scan")
        shell(guest, INSTALL_DRIVER)
        assert "can load (lightsleep enable)" in said(guest, "scan")
        before = shell(guest, STATE)

        done = said(guest, "enable", "lightsleep:adaptive:150us", "--persist")
        assert "/etc/modules-load.d/lightsleep.conf" in done
        status = asked(guest, "status", "--json")
        assert status["active"]
        assert status["at_boot"]
        assert status["parameters"]["poll_limit_us"] == 150
        assert [cpu["cpu"] for cpu in status["cpus"]] == [0, 1]
        assert all(cpu["polls"] is not None for cpu in status["cpus"])
        assert status["pays"]["sentence"]
        assert "hit rate" in said(guest, "status")

        line = asked(guest, "watch", "--json", "--count", "1")
        jsonschema.validate(line, json.loads(WATCH_SCHEMA.read_text()))
        assert (line["driver"], line["mode"]) == ("lightsleep", "adaptive")
        assert {x["cpu"] for x in line["cpus"] if x["polls_per_s"] is not None} == {0, 1}
        assert line["all"]["wakes_per_s"] > 0
        assert line["all"]["timer_per_s"] > 0
        assert "in vain %" in said(guest, "watch", "--count", "1")
        said(guest, "disable")
        assert shell(guest, STATE) == before
        said(guest, "disable", status=4)

        command = ["perf", "bench", "-f", "simple", "sched", "pipe", "-l", "2000"]
        options = ["-n", "6", "-s", "lightsleep", "--json", "-m", r"pipe_s=^([\d.]+)$:lower"]
        tried = guest.run(
            [*LIGHTSLEEP, "try", *options, "--", *command], timeout_s=ENOUGH_S, check=False
        )
        assert tried.rc in (0, 1), tried.stderr  # 1: on a busy host, the control may differ
        result = json.loads(tried.stdout)
        jsonschema.validate(result, json.loads(FORMAT.described.read_text()))
        shares = result["metrics"]["in_HALT_pct"]["samples"]
        assert all(share == 0 for share in shares["as-is"])
        assert all(share > 0 for share in shares["lightsleep"])
        # Where the host is busy, the driver pauses for a while.
        assert any(share > 0 for share in result["metrics"]["polled_pct"]["samples"]["lightsleep"])
        assert all(len(x) == 6 for x in result["metrics"]["pipe_s"]["samples"].values())
        assert shell(guest, STATE) == before

        shell(guest, KILL)
        assert shell(guest, STATE) == before


@pytest.mark.more
def test_killed_at_a_hundred_random_moments_nothing_remains() -> None:
    rng = random.Random(17)
    with boot(Machine(accel="tcg"), "try-killed", ENOUGH_S) as guest:
        shell(guest, INSTALL_DRIVER)
        before = shell(guest, STATE)
        for number in range(MOMENTS):
            after_a_change = bool(number % 2)
            moment_s = rng.uniform(0, 1) if after_a_change else rng.uniform(0.2, LAST_S)
            shell(guest, KILL_AT.format(moment_s=moment_s, after_a_change=after_a_change))
            assert shell(guest, STATE) == before, f"killed after {moment_s:.2f} s"


@pytest.mark.more
def test_switchback_under_a_service_finds_what_the_experiment_programs_found(
    tmp_path: Path,
) -> None:
    """Redis with one connection is faster with lightsleep: see docs/results/programs-quick."""
    with boot(Machine(accel="tcg", root="programs"), "switchback", ENOUGH_S) as guest:
        starter([REDIS])(guest)
        shell(guest, INSTALL_DRIVER)
        before = shell(guest, STATE)
        shell(guest, SERVICE_LOAD)
        words = [*LIGHTSLEEP, "try", *SWITCHBACK, *RATE, "-s", "lightsleep", "--json"]
        done = guest.run(words, timeout_s=2 * ENOUGH_S, check=False)
        assert done.rc in (0, 1), done.stderr  # 1: on a busy host, the control may differ
        assert done.stdout, done.stderr  # or there is no result
        assert shell(guest, STATE) == before
    file = tmp_path / "result.json"
    file.write_text(done.stdout)
    result = load(file, FORMAT)
    found = judge(result)
    print(found.sentence, result.metrics["rps"].samples)
    rates = result.metrics["rps"].samples
    assert all(len(samples) >= 10 and min(samples) > 0 for samples in rates.values())
    shares = result.metrics["in_HALT_pct"].samples
    assert all(share == 0 for share in (*shares["as-is"], *shares["as-is-again"]))
    # How much faster is a timing, and decides no test: on a busy host, nothing may be shown.
    assert all(share > 0 for share in shares["lightsleep"])
