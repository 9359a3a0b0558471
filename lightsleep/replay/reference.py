# SPDX-License-Identifier: GPL-2.0-only
"""Wakeups of CPUs that were found polling or awake: what one takes that has no halt to leave.

The cores of a machine may differ. So CPUs with one table of idle states have a reference of their
own, if it has ENOUGH wakeups. Those that lack it share that of all CPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lightsleep.periods.lost import ENOUGH, Wakes

EXACT = 0.25
"""A reference whose median is known within this part of what a wakeup from a halt takes is exact.
If it takes longer by no more than this part, too, it shows that a halt costs nothing. (A recording
that is long enough makes every reference exact, also one of CPUs that were awake for a softirq.)"""


@dataclass(frozen=True)
class Reference:
    """The reference of CPUs with one table of idle states; ``shared``: that of all CPUs."""

    wakes: Wakes
    shared: bool = False

    @property
    def usual_ns(self) -> float:
        """What such a wakeup typically takes."""
        return self.wakes.within_ns(0.5)

    def tells(self, halted: Wakes) -> bool:
        """Return whether it tells what wakeups from a state cost.

        A wakeup from a halt cannot be faster than one of an awake CPU. A reference by which it is
        tells nothing, unless it is known to be hardly slower.
        """
        if self.wakes.count < ENOUGH:
            return False
        return self.usual_ns < halted.within_ns(0.5) or self.is_near(halted)

    def is_near(self, halted: Wakes) -> bool:
        """Return whether it is exact, and hardly slower than wakeups from a state."""
        halted_ns = halted.within_ns(0.5)
        return self._is_exact(halted) and self.usual_ns - halted_ns <= EXACT * halted_ns

    def is_doubtful(self, halted: Wakes) -> bool:
        """Return whether it tells less than it seems to."""
        return not self._is_exact(halted) and not halted.is_slower_than(self.wakes)

    def _is_exact(self, halted: Wakes) -> bool:
        low_ns, high_ns = self.wakes.median_interval_ns()
        return high_ns - low_ns <= EXACT * halted.within_ns(0.5)


def references(found: Mapping[int, Wakes], tables: Iterable[int]) -> dict[int, Reference]:
    """Return the reference of each table of states, of what was found on the CPUs of each."""
    every = Wakes.of_states(found.values())
    enough = {table: wakes for table, wakes in found.items() if wakes.count >= ENOUGH}
    return {
        table: Reference(enough[table]) if table in enough else Reference(every, shared=True)
        for table in tables
    }
