# SPDX-License-Identifier: GPL-2.0-only
"""The command in guests: with the kernel module and without, interrupted, killed, and disturbed."""

from __future__ import annotations

import json
import signal
import textwrap
from collections.abc import Iterator
from importlib import resources
from typing import Any

import jsonschema
import pytest
from booted import boot

from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.boot.initramfs import GUEST_MODULES
from lightsleep.lab.boot.machine import Machine
from lightsleep.sources import DKMS_INSTALL

pytestmark = pytest.mark.boot

ENOUGH_S = 300.0
MEASURE = ("python3", "-m", "lightsleep", "measure")
KNOBS = "cat /sys/devices/system/cpu/cpu*/cpuidle/state*/disable"
AFTER_SOME_BATCHES = f"""\
changes=0; last=$({KNOBS})
while [ $changes -lt 6 ]; do
    kill -0 $measure || exit 99
    now=$({KNOBS})
    [ "$now" = "$last" ] || {{ changes=$((changes + 1)); last=$now; }}
    sleep 0.1
done"""
"""Waits until other states have been measured some times. One batch does not do: a host that is
busy at that moment, and a state that polls, may leave no valid sample in it."""
SCHEMA = json.loads(
    resources.files("lightsleep.measure").joinpath("measure.schema.json").read_text()
)


@pytest.fixture(scope="module")
def polling_guest() -> Iterator[Guest]:
    """A guest whose CPUs have two states, POLL and HALT, and the module to measure them."""
    machine = Machine(modules=("test_cpuidle_latency", "cpuidle_lightsleep"), accel="tcg")
    with boot(machine, "measure", ENOUGH_S) as guest:
        yield guest


def knobs(guest: Guest) -> set[str]:
    return set(guest.run(["sh", "-c", KNOBS]).stdout.split())


def measured(guest: Guest, *options: str) -> dict[str, Any]:
    done = guest.run([*MEASURE, "--json", *options], timeout_s=ENOUGH_S)
    document: dict[str, Any] = json.loads(done.stdout)
    jsonschema.validate(document, SCHEMA)
    return document


def during_a_measurement(guest: Guest, then: str) -> tuple[int, str, str]:
    """Start a measurement, do ``then`` once it has changed a knob; return how it ended.

    ``then`` is shell, $measure the process. Waits until all knobs are set back.
    """
    script = f"""\
        # Whatever bash starts in the background is deaf to SIGINT otherwise.
        env --default-signal=INT {" ".join(MEASURE)} -n 10000 -o /tmp/result.json \\
            >/tmp/stdout 2>/tmp/stderr &
        measure=$!
        until {KNOBS} | grep -q 1; do sleep 0.1; kill -0 $measure || exit 99; done
        {then}
        wait $measure
        status=$?
        while {KNOBS} | grep -q 1; do sleep 0.1; done
        cat /tmp/stdout
        cat /tmp/stderr >&2
        exit $status
    """
    guest.run(["rm", "-f", "/tmp/result.json"])
    argv = ["bash", "-c", textwrap.dedent(script)]
    done = guest.run(argv, timeout_s=ENOUGH_S, check=False)
    return done.rc, done.stdout, done.stderr


def test_every_state_of_every_cpu(polling_guest: Guest) -> None:
    document = measured(polling_guest, "-n", "40", "--csv", "/tmp/raw.csv")
    assert document["mode"] == "module"
    assert document["environment"]["cpuidle_driver"] == "lightsleep"
    rows = {(x["cpu"], x["source"], x["name"]): x for x in document["rows"]}
    for cpu in (0, 1):
        for source in ("timer", "ipi"):
            for name in ("busy", "POLL", "HALT"):
                assert rows[cpu, source, name]["latencies_ns"], (cpu, source, name)
        assert rows[cpu, "timer", "HALT"]["path"] == "timer"
        # HALT polls first, and a busy host may stop the CPU in that.
        assert rows[cpu, "ipi", "HALT"]["path"] in ("ipi", "mixed")
        assert rows[cpu, "ipi", "HALT"]["source_cpu"] == 1 - cpu
        assert rows[cpu, "ipi", "HALT"]["usage"] >= len(rows[cpu, "ipi", "HALT"]["latencies_ns"])
        assert rows[cpu, "ipi", "POLL"]["path"] in ("none", "mixed")
        assert all(latency > 0 for latency in rows[cpu, "ipi", "HALT"]["latencies_ns"])
    assert knobs(polling_guest) == {"0"}

    header, *lines = polling_guest.read_text("/tmp/raw.csv").splitlines()
    samples = [dict(zip(header.split(","), line.split(","), strict=True)) for line in lines]
    halts = [x for x in samples if x["requested"] == "1" and x["verdict"] == "ok"]
    assert halts
    for sample in halts:
        assert sample["entered"] == "1"
        latency_ns = int(sample["wake_ns"]) - int(sample["launch_ns"])
        assert int(sample["latency_ns"]) == latency_ns


