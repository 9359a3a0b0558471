# SPDX-License-Identifier: GPL-2.0-only
"""A load that a guest records, what the tool says of the recording, and the policies to compare.

A policy has a name that ``lightsleep replay`` knows, and a driver in a mode that does the same. The
policy haltpoll has a driver of its own (haltpoll_rule.c), which takes the place of
cpuidle-lightsleep meanwhile.

Waiting is the time from waking to running, of wakeups from other CPUs. (A CPU's own timer wakes a
task once the CPU has left its state. No event shows how long that took, so nothing shows whether a
prediction of it is right.) Time polled is what the driver counts; under haltpoll's it is that of
its state POLL.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lightsleep import cache
from lightsleep.errors import LightsleepError
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.run.experiment import Metric

WAITED = "waking_to_running_ns"

COUNTS = "/run/polled"
CPUS = "/sys/devices/system/cpu"

MODULE = "cpuidle_lightsleep"
PARAMETERS = f"/sys/module/{MODULE}/parameters"
FIXED_US = 100
POLICIES = {"lightsleep": "adaptive", f"fixed:{FIXED_US}us": "fixed", "haltpoll": None}
"""The replay's names, and the driver's modes that do the same; None is another driver."""

HALTPOLL = "haltpoll_rule"
POLLED = {MODULE: ("lightsleep/polled_ns", 1), HALTPOLL: ("cpuidle/state0/time", 1000)}
"""The file of each CPU that counts the time polled under a driver, and the ns of its unit."""

SAID_S = 900.0
"""How long the tool may read a recording: it takes seconds."""


def set_mode(guest: Guest, mode: str) -> None:
    """Set the driver's mode; in the default one the limit, 0, follows from the cost alone."""
    guest.write_text(f"{PARAMETERS}/poll_limit_us", str(FIXED_US if mode == "fixed" else 0))
    guest.write_text(f"{PARAMETERS}/mode", mode)


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


def scratch() -> AbstractContextManager[Path]:
    """Have a folder for recordings; cache.sweep() removes that of a process that was killed."""
    return cache.scratch(f"recorded-{os.getpid()}")


def recorded(guest: Guest, folder: Path, load: str, driver: str = MODULE) -> Path:
    """Record a load, which is a shell command, and return the recording.

    COUNTS has what was polled before and after. Raises LightsleepError where the load fails.
    """
    counts = f"cat {CPUS}/cpu*/{POLLED[driver][0]} >> {COUNTS} 2> /dev/null"
    script = f"rm -f {COUNTS}; {counts}; {load} || exit; {counts}; true"
    name = "/run/load.dat"
    command = ["python3", "-m", "lightsleep", "record", "-o", name, "--", "sh", "-c", script]
    guest.run(command, timeout_s=120)
    for path in (name, f"{name}.json"):
        text = guest.run(["base64", "-w0", path]).stdout
        (folder / Path(path).name).write_bytes(base64.b64decode(text))
    return folder / Path(name).name


def polled_ns(guest: Guest, driver: str) -> int:
    """Return for how long CPUs polled while the load was recorded."""
    counts = [int(count) * POLLED[driver][1] for count in guest.read_text(COUNTS).split()]
    half = len(counts) // 2
    return sum(counts[half:]) - sum(counts[:half])


def said(verb: str, recording: Path, *words: str) -> dict[str, Any]:
    """Have a verb of the tool read a recording; return the JSON that it prints.

    It dies when we do. Raises LightsleepError where it fails, or takes too long.
    """
    command = [sys.executable, "-m", "lightsleep", verb, str(recording), "--json", *words]
    command = ["setpriv", "--pdeathsig", "KILL", *command]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SAID_S)
    except subprocess.TimeoutExpired:
        raise LightsleepError(f"lightsleep {verb}: not done after {SAID_S:g} s") from None
    if done.returncode:
        raise LightsleepError(f"lightsleep {verb}: {done.stderr.strip()}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def replayed(table: Path) -> dict[str, Any]:
    """Return what ``lightsleep replay`` says of each policy, at both ends of its range."""
    policies = said("replay", table, "--policies", ",".join(POLICIES))["policies"]
    return {x["policy"]: x for x in policies}


@dataclass(frozen=True)
class Per:
    """What is measured under each policy: for one of ``count`` messages, in us.

    ``over`` says what a message is: "per datagram".
    """

    over: str
    count: int

    def metrics(self) -> dict[str, tuple[Metric, Metric]]:
        """Return the metrics of each policy: how long tasks waited, and how long CPUs polled."""
        waited = f"Time from waking to running, of the wakeups from other CPUs, {self.over}"
        polled = f"Time that CPUs polled {self.over}, all CPUs together"
        return {
            policy: (
                Metric(f"{_name(policy)}_waited_us", "us", "none", f"{policy}: waited", waited),
                Metric(f"{_name(policy)}_polled_us", "us", "none", f"{policy}: polled", polled),
            )
            for policy in POLICIES
        }

    def figures(self, policy: str, waited_ns: float, poll_ns: float) -> dict[str, float]:
        """Return the figures of a policy by their names."""
        waited, polled = self.metrics()[policy]
        return {
            waited.name: waited_ns / self.count / 1000,
            polled.name: poll_ns / self.count / 1000,
        }

    def measured(self, guest: Guest, folder: Path, load: str, learn: str) -> dict[str, float]:
        """Record a guest under each policy; return what it did. The driver learns before."""
        found: dict[str, float] = {}
        for policy, mode in POLICIES.items():
            with under(guest, mode) as driver:
                if mode == "adaptive":
                    guest.run(["sh", "-c", learn], timeout_s=120)
                there = from_others(recorded(guest, folder, load, driver))
            found |= self.figures(policy, there.waited_ns, polled_ns(guest, driver))
        return found


def _name(policy: str) -> str:
    return policy.partition(":")[0]


@dataclass(frozen=True)
class FromOthers:
    """A recording that says of wakeups from other CPUs alone how long tasks waited."""

    table: Path
    waited_ns: int


def from_others(recording: Path) -> FromOthers:
    """Write such a table beside a recording, and return what tasks waited there in all."""
    path = recording.with_suffix(".parquet")
    said("report", recording, "--parquet", str(path))
    with pq.ParquetFile(path) as file:
        table, described = file.read(), file.metadata.metadata
    itself = pc.equal(table["waker_cpu"], table["cpu"])
    waited = pc.if_else(itself, pa.scalar(None, pa.int64()), table[WAITED])
    column = table.schema.get_field_index(WAITED)
    table = table.set_column(column, table.schema.field(column), waited)
    pq.write_table(table.replace_schema_metadata(described), path)
    return FromOthers(path, pc.sum(waited).as_py() or 0)
