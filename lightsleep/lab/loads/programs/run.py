# SPDX-License-Identifier: GPL-2.0-only
"""Servers started in a guest, and one run of a load: what it reached, and what it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from lightsleep.errors import LightsleepError
from lightsleep.lab.boot.agent import Completed
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.loads.interrupts import BETWEEN_CPUS, received
from lightsleep.lab.loads.programs.outputs import Outcome
from lightsleep.lab.loads.programs.servers import GROUP, MANY, ONE, PASSWD, Load, Program
from lightsleep.lab.run.experiment import Metric

READY_S = 60.0
PROBE_EVERY_S = 0.2
START_S = 300.0
"""An emulated CPU takes a while over a new database."""


def starter(programs: Sequence[Program]) -> Callable[[Guest], None]:
    """Return what starts all ``programs`` in a guest and returns when they answer."""

    def start(guest: Guest) -> None:
        guest.write_text("/etc/passwd", PASSWD)
        guest.write_text("/etc/group", GROUP)
        guest.run(["busybox", "ip", "link", "set", "lo", "up"])
        for program in programs:
            _start(guest, program)

    return start


def _start(guest: Guest, program: Program) -> None:
    for path, text in program.files.items():
        guest.write_text(path, text)
    if program.prepare:
        guest.run(program.prepare, timeout_s=START_S)
    guest.run(program.start, timeout_s=START_S)
    deadline = time.monotonic() + READY_S
    while (done := guest.run(program.probe, check=False)).rc != 0:
        if time.monotonic() > deadline:
            raise LightsleepError(
                f"{guest.name}: {program.name} does not answer within {READY_S:g} s: "
                f"{(done.stderr or done.stdout).strip()[-500:] or '(no output)'}"
            )
        time.sleep(PROBE_EVERY_S)
    if program.fill:
        guest.run(program.fill, timeout_s=START_S)


def run_load(guest: Guest, program: Program, connections: int) -> dict[str, float]:
    """Run one load; return its figures by the names that ``metrics_of`` gives them.

    Raises LightsleepError where a request fails, or the generator says what nobody expects.
    """
    load = program.loads[connections]
    irqs = received(guest, *BETWEEN_CPUS)
    cpu_ns = guest.vcpu_time().ran_ns
    done = guest.run(load.argv, stdin=load.stdin, timeout_s=120)
    cpu_ns = guest.vcpu_time().ran_ns - cpu_ns
    irqs = received(guest, *BETWEEN_CPUS) - irqs
    outcome = outcome_of(load, done)
    assert outcome.requests
    values = {
        "per_s": outcome.per_s,
        "cpu_us": cpu_ns / 1000 / outcome.requests,
        "ipis": irqs / outcome.requests,
        "p50_us": outcome.p50_us,
        "p99_us": outcome.p99_us,
    }
    return {
        f"{program.name}_{connections}_{what}": value
        for what in _figures(program, connections)
        if (value := values[what]) is not None
    }


def outcome_of(load: Load, done: Completed) -> Outcome:
    """Return what became of the requests of a load, by its output or by the time it took."""
    if load.read is None:
        assert load.requests
        return Outcome(per_s=load.requests / done.duration_s, requests=load.requests)
    outcome = load.read(done.stdout)
    return outcome if outcome.requests else replace(outcome, requests=load.requests)


def _figures(program: Program, connections: int) -> tuple[str, ...]:
    percentiles = ("p50_us", "p99_us") if program.loads[connections].percentiles else ()
    return ("per_s", *percentiles, "cpu_us", *(("ipis",) if connections == ONE else ()))


def metrics_of(program: Program, connections: int) -> tuple[Metric, ...]:
    """Return the metrics of one load, named PROGRAM_CONNECTIONS_WHAT."""
    load = program.loads[connections]
    command, time_of_one = " ".join(load.argv), f"Of a request's time; {load.percentiles}"
    who = f"{program.title}, {'one connection' if connections == ONE else f'{connections} at once'}"
    all_of_them = {
        "per_s": Metric("per_s", "/s", "higher", f"{who}: requests", f"Per second: {command}"),
        "p50_us": Metric("p50_us", "us", "lower", f"{who}: median", time_of_one),
        "p99_us": Metric("p99_us", "us", "lower", f"{who}: p99", time_of_one),
        "cpu_us": Metric(
            "cpu_us",
            "us",
            "lower",
            f"{who}: host CPU time",
            "CPU time of the vCPU threads (the host's schedstat) while the generator ran, its "
            "start included, for each request",
            clock="host",
            amount=True,
        ),
        "ipis": Metric(
            "ipis",
            "",
            "lower",
            f"{who}: interrupts between CPUs",
            "Rescheduling and function call interrupts while the generator ran, for each request",
        ),
    }
    return tuple(
        replace(all_of_them[what], name=f"{program.name}_{connections}_{what}")
        for what in _figures(program, connections)
    )


def all_metrics(
    programs: Sequence[Program], connections: Sequence[int] = (ONE, MANY)
) -> tuple[Metric, ...]:
    """Return the metrics of the loads with these numbers of ``connections``."""
    return tuple(
        metric
        for program in programs
        for number in connections
        for metric in metrics_of(program, number)
    )


def run_all(
    guest: Guest, programs: Sequence[Program], connections: Sequence[int] = (ONE, MANY)
) -> dict[str, float]:
    """Run the same loads, one after the other, and return all their figures."""
    figures: dict[str, float] = {}
    for program in programs:
        for number in connections:
            figures |= run_load(guest, program, number)
    return figures
