# SPDX-License-Identifier: GPL-2.0-only
"""Takes the samples: sets the idle states of a CPU, runs batches, counts what came of them.

While a CPU is measured, every state but the one in question is disabled, and the one in question is
enabled. The knobs are borrowed: they go back to what they were on every end of this process.
"""

import contextlib
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lightsleep.measure import noise
from lightsleep.measure.kernel_backend import CpuGone
from lightsleep.measure.machine import Cpu, Machine
from lightsleep.measure.model import NOT_IDLE, Backend, Sample
from lightsleep.measure.plan import Cell, next_batch

Progress = Callable[[str, int, int], None]
"""Told what is measured, how many of the expected nanoseconds are done, and how many there are."""


class Knobs(Protocol):
    """Where settings are changed, to be restored by whoever lends them."""

    def set(self, knob: Path, value: str) -> None:
        """Set a knob."""


@dataclass
class Tally:
    """What came of one cell so far."""

    cell: Cell
    samples: list[Sample] = field(default_factory=list)
    batches: int = 0
    usage: int | None = None
    closed: bool = False
    disturbed: str | None = None

    @property
    def valid(self) -> list[Sample]:
        """The samples that count."""
        return [sample for sample in self.samples if sample.valid]

    @property
    def instead(self) -> Counter[int]:
        """Indexes of idle states that the CPU was in instead, each with how often."""
        others = (x.entered for x in self.samples if x.verdict == "wrong-state")
        return Counter(index for index in others if index is not None and index != NOT_IDLE)

    def next_batch(self, wanted: int) -> int:
        """Return how many samples to take next, 0 where there is nothing more to do."""
        if self.closed:
            return 0
        return next_batch(self.cell, wanted, len(self.samples), len(self.valid), self.batches)


def measure(
    machine: Machine,
    cells: list[Cell],
    wanted: int,
    backend: Backend,
    knobs: Knobs,
    rng: random.Random,
    root: Path,
    progress: Progress,
) -> tuple[list[Tally], list[str]]:
    """Take ``wanted`` valid samples of each cell, as far as possible.

    Returns the tallies in the order of ``cells``, and notes on what went wrong meanwhile. Raises
    LightsleepError where the measurement as a whole cannot go on.
    """
    tallies = [Tally(cell) for cell in cells]
    notes: list[str] = []
    numbers = sorted({cell.dest for cell in cells})
    rng.shuffle(numbers)

    def report(what: str) -> None:
        done = sum(t.cell.cost_ns() * len(t.samples) for t in tallies)
        left = sum(
            t.cell.cost_ns() * (wanted - len(t.valid)) for t in tallies if t.next_batch(wanted)
        )
        progress(what, done, done + left)

    for number in numbers:
        cpu = machine.cpus[number]
        mine = [tally for tally in tallies if tally.cell.dest == number]
        before = noise.read(root)
        with _out_of_the_way(cpu), _states_of(cpu, knobs):
            for tally in _rounds(mine, wanted, rng):
                report(f"CPU {number}")
                try:
                    _take(tally, wanted, backend, knobs, cpu)
                except CpuGone as error:
                    tally.closed = True
                    notes.append(error.message)
        after = noise.read(root)
        if number in before and number in after:
            passed = after[number] - before[number]
            reason = noise.disturbed(number, passed, backend.mode == "userspace")
            notes += [reason] if reason else []
            for tally in mine:
                tally.disturbed = reason
    report("done")
    return tallies, notes


def _rounds(tallies: list[Tally], wanted: int, rng: random.Random) -> Iterator[Tally]:
    """Yield tallies that need another batch, each once a round, in random order."""
    while pending := [tally for tally in tallies if tally.next_batch(wanted)]:
        rng.shuffle(pending)
        yield from pending


def _take(tally: Tally, wanted: int, backend: Backend, knobs: Knobs, cpu: Cpu) -> None:
    state = tally.cell.state
    if state:
        for other in cpu.states:
            if other.knob:
                knobs.set(other.knob / "disable", "0" if other == state else "1")
    before = _usage(tally.cell)
    tally.samples += backend.run(tally.cell.batch(tally.next_batch(wanted)))
    tally.batches += 1
    after = _usage(tally.cell)
    if before is not None and after is not None:
        tally.usage = (tally.usage or 0) + after - before


@contextlib.contextmanager
def _states_of(cpu: Cpu, knobs: Knobs) -> Iterator[None]:
    """Set the states back as soon as this CPU is done; on an error the lender does it."""
    yield
    for state in cpu.states:
        if state.knob:
            knobs.set(state.knob / "disable", str(int(state.disabled)))


def _usage(cell: Cell) -> int | None:
    if not cell.state or not cell.state.knob:
        return None
    try:
        return int((cell.state.knob / "usage").read_text())
    except (OSError, ValueError):
        return None


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
