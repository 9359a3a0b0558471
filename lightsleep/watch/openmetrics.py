# SPDX-License-Identifier: GPL-2.0-only
"""A snapshot as Prometheus metrics, for the textfile collector of node_exporter.

Written in Prometheus' text format (version 0.0.4): the collector reads no other, OpenMetrics
neither. Counters as they stand, not rates: Prometheus computes these. Names end in their base unit,
counters in ``_total``. The driver, its governor and mode are labels of lightsleep_info.

The kernel counts interrupts in 32 bits. A process that goes on past their end would be followed by
one that begins at what is left, and Prometheus would take all of that for new. So what goes on
begins at 0.

Written by hand: prometheus_client takes ten times as long for the thousands of samples of a large
machine, and is not on every server. The tests read the text with it, and with promtool.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lightsleep.files import publish
from lightsleep.interrupts import KINDS
from lightsleep.watch.model import CpuCount, Snapshot

Sample = tuple[str, float]
"""The labels as they are written, and the value."""


@dataclass(frozen=True)
class Family:
    """A metric: its name, without the prefix that all have, its kind, and its help."""

    name: str
    kind: Literal["counter", "gauge"]
    text: str


INFO = Family("info", "gauge", "The cpuidle driver and governor, and lightsleep's mode.")
WEIGHT = Family(
    "wait_weight", "gauge", "What a second of waiting is worth, in seconds of idle CPU time."
)
SHORT = Family(
    "host_is_short",
    "gauge",
    "1 while no CPU heeds a latency limit, because the host is short of cores.",
)
ENTRIES = Family("idle_state_entries_total", "counter", "Entries into an idle state.")
SPENT = Family("idle_state_seconds_total", "counter", "Time in an idle state.")
INTERRUPTS = Family(
    "interrupts_total",
    "counter",
    "Interrupts received: between CPUs (ipi), of a CPU's timer, of devices.",
)

OWN: dict[str, tuple[Family, float]] = {
    "polls": (Family("polls_total", "counter", "Idle periods in which the CPU polled."), 1),
    "hits": (Family("poll_hits_total", "counter", "Polls that saw a wakeup."), 1),
    "halts": (Family("halts_total", "counter", "Halts."), 1),
    "polled_ns": (
        Family("polled_seconds_total", "counter", "Time that lightsleep's driver polled."),
        1e-9,
    ),
    "wasted_ns": (
        Family("polled_in_vain_seconds_total", "counter", "Time polled that no wakeup ended."),
        1e-9,
    ),
    "limit_ns": (Family("poll_limit_seconds", "gauge", "How long a poll may last now."), 1e-9),
    "halt_cost_ns": (
        Family(
            "halt_cost_seconds",
            "gauge",
            "What a wakeup from a halt costs more than one from a poll, in use on this CPU: "
            "at most 25 us until it is known, 0 if polls save nothing.",
        ),
        1e-9,
    ),
    "contended": (
        Family(
            "contended",
            "gauge",
            "1 while the CPU finds its host short of cores. "
            "It then polls only in mode fixed, while HALT is disabled, "
            "or for a measurement of the machine.",
        ),
        1,
    ),
    "contention_pauses": (
        Family(
            "contention_pauses_total", "counter", "How often the CPU found its host short of cores."
        ),
        1,
    ),
    "paused_ns": (
        Family(
            "paused_seconds_total",
            "counter",
            "Time for which the CPU finds its host short of cores, added when that begins.",
        ),
        1e-9,
    ),
}
"""What lightsleep's driver counts, by its name in PollStats: the metric, and one in its unit."""


def text(snapshot: Snapshot) -> bytes:
    """Return a snapshot in Prometheus' text format."""
    lines = []
    for family, samples in _families(snapshot):
        name = f"lightsleep_{family.name}"
        found = [f"{name}{{{labels}}} {value}" for labels, value in samples]
        if found:
            lines += [f"# HELP {name} {family.text}", f"# TYPE {name} {family.kind}", *found]
    return "".join(f"{line}\n" for line in lines).encode()


First = dict[tuple[int, int], int]
"""Interrupts by CPU and place in KINDS, as they were when first seen."""


def since(first: First, snapshot: Snapshot) -> Snapshot:
    """Return a snapshot whose interrupts count from ``first``, which gets those that it lacks."""

    def risen(key: tuple[int, int], count: int | None) -> int | None:
        if count is None:
            return None
        # A CPU that was offline is read anew: its count may have passed its end before.
        first[key] = min(first.get(key, count), count)
        return count - first[key]

    def of_cpu(number: int, cpu: CpuCount) -> CpuCount:
        found = [risen((number, place), x) for place, x in enumerate(cpu.interrupts or ())]
        return cpu._replace(interrupts=tuple(found) if cpu.interrupts else None)

    cpus = {number: of_cpu(number, cpu) for number, cpu in snapshot.cpus.items()}
    return snapshot._replace(cpus=cpus)


def write(snapshot: Snapshot, file: Path) -> None:
    """Replace ``file``, so that a reader sees the old one or the whole new one.

    A new file can be read by all users, whatever the umask: node_exporter is another one. Its
    folder may belong to that user.
    """
    publish(file, text(snapshot), 0o644)


def _families(snapshot: Snapshot) -> Iterator[tuple[Family, Iterable[Sample]]]:
    cpus = [(f'cpu="{number}"', cpu) for number, cpu in snapshot.cpus.items()]
    names = {"driver": snapshot.driver, "governor": snapshot.governor, "mode": snapshot.mode}
    yield INFO, [(",".join(_label(name, value or "none") for name, value in names.items()), 1)]
    yield WEIGHT, [] if snapshot.wait_weight is None else [("", snapshot.wait_weight)]
    yield SHORT, [] if snapshot.host_is_short is None else [("", int(snapshot.host_is_short))]
    yield ENTRIES, _by_state(cpus, "usage", None)
    yield SPENT, _by_state(cpus, "time_us", 1e-6)
    yield (
        INTERRUPTS,
        [
            (f'{label},kind="{kind}"', count)
            for label, cpu in cpus
            for kind, count in zip(KINDS, cpu.interrupts or (), strict=False)
            if count is not None
        ],
    )
    for name, (family, unit) in OWN.items():
        counts = [(label, getattr(cpu.own, name)) for label, cpu in cpus if cpu.own]
        yield family, [(label, count * unit) for label, count in counts if count is not None]


def _by_state(
    cpus: list[tuple[str, CpuCount]], what: Literal["usage", "time_us"], unit: float | None
) -> Iterator[Sample]:
    for label, cpu in cpus:
        counts = getattr(cpu.states, what) if cpu.states else ()
        for name, count in zip(cpu.names, counts, strict=False):
            yield f"{label},{_label('state', name)}", count if unit is None else count * unit


def _label(name: str, value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{name}="{escaped}"'
