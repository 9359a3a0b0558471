# SPDX-License-Identifier: GPL-2.0-only
"""Whether a policy does what a replay says that it would do.

A client sends datagrams at times that a timer sets, whether the server answers or not (an *open
loop*), so that a faster wakeup changes nothing that follows. Client and server have a CPU each.

The arm *predicted* is a stock guest. It is recorded, and `lightsleep replay` says how long tasks
would have waited, and CPUs would have polled, under each policy. The arm *measured* has the driver
and runs the same load under each policy, recorded likewise. A wakeup from halt takes longer where
there is a driver and a governor, which a guest without them cannot tell. So the arm *predicted-off*
is recorded with the driver in mode off: what differs from that, the replay did not foresee.

Waiting is the time from waking to running, of wakeups from other CPUs: what was recorded, less what
the replay says that the policy saves. (The client's own timer wakes it once its CPU has left its
state. No event shows how long that took, so nothing shows whether a prediction of it is right.)
Time polled is what the driver counts.

The policy haltpoll has a driver of its own (haltpoll_rule.c), which takes the place of
cpuidle-lightsleep for that part. Its time polled is that of its state POLL.
"""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lightsleep.compare.result import Claim
from lightsleep.errors import LightsleepError
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.run.experiment import Arm, Experiment, Metric

CLIENT, SERVER, READY = "/run/client.py", "/run/server.py", "/run/ready"
PORT = 9
SERVE = f"""\
import socket
line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
line.bind(("127.0.0.1", {PORT}))
open("{READY}", "w").close()
while True:
    line.recv(64)
"""
MEAN_GAP_S = 0.0005
"""Of the gaps between datagrams, which are distributed exponentially: some are shorter than any
poll, some longer."""

SEND = f"""\
import random, socket, sys, time
line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
line.connect(("127.0.0.1", {PORT}))
gaps = random.Random(int(sys.argv[2]))
now = time.monotonic()
end = now + float(sys.argv[1])
while now < end:
    now += gaps.expovariate(1 / {MEAN_GAP_S})
    left = now - time.monotonic()
    if left > 0:
        time.sleep(left)
    line.send(b"x")
"""
VCPUS = 2
ENDED_BY, WAITED = "ended_by", "waking_to_running_ns"
ITSELF = pa.array(["timer", "tick", "device"])
"""What ends an idle period by an interrupt of the CPU's own, in a table of the tool."""

COUNTS = "/run/polled"
CPUS = "/sys/devices/system/cpu"
RECORD_S = 4
LEARN_S = 6
"""How long the driver learns from the load before it is recorded (see halt_cost.py)."""

MODULE = "cpuidle_lightsleep"
PARAMETERS = f"/sys/module/{MODULE}/parameters"
FIXED_US = 100
POLICIES = {"lightsleep": "adaptive", f"fixed:{FIXED_US}us": "fixed", "haltpoll": None}
"""The replay's names, and the driver's modes that do the same; None is another driver."""

HALTPOLL = "haltpoll_rule"
POLLED = {MODULE: ("lightsleep/polled_ns", 1), HALTPOLL: ("cpuidle/state0/time", 1000)}
"""The file of each CPU that counts the time polled under a driver, and the ns of its unit."""


def metrics_of(policy: str) -> tuple[Metric, Metric]:
    """Return the metrics of a policy: how long tasks waited, and how long CPUs polled."""
    name = policy.partition(":")[0]
    return (
        Metric(
            f"{name}_waited_ms_per_s",
            "ms/s",
            "none",
            f"{policy}: waited",
            "Time from waking to running, of the wakeups from other CPUs in a second",
            clock="host",  # a ratio of two times of one clock needs no correction
        ),
        Metric(
            f"{name}_polled_ms_per_s",
            "ms/s",
            "none",
            f"{policy}: polled",
            "Time that CPUs polled in a second, all CPUs together",
            clock="host",
        ),
    )


def start(guest: Guest) -> None:
    """Start the server, and put the client where the guest finds it."""
    guest.run(["busybox", "ip", "link", "set", "lo", "up"])
    guest.write_text(SERVER, SERVE)
    guest.write_text(CLIENT, SEND)
    serve = f"taskset -c 1 python3 {SERVER} > /dev/null 2>&1 &"
    guest.run(["sh", "-c", f"{serve} until [ -e {READY} ]; do sleep 0.1; done"])


def load(seconds: float, seed: int) -> str:
    """Return the command that puts load on the server for so long."""
    return f"taskset -c 0 python3 {CLIENT} {seconds} {seed}"


def set_mode(guest: Guest, mode: str) -> None:
    """Set the driver's mode; in the default one the limit, 0, follows from the cost alone."""
    guest.write_text(f"{PARAMETERS}/poll_limit_us", str(FIXED_US if mode == "fixed" else 0))
    guest.write_text(f"{PARAMETERS}/mode", mode)


def recorded(guest: Guest, folder: Path, driver: str = MODULE) -> Path:
    """Record the load, and return the recording; COUNTS has what was polled before and after."""
    counts = f"cat {CPUS}/cpu*/{POLLED[driver][0]} >> {COUNTS} 2> /dev/null"
    script = f"rm -f {COUNTS}; {counts}; {load(RECORD_S, 1)}; {counts}; true"
    name = "/run/load.dat"
    command = ["python3", "-m", "lightsleep", "record", "-o", name, "--", "sh", "-c", script]
    guest.run(command, timeout_s=120)
    for path in (name, f"{name}.json"):
        text = guest.run(["base64", "-w0", path]).stdout
        (folder / Path(path).name).write_bytes(base64.b64decode(text))
    return folder / Path(name).name


