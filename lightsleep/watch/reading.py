# SPDX-License-Identifier: GPL-2.0-only
"""Reads the counters of all CPUs again and again, at little cost.

A machine of 256 CPUs has thousands of counters, one file each. So every file stays open, and a CPU
of which no state was entered since the last time is not asked for more: its other counters change
only when it leaves a state. Where the limit of open files is too low, files are opened each time.

CPUs come and go, and so do drivers. When the list of CPUs online or the driver changes, all files
are opened anew.
"""

import contextlib
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lightsleep import interrupts
from lightsleep.errors import LightsleepError
from lightsleep.interrupts import Kind
from lightsleep.scan.collect import CPU_DIR, INTERRUPTS, TICK_S, collect
from lightsleep.scan.loading import MODULE
from lightsleep.scan.model import Cpu, PollStats, Scan
from lightsleep.watch.model import CpuCount, Snapshot, States

OWN = ("polls", "hits", "halts", "polled_ns", "wasted_ns", "limit_ns", "halt_cost_ns")
SPARE_FILES = 64
NUMBER = 32
"""No counter has more digits."""
CHUNK = 1 << 18


class File:
    """A file that is read from its start again and again."""

    __slots__ = ("descriptor", "path")

    def __init__(self, path: Path, keep: bool) -> None:
        """Open a file, for good if ``keep``. Raises OSError where it cannot be read."""
        self.path = path
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if not keep:
            self.close()

    def close(self) -> None:
        """Close the file; a later read opens it for itself."""
        os.close(self.descriptor)
        self.descriptor = -1

    def number(self) -> int:
        """Return the number in it. Raises OSError and ValueError."""
        if self.descriptor >= 0:
            return int(os.pread(self.descriptor, NUMBER, 0))
        return int(self.path.read_bytes()[:NUMBER])

    def content(self) -> bytes:
        """Return all of it. Raises OSError."""
        if self.descriptor < 0:
            return self.path.read_bytes()
        parts, at = [], 0
        while part := os.pread(self.descriptor, CHUNK, at):
            parts.append(part)
            at += len(part)
        return b"".join(parts)


@dataclass
class _CpuFiles:
    """The files of one CPU, and what they held last."""

    names: tuple[str, ...]
    usage: list[File]
    time: list[File]
    stuck: list[File]
    own: list[File | None]
    states: States | None = None
    polls: PollStats | None = None

    def refresh(self) -> None:
        """Read what may have changed.

        Raises OSError where the CPU or its driver is gone, ValueError where it is another driver.
        """
        if not len(self.usage) == len(self.time) == len(self.names):
            raise ValueError("the driver changed while its files were opened")
        usage = tuple([file.number() for file in self.usage])
        if self.usage and self.states and usage == self.states.usage:
            return
        stuck = [file.number() for file in self.stuck]
        times = tuple([file.number() for file in self.time])
        self.states = States(usage, times, sum(stuck) if stuck else None) if usage else None
        if any(self.own):
            self.polls = PollStats(*[file.number() if file else None for file in self.own])


@dataclass
class _Interrupts:
    """Sums of the rows of /proc/interrupts, by CPU and kind; parses only rows that changed.

    The number of a row may be given to another interrupt, which counts from 0. Sums never fall.
    """

    header: bytes = b""
    cpus: list[int] = field(default_factory=list)
    rows: dict[bytes, tuple[bytes, Kind | None, list[int]]] = field(default_factory=dict)
    sums: dict[Kind, list[int]] = field(default_factory=dict)

    def refresh(self, content: bytes) -> None:
        header, *lines = content.split(b"\n")
        earlier: dict[int, dict[Kind, int]] = {}
        if header != self.header:
            earlier = self.by_cpu()
            self.header, self.cpus, self.rows = header, interrupts.columns(header), {}
            self.sums = {kind: [0] * len(self.cpus) for kind in interrupts.KINDS}
        for line in lines:
            label = line[: line.find(b":")]
            last = self.rows.get(label)
            if last and (last[1] is None or last[0] == line):
                continue
            kind, counts = interrupts.split(line, len(self.cpus))
            if kind:
                rises = counts
                if last and all(now >= old for now, old in zip(counts, last[2], strict=True)):
                    rises = [now - old for now, old in zip(counts, last[2], strict=True)]
                self.sums[kind] = [sum(x) for x in zip(self.sums[kind], rises, strict=True)]
            self.rows[label] = (line, kind, counts)
        for index, cpu in enumerate(self.cpus):
            for kind, least in earlier.get(cpu, {}).items():
                self.sums[kind][index] = max(self.sums[kind][index], least)

    def by_cpu(self) -> dict[int, dict[Kind, int]]:
        return {
            cpu: {kind: sums[index] for kind, sums in self.sums.items()}
            for index, cpu in enumerate(self.cpus)
        }


