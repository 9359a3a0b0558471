# SPDX-License-Identifier: GPL-2.0-only
"""The pages that BPF programs fill (trace.py), and how the keeper empties them.

Each CPU has a ring of pages. A page is one of the kernel's ring buffer: when its first event was,
how many bytes are written, and events. Programs write all of that, and the keeper copies whole
pages into the file of their CPU. It looks at no event, except at the end, on the last page.

Programs write to a ring from its head on, and stop before the tail, which only the keeper moves.
The head is the number of a page, times the bytes of one, and how many bytes of its data are taken.
A page is full when as many are written, whatever order programs end in. The atomic addition that
counts them is a full barrier, so what was written is there. What the keeper has copied, it marks as
empty, and it sleeps before it moves the tail: a CPU that slept has made its writes known to the
others.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightsleep.record.bpf import calls

PAGE, PAGE_HEADER = 4096, 16
DATA = PAGE - PAGE_HEADER

WRITTEN, LOST_BEFORE = 8, 12
"""Where a page says how many of its bytes are written, and how many events had been lost before its
first one. The second is no part of the kernel's page: readers must not see it."""

QUARTERS = 4
"""The keeper is woken when a CPU has filled another quarter of its ring."""

LINE = 128
HEAD, LOST, FIRST, FLAGS, TAIL = 0, 8, 16, 24, 64
"""Of a CPU in the control map: its bytes, and where are its head, how many events are lost, which
page is its first one, what is recorded, and how many pages are copied. The last one is in a cache
line of its own."""

LAST_NS = 32
"""Where that has the time of its last event."""

OFF, CHOSEN = 0, 2
"""Values of the flags. Between them: record wakeups by this CPU, not of it."""

MISSED, STORED = 1 << 31, 1 << 30
"""Added to the bytes of a page: events are missing before it, and their number is behind it."""

STAMP = 8
"""Bytes of a time stamp, which each event begins with."""

TYPE_BITS, TIME_BITS = 5, 27
"""Of the first word of 32 of an event or a time stamp: its type, and a time's lower bits."""

PADDING, TIME_STAMP = 29, 31
"""Types. A lower one is that of an event, and how many words it has."""

SETTLE_S = 0.001


def stamp_ns(word: int) -> int:
    """Return the time that a time stamp tells."""
    return (word & 0xFFFFFFFF) >> TYPE_BITS | word >> 32 << TIME_BITS


