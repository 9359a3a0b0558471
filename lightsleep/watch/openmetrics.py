# SPDX-License-Identifier: GPL-2.0-only
"""A snapshot as Prometheus metrics, for the textfile collector of node_exporter.

Counters as they stand, not rates: Prometheus computes these. Names end in their base unit, counters
in ``_total``. The driver, its governor and mode are labels of lightsleep_info.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from lightsleep.files import write_bytes
from lightsleep.scan.model import PollStats
from lightsleep.watch.model import CpuCount, Snapshot

Count = Callable[[PollStats], int | None]

COUNTERS: dict[str, tuple[str, Count, float]] = {
    "lightsleep_polls": ("Polls before a halt.", lambda x: x.polls, 1),
    "lightsleep_poll_hits": ("Polls that saw a wakeup.", lambda x: x.hits, 1),
    "lightsleep_halts": ("Halts.", lambda x: x.halts, 1),
    "lightsleep_polled_seconds": ("Time polled.", lambda x: x.polled_ns, 1e-9),
    "lightsleep_polled_in_vain_seconds": (
        "Time polled that no wakeup ended.",
        lambda x: x.wasted_ns,
        1e-9,
    ),
}
"""What lightsleep's driver counts: name, help, where it stands, its unit."""

GAUGES: dict[str, tuple[str, Count]] = {
    "lightsleep_poll_limit_seconds": ("How long a poll may last now.", lambda x: x.limit_ns),
    "lightsleep_halt_cost_seconds": (
        "What a wakeup from a halt costs more than one from a poll; 0 if unknown.",
        lambda x: x.halt_cost_ns,
    ),
}


class _Collector:
    """What a registry asks for metrics."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Any]:
        snapshot = self._snapshot
        return (family for family in _families(snapshot) if family.samples)


def _families(snapshot: Snapshot) -> Iterator[Any]:
    cpus = [(str(number), cpu) for number, cpu in snapshot.cpus.items()]
    info = GaugeMetricFamily(
        "lightsleep_info",
        "The cpuidle driver and governor, and lightsleep's mode.",
        labels=["driver", "governor", "mode"],
    )
    names = (snapshot.driver, snapshot.governor, snapshot.mode)
    info.add_metric([name or "none" for name in names], 1)
    yield info
    yield from _states(cpus)
    yield from _interrupts(cpus)
    for name, (text, count, unit) in COUNTERS.items():
        family = CounterMetricFamily(name, text, labels=["cpu"])
        yield _filled(family, cpus, count, unit)
    for name, (text, count) in GAUGES.items():
        yield _filled(GaugeMetricFamily(name, text, labels=["cpu"]), cpus, count, 1e-9)


def _filled(family: Any, cpus: list[tuple[str, CpuCount]], count: Count, unit: float) -> Any:
    for number, cpu in cpus:
        value = count(cpu.own) if cpu.own else None
        if value is not None:
            family.add_metric([number], value * unit)
    return family


def _states(cpus: list[tuple[str, CpuCount]]) -> Iterator[Any]:
    labels = ["cpu", "state"]
    entries = CounterMetricFamily(
        "lightsleep_idle_state_entries", "Entries into an idle state.", labels=labels
    )
    spent = CounterMetricFamily(
        "lightsleep_idle_state_seconds", "Time in an idle state.", labels=labels
    )
    stuck = CounterMetricFamily(
        "lightsleep_stuck_shallow_seconds",
        "Time in sleeps for which a deeper state would have been right.",
        labels=["cpu"],
    )
    for number, cpu in cpus:
        if cpu.states:
            for name, count, time_us in zip(
                cpu.names, cpu.states.usage, cpu.states.time_us, strict=True
            ):
                entries.add_metric([number, name], count)
                spent.add_metric([number, name], time_us / 1e6)
            if cpu.states.stuck_us is not None:
                stuck.add_metric([number], cpu.states.stuck_us / 1e6)
    yield from (entries, spent, stuck)


def _interrupts(cpus: list[tuple[str, CpuCount]]) -> Iterator[Any]:
    family = CounterMetricFamily(
        "lightsleep_interrupts",
        "Interrupts received: between CPUs (ipi), of a CPU's timer, of devices.",
        labels=["cpu", "kind"],
    )
    for number, cpu in cpus:
        for kind, count in (cpu.interrupts or {}).items():
            family.add_metric([number, kind], count)
    yield family


def text(snapshot: Snapshot) -> bytes:
    """Return a snapshot in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(snapshot))
    content: bytes = generate_latest(registry)
    return content


def write(snapshot: Snapshot, file: Path) -> None:
    """Replace ``file``, so that a reader sees the old one or the whole new one."""
    write_bytes(file, text(snapshot))
