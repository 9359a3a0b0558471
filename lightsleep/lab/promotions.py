# SPDX-License-Identifier: GPL-2.0-only
"""What the experiments on promotion share: the kernel, idle states to be promoted in, and counters.

States are the machine's own where it has some, else cpuidle_synthetic's, which take their time.
"""

from __future__ import annotations

from dataclasses import dataclass

from lightsleep.lab.guest import Guest

KERNEL = "6.12-series"
STATES = "lite:1:10,mid:16:30,deep:32:64"
"""name:latency_us:residency_us. Even ladder, which goes by latencies, is misled in these."""

KNOBS = "/sys/devices/system/cpu/cpu{cpu}/cpuidle/state*"


@dataclass(frozen=True)
class Counts:
    """What all idle states of one CPU, or of all, count; or how much more than before."""

    promoted: int
    armed: int
    entered: int
    stuck_us: int

    def __sub__(self, other: Counts) -> Counts:
        """Return what was counted since ``other``."""
        return Counts(
            self.promoted - other.promoted,
            self.armed - other.armed,
            self.entered - other.entered,
            self.stuck_us - other.stuck_us,
        )

    @property
    def armed_pct(self) -> float:
        """Return for how many of 100 entries a timer was armed."""
        return 100 * self.armed / max(1, self.entered)


def need_states(guest: Guest, states: str = STATES) -> None:
    """Have idle states in a guest: its own, else ``states``."""
    if guest.read_text("/sys/devices/system/cpu/cpuidle/current_driver") == "none\n":
        guest.insmod(f"cpuidle_synthetic states={states}")


def total(guest: Guest, file: str, cpu: int | str = "*") -> int:
    """Return the sum of the numbers in that file of each idle state."""
    done = guest.run(["sh", "-c", f"cat {KNOBS.format(cpu=cpu)}/{file}"])
    return sum(int(word) for word in done.stdout.split())


def counts(guest: Guest, cpu: int | str = "*") -> Counts:
    """Return the counters of one CPU, or of all."""
    files = ("promote/promoted", "promote/armed", "usage", "promote/stuck_us")
    return Counts(*(total(guest, file, cpu) for file in files))