class Ring:
    """The pages of one CPU: ``done`` are copied, before whose last one ``lost`` events are missing.

    They go to ``file``, a descriptor.
    """

    def __init__(self, pages: memoryview, control: memoryview, file: int = -1) -> None:
        """Empty ``pages``; ``control`` is the CPU's line."""
        self._bytes, self._words = pages, pages.cast("Q")
        self._count = len(pages) // PAGE
        self._control = control.cast("Q")
        self.file = file
        self._newest_ns = 0
        self.done, self.lost = 0, 0

    def copy(self) -> None:
        """Copy all pages that are full. Raises OSError."""
        # A page whose data are all taken counts, too.
        ready = (self._control[HEAD // 8] + PAGE_HEADER) // PAGE
        while self.done < ready:
            first = self.done % self._count
            most = min(ready - self.done, self._count - first)
            each = self._written(first, most).tolist()
            full = DATA | self._marked << 32
            whole = (
                most
                if each.count(full) == most
                else next(place for place, words in enumerate(each) if words != full)
            )
            if whole:
                if self._marked:
                    self._written(first, whole)[:] = _words(DATA, whole)
                self._write(self._bytes[first * PAGE : (first + whole) * PAGE])
                self._forget(first, whole)
            elif each[0] & 0xFFFFFFFF == DATA:
                self._copy_behind_loss(first, DATA)
                self._forget(first, 1)
            else:
                return

    def copy_the_rest(self) -> None:
        """Copy what is on the last pages, once no program writes any more. Raises OSError."""
        self.copy()
        while (left := self._control[HEAD // 8] - self.done * PAGE) > 0:
            page = self.done % self._count
            size = self._filled(page, min(left, DATA))
            if size:
                self._copy_behind_loss(page, size)
            self.done += 1

    def free(self) -> None:
        """Let programs write to what is copied."""
        self._control[TAIL // 8] = self.done

    @property
    def lost_in_all(self) -> int:
        """How many events found no room."""
        return int(self._control[LOST // 8])

    @property
    def _marked(self) -> int:
        """What a page says of lost events if no more are missing before it."""
        return self.lost & 0xFFFFFFFF

    def _written(self, first: int, count: int) -> memoryview:
        """Return, of each page, how many bytes are written, and above that its mark of losses."""
        words = PAGE // 8
        return self._words[first * words + WRITTEN // 8 : (first + count) * words : words]

    def _forget(self, first: int, count: int) -> None:
        """Mark pages as empty."""
        self._newest_ns = self._words[(first + count - 1) * PAGE // 8]
        self._written(first, count)[:] = _words(0, count)
        self.done += count

    def _copy_behind_loss(self, page: int, size: int) -> None:
        """Copy a page, and say on it how many events are missing before.

        Readers see that only if an event is the first thing on the page, and no time stamp. That
        leaves room for the number.
        """
        begin_ns, written = struct.unpack_from("=QQ", self._bytes, page * PAGE)
        lost = (written >> 32) - self._marked & 0xFFFFFFFF
        begin, end = page * PAGE + PAGE_HEADER, page * PAGE + PAGE_HEADER + size
        if lost:
            data = self._bytes[begin + STAMP : end].tobytes()
            data = struct.pack("=QQ", begin_ns, len(data) | MISSED | STORED) + data
            data += struct.pack("=Q", lost)
        else:
            data = struct.pack("=QQ", begin_ns, size) + self._bytes[begin:end].tobytes()
        self._write(data.ljust(PAGE, b"\0"))
        self.lost += lost

    def _filled(self, page: int, size: int) -> int:
        """Return how many of the bytes that are taken on a page are those of whole events.

        A program that has taken room may never have filled it.
        """
        if self._written(page, 1)[0] & 0xFFFFFFFF == size:
            return size
        at, last_ns = 0, self._newest_ns  # an older time stamp is of an earlier round
        while at < size:
            begin = page * PAGE + PAGE_HEADER + at
            stamp, head = struct.unpack_from("=QI", self._bytes, begin)
            kind = head & (1 << TYPE_BITS) - 1
            if stamp & (1 << TYPE_BITS) - 1 != TIME_STAMP or stamp_ns(stamp) <= last_ns:
                break
            if not 0 < kind < PADDING:
                break
            last_ns = stamp_ns(stamp)
            at += STAMP + 4 + 4 * kind
        return at

    def _write(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self.file, rest) :]


def _words(value: int, count: int) -> memoryview:
    return memoryview(struct.pack("=Q", value) * count).cast("Q")


class Rings:
    """The rings of all CPUs, the maps that programs need, and what wakes who empties them.

    ``refused`` says why no more can be written, once that is so.
    """

    def __init__(self, order: dict[str, Any]) -> None:
        """Make maps. Raises OSError."""
        cpus = [int(cpu) for cpu in order["buffers"]]
        entries, size = len(cpus) * order["pages"], order["room"] * LINE
        self.maps = {
            "control": calls.create(calls.ARRAY, size, 1, calls.MMAPABLE),
            "pages": calls.create(calls.ARRAY, PAGE, entries, calls.MMAPABLE),
            "wake": calls.create(calls.RINGBUF, 0, mmap.PAGESIZE),
        }
        self._flags = dict(zip(cpus, order["buffers"].values(), strict=True))
        self._control = memoryview(mmap.mmap(self.maps["control"], rounded(size)))
        pages = memoryview(mmap.mmap(self.maps["pages"], rounded(entries * PAGE)))
        wake = self.maps["wake"]
        self._asked = memoryview(
            mmap.mmap(wake, mmap.PAGESIZE, prot=mmap.PROT_READ, offset=mmap.PAGESIZE)
        ).cast("Q")
        self._heard = memoryview(mmap.mmap(wake, mmap.PAGESIZE)).cast("Q")
        self._rings = dict[int, Ring]()
        self.refused: str | None = None
        for place, cpu in enumerate(cpus):
            line = self._control[cpu * LINE : (cpu + 1) * LINE]
            line.cast("Q")[FIRST // 8] = place * order["pages"]
            begin, end = (PAGE * order["pages"] * x for x in (place, place + 1))
            self._rings[cpu] = Ring(pages[begin:end], line)

    def open(self, scratch: Path, mode: int) -> None:
        """Make a file for each CPU beside ``scratch``. Raises OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        for cpu, ring in self._rings.items():
            ring.file = os.open(file_of(scratch, cpu), flags, mode)

    def close(self) -> None:
        """Close the files."""
        for ring in self._rings.values():
            os.close(ring.file)

    @property
    def wakes(self) -> int:
        """The descriptor that can be read when there is something to copy."""
        return self.maps["wake"]

    def begin(self) -> None:
        """Have programs record."""
        for cpu, flags in self._flags.items():
            self._control[cpu * LINE : (cpu + 1) * LINE].cast("Q")[FLAGS // 8] = flags

    def end(self) -> None:
        """Have programs record no more."""
        for cpu in self._flags:
            self._control[cpu * LINE : (cpu + 1) * LINE].cast("Q")[FLAGS // 8] = OFF

    def copy(self) -> None:
        """Copy what is full into the files. Where they take no more, recording ends."""
        self._heard[0] = self._asked[0]
        self._for_all(Ring.copy)
        time.sleep(SETTLE_S)
        for ring in self._rings.values():
            ring.free()

    def copy_the_rest(self) -> None:
        """Copy all there is, once no program writes any more."""
        self._for_all(Ring.copy_the_rest)

    def _for_all(self, copy: Callable[[Ring], None]) -> None:
        try:
            for ring in self._rings.values():
                if not self.refused:
                    copy(ring)
        except OSError as error:
            self.refused = error.strerror or str(error)
            self.end()

    @property
    def lost(self) -> dict[str, int]:
        """How many events found no room, by CPU, where there were any."""
        return {str(cpu): x.lost_in_all for cpu, x in self._rings.items() if x.lost_in_all}


def file_of(scratch: Path, cpu: int) -> Path:
    """Return the name of the file of a CPU's pages."""
    return scratch.with_name(f"{scratch.name}.cpu{cpu}")


def files_of(order: dict[str, Any], scratch: Path) -> dict[int, Path]:
    """Return the files of all CPUs."""
    return {int(cpu): file_of(scratch, int(cpu)) for cpu in order["buffers"]}


def rounded(size: int) -> int:
    """Return how many bytes of a map of this size can be mapped."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
