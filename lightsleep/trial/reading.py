# SPDX-License-Identifier: GPL-2.0-only
"""Counters of the whole machine, read before and after a run of the command."""

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lightsleep import interrupts
from lightsleep.scan.collect import INTERRUPTS, collect
from lightsleep.scan.tree import Tree

POWERCAP = "sys/class/powercap"
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


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
class Reading:
    """All counters at one moment; ``states`` by CPU and name, empty without a cpuidle driver.

    ``stolen_s`` and ``idle_s`` are of all CPUs together.
    """

    time_s: float
    cpus: int
    states: dict[tuple[int, str], StateCount]
    ipis: int | None
    stolen_s: float | None
    energy: dict[str, Energy]
    idle_s: float | None = None


def read(root: Path) -> Reading:
    """Read the counters of the machine at ``root``."""
    scan, tree = collect(root)
    return Reading(
        time_s=time.monotonic(),
        cpus=len(scan.cpus),
        states={
            (cpu.number, state.name): StateCount(state.usage, state.time_us, state.polls)
            for cpu in scan.cpus
            for state in cpu.states
            if state.usage is not None and state.time_us is not None
        },
        ipis=_ipis(tree),
        stolen_s=_spent_s(tree, (8,)),
        energy=_energy(tree),
        idle_s=_spent_s(tree, (4, 5)),
    )


def _ipis(tree: Tree) -> int | None:
    header, *rows = (tree.content(INTERRUPTS) or b"").split(b"\n")
    cpus = len(interrupts.columns(header))
    found = [counts for kind, counts in (interrupts.split(x, cpus) for x in rows) if kind == "ipi"]
    return sum(map(sum, found)) if found else None


def _spent_s(tree: Tree, columns: Sequence[int]) -> float | None:
    """Return the sum of columns of /proc/stat, of all CPUs together."""
    words = (tree.text("proc/stat") or "").partition("\n")[0].split()
    if len(words) <= max(columns) or not all(words[column].isdigit() for column in columns):
        return None
    return sum(int(words[column]) for column in columns) * TICK_S


def _energy(tree: Tree) -> dict[str, Energy]:
    """Return the counters of packages; those of their parts would count twice."""
    found = {}
    for name in tree.names(POWERCAP):
        if re.fullmatch(r"[a-z-]+:[0-9]+", name):
            uj = tree.number(f"{POWERCAP}/{name}/energy_uj")
            range_uj = tree.number(f"{POWERCAP}/{name}/max_energy_range_uj")
            if uj is not None and range_uj:
                found[name] = Energy(uj, range_uj)
    return found
