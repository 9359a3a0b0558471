# SPDX-License-Identifier: GPL-2.0-only
"""The essay of poll_limit.c, read once more, with integers that cannot overflow.

Tests hold poll_limit.c against it. A replay uses it where there is no C compiler.
"""

from __future__ import annotations

from dataclasses import dataclass, field

BUCKETS = 16
SLACK, SUCCESS, PAUSE, WARMUP, TRIAL, WAIT_MIN, WAIT_MAX = 8, 32, 64, 16, 128, 64, 4096
ONE, MEMORY = 16, 128 * 16
SECOND_NS = 10**9


def bucket(idle_ns: int) -> int:
    """Return the bucket that a duration falls into."""
    return next((b for b in range(BUCKETS - 1) if idle_ns < 512 << b), BUCKETS - 1)


@dataclass
class Model:
    """What one CPU has learned; ``limit_ns`` is for how long it polls in its next idle period."""

    cost_ns: int
    ceiling_ns: int
    weight: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    sum_ns: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    trial: int = 0
    wait: int = 0
    backoff: int = WAIT_MIN

    def __post_init__(self) -> None:
        """Start with nothing learned, as poll_limit_init() does."""
        self.cost_ns = min(self.cost_ns, SECOND_NS)
        self.account_ns = WARMUP * self.cost_ns
        self.limit_ns = min(self.cost_ns, self.ceiling_ns)

    def update(self, cost_ns: int, ceiling_ns: int, idle_ns: int) -> int:
        """Learn from one idle period; return the limit of the next one, in ns."""
        cost_ns = min(cost_ns, SECOND_NS)
        if cost_ns != self.cost_ns:
            self.account_ns = WARMUP * cost_ns
        else:
            paid = idle_ns if idle_ns <= self.limit_ns else self.limit_ns + cost_ns
            balance = self.account_ns + 2 * min(idle_ns, cost_ns) + 1 - paid
            self.account_ns = min(max(balance, 0), WARMUP * cost_ns)
        self.cost_ns, self.ceiling_ns = cost_ns, ceiling_ns
        self._remember(idle_ns)

        cap_ns = min(2 * cost_ns, ceiling_ns)
        self.limit_ns, saves = self._learned(cap_ns)
        if self._tries(self.limit_ns > 0, saves):
            self.limit_ns = cap_ns
        stake_ns = min(cost_ns, self.account_ns // 2)
        self.limit_ns = max(cost_ns - stake_ns, min(self.limit_ns, cost_ns + stake_ns))
        self.limit_ns = min(self.limit_ns, ceiling_ns)
        return self.limit_ns

    def _remember(self, idle_ns: int) -> None:
        if idle_ns > PAUSE * self.cost_ns or sum(self.weight) >= MEMORY:
            self.weight = [w // 2 for w in self.weight]
            self.sum_ns = [
                s // 2 if w else 0 for s, w in zip(self.sum_ns, self.weight, strict=True)
            ]
        b = bucket(idle_ns)
        self.weight[b] += ONE
        self.sum_ns[b] += ONE * idle_ns if b < BUCKETS - 1 else 0

    def _learned(self, cap_ns: int) -> tuple[int, bool]:
        ends = [512 << b for b in range(BUCKETS - 1)]
        limits = [0, *(end for end in ends if end <= cap_ns)]
        # The cap stands for the end of the bucket that it is in, if above the mean there.
        b = len(limits) - 1
        if b < len(ends) and self.sum_ns[b] <= self.weight[b] * cap_ns:
            limits.append(cap_ns)
        best, at_once = min(map(self._price, limits)), self._price(0)
        if best == at_once:
            return 0, False
        most = min(best + best // SLACK, at_once - 1)
        limit = max(limit for limit in limits if self._price(limit) <= most)
        return limit, best < at_once - at_once // SUCCESS

    def _price(self, limit_ns: int) -> int:
        # The bucket that ends at the limit is caught, so is the one that a cap is in.
        caught = 0 if not limit_ns else bucket(limit_ns - 1) + 1
        return sum(self.sum_ns[:caught]) + sum(self.weight[caught:]) * (limit_ns + self.cost_ns)

    def _tries(self, polls: bool, saves: bool) -> bool:
        too_dear = self.account_ns < WARMUP // 2 * self.cost_ns
        if saves:
            self.trial, self.wait, self.backoff = 0, WAIT_MIN, WAIT_MIN
        elif self.trial:
            self.trial = 0 if too_dear else self.trial - 1
            if not self.trial:
                self.wait, self.backoff = self.backoff, min(2 * self.backoff, WAIT_MAX)
        elif polls:
            pass
        elif self.wait:
            self.wait -= 1
        else:
            within = self.weight[: min(bucket(4 * self.cost_ns) + 1, BUCKETS - 1)]
            self.trial = TRIAL if 2 * sum(within) >= sum(self.weight) else 0
        return self.trial > 0
