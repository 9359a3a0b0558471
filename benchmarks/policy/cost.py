# SPDX-License-Identifier: GPL-2.0-only
"""What a poll limit costs: the model that poll_limit.c opens with.

Durations, limits and costs are integers in ns, arrays have one element per idle period. C is the
halt cost. A period of d with a limit of L costs d if it was caught (d <= L), otherwise L + C.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ns = npt.NDArray[np.int64]


def paid_ns(idle_ns: Ns, limit_ns: Ns | int, halt_cost_ns: int) -> Ns:
    """Return what each of n periods costs under its limit, or under the one limit of all."""
    return np.where(idle_ns <= limit_ns, idle_ns, limit_ns + np.int64(halt_cost_ns))


def optimum_ns(idle_ns: Ns, halt_cost_ns: int) -> Ns:
    """Return what each of n periods costs somebody who knows its duration beforehand."""
    return np.minimum(idle_ns, halt_cost_ns)


def polled_share(idle_ns: Ns, limit_ns: Ns | int) -> float:
    """Return the share of all idle time that was polled, from 0 to 1."""
    polled_ns = int(np.minimum(idle_ns, limit_ns).sum())
    return polled_ns / max(1, int(idle_ns.sum()))


def best_fixed_ns(idle_ns: Ns, halt_cost_ns: int) -> int:
    """Return the one limit that would have cost least over the trace, any number of ns allowed.

    Only 0 and the durations themselves come into question: more costs more, and catches no more.
    """
    limits = np.concatenate([np.zeros(1, np.int64), np.sort(idle_ns)])
    missed = len(idle_ns) - np.searchsorted(limits[1:], limits, side="right")
    caught_ns = np.concatenate([np.zeros(1, np.int64), np.cumsum(limits[1:])])
    costs = caught_ns[len(idle_ns) - missed] + missed * (limits + halt_cost_ns)
    return int(limits[np.argmin(costs)])
