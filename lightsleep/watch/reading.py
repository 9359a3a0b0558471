# SPDX-License-Identifier: GPL-2.0-only
"""Reads the counters of all CPUs again and again, at little cost.

A machine of 256 CPUs has thousands of counters, one file each. So every file stays open, what was
read is compared before it is parsed, and a CPU of which no state was entered since the last time is
not asked for more: its other counters change only when it leaves a state. lightsleep's driver has
all counters of a CPU in one more file, which is read in their place. Where the limit of open files
is too low, files are opened each time.

CPUs come and go, and so do drivers. When the list of CPUs online or the driver changes, all files
are opened anew. A CPU that goes offline and comes back between two readings, as in a suspend,
changes neither, but its open files fail. So a failure makes the next reading open all files, too.
So does a CPU without idle states where a driver is bound: it was listed before they were.

Where lightsleep's driver is of another version than this reader, as between an upgrade and the next
boot, that file has other words. Then each state's own files are read, as under any driver.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from operator import add
from pathlib import Path

from lightsleep import cpulist, interrupts
from lightsleep.errors import LightsleepError, WrongUsage
from lightsleep.interrupts import Kind
from lightsleep.scan import facts
from lightsleep.scan.collect import CPU_DIR, INTERRUPTS, TICK_S, collect
from lightsleep.scan.loading import MODULE
from lightsleep.scan.model import Cpu, PollStats, Scan, distinct_names
from lightsleep.watch.model import CpuCount, Snapshot, States

OWN = ("polls", "hits", "halts", "polled_ns", "wasted_ns", "limit_ns", "halt_cost_ns")
"""What lightsleep's driver counts. Its file ``stat`` has these, then usage and time by state."""
PAUSES = ("paused_ns", "pause_left_ms")
"""What stands behind the states there; older drivers lack it."""
STATES = 2
"""Of the driver: POLL and HALT. Either may not be there yet as a CPU comes online."""
CONTENTION = ("contended", "contention_pauses")
"""What it counts in files of their own, which are read where that is asked for."""

SPARE_FILES = 64
SHORT = 512
"""No file of counters is longer."""
CHUNK = 1 << 18
LONGEST_WAIT = 1024
"""Readings between two attempts to get back a CPU that stays unreadable. An attempt opens the files
of all CPUs, which costs far more than a reading."""
WRAP = 1 << 32
"""What counts of interrupts end before."""
MOST_RISE = 1 << 31
"""A count that is below the last one has passed its end, and risen by less than this, or its row
began again."""
IDLE, IOWAIT, STEAL = 4, 5, 8
"""Words of a line of /proc/stat."""

File = int | Path
"""A descriptor that is read from its start again and again, or a path to be opened each time."""


def _short(file: File) -> bytes:
    """Return what a file of counters holds. Raises OSError."""
    return os.pread(file, SHORT, 0) if isinstance(file, int) else file.read_bytes()


def _has_other_words(stat: File, expected: int) -> bool:
    """Return whether a line of counters is one, but not of so many, nor of PAUSES behind them.

    A CPU may be gone by now.
    """
    try:
        words = _short(stat).split()
    except OSError:
        return False
    return all(word.isdigit() for word in words) and not (
        len(words) == 0 or _fits(len(words), expected)
    )


def _fits(words: int, expected: int) -> bool:
    """Whether a line of counters may have so many words: PAUSES follow both states, or none do.

    An older driver has none. Where one state was not there yet, its line of two would look like one
    state and PAUSES.
    """
    return words == expected or words == len(OWN) + 2 * STATES + len(PAUSES) == expected + len(
        PAUSES
    )


def _content(descriptor: int) -> bytes:
    """Return all of an open file. Raises OSError."""
    parts, at = [], 0
    while part := os.pread(descriptor, CHUNK, at):
        parts.append(part)
        at += len(part)
    return b"".join(parts)


