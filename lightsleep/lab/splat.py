# SPDX-License-Identifier: GPL-2.0-only
"""Finds the kernel's cries for help in a console log.

A message counts where it opens with one of the kernel's own alarms, after the time stamp; the
same words in the middle of a message do not. A few alarms are worded like this and are not
splats: the CPU vulnerability code reports choices of the administrator as "WARNING".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# "[    1.234567]", with the thread or CPU behind it where CONFIG_PRINTK_CALLER is set
STAMP = r"^(?:<\d+>)?(?:\[ *\d+\.\d+\](?:\[ *[TC]\d+\])?\s*)?"

ALARMS = (
    r"BUG: ",  # null pointers, KASAN, KCSAN, scheduling while atomic, soft lockups, bad pages
    r"watchdog: BUG: ",
    r"WARNING: ",  # WARN_ON(), lockdep, suspicious RCU usage
    r"kernel BUG at ",
    r"Oops: ",
    r"(?:Internal error|general protection fault|stack segment|divide error|invalid opcode): ",
    r"(?:general protection fault|traps: PANIC)",
    r"Unable to handle kernel ",
    r"Kernel panic - not syncing",
    r"Call [Tt]race:",
    r"(?:rcu: )?INFO: rcu_",  # stalls
    r"INFO: task .* blocked for more than",
    r"INFO: (?:possible|trying to register|inconsistent|suspicious)",  # lockdep
    r"=+\[ cut here \]|-+\[ cut here \]-+",
    r"UBSAN: ",
    r"(?:NMI )?watchdog: Watchdog detected hard LOCKUP",
    r"unregister_netdevice: waiting for",
    r"ODEBUG: ",
    r"refcount_t: ",
    r"list_(?:add|del) corruption",
    r"workqueue: .* hogged CPU",
    r"clocksource: timekeeping watchdog on CPU\d+: Marking",
    r"sched: RT throttling activated",
    r"irq \d+: nobody cared",
    r"kmemleak: \d+ new suspected memory leaks",
)

HARMLESS = (
    r"(?:Spectre V\d|RETBleed|Retbleed|MDS|TAA|MMIO Stale Data|SRSO|ITS|VMSCAPE)\b",
    r"WARNING: (?:Unprivileged eBPF is enabled|Spectre v2 mitigation leaves CPU vulnerable)",
)

_ALARM = re.compile(STAMP + f"(?:{'|'.join(ALARMS)})")
_HARMLESS = re.compile(STAMP + f"(?:{'|'.join(HARMLESS)})")


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
        if _ALARM.match(line) and not _HARMLESS.match(line)
    ]
