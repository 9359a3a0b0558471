# SPDX-License-Identifier: GPL-2.0-only
"""What was measured: the raw sample, the same from the kernel module and from user space.

The fields are the columns of the module's debugfs file ``latency_test/run``, in their order.
"""

from dataclasses import dataclass
from typing import Literal

Source = Literal["timer", "ipi", "store", "device"]
WakePath = Literal["timer", "ipi", "none", "irq"]

NOT_IDLE = -1


@dataclass(frozen=True, slots=True)
class Sample:
    """One wake of CPU ``dest``. Times are in ns, stamps in CLOCK_MONOTONIC.

    ``requested`` is the index of an idle state, ``any`` or ``busy``; ``entered`` the index of the
    state that ``dest`` was in at launch, NOT_IDLE, or None where nothing tells. ``path`` is what
    ended the idling, ``settled_ns`` how long before the launch it had begun; None where nothing
    tells. ``verdict`` is ``ok``, or why the sample does not count.
    """

    source: Source
    src: int
    dest: int
    requested: str
    entered: int | None
    path: WakePath | None
    settled_ns: int | None
    launch_ns: int
    wake_ns: int
    latency_ns: int
    verdict: str

    @property
    def valid(self) -> bool:
        """Whether the sample counts."""
        return self.verdict == "ok"
