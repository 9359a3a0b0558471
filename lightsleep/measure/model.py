# SPDX-License-Identifier: GPL-2.0-only
"""What is measured, and what came of it: the same for the kernel module and for user space.

A Batch is one request. A Sample is one wakeup, and whether it counts.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

Source = Literal["timer", "ipi", "store", "device"]
WakePath = Literal["timer", "ipi", "none", "irq", "thread"]

NOT_IDLE = -1


@dataclass(frozen=True, slots=True)
class Batch:
    """Wakes to take in one go. CPU ``src`` wakes CPU ``dest``; a timer's ``src`` is ``dest``.

    ``requested`` is the index of an idle state as text, ``any`` or ``busy``. The distance from
    arming to launch is random in [min_ns, max_ns]; ``dest`` must have been in the state for
    ``min_residency_ns`` by then.
    """

    source: Source
    src: int
    dest: int
    requested: str
    samples: int
    min_ns: int
    max_ns: int
    min_residency_ns: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One wake of CPU ``dest``. Times are in ns, stamps in CLOCK_MONOTONIC.

    ``requested`` is the index of an idle state, ``any`` or ``busy``; ``entered`` the index of the
    state that ``dest`` was in at launch, NOT_IDLE, or None where nothing tells. ``path`` is what
    ended the idling, ``residency_ns`` how long ``dest`` was idle at the launch; None where nothing
    tells. ``verdict`` is ``ok``, or why the sample does not count.
    """

    source: Source
    src: int
    dest: int
    requested: str
    entered: int | None
    path: WakePath | None
    residency_ns: int | None
    launch_ns: int
    wake_ns: int
    latency_ns: int
    verdict: str

    @property
    def valid(self) -> bool:
        """Whether the sample counts."""
        return self.verdict == "ok"


class Backend(Protocol):
    """Something that takes samples."""

    @property
    def mode(self) -> Literal["module", "userspace"]:
        """What takes them."""

    def sources(self) -> dict[Source, str | None]:
        """Return the sources it knows, each with the reason why it cannot be used here or None."""

    def run(self, batch: Batch) -> list[Sample]:
        """Take a batch; at most ``batch.samples`` samples. Raises LightsleepError."""

    def notes(self, samples: Iterable[Sample]) -> list[str]:
        """Return what a reader of these samples must know of how they were taken."""
