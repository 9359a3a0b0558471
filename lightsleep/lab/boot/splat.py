# SPDX-License-Identifier: GPL-2.0-only
"""Finds the kernel's cries for help in a console log.

A message counts where it opens with one of the kernel's own alarms, after the time stamp; the
same words in the middle of a message do not: the CPU vulnerability code, for one, says "WARNING"
behind a prefix of its own to comment on the administrator's choices.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from lightsleep.sources import KERNEL

# "[    1.234567]", with the thread or CPU behind it where CONFIG_PRINTK_CALLER is set
STAMP = r"^(?:<\d+>)?(?:\[ *\d+\.\d+\](?:\[ *[TC]\d+\])?\s*)?"

ALARMS = (
    "BUG: ",  # null pointers, KASAN, KCSAN, scheduling while atomic, bad pages
    "WARNING: ",  # WARN_ON(), lockdep, suspicious RCU usage
    r"kernel BUG at ",
    r"-+\[ cut here \]-+",
    r"Call [Tt]race:",
    r"Oops: |Internal error: |traps: PANIC: ",
    r"(?:int3|stack segment|divide error|invalid opcode): |general protection fault[:,]",
    r"Unable to handle kernel ",
    r"Kernel panic - not syncing",
    r"(?:NMI )?watchdog: (?:BUG: |(?:CPU\d+: )?Watchdog detected hard LOCKUP)",
    r"(?:rcu: )?INFO: rcu_",  # stalls
    r"INFO: task .* blocked for more than",
    r"INFO: trying to register non-static key",  # lockdep
    r"UBSAN: |ODEBUG: |refcount_t: |list_(?:add|del) corruption",
    r"irq \d+: nobody cared",
    r"kmemleak: \d+ new suspected memory leaks",
)

_ALARM = re.compile(STAMP + f"(?:{'|'.join(ALARMS)})")

_RACE = re.compile(r"BUG: KCSAN: (?:data-race|assert: race) in (\w+)\S*(?: \[\w+\])?(?: / (\w+))?")
_FUNCTION = re.compile(r"^(?:\w+[ \t*]+)+(\w+)\(", re.MULTILINE)
_ADDED = re.compile(r"^\+(?:\w+[ \t*]+)+(\w+)\(", re.MULTILINE)
"""A function that a patch adds. One that it changes may have races of its own."""

_BREAKPOINT = re.compile(STAMP + r"(?:Oops: )?int3: ")
_CODE = re.compile(r"Code: (?:[0-9a-f]{2} )*(?P<before>[0-9a-f]{2}) <|Code: ")
"""Code that an oops shows, up to the next instruction in angle brackets, or cannot show."""

_ASSERTION = re.compile(r"(?m)^(?:ERROR:|\S+: )\S+\.c(?:\.inc)?:\d+:.*[Aa]ssertion (?:failed: |`)")
"""A failed assertion in C code, as GLib and as the C library print it."""


@dataclass(frozen=True)
class Splat:
    """One alarming line of a console log; ``line`` counts from 1."""

    line: int
    text: str

    def __str__(self) -> str:
        """Return the form for messages."""
        return f"console line {self.line}: {self.text}"


def find(log: str) -> list[Splat]:
    """Return the alarming lines of a console log, in order; empty means a clean run.

    KCSAN reports data races of the whole kernel, such as that of its clocks: one counts if a
    function of ours takes part.
    """
    return [
        Splat(number, line.strip())
        for number, line in enumerate(log.splitlines(), 1)
        if _ALARM.match(line) and not _is_race_of_others(line)
    ]


def _is_race_of_others(line: str) -> bool:
    race = _RACE.search(line)
    return race is not None and our_functions().isdisjoint(race.groups())


@functools.cache
def our_functions() -> frozenset[str]:
    """Return the names of all functions of our kernel code, those that patches add included."""
    files = {"*.[ch]": _FUNCTION, "*.patch": _ADDED}
    return frozenset(
        name
        for pattern, function in files.items()
        for file in KERNEL.rglob(pattern)
        if file.is_file()
        for name in function.findall(file.read_text())
    )


def emulator_raced(log: str) -> bool:
    """Whether a guest died of QEMU, not of its kernel.

    The kernel patches its code through a breakpoint (0xcc), which its handler steps over. Emulating
    several CPUs at a time, QEMU can translate code while it is patched, and deliver a breakpoint
    that is out again. Then the handler dies of it, and the code it prints has none where it was
    hit. A breakpoint that is there is real: code that was freed is full of them.
    """
    alarms = find(log)
    if not alarms or not _BREAKPOINT.match(alarms[0].text):
        return False
    code = _CODE.search("\n".join(log.splitlines()[alarms[0].line :]))
    return code is not None and code["before"] not in (None, "cc")


def emulator_was_late(log: str) -> bool:
    """Whether a guest died because its host did not run it in time.

    As it boots, x86's kernel waits for ten ticks of the timer, by the clock of the CPU. It was
    seen to miss them once, in a stock kernel, while its host was busy.
    """
    alarms = find(log)
    return bool(alarms) and "IO-APIC + timer doesn't work" in alarms[0].text


def emulator_gave_up(said: str, log: str) -> bool:
    """Whether QEMU ended because it found itself in a state that must not be.

    ``said`` is what QEMU itself printed, ``log`` the console, which has no alarm. QEMU 10 does so
    now and then as it emulates several CPUs at a time: "iotlb_to_section: Assertion
    `section_index < d->map.sections_nb' failed".
    """
    return _ASSERTION.search(said) is not None and not find(log)
