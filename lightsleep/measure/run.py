# SPDX-License-Identifier: GPL-2.0-only
"""Takes the samples: sets the idle states of a CPU, runs batches, counts what came of them.

While a CPU is measured, every state but the one in question is disabled, and the one in question is
enabled. The session (lightsleep/settings/) sets every knob back, however this process ends.
"""

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lightsleep import cpulist
from lightsleep.errors import LightsleepError
from lightsleep.measure import noise
from lightsleep.measure.kernel_backend import CpuBusy, CpuGone, NotPermitted
from lightsleep.measure.model import Backend, Sample
from lightsleep.measure.plan import Cell, next_batch
from lightsleep.scan.collect import CPU_DIR
from lightsleep.scan.machine import Cpu, Machine
from lightsleep.settings.journalled import ChangedMeanwhile, KnobGone

OFFLINE_S = 5.0
"""How long a CPU may take to go offline, once its knobs are gone."""

Progress = Callable[[str, int, int], None]
"""Called with what is measured, how many of the expected ns are done, and how many there are."""


Ended = KeyboardInterrupt | SystemExit | LightsleepError
"""What ends a measurement early: a signal, or an error with which it could not go on."""


class Knobs(Protocol):
    """Where settings are changed, to be restored at the end of the session."""

    def set(self, knob: Path, value: str) -> object:
        """Set a knob."""


@dataclass
class Tally:
    """What came of one cell so far: all samples, and those of them that count.

    ``usage`` is how often the CPU entered the state meanwhile, ``idled`` how often it went idle;
    None where nothing tells.
    """

    cell: Cell
    samples: list[Sample] = field(default_factory=list)
    valid: list[Sample] = field(default_factory=list)
    batches: int = 0
    usage: int | None = None
    idled: int | None = None
    elapsed_ns: int = 0
    closed: bool = False
    disturbed: noise.Disturbance | None = None

    def add(self, samples: list[Sample]) -> None:
        """Add a batch."""
        self.samples += samples
        self.valid += (sample for sample in samples if sample.valid)
        self.batches += 1

    def next_batch(self, wanted: int) -> int:
        """Return how many samples to take next, 0 where there is nothing more to do."""
        if self.closed:
            return 0
        tried, valid = len(self.samples), len(self.valid)
        return next_batch(self.cell, wanted, tried, valid, self.batches, self.elapsed_ns)

    def left_ns(self, wanted: int) -> int:
        """Return about how long the rest takes."""
        return self.cell.cost_ns() * min(1, self.next_batch(wanted)) * (wanted - len(self.valid))

    def done_ns(self) -> int:
        """Return about how long what was done should have taken."""
        return self.cell.cost_ns() * len(self.samples)


@dataclass
class Taken:
    """What came of a measurement: the tallies in the order of the cells, and what went wrong."""

    tallies: list[Tally]
    notes: list[str]
    ended: Ended | None = None


def measure(
    machine: Machine,
    cells: list[Cell],
    wanted: int,
    backend: Backend,
    knobs: Knobs,
    rng: random.Random,
    root: Path,
    progress: Progress,
) -> Taken:
    """Take ``wanted`` valid samples of each cell, as far as possible.

    Raises LightsleepError where not one cell could be measured.
    """
    taken = Taken([Tally(cell) for cell in cells], [])
    tallies, notes = taken.tallies, taken.notes
    numbers = sorted({cell.dest for cell in cells})
    rng.shuffle(numbers)
    done_ns, ahead_ns = 0, sum(tally.left_ns(wanted) for tally in tallies)
    try:
        for number in numbers:
            mine = [tally for tally in tallies if tally.cell.dest == number]
            ahead_ns -= sum(tally.left_ns(wanted) for tally in mine)
            with _noise_told(mine, root, backend):
                batches = _batches(
                    machine.cpus[number], mine, wanted, backend, knobs, rng, root, notes
                )
                for _ in batches:
                    now_ns = done_ns + sum(tally.done_ns() for tally in mine)
                    left_ns = ahead_ns + sum(tally.left_ns(wanted) for tally in mine)
                    progress(f"CPU {number}", now_ns, now_ns + left_ns)
            done_ns += sum(tally.done_ns() for tally in mine)
        progress("done", done_ns, done_ns)
    except (KeyboardInterrupt, SystemExit, LightsleepError) as ended:
        taken.ended = ended
    notes += noise.notes({x.cell.dest: x.disturbed for x in tallies if x.disturbed})
    nothing = all(tally.closed and not tally.valid for tally in tallies)
    if tallies and nothing and not taken.ended:
        raise LightsleepError("\n".join(notes))
    return taken


