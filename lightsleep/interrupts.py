# SPDX-License-Identifier: GPL-2.0-only
"""What kind of interrupt a row of /proc/interrupts counts: between CPUs, a timer's, a device's."""

import re
from typing import Literal

Kind = Literal["ipi", "timer", "device"]
KINDS: tuple[Kind, ...] = ("ipi", "timer", "device")

# x86 reschedules (RES), calls (CAL, which TLB is part of) and IRQ work (IWI), arm64 IPI0 to IPI7,
# IRQ work among them, POWER doorbells.
IPI = re.compile(rb"RES|CAL|IWI|DBL|IPI[0-9]+")
# The local timer, and that of a guest of Hyper-V.
TIMERS = (b"LOC", b"HVS")

TIMER_HANDLERS = ("arch_timer", "timer", "riscv-timer", "clint-timer")
"""Names of the handlers of timers: of arm64, x86 while it boots, and riscv."""

IPI_HANDLER = re.compile(r"IPI(?:-\d+)?|ipi .*")
"""Names of the handlers of interrupts between CPUs, where these have numbers: those of POWER's
interrupt controllers."""

# In a Xen guest, those of one CPU. The handlers of IPIs count in RES, CAL and IWI, too.
XEN_TIMER = r"xen-percpu\s+-virq\s+timer\d+"
XEN_IPI = r"xen-percpu\s+-ipi\s+\S+"

# The end of a row with a number.
HANDLED = re.compile(
    rf"\s(?:(?P<timer>{'|'.join(TIMER_HANDLERS)}|{XEN_TIMER})|(?P<ipi>{IPI_HANDLER.pattern})"
    rf"|(?P<again>{XEN_IPI}))\s*$".encode()
)
# Without a number: what hypervisors tell their guests (HYP, all devices of Hyper-V among them), and
# what devices tell guests of this machine (posted interrupts).
DEVICES = (b"HYP", b"PIN", b"NPI", b"PIW")


def table(content: bytes) -> tuple[bytes, list[bytes]]:
    """Return the first line of the file and its rows.

    In a Xen guest, HYP is left out: it counts once more what comes as an event of another row.
    """
    header, *rows = content.split(b"\n")
    if b" xen-" in content:
        rows = [row for row in rows if row.partition(b":")[0].strip() != b"HYP"]
    return header, rows


def split(row: bytes, cpus: int) -> tuple[Kind | None, list[int]]:
    """Return the kind of a row and its counts by column; None for a row that is of no kind.

    There are no counts if the row is of more or fewer CPUs than the header: one of them came or
    went while the file was read.
    """
    label, _, rest = row.partition(b":")
    words = rest.split(None, cpus)
    counts, behind = words[:cpus], b"".join(words[cpus:]).split(None, 1)
    label = label.strip()
    kind: Kind | None = None
    if IPI.fullmatch(label):
        kind = "ipi"
    elif label in TIMERS:
        kind = "timer"
    elif label.isdigit():
        handled = HANDLED.search(rest)
        if not handled:
            kind = "device"
        elif not handled["again"]:
            kind = "timer" if handled["timer"] else "ipi"
    elif label in DEVICES:
        kind = "device"
    # Behind the counts stands a text. That of a chip may begin with a digit: 48055000.gpio.
    if kind is None or not 0 < cpus <= len(counts) or (behind and behind[0].isdigit()):
        return kind, []
    try:
        return kind, list(map(int, counts))
    except ValueError:
        return kind, []


def columns(header: bytes) -> list[int]:
    """Return the CPUs of the columns, from the first line of the file."""
    return [int(x[3:]) for x in header.split() if x.startswith(b"CPU") and x[3:].isdigit()]
