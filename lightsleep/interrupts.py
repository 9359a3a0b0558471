# SPDX-License-Identifier: GPL-2.0-only
"""What kind of interrupt a row of /proc/interrupts counts: between CPUs, a timer's, a device's."""

import re
from typing import Literal

Kind = Literal["ipi", "timer", "device"]
KINDS: tuple[Kind, ...] = ("ipi", "timer", "device")

# x86 reschedules (RES) and calls (CAL, which TLB is part of), arm64 IPI0 to IPI7, POWER doorbells.
IPI = re.compile(rb"RES|CAL|DBL|IPI[0-9]+")
TIMER = b"LOC"
ARM_TIMER = b"arch_timer"


def split(row: bytes, cpus: int) -> tuple[Kind | None, list[int]]:
    """Return the kind of a row and its counts by column; None for a row that is of no kind."""
    label, _, rest = row.partition(b":")
    words = rest.split(None, cpus)
    counts = words[:cpus]
    label = label.strip()
    kind: Kind | None = None
    if IPI.fullmatch(label):
        kind = "ipi"
    elif label == TIMER or (label.isdigit() and rest.rstrip().endswith(ARM_TIMER)):
        kind = "timer"
    elif label.isdigit():
        kind = "device"
    if kind is None or not 0 < cpus <= len(counts):
        return None, []
    try:
        return kind, list(map(int, counts))
    except ValueError:
        return None, []


def columns(header: bytes) -> list[int]:
    """Return the CPUs of the columns, from the first line of the file."""
    return [int(x[3:]) for x in header.split() if x.startswith(b"CPU") and x[3:].isdigit()]