def test_a_store_wakes_who_polls_without_an_interrupt(polling_guest: Guest) -> None:
    document = measured(polling_guest, "-n", "40", "-c", "1", "--source", "store")
    rows = {x["name"]: x for x in document["rows"]}
    assert set(rows) == {"busy", "POLL"}
    assert rows["POLL"]["path"] == "none"
    assert rows["POLL"]["latencies_ns"]


# TERM and HUP have the same handler. make check sends them outside of guests: see
# test_settings_journalled.py and test_measure_userspace.py.
@pytest.mark.parametrize(
    "name", ["INT", "KILL", *(pytest.param(x, marks=pytest.mark.more) for x in ("TERM", "HUP"))]
)
def test_whatever_ends_it_the_knobs_are_set_back(name: str, polling_guest: Guest) -> None:
    status, stdout, stderr = during_a_measurement(
        polling_guest, f"{AFTER_SOME_BATCHES}; kill -{name} $measure"
    )
    assert status == 128 + signal.Signals[f"SIG{name}"], stderr
    if name == "KILL":
        assert stdout == ""
        assert polling_guest.run(["ls", "/tmp/result.json"], check=False).rc != 0
    else:
        assert "shows only what was measured: interrupted" in stdout, stderr
        document = json.loads(polling_guest.read_text("/tmp/result.json"))
        jsonschema.validate(document, SCHEMA)
        assert any(row["latencies_ns"] for row in document["rows"])
    assert knobs(polling_guest) == {"0"}


# make check asks this outside of guests: see test_settings_journalled.py, test_try_ends.py.
@pytest.mark.more
def test_two_at_once(polling_guest: Guest) -> None:
    second = (
        f"{' '.join(MEASURE)} -n 20 >/tmp/second 2>&1; echo status $? >>/tmp/second; kill $measure"
    )
    during_a_measurement(polling_guest, second)
    said = polling_guest.read_text("/tmp/second")
    assert "lightsleep measure, process" in said
    assert "status 1" in said
    assert "Traceback" not in said


def test_a_cpu_goes_offline(polling_guest: Guest) -> None:
    online = "/sys/devices/system/cpu/cpu1/online"
    # Few samples: the command is left with the CPU that it measures, and runs between the batches.
    script = f"""\
        {" ".join(MEASURE)} -n 100 --json >/tmp/stdout 2>/tmp/stderr &
        until {KNOBS} | grep -q 1; do sleep 0.1; kill -0 $! || exit 99; done
        echo 0 >{online}
        wait $!
        status=$?
        echo 1 >{online}
        cat /tmp/stdout
        cat /tmp/stderr >&2
        exit $status
    """
    argv = ["bash", "-c", textwrap.dedent(script)]
    done = polling_guest.run(argv, timeout_s=ENOUGH_S, check=False)
    assert done.rc == 0, done.stderr
    document = json.loads(done.stdout)
    jsonschema.validate(document, SCHEMA)
    assert any("CPU 1 went offline" in note for note in document["notes"])
    assert knobs(polling_guest) == {"0"}


def test_without_a_module_user_space_measures(booted_guest: Guest) -> None:
    refused = booted_guest.run([*MEASURE, "--mode", "module"], check=False)
    assert refused.rc == 1
    assert "--load" in refused.stderr
    refused = booted_guest.run([*MEASURE, "--load"], check=False)
    assert refused.rc == 1
    assert f"{DKMS_INSTALL} LIGHTSLEEP_TOOLS=1" in " ".join(refused.stderr.split())
    document = measured(booted_guest, "-n", "20", "-c", "1")
    assert document["mode"] == "userspace"
    assert "is not loaded" in document["notes"][0]
    rows = {(x["source"], x["name"]): x for x in document["rows"]}
    assert set(rows) == {(x, y) for x in ("timer", "ipi") for y in ("busy", "default")}
    assert rows["timer", "default"]["verdict"]["kind"] in ("nothing-advertised", "too-noisy")
    assert rows["timer", "default"]["advertised_us"] is None


def test_load_takes_what_is_installed_and_takes_it_out_again() -> None:
    install = f"""\
        folder=/lib/modules/$(uname -r)/updates
        mkdir -p $folder
        cp {GUEST_MODULES}/test_cpuidle_latency.ko $folder
        depmod
    """
    # It attaches to tracepoints on a kernel that runs; see test_synthetic.py.
    with boot(Machine(accel="tcg-single"), "measure-load", ENOUGH_S) as guest:
        guest.run(["sh", "-ec", textwrap.dedent(install)])
        document = measured(guest, "--load", "-n", "20", "-c", "1")
        assert document["mode"] == "module"
        assert guest.run(["ls", "/sys/module/test_cpuidle_latency"], check=False).rc != 0