def _batches(
    cpu: Cpu,
    tallies: list[Tally],
    wanted: int,
    backend: Backend,
    knobs: Knobs,
    rng: random.Random,
    root: Path,
    notes: list[str],
) -> Iterator[None]:
    """Take all samples of one CPU; yields before each batch. What goes wrong is added to notes."""
    with _out_of_the_way(cpu):
        for tally in _rounds(tallies, wanted, rng):
            yield
            try:
                _take(tally, wanted, backend, knobs, cpu)
            except LightsleepError as error:
                known = isinstance(error, (CpuGone, CpuBusy, ChangedMeanwhile, NotPermitted))
                if not known and _stays_online(root, cpu.number, error):
                    raise
                # Who is too busy for one batch is too busy for the next, after minutes each.
                for one in tallies if isinstance(error, CpuBusy) else [tally]:
                    one.closed = True
                notes += [error.message] if error.message not in notes else []
    try:
        if _online(root, cpu.number):
            _set_back(cpu, knobs)
            return
    except KnobGone as error:
        if _stays_online(root, cpu.number, error):
            raise
    kept = ": its samples up to then are kept" if any(tally.valid for tally in tallies) else ""
    notes.append(f"CPU {cpu.number} went offline{kept}")


@contextlib.contextmanager
def _noise_told(tallies: list[Tally], root: Path, backend: Backend) -> Iterator[None]:
    """Tell the tallies of a CPU what disturbs it meanwhile, however the context ends."""
    before = noise.read(root)
    try:
        yield
    finally:
        after = noise.read(root)
        for tally in tallies:
            dest = tally.cell.dest
            if dest in before and dest in after:
                passed = after[dest] - before[dest]
                tally.disturbed = noise.disturbed(passed, backend.mode == "userspace")


def _rounds(tallies: list[Tally], wanted: int, rng: random.Random) -> Iterator[Tally]:
    """Yield tallies that need another batch, each once a round, in random order."""
    while pending := [tally for tally in tallies if tally.next_batch(wanted)]:
        rng.shuffle(pending)
        yield from (tally for tally in pending if not tally.closed)


def _take(tally: Tally, wanted: int, backend: Backend, knobs: Knobs, cpu: Cpu) -> None:
    state = tally.cell.state
    if state:
        for other in cpu.states:
            if other.knob:
                knobs.set(other.knob / "disable", "0" if other == state else "1")
    before, idles_before = _usage(tally.cell), _idles(cpu)
    start_ns = time.monotonic_ns()
    tally.add(backend.run(tally.cell.batch(tally.next_batch(wanted))))
    tally.elapsed_ns += time.monotonic_ns() - start_ns
    tally.usage = _grown(tally.usage, before, _usage(tally.cell))
    tally.idled = _grown(tally.idled, idles_before, _idles(cpu))


def _set_back(cpu: Cpu, knobs: Knobs) -> None:
    """Set the states back as soon as a CPU is done; on an error the end of the session does."""
    for state in cpu.states:
        if state.knob:
            with contextlib.suppress(ChangedMeanwhile):  # it was told, or will be at the end
                knobs.set(state.knob / "disable", str(int(state.disabled)))


def _online(root: Path, cpu: int) -> bool:
    """Whether a CPU is online; where nothing tells, it is."""
    try:
        return cpu in cpulist.parse((root / CPU_DIR / "online").read_text())
    except OSError:
        return True


def _stays_online(root: Path, cpu: int, error: LightsleepError) -> bool:
    """Whether a CPU that ``error`` came up with is online, and not on its way out.

    On its way out it loses its knobs some time before it counts as offline.
    """
    deadline = time.monotonic() + (OFFLINE_S if isinstance(error, KnobGone) else 0)
    while _online(root, cpu):
        if time.monotonic() >= deadline:
            return True
        time.sleep(0.02)
    return False


def _usage(cell: Cell) -> int | None:
    return _count(cell.state.knob / "usage") if cell.state and cell.state.knob else None


def _idles(cpu: Cpu) -> int | None:
    """Return how often a CPU went idle since boot: into any of its states, or refused by one."""
    counts = [
        _count(state.knob / name) if state.knob else None
        for state in cpu.states
        for name in ("usage", "rejected")
    ]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _count(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _grown(so_far: int | None, before: int | None, after: int | None) -> int | None:
    """Return a count plus what a counter grew by; as it was where that is not known.

    A driver may count anew where a CPU comes back.
    """
    if before is None or after is None or after < before:
        return so_far
    return (so_far or 0) + after - before


@contextlib.contextmanager
def _out_of_the_way(cpu: Cpu) -> Iterator[None]:
    """Keep this process off the CPU that is to idle, and off its core, where there are others."""
    allowed = os.sched_getaffinity(0)
    elsewhere = allowed - {cpu.number} - cpu.siblings or allowed - {cpu.number} or allowed
    os.sched_setaffinity(0, elsewhere)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
