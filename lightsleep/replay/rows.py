# SPDX-License-Identifier: GPL-2.0-only
"""What a replay reads of a table: columns of a batch of rows, and what follows from them alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lightsleep.document import shortened
from lightsleep.errors import LightsleepError
from lightsleep.periods.lost import integers
from lightsleep.periods.model import CAUSES, MAX_CPUS, Metadata

Ns = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

JOINED_NS = 30_000
"""A row that begins so soon after the last one belongs to the same interval: in an emulator, a turn
through the idle loop takes 5 to 20 us."""

SMALL = 1 << 16
"""Up to here it is faster to count numbers than to sort them."""

NEEDED = (
    *("cpu", "entered_ns", "length_ns", "state", "ended_by", "sleep_length_ns"),
    *("waker_pid", "waker_cpu", "wakee_pid", "waking_to_running_ns"),
)
"""The columns that intervals are made of."""


def codes_of(batch: pa.RecordBatch) -> npt.NDArray[np.int8]:
    """Return the code of what ended each period. Raises LightsleepError for one that is none."""
    known = batch.column("ended_by").dictionary.to_pylist()
    if strange := [x for x in known if x not in CAUSES]:
        raise LightsleepError(f"no idle period ends by {shortened(repr(strange[0]))}")
    if len(set(known)) < len(known):
        raise LightsleepError("two codes say the same of how an idle period ended")
    return np.asarray(batch.column("ended_by").indices).astype(np.int8, copy=False)


def code(batch: pa.RecordBatch, cause: str) -> int:
    """Return the code of periods that ended in that way; -1 where there is none."""
    known: list[str] = batch.column("ended_by").dictionary.to_pylist()
    return known.index(cause) if cause in known else -1


def sleep_lengths(batch: pa.RecordBatch) -> Ns:
    """Return what governors were told of the next timer; -1 where nobody knows."""
    return np.asarray(batch.column("sleep_length_ns").fill_null(-1)).astype(np.int64, copy=False)


def distinct(numbers: Ns) -> list[int]:
    """Return which numbers occur, in order: of CPUs, states, and other small ones."""
    if not len(numbers):
        return []
    small = int(numbers.min()) >= 0 and int(numbers.max()) < SMALL
    found = np.flatnonzero(np.bincount(numbers)) if small else np.unique(numbers)
    return [int(number) for number in found]


def places(numbers: Ns, among: Ns) -> tuple[Ns, Flags]:
    """Return where numbers are among others, which are in order, and which of them are there."""
    at = np.searchsorted(among, numbers)
    there = at < len(among)
    there[there] = among[at[there]] == numbers[there]
    return at, there


def _worst(cpus: Ns) -> int:
    low = int(cpus.min())
    return low if low < 0 else int(cpus.max())


class Rows:
    """The columns of a batch that intervals are made of."""

    def __init__(self, metadata: Metadata, batch: pa.RecordBatch) -> None:
        """Raise LightsleepError where the batch says what cannot be."""
        numbers = integers(batch, "cpu")
        if len(numbers) and not 0 <= (worst := _worst(numbers)) < MAX_CPUS:
            raise LightsleepError(f"no machine has a CPU {worst}")
        self.cpu, self.state = integers(batch, "cpu"), integers(batch, "state")
        self.entered_ns, self.length_ns = (
            integers(batch, "entered_ns"),
            integers(batch, "length_ns"),
        )
        self.wait_ns = integers(batch, "waking_to_running_ns")
        self.woken = np.asarray(batch.column("waking_to_running_ns").is_valid())
        self.waker, wakee = integers(batch, "waker_pid"), integers(batch, "wakee_pid")
        self.pair = self.waker << 32 | wakee
        ended_by = codes_of(batch)
        unknown = ended_by == code(batch, "unknown")
        self.by_tick = ended_by == code(batch, "tick")
        self.by_timer = ended_by == code(batch, "timer")
        # Else an interrupt of the CPU itself woke the task: it had left its state by then.
        self.by_other = self.woken & (integers(batch, "waker_cpu") != self.cpu)
        self.sleep_ns = sleep_lengths(batch)
        self.nobody = np.asarray(batch.column("wakee_pid").is_null())
        polling = np.array(sorted(cpu << 16 | state for cpu, state in metadata.polled), np.int64)
        self.polls = np.isin(self.cpu << 16 | self.state, polling)
        self.continued = self.polls & unknown & self.nobody & ~self.woken
