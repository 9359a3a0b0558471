# SPDX-License-Identifier: GPL-2.0-only
"""What else went on while a CPU was measured, from /proc/stat before and after."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from lightsleep import cpulist
from lightsleep.scan.machine import Machine, say

# Beyond these shares of the time, latencies say as much about the rest of the machine as about
# its idle states.
STOLEN = 0.02
LOADED = 0.05

# Clock sources that are read through a bus: slower than what they are to measure.
SLOW_CLOCKS = {"acpi_pm", "hpet", "jiffies", "refined-jiffies"}


# Governors that choose state 0 under a latency limit of 0 us, even where it is disabled. A higher
# limit excludes no state while it is measured: governors do not compare the only one left with it.
FIRST_WITHOUT_LATENCY = {"menu", "ladder", "haltpoll"}


@dataclass(frozen=True)
class Ticks:
    """Time of one CPU since boot, in clock ticks: all of it, stolen, and run in user space."""

    total: int
    stolen: int
    user: int

    def __sub__(self, earlier: "Ticks") -> "Ticks":
        """Return the time between two readings; a counter that ran backwards counts as still."""
        return Ticks(
            max(0, self.total - earlier.total),
            max(0, self.stolen - earlier.stolen),
            max(0, self.user - earlier.user),
        )


def read(root: Path) -> dict[int, Ticks]:
    """Return the time of every CPU; an empty dict where /proc/stat cannot be read."""
    try:
        return parse((root / "proc/stat").read_text())
    except OSError:
        return {}


def parse(text: str) -> dict[int, Ticks]:
    """Return what /proc/stat says, CPU by CPU."""
    ticks = {}
    for line in text.splitlines():
        if match := re.fullmatch(r"cpu(\d+)((?: \d+){8,})", line.strip(), re.ASCII):
            # user nice system idle iowait irq softirq steal; guest time is in user already
            times = [int(time) for time in match[2].split()][:8]
            ticks[int(match[1])] = Ticks(sum(times), times[7], times[0] + times[1])
    return ticks


@dataclass(frozen=True)
class Disturbance:
    """What took time of a CPU, with ``{}`` for the share that it took."""

    what: str
    share: float

    def __str__(self) -> str:
        """Return it in words."""
        return self.what.format(f"{self.share:.0%}")


def disturbed(passed: Ticks, ours_in_user: bool) -> Disturbance | None:
    """Return what disturbed a CPU.

    ``ours_in_user`` says that the measurement itself runs on that CPU in user space.
    """
    if not passed.total:
        return None
    if passed.stolen > STOLEN * passed.total:
        return Disturbance("the host stole {} of the time", passed.stolen / passed.total)
    if not ours_in_user and passed.user > LOADED * passed.total:
        return Disturbance("other programs ran for {} of the time", passed.user / passed.total)
    return None


def notes(disturbed: Mapping[int, Disturbance]) -> list[str]:
    """Return a note for each kind of disturbance, with its CPUs and its least and largest share."""
    found = []
    for what in sorted({x.what for x in disturbed.values()}):
        cpus = sorted(cpu for cpu, x in disturbed.items() if x.what == what)
        shares = [disturbed[cpu].share for cpu in cpus]
        ends = dict.fromkeys(f"{share:.0%}" for share in (min(shares), max(shares)))
        found.append(f"CPU {cpulist.format(cpus)}: {what.format(' to '.join(ends))}")
    return found


def standing(machine: Machine, measured: Collection[int], governor: str | None) -> list[str]:
    """Return what makes measurements on this machine uncertain whenever they are taken.

    ``measured`` are the CPUs that are woken, ``governor`` is the one that governs meanwhile.
    """
    notes = []
    clock = machine.environment["clocksource"]
    if clock in SLOW_CLOCKS:
        notes.append(f"reading the clock source {clock} takes a microsecond or more")
    notes += say(
        (
            cpu.number,
            f"under {governor}, a PM QoS latency limit of 0 us excludes {state.name}",
        )
        for cpu in machine.cpus.values()
        for state in cpu.states
        if cpu.number in measured and cpu.latency_limit_us == 0 and state.index > 0
        if governor in FIRST_WITHOUT_LATENCY
    )
    notes += say(
        (
            cpu.number,
            f"under the cpufreq governor {cpu.cpufreq.governor}, a busy CPU may run faster than "
            "one that idles: measure states of a few us under performance",
        )
        for cpu in machine.cpus.values()
        if cpu.number in measured and cpu.cpufreq.varies
    )
    threads = {frozenset({cpu.number}) | cpu.siblings for cpu in machine.cpus.values()}
    if any(len(core) > 1 for core in threads):
        notes.append("CPUs share cores: a core sleeps deeply only while all its CPUs are idle")
    return notes