class Reader:
    """Reads one machine; ``wanted`` limits it to these CPUs, of which offline ones are left out."""

    def __init__(self, root: Path, wanted: list[int] | None) -> None:
        """Open all files. Raises LightsleepError where there is no CPU to watch."""
        self._root, self._wanted = root, wanted
        self._files: list[File] = []
        self._cpus: dict[int, _CpuFiles] = {}
        self._interrupts = _Interrupts()
        self._open()
        if not self._cpus:
            raise LightsleepError(
                "no CPU to watch: none of those that were named is online, or "
                "/sys/devices/system/cpu shows none"
            )

    def read(self) -> Snapshot:
        """Return all counters as they are now."""
        if self._layout() != self._shown:
            self._open()
        gone = []
        for number, files in self._cpus.items():
            try:
                files.refresh()
            except (OSError, ValueError):
                gone.append(number)
        for number in gone:
            del self._cpus[number]
        idle = self._idle()
        with contextlib.suppress(OSError):
            if self._rows:
                self._interrupts.refresh(self._rows.content())
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
                    *idle.get(number, nothing),
                )
                for number, files in self._cpus.items()
            },
        )

    def close(self) -> None:
        """Close all files."""
        for opened in self._files:
            if opened.descriptor >= 0:
                opened.close()
        self._files = []

    def _open(self) -> None:
        self.close()
        self._layout_files = [
            layout
            for path in (
                f"{CPU_DIR}/online",
                f"{CPU_DIR}/cpuidle/current_driver",
                f"{CPU_DIR}/cpuidle/current_governor",
                f"sys/module/{MODULE}/parameters/mode",
            )
            if (layout := self._file(path, True))
        ]
        # First: what changes while the rest is read shows in the next round.
        self._shown = self._layout()
        self._scan: Scan = collect(self._root)[0]
        cpus = [x for x in self._scan.cpus if self._wanted is None or x.number in self._wanted]
        keep = _room_for(sum(3 * len(cpu.states) + len(OWN) for cpu in cpus))
        self._stat = self._file("proc/stat", True)
        self._rows = self._file(INTERRUPTS, True)
        self._cpus = {cpu.number: self._cpu_files(cpu, keep) for cpu in cpus}

    def _layout(self) -> list[bytes]:
        """Return what tells whether files come and go."""
        try:
            return [file.content() for file in self._layout_files]
        except OSError:
            return [str(time.monotonic()).encode()]  # one of them is gone

    def _file(self, path: str, keep: bool) -> File | None:
        try:
            file = File(self._root / path, keep)
        except OSError:
            return None
        self._files.append(file)
        return file

    def _cpu_files(self, cpu: Cpu, keep: bool) -> _CpuFiles:
        folder = f"{CPU_DIR}/cpu{cpu.number}"
        states = [s for s in cpu.states if s.usage is not None and s.time_us is not None]

        def of_states(name: str) -> list[File]:
            found = (self._file(f"{folder}/cpuidle/state{s.index}/{name}", keep) for s in states)
            return [file for file in found if file]

        own = [self._file(f"{folder}/lightsleep/{name}", keep) for name in OWN]
        return _CpuFiles(
            tuple(s.name for s in states),
            of_states("usage"),
            of_states("time"),
            of_states("promote/stuck_us"),
            own,
        )

    def _idle(self) -> dict[int, tuple[float, float | None]]:
        """Return seconds idle and stolen by CPU."""
        found: dict[int, tuple[float, float | None]] = {}
        with contextlib.suppress(OSError):
            for number, words in _cpu_lines(self._stat.content() if self._stat else b""):
                idle = int(words[4]) + int(words[5])
                stolen = int(words[8]) * TICK_S if len(words) > 8 else None
                found[number] = (idle * TICK_S, stolen)
        return found


def _cpu_lines(content: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """Yield CPU and words of the lines of /proc/stat that are about one CPU."""
    for line in content.split(b"\n")[1:]:
        words = line.split()
        if not words or not words[0].startswith(b"cpu"):
            return  # the lines behind, on interrupts, are long
        if len(words) > 5 and words[0][3:].isdigit() and all(x.isdigit() for x in words[1:9]):
            yield int(words[0][3:]), words


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
