# SPDX-License-Identifier: GPL-2.0-only
"""A machine in a folder and a backend that makes up its samples, for the tests of measure."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lightsleep.measure.model import Batch, Sample, Source, WakePath
from lightsleep.scan.machine import Cpu, Cpufreq, IdleState, Machine

ALL: dict[Source, str | None] = {"timer": None, "ipi": None, "store": None, "device": "no device"}

PATHS: dict[str, WakePath] = {
    "timer": "timer",
    "ipi": "ipi",
    "store": "none",
    "device": "irq",
}


def sample(
    batch: Batch, latency_ns: int, verdict: str = "ok", entered: int | None = None
) -> Sample:
    if entered is None:
        entered = -1 if batch.requested == "busy" else int(batch.requested)
    return Sample(
        batch.source,
        batch.src,
        batch.dest,
        batch.requested,
        entered,
        PATHS[batch.source],
        batch.min_residency_ns,
        10**9,
        10**9 + latency_ns,
        latency_ns,
        verdict,
    )


@dataclass
class FakeBackend:
    """Every wake takes the true latency of its state plus what a busy CPU takes, and noise.

    ``truth_ns`` gives the latency by index of the state. ``fate`` may replace a sample. With
    ``root``, entries are counted in its sysfs, and no state but the requested one may be enabled.
    """

    truth_ns: dict[int, int]
    root: Path | None = None
    mode: Literal["module", "userspace"] = "module"
    busy_ns: int = 1500
    noise_ns: int = 300
    fate: Callable[[Batch, Sample], Sample] = lambda batch, sample: sample
    usable: dict[Source, str | None] = field(default_factory=lambda: dict(ALL))
    batches: list[Batch] = field(default_factory=list)
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def sources(self) -> dict[Source, str | None]:
        return self.usable

    def notes(self, samples: Iterable[Sample]) -> list[str]:
        return [f"made up: {sum(1 for _ in samples)} samples"]

    def run(self, batch: Batch) -> list[Sample]:
        self.batches.append(batch)
        state = None if batch.requested == "busy" else int(batch.requested)
        cost_ns = self.busy_ns + (self.truth_ns[state] if state is not None else 0)
        noise_ns = [self.rng.randrange(self.noise_ns) for _ in range(batch.samples)]
        samples = [self.fate(batch, sample(batch, cost_ns + x)) for x in noise_ns]
        if self.root and state is not None:
            self._enter(self.root, batch.dest, state, sum(x.entered == state for x in samples))
        return samples

    def _enter(self, root: Path, cpu: int, state: int, entries: int) -> None:
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/cpuidle"
        for other in folder.iterdir():
            disabled = (other / "disable").read_text().strip()
            assert disabled == ("0" if other.name == f"state{state}" else "1")
        usage = folder / f"state{state}/usage"
        usage.write_text(f"{int(usage.read_text()) + entries}\n")


def state(
    index: int, latency_us: int | None, residency_us: int | None = None, polls: bool = False
) -> IdleState:
    name = "POLL" if polls else f"C{index}"
    return IdleState(index, name, latency_us, residency_us, polls, False, False, None)


def cpu(number: int, *states: IdleState, siblings: tuple[int, ...] = (), **more: object) -> Cpu:
    facts: dict[str, object] = {
        "package": 0,
        "node": 0,
        "reserved": None,
        "latency_limit_us": None,
        "cluster": frozenset(),
        "cpufreq": Cpufreq(None, None, None),
    }
    return Cpu(number, states, frozenset(siblings), **facts | more)  # type: ignore[arg-type]


def machine(*cpus: Cpu) -> Machine:
    return Machine({cpu.number: cpu for cpu in cpus}, {"clocksource": "tsc", "cpus": len(cpus)})
