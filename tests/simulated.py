# SPDX-License-Identifier: GPL-2.0-only
"""Runs of samples of which each resembles the one before, and whose distribution is known."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def correlated(runs: int, n: int, rho: float, seed: int = 6) -> Floats:
    """Return runs of n samples, normal ones with neighbours of the correlation ``rho``."""
    rng = np.random.default_rng(seed)
    series = rng.normal(size=(runs, n))
    for i in range(1, n):
        series[:, i] = rho * series[:, i - 1] + math.sqrt(1 - rho**2) * series[:, i]
    return series


def bursts(runs: int, n: int, share: float, length: float, seed: int = 6) -> Floats:
    """Return runs of n normal samples, 4 higher in bursts of so many samples on average.

    ``share`` of all samples are in bursts.
    """
    rng = np.random.default_rng(seed)
    series, chance = rng.normal(size=(runs, n)), rng.random((runs, n + 1))
    begins, goes_on = share / (1 - share) / length, 1 - 1 / length
    burst = chance[:, n] < share
    for i in range(n):
        burst = chance[:, i] < np.where(burst, goes_on, begins)
        series[:, i] += 4 * burst
    return series


def batches(runs: int, n: int, size: int, share: float, seed: int = 6) -> Floats:
    """Return runs of n normal samples in batches of ``size``, each with a level of its own.

    ``share`` of the variance is that between batches.
    """
    rng = np.random.default_rng(seed)
    levels = rng.normal(size=(runs, -(-n // size))).repeat(size, axis=1)[:, :n]
    return math.sqrt(share) * levels + math.sqrt(1 - share) * rng.normal(size=(runs, n))
