# SPDX-License-Identifier: GPL-2.0-only
"""A CPU that sleeps for all kinds of times, as one at work does: run in a guest.

Bursts of short sleeps, timers, single wakes, and pauses. Half of them end by a timer of the CPU's
own, which its governor knows of. The other half ends as another CPU writes into a pipe, which
nobody could foresee.

Python's standard library only; needs root and two CPUs.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import struct
import time
from collections.abc import Iterator

KINDS = (
    (3, 8, 5, 60, False),
    (3, 4, 20, 2_000, True),
    (2, 2, 50, 5_000, False),
    (1, 1, 2_000, 50_000, True),
    (1, 1, 2_000, 50_000, False),
)
"""How often, how many of them in a row, from how many us to how many, and whether by a timer."""

US = struct.Struct("=d")


def sleeps(count: int, seed: int) -> Iterator[tuple[float, bool]]:
    """Yield ``count`` sleeps: us, and whether a timer of the CPU's own ends it."""
    chance = random.Random(seed)
    weights = [weight for weight, *_ in KINDS]
    while count > 0:
        _, burst, low_us, high_us, timer = chance.choices(KINDS, weights)[0]
        for _ in range(min(burst, count)):
            yield math.exp(chance.uniform(math.log(low_us), math.log(high_us))), timer
        count -= burst


def be_on(cpu: int) -> None:
    """Run on that CPU, and be woken without slack."""
    os.sched_setaffinity(0, [cpu])
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))


def sleeper(cpu: int, orders: int, done: int) -> None:
    """Sleep as long as each order says, if only until the next one."""
    be_on(cpu)
    while order := os.read(orders, US.size):
        (us,) = US.unpack(order)
        if us:
            time.sleep(us / 1e6)
        os.write(done, b".")


def main() -> None:
    """Go through all sleeps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cpu", type=int, default=1)
    parser.add_argument("--waker", type=int, default=0, help="the other CPU")
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    orders, give = os.pipe()
    done, say = os.pipe()
    if os.fork() == 0:
        os.close(give)
        sleeper(args.cpu, orders, say)
        os._exit(0)
    os.close(orders)
    be_on(args.waker)
    for us, timer in sleeps(args.count, args.seed):
        if not timer:
            time.sleep(us / 1e6)
        os.write(give, US.pack(us if timer else 0))
        os.read(done, 1)
    os.close(give)
    os.wait()


if __name__ == "__main__":
    main()
