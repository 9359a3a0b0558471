# SPDX-License-Identifier: GPL-2.0-only
"""Finds the kernel's cries for help in a console log.

A message counts where it opens with one of the kernel's own alarms, after the time stamp; the
same words in the middle of a message do not: the CPU vulnerability code, for one, says "WARNING"
behind a prefix of its own to comment on the administrator's choices.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# "[    1.234567]", with the thread or CPU behind it where CONFIG_PRINTK_CALLER is set
STAMP = r"^(?:<\d+>)?(?:\[ *\d+\.\d+\](?:\[ *[TC]\d+\])?\s*)?"

ALARMS = (
    "BUG: ",  # null pointers, KASAN, KCSAN, scheduling while atomic, bad pages
    "WARNING: ",  # WARN_ON(), lockdep, suspicious RCU usage
    r"kernel BUG at ",
    r"-+\[ cut here \]-+",
    r"Call [Tt]race:",
    r"Oops: |Internal error: |traps: PANIC: ",
    r"(?:stack segment|divide error|invalid opcode): |general protection fault[:,]",
    r"Unable to handle kernel ",
    r"Kernel panic - not syncing",
    r"(?:NMI )?watchdog: (?:BUG: |Watchdog detected hard LOCKUP)",
    r"(?:rcu: )?INFO: rcu_",  # stalls
    r"INFO: task .* blocked for more than",
    r"INFO: trying to register non-static key",  # lockdep
    r"UBSAN: |ODEBUG: |refcount_t: |list_(?:add|del) corruption",
    r"irq \d+: nobody cared",
    r"kmemleak: \d+ new suspected memory leaks",
)

_ALARM = re.compile(STAMP + f"(?:{'|'.join(ALARMS)})")


@dataclass(frozen=True)
class Splat:
    """One alarming line of a console log; ``line`` counts from 1."""

    line: int
    text: str

    def __str__(self) -> str:
        """Return the form for messages."""
        return f"console line {self.line}: {self.text}"


def find(log: str) -> list[Splat]:
    """Return the alarming lines of a console log, in order; empty means a clean run."""
    return [
        Splat(number, line.strip())
        for number, line in enumerate(log.splitlines(), 1)
        if _ALARM.match(line)
    ]


def emulator_raced(log: str) -> bool:
    """Whether a boot died of QEMU, not of the kernel.

    The kernel patches its code through a breakpoint, which its handler steps over. Emulating
    several CPUs on an overcommitted host, QEMU can deliver a breakpoint that the kernel has just
    taken out again, and then there is nothing for the handler to step over.
    """
    return "Oops: int3:" in log
