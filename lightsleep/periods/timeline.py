# SPDX-License-Identifier: GPL-2.0-only
"""Which share of each moment every CPU spent in which idle state.

The recording's length is not known before its end. The timeline has a fixed number of bins; when
time goes on behind the last, pairs of bins are joined and each is twice as wide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from lightsleep.periods.lost import Names

BINS = 512
FIRST_WIDTH_NS = 1 << 16

Ns = npt.NDArray[np.int64]


class Timeline:
    """Idle time by CPU, state and bin."""

    def __init__(self) -> None:
        """Begin at the first period that is added."""
        self.start_ns: int | None = None
        self.width_ns = FIRST_WIDTH_NS
        self.idle_ns: dict[int, dict[str, npt.NDArray[np.float64]]] = {}

    def add(self, cpus: Ns, names: Names, entered_ns: Ns, lengths_ns: Ns) -> None:
        """Add periods; none begins much earlier than those of the first call."""
        if not len(cpus):
            return
        if self.start_ns is None:
            self.start_ns = int(entered_ns.min())
        begin = np.maximum(entered_ns - self.start_ns, 0)
        end = np.maximum(begin, entered_ns + lengths_ns - self.start_ns)
        self.widen_to(int(end.max()))
        for code in np.unique(names.codes).tolist():
            mine = names.codes == code
            cpu, _ = names.pairs[code]
            states = self.idle_ns.setdefault(cpu, {})
            bins = states.setdefault(names.names[code], np.zeros(BINS))
            bins += self._covered(begin[mine], end[mine])

    def columns_ns(self, first_ns: int, span_ns: int, most: int) -> Ns:
        """Return the edges of at most ``most`` columns, as times since the first event.

        The recording began at ``first_ns`` and took ``span_ns``. The first column begins with the
        first bin, the last one ends with the recording.
        """
        start_ns = max(0, (self.start_ns or 0) - first_ns)
        # Where a CPU idles early and others go on, there are events behind the last bin.
        self.widen_to(span_ns - start_ns)
        used = max(1, -(-(span_ns - start_ns) // self.width_ns))
        first_bins = np.arange(0, used, -(-used // most))
        return np.append(start_ns + first_bins * self.width_ns, max(span_ns, start_ns + 1))

    def shares(self, cpu: int, state: str, edges_ns: Ns) -> npt.NDArray[np.float64]:
        """Return the share that a CPU spent in a state, 0 to 1, of columns with these edges."""
        first_bins = (edges_ns[:-1] - edges_ns[0]) // self.width_ns
        idle_ns = np.add.reduceat(self.idle_ns[cpu][state], first_bins)
        return np.minimum(idle_ns / np.diff(edges_ns), 1.0)

    def _covered(self, begin: Ns, end: Ns) -> npt.NDArray[np.float64]:
        """Return how much of each bin these intervals cover, in ns."""
        first, last = begin // self.width_ns, end // self.width_ns
        change = np.zeros(BINS + 1)  # of the number of intervals that cover a bin from end to end
        np.add.at(change, first, 1)
        np.add.at(change, last, -1)
        bins = np.cumsum(change)[:BINS] * self.width_ns
        # The first bin is not covered before its interval begins, the last is until its end.
        np.add.at(bins, first, -(begin - first * self.width_ns).astype(np.float64))
        np.add.at(bins, last, (end - last * self.width_ns).astype(np.float64))
        return bins

    def widen_to(self, length_ns: int) -> None:
        """Have a bin for each moment up to a time since the start."""
        while length_ns >= BINS * self.width_ns:
            self._widen()

    def _widen(self) -> None:
        self.width_ns *= 2
        for states in self.idle_ns.values():
            for name, bins in states.items():
                joined = bins.reshape(-1, 2).sum(axis=1)
                states[name] = np.concatenate([joined, np.zeros(BINS // 2)])
