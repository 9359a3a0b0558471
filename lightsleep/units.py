# SPDX-License-Identifier: GPL-2.0-only
"""How figures are said: in digits that mean something, and with their unit."""

from __future__ import annotations

import math
import re

NS = {"ns": 1, "us": 1_000, "ms": 1_000_000}


def parse_ns(text: str) -> int | None:
    """Return a time such as 200us or 1.5ms in ns; None where it is none."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(ns|us|ms)", text)
    return round(float(found[1]) * NS[found[2]]) if found else None


def value(number: float, unit: str) -> str:
    """Return a number with its unit, in digits that mean something: 0.402 s, 39,700, 99.93 %."""
    return f"{digits(number, unit)} {unit}".rstrip()


def span(low: float, high: float, unit: str) -> str:
    """Return an interval with its unit: 0.39 to 0.41 s."""
    return f"{digits(low, unit)} to {value(high, unit)}"


def digits(number: float, unit: str, *, points: bool = False) -> str:
    """Return a number in at least three significant digits.

    ``points`` marks a difference of percentages, which is far smaller than they are.
    """
    if unit == "" and number == round(number) and abs(number) < 1e15:
        return f"{number:,.0f}"
    if number and not 1e-6 <= abs(number) < 1e15:
        return f"{number:.3g}"
    if unit == "%":
        return f"{number:.{3 if points and abs(number) < 0.1 else 2}f}"
    return f"{number:,.{_decimals(number)}f}"


def factor(number: float) -> str:
    """Return a positive factor; close to 1, where two digits would say nothing, in four digits."""
    return f"{number:,.{3 if abs(number - 1) < 0.1 else _decimals(number)}f}"


def us(value_ns: float) -> str:
    """Return nanoseconds as microseconds, in at most two decimals and without the unit."""
    value_us = value_ns / 1000
    for limit, decimals in ((10, 2), (100, 1)):
        if abs(value_us) < limit:
            return f"{value_us:.{decimals}f}"
    return f"{value_us:.0f}"


def _decimals(number: float) -> int:
    return max(0, 2 - math.floor(math.log10(abs(number)))) if number else 0
