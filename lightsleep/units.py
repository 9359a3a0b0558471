# SPDX-License-Identifier: GPL-2.0-only
"""How figures are said: in digits that mean something, and with their unit."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

SECOND_NS = 1_000_000_000
NS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": SECOND_NS,
    "min": 60 * SECOND_NS,
    "m": 60 * SECOND_NS,
    "h": 3600 * SECOND_NS,
}
MAX_NS = 10**18
"""The longest time, over 31 years: it fits into 64 bits."""

MOST_DECIMALS = 9
TIMES = ("s", "ms", "us", "µs", "ns")


def parse_ns(text: str) -> int | None:
    """Return a time such as 200us, 1.5ms or 10min in ns.

    None where it is none, above 0 but too short for that, or too long.
    """
    found = re.fullmatch(rf"([0-9]{{1,9}}(?:\.[0-9]{{1,9}})?)\s*({'|'.join(NS)})", text)
    if not found:
        return None
    time_ns = round(float(found[1]) * NS[found[2]])
    return None if time_ns > MAX_NS or (float(found[1]) and not time_ns) else time_ns


def value(number: float, unit: str) -> str:
    """Return a number with its unit, in digits that mean something: 0.402 s, 39,700, 99.93 %."""
    return f"{digits(number, unit)} {unit}".rstrip()


def seconds(time_ns: float) -> str:
    """Return a time in s or, where it is short, in ms."""
    return value(time_ns / 1e9, "s") if time_ns >= 1e9 else value(time_ns / 1e6, "ms")


def whole_s(time_ms: float) -> int:
    """Return a time in seconds, rounded up: what lasts for at most so long."""
    return math.ceil(time_ms / 1000)


def span(low: float, high: float, unit: str) -> str:
    """Return an interval with its unit: 0.39 to 0.41 s."""
    return f"{digits(low, unit)} to {value(high, unit)}"


def digits(number: float, unit: str, *, points: bool = False) -> str:
    """Return a number in at least three significant digits.

    ``points`` marks a difference of percentages, which is far smaller than they are. A percentage
    has two decimals, and more where it would be 0 or 100 without being it.
    """
    number += 0.0  # never -0.0
    if unit == "" and number == round(number) and abs(number) < 1e15:
        return f"{number:,.0f}"
    if number and not 1e-6 <= abs(number) < 1e15:
        return f"{number:.3g}"
    if unit == "%":
        # In two decimals, what is not quite 0 would be 0, and what is not quite 100 would be all.
        off = abs(number) if points else min(abs(number), abs(round(100 - number, MOST_DECIMALS)))
        decimals = max(3 if points else 2, _first_decimal(off)) if off < 0.1 else 2
        return f"{round(number, decimals) + 0.0:.{decimals}f}"  # never -0
    return f"{number:,.{_decimals(number)}f}"


def counted(number: int, noun: str) -> str:
    """Return a number of things, whose noun has a regular plural: 1 round, 2,000 rounds."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def factor(number: float) -> str:
    """Return a positive factor; close to 1 in as many digits as tell it from 1: 1.047, 1.0002."""
    if not 1e-6 <= number < 1e6:
        return f"{number:.3g}"
    beyond = abs(number - 1)
    return f"{number:,.{max(3, _first_decimal(beyond)) if beyond < 0.1 else _decimals(number)}f}"


def beside(number: float, said: str, bounds: Iterable[float]) -> str:
    """Return what is ``said`` of a number, in as many digits as tell on which side of bounds it is.

    1.1017 beside 1.1 is 1.102, not 1.10.
    """
    bounds, decimals = [*bounds], len(said.partition(".")[2])
    for more in range(decimals + 1, MOST_DECIMALS + 1):
        shown = float(said.replace(",", ""))
        if "e" in said or all(_side(shown, x) == _side(number, x) for x in bounds):
            break
        said = f"{number:,.{more}f}"
    return said


def us(value_ns: float) -> str:
    """Return nanoseconds as microseconds, in at most two decimals and without the unit."""
    value_us = value_ns / 1000
    for limit, decimals in ((10, 2), (100, 1)):
        if abs(value_us) < limit:
            return f"{value_us:.{decimals}f}"
    return f"{value_us:.0f}"


def _side(number: float, bound: float) -> int:
    return (number > bound) - (number < bound)


def _first_decimal(number: float) -> int:
    """Return the place of the first digit of a small number that is not 0, 6 at most."""
    return min(6, -math.floor(math.log10(abs(number)))) if abs(number) >= 1e-6 else 0


def _decimals(number: float) -> int:
    return max(0, 2 - math.floor(math.log10(abs(number)))) if number else 0
