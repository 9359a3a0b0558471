# SPDX-License-Identifier: GPL-2.0-only
"""What watch reads at one moment: counters that only rise, by CPU. None: not there to be read."""

from dataclasses import dataclass

from lightsleep.interrupts import Kind
from lightsleep.scan.model import PollStats


@dataclass(frozen=True, slots=True)
class States:
    """Entries into each idle state of a CPU, and time there (us), in the order of the states.

    Time counts when the CPU leaves a state. ``stuck_us`` is of all states together; only kernels
    with promotion count it.
    """

    usage: tuple[int, ...]
    time_us: tuple[int, ...]
    stuck_us: int | None


@dataclass(frozen=True, slots=True)
class CpuCount:
    """The counters of one CPU. ``idle_s`` includes a sleep that has not ended; it is in ticks."""

    names: tuple[str, ...]
    states: States | None
    own: PollStats | None
    interrupts: dict[Kind, int] | None
    idle_s: float | None
    stolen_s: float | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All counters at one moment; ``time_s`` is of the monotonic clock."""

    time_s: float
    driver: str | None
    governor: str | None
    mode: str | None
    cpus: dict[int, CpuCount]