@dataclass
class _CpuFiles:
    """The files of one CPU, and what they held last."""

    names: tuple[str, ...]
    stat: File | None
    usage: list[File]
    time: list[File]
    contention: list[File | None]
    loop: File | None
    polling: frozenset[str]
    last: object = None
    states: States | None = None
    polls: PollStats | None = None
    loop_polled_ns: int | None = None

    def refresh(self) -> None:
        """Read what may have changed.

        Raises OSError where the CPU or its driver is gone, ValueError where it is another driver.
        """
        self._refresh_counts()
        if self.loop is not None:  # a poll that saw its wakeup is followed by no state
            self.loop_polled_ns = int(_short(self.loop))
        if self.polls and self.contention:  # which ends with time, while the CPU sleeps
            found = [None if x is None else int(_short(x)) for x in self.contention]
            self.polls = replace(self.polls, **dict(zip(CONTENTION, found, strict=True)))

    def _refresh_counts(self) -> None:
        if self.stat is None:
            self._refresh_each()
            return
        line = _short(self.stat)
        if line == self.last:
            return
        numbers = tuple(map(int, line.split()))
        end = len(OWN) + 2 * len(self.names)
        if not _fits(len(numbers), end):
            raise ValueError("another driver")
        self.states = States(numbers[len(OWN) : end : 2], numbers[len(OWN) + 1 : end : 2])
        pauses = dict(zip(PAUSES, numbers[end:], strict=False))
        self.polls = PollStats(*numbers[: len(OWN)], **pauses)
        self.last = line

    def _refresh_each(self) -> None:
        if not len(self.usage) == len(self.time) == len(self.names):
            raise ValueError("the driver changed while its files were opened")
        usage = [_short(file) for file in self.usage]
        if not usage or usage == self.last:
            return
        times = tuple([int(_short(file)) for file in self.time])
        self.states = States(tuple(map(int, usage)), times)
        self.last = usage


@dataclass
class _Interrupts:
    """Sums of the rows of /proc/interrupts, by CPU and kind; parses only rows that changed.

    The kernel's counts have 32 bits, and begin again at 0. The number of a row may be given to
    another interrupt, and one that was freed and requested again counts from 0, too. Sums never
    fall. A kind of which there never was a row has none: what counts it here is not known. Where a
    CPU is new, and a row is torn, the sums of that kind lack all that the row has counted of the
    CPU. They are not known until the next reading.
    """

    header: bytes = b""
    cpus: list[int] = field(default_factory=list)
    rows: dict[bytes, tuple[bytes, Kind | None, list[int]]] = field(default_factory=dict)
    sums: dict[Kind, list[int]] = field(default_factory=dict)
    known: set[Kind] = field(default_factory=set)
    lacking: dict[int, set[Kind]] = field(default_factory=dict)
    """Kinds of which the sum of a CPU is not known."""

    def refresh(self, content: bytes) -> None:
        header, lines = interrupts.table(content)
        changed = header != self.header
        if changed:
            earlier = self.by_cpu()
            self.header, self.cpus, self.rows = header, interrupts.columns(header), {}
            self.sums = {kind: [0] * len(self.cpus) for kind in interrupts.KINDS}
        seen: set[bytes] = set()
        torn: set[Kind] = set()
        for line in lines:
            label = line[: line.find(b":")]
            while label in seen:  # POWER has two rows LOC
                label += b"'"
            seen.add(label)
            last = self.rows.get(label)
            if last and (last[1] is None or last[0] == line):
                continue
            kind, counts = interrupts.split(line, len(self.cpus))
            if kind and not counts:  # the next reading has another header, or these counts again
                if not last:
                    torn.add(kind)
                continue
            if kind:
                self.known.add(kind)
                rises = _rises(last[2], counts) if last else counts
                self.sums[kind] = list(map(add, self.sums[kind], rises))
            self.rows[label] = (line, kind, counts)
        if changed:
            self._continue(earlier, torn)
        if torn:  # sums hold what the row has counted, or lack it: the next reading begins anew
            self.header = b""

    def _continue(self, earlier: dict[int, tuple[int | None, ...]], torn: set[Kind]) -> None:
        """Let sums under a new header go on from the ``earlier`` ones, where there are any."""
        self.lacking = {}
        for index, cpu in enumerate(self.cpus):
            least = dict(zip(interrupts.KINDS, earlier.get(cpu, ()), strict=False))
            for kind, sums in self.sums.items():
                sums[index] = max(sums[index], least.get(kind) or 0)
            if lacking := {kind for kind in torn if least.get(kind) is None}:
                self.lacking[cpu] = lacking

    def by_cpu(self) -> dict[int, tuple[int | None, ...]]:
        """Return counts in the order of KINDS."""
        unknown = [None] * len(self.cpus)
        counts = [sums if kind in self.known else unknown for kind, sums in self.sums.items()]
        found = dict(zip(self.cpus, zip(*counts, strict=True), strict=False))
        for cpu, kinds in self.lacking.items():
            each = zip(self.sums, found[cpu], strict=True)
            found[cpu] = tuple(None if kind in kinds else count for kind, count in each)
        return found


