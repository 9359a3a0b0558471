# SPDX-License-Identifier: GPL-2.0-only
"""In which turns a guest's CPUs did not poll for a while, as they found their host short of cores.

The driver, and the idle loop of the series, pause for 1 to 16 s of the guest's time then
(``host_contention.c``). A guest stands still between its turns, so a pause that began in one turn,
or as the module was loaded, may last for several more. What is measured in them is not what the
setting does on a host that has free cores, and no metric tells why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lightsleep.lab.boot.guest import Guest

FILES = "/sys/devices/system/cpu/cpu[0-9]*/*/"
"""Each CPU has a folder of the driver, ``lightsleep``, or of the series, ``idle_poll``."""
READ = (
    *("sh", "-c"),
    f"grep -s '' {FILES}contention_pauses {FILES}contended; "
    f"ls -i {FILES}contention_pauses 2> /dev/null",
)
LINE = re.compile(r"^.*/cpu(\d+)/\w+/(contention_pauses|contended):(\d+)$", re.MULTILINE)
INODE = re.compile(r"^ *(\d+) .*/cpu(\d+)/\w+/contention_pauses$", re.MULTILINE)


@dataclass(frozen=True)
class Pauses:
    """What the CPUs of a guest say: how often each paused so far, and which are in a pause now.

    A kernel with an older series of patches does not say the latter: of a pause, only the turn
    counts then in which it began.
    """

    counts: Mapping[int, int]
    now: frozenset[int]
    inodes: Mapping[int, int]
    """Of the file of each count. A module that is loaded anew has new files, and counts from 0."""


def read(guest: Guest) -> Pauses | None:
    """Ask a guest that runs. None where nothing in it could pause."""
    said = guest.run(READ, check=False).stdout
    found = [(int(cpu), file, int(value)) for cpu, file, value in LINE.findall(said)]
    counts = {cpu: value for cpu, file, value in found if file == "contention_pauses"}
    if not counts:
        return None
    return Pauses(
        counts,
        frozenset(cpu for cpu, file, value in found if value and file == "contended"),
        {int(cpu): int(inode) for inode, cpu in INODE.findall(said)},
    )


class Noted:
    """How many CPUs paused in each turn, by arm: of those arms that can tell."""

    def __init__(self, first: Mapping[str, Pauses | None]) -> None:
        """Begin with what each guest said before its first turn."""
        self._last = {arm: found for arm, found in first.items() if found}
        self.of_turns: dict[str, list[int]] = {arm: [] for arm in self._last}

    def turn(self, arm: str, guest: Guest, recorded: bool) -> None:
        """Ask a guest at the end of its turn; note the turn if it is ``recorded``.

        A guest that loaded the module anew, or none in its place, cannot tell of this turn: its arm
        is left out from then on.
        """
        if arm not in self._last:
            return
        before, after = self._last.pop(arm), read(guest)
        if not after or after.inodes != before.inodes:
            del self.of_turns[arm]
            return
        self._last[arm] = after
        if recorded:
            began = {
                cpu for cpu, count in after.counts.items() if count > before.counts.get(cpu, 0)
            }
            self.of_turns[arm].append(len(before.now | began))
