# SPDX-License-Identifier: GPL-2.0-only
"""Idle periods as workloads make them: named, and seeded so that every run gets the same.

A pattern gives n durations in ns, as an array of integers. The first ones are easy for a policy
that learns from the recent past, the last ones are hard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

Ns = npt.NDArray[np.int64]
Pattern = Callable[[np.random.Generator, int], Ns]

US = 1_000
MS = 1_000_000


def periodic(period_ns: int) -> Pattern:
    """Wakes in a fixed rhythm, with a jitter of 2 %: a timer, a device under constant load."""
    return lambda rng, n: _ns(period_ns * rng.normal(1, 0.02, n))


def exponential(mean_ns: int) -> Pattern:
    """Wakes that know nothing of each other: many clients of one server."""
    return lambda rng, n: _ns(rng.exponential(mean_ns, n))


def pareto(shape: float, least_ns: int) -> Pattern:
    """Mostly short, now and then very long: what a mean says nothing about."""
    return lambda rng, n: _ns(least_ns * (1 + rng.pareto(shape, n)))


def mixture(short_ns: int, long_ns: int, long_share: float) -> Pattern:
    """Short or long, by chance, each period anew."""
    return lambda rng, n: _ns(
        np.where(rng.random(n) < long_share, long_ns, short_ns) * rng.normal(1, 0.1, n)
    )


def bursts(short_ns: int, long_ns: int, length: int) -> Pattern:
    """Bursts of ``length`` short waits, on average, with one long pause after each."""
    return mixture(short_ns, long_ns, 1 / length)


def phases(short_ns: int, long_ns: int, length: int) -> Pattern:
    """``length`` short waits, then as many long ones, and so on."""
    return lambda rng, n: _ns(
        np.where(np.arange(n) // length % 2, long_ns, short_ns) * rng.normal(1, 0.1, n)
    )


def _ns(durations: npt.NDArray[np.float64]) -> Ns:
    return np.clip(durations, 0, 1e12).astype(np.int64)


PATTERNS: Mapping[str, Pattern] = {
    "mostly idle: 4 ms": periodic(4 * MS),
    "periodic 3 us": periodic(3 * US),
    "periodic 20 us": periodic(20 * US),
    "periodic 120 us": periodic(120 * US),
    "exponential 10 us": exponential(10 * US),
    "exponential 100 us": exponential(100 * US),
    "exponential 1 ms": exponential(MS),
    "bursts of 64 x 8 us, 2 ms": bursts(8 * US, 2 * MS, 64),
    "phases of 300: 8 us, 2 ms": phases(8 * US, 2 * MS, 300),
    "phases of 24: 8 us, 2 ms": phases(8 * US, 2 * MS, 24),
    "mixture 15 us, 10 % 2 ms": mixture(15 * US, 2 * MS, 0.1),
    "mixture 15 us, 50 % 2 ms": mixture(15 * US, 2 * MS, 0.5),
    "Pareto 1.2 from 4 us": pareto(1.2, 4 * US),
    "Pareto 0.8 from 20 us": pareto(0.8, 20 * US),
    "alternating 8 us, 2 ms": phases(8 * US, 2 * MS, 1),
    "alternating 30 us, 70 us": phases(30 * US, 70 * US, 1),
}


def trace(name: str, periods: int, seed: int = 1) -> Ns:
    """Return ``periods`` durations of the pattern of that name, in ns."""
    rng = np.random.default_rng([seed, *name.encode()])
    return PATTERNS[name](rng, periods)