def _rises(before: list[int], now: list[int]) -> list[int]:
    """Return by how much the counts of a row rose since it was read last, however long ago."""
    rises = [(count - old) % WRAP for count, old in zip(now, before, strict=True)]
    fell = [rise for rise, count, old in zip(rises, now, before, strict=True) if count < old]
    return rises if all(rise < MOST_RISE for rise in fell) else now


class Reader:
    """Reads one machine; ``wanted`` limits it to these CPUs, of which offline ones are left out."""

    def __init__(self, root: Path, wanted: list[int] | None, contention: bool = False) -> None:
        """Open all files; those of ``contention``, two for each CPU, if that is asked for.

        Raises LightsleepError where there is no CPU to watch, WrongUsage where one of ``wanted`` is
        neither online nor offline.
        """
        self._root, self._wanted, self._contention = root, wanted, contention
        self._opened: list[int] = []
        self._cpus: dict[int, _CpuFiles] = {}
        self._interrupts = _Interrupts()
        self._wait = 1
        self._until_retry = 0
        self._lacking = False
        self._open()
        there = {cpu.number for cpu in self._scan.cpus} | {*self._scan.offline}
        if there and (absent := {*(wanted or ())} - there):
            raise WrongUsage(
                f"CPU {cpulist.format(absent)} is not in this machine; there are CPUs "
                f"{cpulist.format(there)}"
            )
        if not there:
            raise LightsleepError("no CPU to watch: /sys/devices/system/cpu shows none")

    def read(self) -> Snapshot:
        """Return all counters as they are now; a CPU whose files fail is left out."""
        changed, retries = self._layout() != self._shown, self._until_retry == 1
        if changed or retries:
            self._open()
        self._until_retry = max(self._until_retry - 1, 0)
        gone = []
        for number, files in self._cpus.items():
            try:
                files.refresh()
            except (OSError, ValueError):
                gone.append(number)
        for number in gone:
            del self._cpus[number]
        if gone or self._lacking:
            self._lacking = False
            # A retry that was in vain is followed by a longer wait, any other loss by none.
            self._wait = min(2 * self._wait, LONGEST_WAIT) if retries else 1
            self._until_retry = self._wait
        idle = self._idle()
        with contextlib.suppress(OSError):
            if self._rows is not None:
                self._interrupts.refresh(_content(self._rows))
        irqs = self._interrupts.by_cpu()
        nothing = (None, None)
        return Snapshot(
            time_s=time.monotonic(),
            driver=self._scan.cpuidle.driver,
            governor=self._scan.cpuidle.governor,
            mode=self._scan.lightsleep.mode if self._scan.lightsleep else None,
            cpus={
                number: CpuCount(
                    files.names,
                    files.states,
                    files.polls,
                    irqs.get(number),
                    idle.get(number, nothing)[0],
                    idle.get(number, nothing)[1],
                    files.loop_polled_ns,
                    files.polling,
                )
                for number, files in self._cpus.items()
            },
            wait_weight=self._scan.lightsleep.wait_weight if self._scan.lightsleep else None,
            spins=facts.spins(self._scan),
            host_is_short=self._host_is_short(),
        )

    def close(self) -> None:
        """Close all files."""
        for descriptor in self._opened:
            os.close(descriptor)
        self._opened = []

    def _open(self) -> None:
        self.close()
        paths = (
            f"{CPU_DIR}/online",
            f"{CPU_DIR}/cpuidle/current_driver",
            f"{CPU_DIR}/cpuidle/current_governor",
            f"sys/module/{MODULE}/parameters/mode",
            f"sys/module/{MODULE}/parameters/wait_weight",
        )
        self._layout_files = [file for path in paths if (file := self._open_for_good(path))]
        # First: what changes while the rest is read shows in the next round.
        self._shown = self._layout()
        self._scan: Scan = collect(self._root)[0]
        cpus = [x for x in self._scan.cpus if self._wanted is None or x.number in self._wanted]
        keep = _room_for(sum(3 * len(cpu.states) + len(CONTENTION) + 2 for cpu in cpus))
        self._stat = self._open_for_good("proc/stat")
        self._rows = self._open_for_good(INTERRUPTS)
        self._short_host = self._open_for_good(f"sys/module/{MODULE}/parameters/host_is_short")
        self._lacking = False
        self._cpus = {cpu.number: self._cpu_files(cpu, keep) for cpu in cpus}
        with_states = all(files.names for files in self._cpus.values())
        self._lacking |= self._scan.cpuidle.driver is not None and not with_states

    def _layout(self) -> list[bytes]:
        """Return what tells whether files come and go."""
        try:
            return [_content(file) for file in self._layout_files]
        except OSError:
            return [str(time.monotonic()).encode()]  # one of them is gone

    def _open_for_good(self, path: str) -> int | None:
        try:
            descriptor = os.open(self._root / path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        self._opened.append(descriptor)
        return descriptor

    def _file(self, path: str, keep: bool) -> File | None:
        """Return a file that can be read."""
        if keep:
            return self._open_for_good(path)
        return self._root / path if os.access(self._root / path, os.R_OK) else None

    def _cpu_files(self, cpu: Cpu, keep: bool) -> _CpuFiles:
        folder = f"{CPU_DIR}/cpu{cpu.number}"
        states = [s for s in cpu.states if s.usage is not None and s.time_us is not None]
        names = distinct_names(cpu.states)

        def of_states(name: str) -> list[File]:
            found = (self._file(f"{folder}/cpuidle/state{s.index}/{name}", keep) for s in states)
            return [file for file in found if file is not None]

        stat = self._file(f"{folder}/lightsleep/stat", keep)
        if stat is not None and _has_other_words(stat, len(OWN) + 2 * len(states)):
            # Or a state was not there yet: the next reading looks again.
            stat, self._lacking = None, True
        each = stat is None
        return _CpuFiles(
            tuple(names[s.index] for s in states),
            stat,
            of_states("usage") if each else [],
            of_states("time") if each else [],
            [self._file(f"{folder}/lightsleep/{name}", keep) for name in CONTENTION]
            if self._contention
            else [],
            self._file(f"{folder}/idle_poll/polled_ns", keep),
            frozenset(names[s.index] for s in states if s.polls),
        )

    def _host_is_short(self) -> bool | None:
        with contextlib.suppress(OSError):
            if self._short_host is not None:
                return _short(self._short_host).strip() == b"1"
        return None

    def _idle(self) -> dict[int, tuple[float, float | None]]:
        """Return seconds idle and stolen by CPU."""
        if self._stat is None:
            return {}
        with contextlib.suppress(OSError):
            return dict(_idle_times(_content(self._stat)))
        return {}


def _idle_times(content: bytes) -> Iterator[tuple[int, tuple[float, float | None]]]:
    """Yield CPU, and seconds idle and stolen, of the lines of /proc/stat that are about one CPU."""
    # The lines behind, on interrupts, are long.
    for line in content.partition(b"\nintr")[0].split(b"\n")[1:]:
        words = line.split()
        try:
            idle = int(words[IDLE]) + int(words[IOWAIT])
            stolen = int(words[STEAL]) * TICK_S if len(words) > STEAL else None
            yield int(words[0].removeprefix(b"cpu")), (idle * TICK_S, stolen)
        except (ValueError, IndexError):
            continue


def _room_for(files: int) -> bool:
    """Return whether so many files can be open at a time; raises the limit as far as needed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = files + SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return True
    if hard != resource.RLIM_INFINITY and hard < needed:
        return False
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return True
