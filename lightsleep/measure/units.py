# SPDX-License-Identifier: GPL-2.0-only
"""Latencies in words."""


def us(value_ns: float) -> str:
    """Return nanoseconds as microseconds, with three digits or more."""
    value_us = value_ns / 1000
    for limit, digits in ((10, 2), (100, 1)):
        if abs(value_us) < limit:
            return f"{value_us:.{digits}f}"
    return f"{value_us:.0f}"