def said(verb: str, recording: Path, *words: str) -> dict[str, Any]:
    """Have a verb of the tool read a recording; return the JSON that it prints."""
    command = [sys.executable, "-m", "lightsleep", verb, str(recording), "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise LightsleepError(f"lightsleep {verb}: {done.stderr.strip()}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def replayed(table: Path) -> dict[str, Any]:
    """Return what ``lightsleep replay`` says of each policy."""
    policies = said("replay", table, "--policies", ",".join(POLICIES))["policies"]
    return {x["policy"]: x["as_recorded"] for x in policies}


@dataclass(frozen=True)
class FromOthers:
    """A recording that says of wakeups from other CPUs alone how long tasks waited."""

    table: Path
    waited_ns: int
    span_ns: int


def from_others(recording: Path) -> FromOthers:
    """Write such a table beside a recording, and return what tasks waited there in all."""
    path = recording.with_suffix(".parquet")
    (lost,) = said("report", recording, "--parquet", str(path))["results"]
    with pq.ParquetFile(path) as file:
        table, described = file.read(), file.metadata.metadata
    itself = pc.is_in(table[ENDED_BY].cast(pa.string()), ITSELF)
    waited = pc.if_else(itself, pa.scalar(None, pa.int64()), table[WAITED])
    column = table.schema.get_field_index(WAITED)
    table = table.set_column(column, table.schema.field(column), waited)
    pq.write_table(table.replace_schema_metadata(described), path)
    return FromOthers(path, pc.sum(waited).as_py() or 0, lost["span_ns"])


def figures(policy: str, waited_ns: float, polled_ns: float, span_ns: int) -> dict[str, float]:
    """Return the figures of a policy by their names."""
    waited, polled = metrics_of(policy)
    return {waited.name: 1000 * waited_ns / span_ns, polled.name: 1000 * polled_ns / span_ns}


def predicted(guest: Guest, folder: Path) -> dict[str, float]:
    """Record a guest whose CPUs halt at once; return what the replay says of each policy."""
    there = from_others(recorded(guest, folder))
    outcomes = replayed(there.table)
    found: dict[str, float] = {}
    for policy in POLICIES:
        would = outcomes[policy]
        saved_ns = outcomes["stock"]["waited_ns"] - would["waited_ns"]
        found |= figures(policy, there.waited_ns - saved_ns, would["polled_ns"], there.span_ns)
    return found


def measured(guest: Guest, folder: Path) -> dict[str, float]:
    """Record a guest under each policy; return what it did."""
    found: dict[str, float] = {}
    for policy, mode in POLICIES.items():
        with under(guest, mode) as driver:
            if mode == "adaptive":
                guest.run(["sh", "-c", load(LEARN_S, 2)])
            there = from_others(recorded(guest, folder, driver))
        counts = [int(count) * POLLED[driver][1] for count in guest.read_text(COUNTS).split()]
        polled_ns = sum(counts[VCPUS:]) - sum(counts[:VCPUS])
        found |= figures(policy, there.waited_ns, polled_ns, there.span_ns)
    return found


@contextlib.contextmanager
def under(guest: Guest, mode: str | None) -> Iterator[str]:
    """Have the driver in a mode, or haltpoll's in its place; return which one it is."""
    if mode:
        set_mode(guest, mode)
        yield MODULE
        return
    guest.run(["rmmod", MODULE])
    guest.insmod(HALTPOLL)
    try:
        yield HALTPOLL
    finally:
        guest.run(["rmmod", HALTPOLL])
        guest.insmod(MODULE)


def measure(guest: Guest) -> dict[str, float]:
    """Predict, or measure, what the guest's arm is named for."""
    with tempfile.TemporaryDirectory(prefix="lightsleep-") as folder:
        does = measured if MODULE in guest.machine.modules else predicted
        return does(guest, Path(folder))


NEAR = 0.85, 1 / 0.85
"""Within 15 %."""

EXPERIMENT = Experiment(
    title="What a replay predicts, and what then happens",
    hypothesis=(
        "For a load that nothing holds up, lightsleep replay predicts within 15 % how long tasks "
        "wait for CPUs under a policy, and how long CPUs poll."
    ),
    arms=(
        Arm("predicted", "baseline", "a recording of the distribution's kernel as it is, replayed"),
        Arm(
            "measured",
            "treatment",
            "the same kernel and load with cpuidle-lightsleep in the modes that were predicted",
            modules=(MODULE,),
        ),
        Arm(
            "predicted-off",
            "treatment",
            "a recording of the kernel with cpuidle-lightsleep in mode off, replayed",
            modules=(f"{MODULE} mode=off",),
        ),
        Arm("predicted-again", "control", "a second guest booted exactly as predicted"),
    ),
    metrics=tuple(metric for policy in POLICIES for metric in metrics_of(policy)),
    measure=measure,
    start=start,
    warmup=0,
    claims=tuple(
        Claim("measured", reference, (metric.name,), at_least=NEAR[0], at_most=NEAR[1])
        for reference in ("predicted", "predicted-off")
        for policy in POLICIES
        for metric in metrics_of(policy)
    ),
    vcpus=VCPUS,
    runs=12,  # each records and runs every policy
    boots=4,
    pin=True,
)
