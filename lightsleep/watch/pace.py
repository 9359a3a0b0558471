# SPDX-License-Identifier: GPL-2.0-only
"""How often ``lightsleep watch`` looks: as often as its share of a CPU allows."""

import itertools
import math
import statistics
import time
from collections import deque
from collections.abc import Iterator

SHARE = 0.001
"""Of one CPU: what watch may use where the user gives no interval."""

LIVE_S = (1, 30)
"""The shortest and the longest such interval. Idle time is counted in ticks, which are 1 % of a
second at HZ=100; and what comes less often is not live."""

SCRAPED_S = (15, 60)
"""The same for Prometheus, which rarely looks more often than the first."""

TYPICAL = 9
"""Rounds whose median is what a round costs."""


def pause_s(spent_s: float, between_s: tuple[int, int]) -> int:
    """Return after how long to do again what took ``spent_s`` of CPU time, to stay below SHARE."""
    shortest_s, longest_s = between_s
    return min(max(math.ceil(spent_s / SHARE), shortest_s), longest_s)


def paced(
    interval_s: float | None, between_s: tuple[int, int], rounds: int | None, steady: bool = False
) -> Iterator[None]:
    """Yield for each round at its time; one that was missed (a machine asleep) is not made up for.

    Without an interval, it follows from the median of what the last rounds cost: now and then one
    costs many times as much, as when all files are opened anew. A ``steady`` interval never gets
    shorter. The first one is the shortest, and so are all where the number of rounds is given:
    somebody waits for them.
    """
    due = time.monotonic()
    own_s = between_s[0]
    spent_s: deque[float] = deque(maxlen=TYPICAL)
    for number in range(rounds) if rounds else itertools.count():
        if number:
            due = max(due + (interval_s or own_s), time.monotonic())
            time.sleep(max(due - time.monotonic(), 0))
        start_s = time.process_time()
        yield
        if number and not rounds:
            spent_s.append(time.process_time() - start_s)
            needed_s = pause_s(statistics.median_low(spent_s), between_s)
            own_s = max(own_s, needed_s) if steady else needed_s
