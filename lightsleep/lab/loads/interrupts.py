# SPDX-License-Identifier: GPL-2.0-only
"""How many interrupts a guest has received, from its /proc/interrupts."""

from __future__ import annotations

from itertools import takewhile

from lightsleep.lab.boot.guest import Guest

TABLE = "/proc/interrupts"

CALLS = "Function call interrupts"
BETWEEN_CPUS = ("Rescheduling interrupts", CALLS)
"""What their rows end in; what they begin with depends on the architecture."""


def total(table: str, *rows: str) -> int:
    """Return the sum over all CPUs of the rows of a table that end in one of ``rows``."""
    return sum(
        int(word)
        for row in table.splitlines()
        if row.endswith(rows)
        # What follows the CPUs' columns may be a number, too: that of the interrupt's line.
        for word in takewhile(str.isdigit, row.split()[1:])
    )


def received(guest: Guest, *rows: str) -> int:
    """Return the sum over all CPUs of the rows of a guest that end in one of ``rows``."""
    return total(guest.read_text(TABLE), *rows)
