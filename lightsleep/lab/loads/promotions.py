# SPDX-License-Identifier: GPL-2.0-only
"""What the experiments on promotion share: the kernel, idle states to be promoted in, and counters.

States are the machine's own where it has some, else cpuidle_synthetic's, which take their time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from lightsleep.errors import LightsleepError
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.loads.silence import Silence

KERNEL = "6.12-series"
STATES = "lite:1:10,mid:16:30,deep:32:64"
"""name:latency_us:residency_us. Even ladder, which goes by latencies, is misled in these."""


@dataclass(frozen=True)
class Pattern:
    """What misleads a governor: how long each sleep of a burst is, and the silence after it."""

    sleep_us: int = 15
    silence_ms: int = 1500


PATTERNS = {
    "x86_64": Pattern(),
    "aarch64": Pattern(),
    # Emulated, this CPU takes 20 us to begin a sleep. Its states are so short that a timer alone
    # wakes it every 35 us, all through the silence: more than that does not fit into the trace.
    "ppc64le": Pattern(sleep_us=30, silence_ms=300),
}

KNOBS = "/sys/devices/system/cpu/cpu{cpu}/cpuidle/state*"


@dataclass(frozen=True)
class Counts:
    """What all idle states of one CPU, or of all, count; or how much more than before."""

    promoted: int
    entered: int

    def __sub__(self, other: Counts) -> Counts:
        """Return what was counted since ``other``."""
        return Counts(self.promoted - other.promoted, self.entered - other.entered)


def need_states(guest: Guest, states: str = STATES) -> None:
    """Have idle states in a guest: its own, else ``states``."""
    if guest.read_text("/sys/devices/system/cpu/cpuidle/current_driver") == "none\n":
        guest.insmod(f"cpuidle_synthetic states={states}")


def silences(guest: Guest, cpu: int, count: int, sibling: int | None = None) -> list[Silence]:
    """Mislead a CPU and leave it alone, ``count`` times; return what became of it."""
    argv = ["python3", "-m", "lightsleep.lab.loads.silence", "--cpu", str(cpu)]
    pattern = PATTERNS[guest.machine.arch]
    argv += ["--count", str(count), "--sleep-us", str(pattern.sleep_us)]
    argv += ["--silence-ms", str(pattern.silence_ms)]
    argv += ["--sibling", str(sibling)] if sibling is not None else []
    found = [Silence(**x) for x in json.loads(guest.run(argv, timeout_s=300).stdout)]
    if len(found) != count:
        raise LightsleepError(f"the trace of {count} silences has {len(found)} of them")
    return found


def shallow_us(found: Sequence[Silence]) -> list[int]:
    """Return how long it took to a deep state, of silences that began in another one."""
    return [x.exit_shallow_us for x in found if x.exit_shallow_us]


def total(guest: Guest, file: str, cpu: int | str = "*") -> int:
    """Return the sum of the numbers in that file of each idle state."""
    done = guest.run(["sh", "-c", f"cat {KNOBS.format(cpu=cpu)}/{file}"])
    return sum(int(word) for word in done.stdout.split())


def counts(guest: Guest, cpu: int | str = "*") -> Counts:
    """Return the counters of one CPU, or of all."""
    return Counts(total(guest, "promoted", cpu), total(guest, "usage", cpu))
