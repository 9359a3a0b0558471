# SPDX-License-Identifier: GPL-2.0-only
"""Whether a governor that is compiled here chooses what the recorded one chose.

The governor is asked in each recorded period, and learns from what the recorded CPU did then. (A
replay does not do that: in lightsleep/replay/governed.py, a governor learns from its own choices.)
Where it is the governor that was recorded, both choose the same state, but for what a recording
lacks:

- what the governor had learned before the recording began;
- how far away the tick was: the governor counts from when its CPU began to be idle, which no event
  marks, and a state that is about as long as the time to the tick is chosen or not;
- how long the kernel itself measured each period: it reads its clock inside of the tracepoints;
- periods that the CPU was about to begin when a task was woken.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from lightsleep.governors import build
from lightsleep.periods.lost import integers
from lightsleep.periods.model import AWAKE, Metadata
from lightsleep.replay.governed import Advertised, Cpu, Governor
from lightsleep.replay.rows import Flags, code, codes_of

FOLLOW = Path(__file__).with_suffix(".c")
DECLARED = """
struct recorded { uint64_t begin_ns, length_ns; int64_t sleep_ns, next_ns; int32_t state;
                  uint16_t tick; uint8_t leaves, expired; };
void machine_follow(const struct recorded *rows, size_t count, int32_t *chosen,
                    bool *known);
"""

UNKNOWN_NS = np.iinfo(np.int64).min
"""The sleep length of a governor that did not ask for it."""

RECORDED = np.dtype(
    [
        ("begin_ns", "u8"),
        ("length_ns", "u8"),
        ("sleep_ns", "i8"),
        ("next_ns", "i8"),
        ("state", "i4"),
        ("tick", "u2"),
        ("leaves", "u1"),
        ("expired", "u1"),
    ]
)


@dataclass
class Followed:
    """How often a governor chose the recorded state, where the sleep length is known, or not."""

    known: int = 0
    known_same: int = 0
    unknown: int = 0
    unknown_same: int = 0
    confusion: dict[tuple[int, int], int] = field(default_factory=dict)
    """Of recorded and chosen state, where the sleep length is known."""

    @property
    def share(self) -> float:
        """The share of periods with a known sleep length in which both chose the same."""
        return self.known_same / max(1, self.known)


def follow(
    metadata: Metadata,
    batches: Iterable[pa.RecordBatch],
    governor: Governor,
    warm_up: int = 0,
    inside_ns: int = 0,
) -> Followed:
    """Ask ``governor`` in each period; the first ``warm_up`` periods of each CPU do not count.

    The kernel measures each period ``inside_ns`` shorter than the recording does: it reads its
    clock inside of the tracepoints.

    Reads the whole recording into memory. Raises LightsleepError where the governor cannot be
    compiled, or the recording does not say what its states advertise.
    """
    table = pa.Table.from_batches(list(batches)).combine_chunks().to_batches()
    found = Followed()
    for batch in table:
        states, cpus = integers(batch, "state"), integers(batch, "cpu")
        for cpu in np.unique(cpus[states != AWAKE]).tolist():
            polls = [state for at, state in metadata.polled if at == cpu]
            rows = _rows(batch, (cpus == cpu) & (states != AWAKE), polls)
            rows["length_ns"] -= np.minimum(rows["length_ns"], np.uint64(inside_ns))
            library = build.library_file(governor.version, machine=FOLLOW)
            simulated = Cpu(library, governor.name, Advertised.of(metadata, cpu))
            simulated.lib.machine_promote(governor.promote)
            simulated.ffi.cdef(DECLARED)
            chosen, asked = _asked(simulated, rows)
            _count(found, rows[warm_up:], chosen[warm_up:], asked[warm_up:])
    return found


def _rows(
    batch: pa.RecordBatch, wanted: Flags, polls: list[int]
) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    rows = np.zeros(int(wanted.sum()), RECORDED)
    rows["begin_ns"] = integers(batch, "entered_ns")[wanted]
    rows["length_ns"] = integers(batch, "length_ns")[wanted]
    rows["state"] = integers(batch, "state")[wanted]
    for name, column in (("sleep_ns", "sleep_length_ns"), ("next_ns", "next_event_ns")):
        timer_known = np.asarray(batch.column(column).is_valid())
        rows[name] = np.where(timer_known, integers(batch, column), UNKNOWN_NS)[wanted]
    rows["tick"] = (codes_of(batch) == code(batch, "tick"))[wanted]
    rows["leaves"] = np.asarray(batch.column("wakee_pid").is_valid())[wanted]
    unknown = (codes_of(batch) == code(batch, "unknown"))[wanted]
    rows["expired"] = np.isin(rows["state"], polls) & unknown & (rows["leaves"] == 0)
    return rows


def _asked(
    simulated: Cpu, rows: np.ndarray[tuple[int], np.dtype[np.void]]
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int32]], Flags]:
    ffi = simulated.ffi
    chosen, asked = np.zeros(len(rows), np.int32), np.zeros(len(rows), np.bool_)
    simulated.lib.machine_follow(
        ffi.from_buffer("struct recorded[]", rows),
        len(rows),
        ffi.from_buffer("int32_t[]", chosen, require_writable=True),
        ffi.from_buffer("bool[]", asked, require_writable=True),
    )
    return chosen, asked


def _count(
    found: Followed,
    rows: np.ndarray[tuple[int], np.dtype[np.void]],
    chosen: np.ndarray[tuple[int], np.dtype[np.int32]],
    asked: Flags,
) -> None:
    same = rows["state"] == chosen
    timer_known = rows["sleep_ns"] != UNKNOWN_NS
    found.known += int(timer_known.sum())
    found.known_same += int((timer_known & same).sum())
    found.unknown += int((~timer_known).sum())
    found.unknown_same += int((~timer_known & same).sum())
    pairs, counts = np.unique(
        np.stack([rows["state"][timer_known], chosen[timer_known]]), axis=1, return_counts=True
    )
    for (state, other), count in zip(pairs.T.tolist(), counts.tolist(), strict=True):
        key = (state, other)
        found.confusion[key] = found.confusion.get(key, 0) + count
