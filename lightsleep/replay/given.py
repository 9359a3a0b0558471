# SPDX-License-Identifier: GPL-2.0-only
"""What a user says that wakeups from halts cost, in place of what a recording tells.

Either one figure for every state (``--halt-cost``), or what ``lightsleep measure`` found
(``--measured``): of each state, the median time that a wakeup by another CPU took, less what the
wake of a busy CPU takes. Where a CPU needs no interrupt to leave a state, as with MWAIT, and the
busy one did, nothing can be subtracted from wakes by IPI: those by store tell. (From user space, it
is subtracted all the same: both begin when a thread is woken and end when it runs, as a wakeup of a
recording does.) A state of the recording is looked up by what its driver says of it, its name, exit
latency and target residency; by its name alone, where only one measured state has that name,
because a driver may change what it says. CPUs with the same states share their wakes, as in a
recording (see intervals.py). So a measurement of some CPUs may do for all, or that of another
machine of the same model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lightsleep.document import load
from lightsleep.errors import LightsleepError
from lightsleep.measure.model import Source
from lightsleep.measure.result import FORMAT, Row
from lightsleep.order import percentile
from lightsleep.periods.model import Metadata

Described = tuple[str, float | None, float | None]
"""Name, exit latency and target residency of a state, in us."""


@dataclass(frozen=True)
class Given:
    """Costs of wakeups from halts, in ns: ``all_ns``, or ``states`` as ``file`` has them."""

    all_ns: int | None = None
    states: Mapping[Described, float] | None = None
    file: str = ""

    def cost_ns(self, metadata: Metadata, cpu: int, state: int) -> float | None:
        """Return what leaving a state of a CPU costs; None where it was not measured."""
        if self.states is None:
            return self.all_ns
        key = described(metadata, cpu, state)
        if key in self.states:
            return self.states[key]
        alike = [cost_ns for (name, *_), cost_ns in self.states.items() if name == key[0]]
        return alike[0] if len(alike) == 1 else None

    def required_ns(self, metadata: Metadata, cpu: int, state: int) -> float:
        """Return the same. Raises LightsleepError where it was not measured."""
        found = self.cost_ns(metadata, cpu, state)
        if found is None:
            raise LightsleepError(
                f"{self.file}: no wakes of CPU {cpu} from {metadata.name(cpu, state)}, "
                "which the recording has: measure that state, or leave out --measured"
            )
        return found


def described(metadata: Metadata, cpu: int, state: int) -> Described:
    """Return what the driver says of a state."""
    key = cpu, state
    return (
        metadata.name_by_driver(*key),
        metadata.advertised_us.get(key),
        metadata.residency_us.get(key),
    )


def measured(path: Path) -> Given:
    """Return the costs in a result of ``lightsleep measure``. Raises LightsleepError."""
    states = by_state(load(path, FORMAT).rows)
    if not states:
        raise LightsleepError(
            f"{path}: no wakes by another CPU beside those of a busy CPU: measure with --source "
            "ipi --source store"
        )
    return Given(states=states, file=str(path))


def by_state(rows: Iterable[Row]) -> dict[Described, float]:
    """Return the median of all wakes by another CPU, above the baseline of each CPU.

    Those by store count where none by IPI does. Rows without a baseline, or whose state the CPU did
    not enter, do not count.
    """
    told = list(rows)
    above_ns = _above_ns(told, "store") | _above_ns(told, "ipi")
    return {key: max(0.0, percentile(sorted(found), 50)) for key, found in above_ns.items()}


def _above_ns(rows: Iterable[Row], source: Source) -> dict[Described, list[float]]:
    """Return what each wake by a source took above the baseline of its CPU."""
    above_ns: defaultdict[Described, list[float]] = defaultdict(list)
    for row in rows:
        if row.kind != "state" or row.source != source:
            continue
        if row.raw and row.subtracted and row.verdict.kind != "not-entered":
            base_ns = row.raw.p50_ns - row.subtracted.p50_ns
            key = row.name, row.advertised_us, row.residency_us
            above_ns[key] += [latency - base_ns for latency in row.latencies_ns]
    return above_ns
