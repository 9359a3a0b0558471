# SPDX-License-Identifier: GPL-2.0-only
"""Guests that go on where one like them had booted.

Under emulation, a boot takes many seconds, and more where other guests run beside it. Tests for
which any booted guest will do share one boot: the first guest of a kind boots, and QEMU writes its
memory and devices to a file, as if to send them to another host. The next guest of that kind reads
the file instead of booting. What the console showed so far is kept beside it.

Guests are of one kind if QEMU is started alike for them: the files that it is given are entries of
the cache, whose names tell what is in them. All that a boot leaves to chance is the same in all
guests of a snapshot: addresses, random numbers, the clock. So no experiment uses them, whose
arms have to boot anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lightsleep import cache
from lightsleep.lab.boot.machine import Devices
from lightsleep.lab.boot.vm import Hardware


@dataclass(frozen=True)
class Snapshot:
    """Where a guest's memory and devices are kept, or are to be, and what its console showed."""

    memory: Path
    console: Path

    def exists(self) -> bool:
        """Whether a guest can go on from it."""
        return self.memory.exists()  # which is written last


def of(hardware: Hardware, folder: Path) -> Snapshot | None:
    """Return the snapshot of such a guest in ``folder``, None where there can be none.

    With drives of its own, a guest has part of them in its memory, and the next one would have
    other drives. Under KVM, a boot takes a second. Of a kernel that somebody named, nobody knows
    whether the file still has the same content.
    """
    machine = hardware.machine
    if (
        not hardware.arch.snapshots
        or hardware.accelerator.name not in ("tcg", "tcg-single")
        or hardware.interactive
        or machine.foreign
        or machine.devices != Devices()
    ):
        return None
    kind = folder / cache.digest(*hardware.argv())
    return Snapshot(kind.with_suffix(".memory"), kind.with_suffix(".console"))
