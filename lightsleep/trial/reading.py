# SPDX-License-Identifier: GPL-2.0-only
"""Counters of the whole machine, read before and after a run of the command."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lightsleep import interrupts
from lightsleep.scan.collect import CPU_DIR, IDLE, INTERRUPTS, POWERCAP, collect, cpu_seconds
from lightsleep.scan.model import distinct_names
from lightsleep.scan.tree import MAX_INTERRUPTS_BYTES, Tree


@dataclass(frozen=True)
class StateCount:
    """How often a CPU entered an idle state, and for how long."""

    usage: int
    time_us: int
    polls: bool


@dataclass(frozen=True)
class Energy:
    """What a package has used, in uJ, and the value after which its counter starts again."""

    uj: int
    range_uj: int


@dataclass(frozen=True)
class Idle:
    """How long all CPUs together had been idle at a moment."""

    time_s: float
    idle_s: float


@dataclass(frozen=True)
class Reading:
    """All counters at one moment; ``states`` by CPU and name, empty without a cpuidle driver.

    The names are those of distinct_names(). ``ipis`` are by CPU, and so are ``hits``: polls of
    lightsleep's driver that saw a wakeup. ``polled_ns``, by CPU, is the time polled in the idle
    loop, in no state. ``stolen_s`` is of all CPUs together. To read takes time, and more of it
    where a driver has more files: so ``idle_begin`` is from before all else was read, and
    ``idle_end`` from after that.
    """

    time_s: float
    cpus: int
    states: dict[tuple[int, str], StateCount]
    ipis: dict[int, int] | None
    stolen_s: float | None
    energy: dict[str, Energy]
    hits: dict[int, int] = field(default_factory=dict)
    polled_ns: dict[int, int] = field(default_factory=dict)
    idle_begin: Idle | None = None
    idle_end: Idle | None = None


def read(root: Path) -> Reading:
    """Read the counters of the machine at ``root``."""
    idle_begin = _idle(root)
    scan, tree = collect(root)
    return Reading(
        time_s=time.monotonic(),
        cpus=len(scan.cpus),
        states={
            (cpu.number, names[state.index]): StateCount(state.usage, state.time_us, state.polls)
            for cpu in scan.cpus
            for names in [distinct_names(cpu.states)]
            for state in cpu.states
            if state.usage is not None and state.time_us is not None
        },
        ipis=_ipis(tree),
        stolen_s=scan.stolen_s,
        energy=_energy(tree, scan.energy),
        hits={
            cpu.number: cpu.lightsleep.hits
            for cpu in scan.cpus
            if cpu.lightsleep and cpu.lightsleep.hits is not None
        },
        polled_ns=_polled_ns(tree, [cpu.number for cpu in scan.cpus]),
        idle_begin=idle_begin,
        idle_end=_idle(root),
    )


def _idle(root: Path) -> Idle | None:
    time_s = time.monotonic()  # the kernel sums this up first, and then counts interrupts
    idle_s = cpu_seconds(Tree(root), IDLE)
    return None if idle_s is None else Idle(time_s, idle_s)


READINGS = 3
"""Of the interrupts, where a CPU comes or goes meanwhile: a run that lacks them lacks a metric, and
then no run of the trial has it."""


def _ipis(tree: Tree) -> dict[int, int] | None:
    """Return how many interrupts between CPUs each CPU has got."""
    readings = (_ipis_once(tree) for _ in range(READINGS))
    return next((found for found in readings if found is not None), None)


def _ipis_once(tree: Tree) -> dict[int, int] | None:
    header, rows = interrupts.table(tree.content(INTERRUPTS, MAX_INTERRUPTS_BYTES) or b"")
    cpus = interrupts.columns(header)
    split = (interrupts.split(row, len(cpus)) for row in rows)
    found = [counts for kind, counts in split if kind == "ipi"]
    if not found or not all(found):  # a CPU came or went meanwhile
        return None
    return dict(zip(cpus, map(sum, zip(*found, strict=True)), strict=True))


def _polled_ns(tree: Tree, cpus: Sequence[int]) -> dict[int, int]:
    """Return how long each CPU has polled in the idle loop; none where the kernel cannot."""
    found = {cpu: tree.number(f"{CPU_DIR}/cpu{cpu}/idle_poll/polled_ns") for cpu in cpus}
    return {cpu: polled_ns for cpu, polled_ns in found.items() if polled_ns is not None}


def _energy(tree: Tree, names: Sequence[str]) -> dict[str, Energy]:
    """Return the counters of packages; only root may read them."""
    found = {}
    for name in names:
        uj = tree.number(f"{POWERCAP}/{name}/energy_uj")
        range_uj = tree.number(f"{POWERCAP}/{name}/max_energy_range_uj")
        if uj is not None and range_uj:
            found[name] = Energy(uj, range_uj)
    return found
