# SPDX-License-Identifier: GPL-2.0-only
"""What watch reads at one moment: counters that only rise, by CPU. None: not there to be read.

Named tuples: frozen dataclasses take three times as long to make, and there is one for each CPU.
"""

from typing import NamedTuple

from lightsleep.scan.model import PollStats


class States(NamedTuple):
    """Entries into each idle state of a CPU, and time there (us), in the order of the states.

    Time counts when the CPU leaves a state.
    """

    usage: tuple[int, ...]
    time_us: tuple[int, ...]


class CpuCount(NamedTuple):
    """The counters of one CPU.

    ``names`` are its states', as distinct_names() has them. ``interrupts`` are in the order of
    interrupts.KINDS, None for a kind that nothing counts here. ``idle_s`` includes a sleep that has
    not ended; it is in ticks. ``loop_polled_ns`` is time polled in the idle loop, by a kernel that
    does so (idle_poll). It is idle time, of no state. ``polling`` names the states that poll.
    """

    names: tuple[str, ...]
    states: States | None
    own: PollStats | None
    interrupts: tuple[int | None, ...] | None
    idle_s: float | None
    stolen_s: float | None
    loop_polled_ns: int | None = None
    polling: frozenset[str] = frozenset()


class Snapshot(NamedTuple):
    """All counters at one moment; ``time_s`` is of the monotonic clock.

    ``wait_weight`` and ``host_is_short`` are parameters of lightsleep's module, where that is
    loaded. ``spins`` is the option of the kernel's command line by which idle CPUs spin.
    """

    time_s: float
    driver: str | None
    governor: str | None
    mode: str | None
    cpus: dict[int, CpuCount]
    wait_weight: int | None = None
    spins: str | None = None
    host_is_short: bool | None = None
