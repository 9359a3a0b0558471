# SPDX-License-Identifier: GPL-2.0-only
"""intervals.c: what Reader of intervals.py does, compiled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from lightsleep.errors import LightsleepError
from lightsleep.periods.lost import bucket
from lightsleep.periods.model import MAX_CPUS, Metadata
from lightsleep.replay.costs import Costs, Tables
from lightsleep.replay.intervals import BLOCKS, FAR_NS, RecordedIntervals, block_width_ns
from lightsleep.replay.rows import JOINED_NS, NEEDED, Ns, code, codes_of, sleep_lengths
from lightsleep.replay.stays import NO_STATE, STATES

KINDS = {
    "cpu": "int32_t[]",
    "entered_ns": "int64_t[]",
    "length_ns": "int64_t[]",
    "state": "int16_t[]",
    "waker_pid": "int32_t[]",
    "waker_cpu": "int32_t[]",
    "wakee_pid": "int32_t[]",
    "waking_to_running_ns": "int64_t[]",
}
SPECIAL = ("ended_by", "sleep_length_ns")
"""Columns that are no plain integers."""

MADE = {
    **dict.fromkeys(("entered_ns", "arrival_ns", "earliest_ns", "cost_ns", "more_ns"), np.int64),
    **dict.fromkeys(("typical_ns", "timer_ns", "polled_ns", "exit_ns"), np.int64),
    **dict.fromkeys(("state", "block"), np.uint8),
    **dict.fromkeys(("halted", "woken", "resumes", "nobody", "tick"), np.bool_),
}
"""Arrays of ``struct recorded_intervals``, which RecordedIntervals has, too."""
IN_C = {np.int64: "int64_t[]", np.uint8: "uint8_t[]", np.bool_: "uint8_t[]"}

OPEN = 9
"""Elements of ``struct open_interval``."""


class CompiledReader:
    """Turns the batches of a recording into intervals, CPU by CPU."""

    def __init__(self, ffi: Any, lib: Any, metadata: Metadata, costs: Costs) -> None:
        """Begin with no interval open."""
        self._ffi, self._lib, self._metadata, self._costs = ffi, lib, metadata, costs
        self._open: Ns = np.zeros((0, OPEN), np.int64)
        self._polls = np.zeros((0, STATES), np.uint8)
        self._tables = Tables(metadata)
        halts = [costs.halt_of(table) for table in range(self._tables.count)]
        self._table: Ns = np.zeros(0, np.int64)
        self._halt_state = np.array([state for state, _ in halts], np.uint8)
        self._halt_ns = np.array([cost_ns for _, cost_ns in halts], np.int64)
        self._state_ns = np.repeat(self._halt_ns, STATES)
        usual_ns = [costs.usual_ns(table) for table in range(self._tables.count)]
        self._usual_ns = np.array(usual_ns, np.int64)
        for (table, state), cost_ns in costs.states.items():
            if 0 <= state < STATES:
                self._state_ns[table * STATES + state] = round(cost_ns)
        self._ranks = np.zeros(len(self._state_ns) + 1, np.int64)
        begins: list[int] = []
        usuals: list[int] = []
        for (table, state), ranks in sorted(costs.ranks.items()):
            if 0 <= state < NO_STATE:
                begins += ranks.from_ns
                usuals += ranks.usual_ns
                self._ranks[table * STATES + state + 1] = len(ranks.from_ns)
        self._ranks = np.cumsum(self._ranks)
        self._rank_from_ns = np.array(begins, np.int64)
        self._rank_usual_ns = np.array(usuals, np.int64)
        self._loops, self._peers_ns = costs.peers()

    def intervals(self, batch: pa.RecordBatch) -> Iterator[tuple[int, RecordedIntervals]]:
        """Yield each CPU of a batch with its intervals, in order."""
        if not len(batch):
            return
        columns = {name: _plain(batch, name) for name in NEEDED if name not in SPECIAL}
        cpus = columns["cpu"]
        most = int(cpus.max()) + 1
        if int(cpus.min()) < 0 or most > MAX_CPUS:
            raise LightsleepError(f"{self._metadata.source}: no machine has a CPU {most - 1}")
        self._grow(most)
        woken = np.asarray(batch.column("waking_to_running_ns").is_valid())
        somebody = np.asarray(batch.column("wakee_pid").is_valid())
        columns |= {"cause": codes_of(batch), "woken": woken, "somebody": somebody}
        columns["sleep_ns"] = sleep_lengths(batch)
        # A CPU may have one interval more than rows: one that was open before.
        counts = np.bincount(cpus, minlength=most)
        causes = {name: code(batch, name) for name in ("unknown", "timer", "tick")}
        yield from self._made(columns, causes, counts + (counts > 0))

    def rest(self) -> Iterator[tuple[int, RecordedIntervals]]:
        """Yield what was kept back, after the last batch."""
        for cpu in np.flatnonzero(self._open[:, OPEN - 1]).tolist():
            entered, end, polled, cost, timer_at, state, ended, nobody, _ = self._open[cpu].tolist()
            made = _room(1)
            made["entered_ns"][0], made["polled_ns"][0] = entered, polled
            made["arrival_ns"][0] = made["earliest_ns"][0] = max(end - entered, 0)
            made["typical_ns"][0] = made["exit_ns"][0] = cost
            made["state"][0] = state
            made["timer_ns"][0] = max(timer_at - entered, 0) if timer_at else FAR_NS
            since_ns = max(entered - (self._metadata.first_ns or 0), 0)
            made["block"][0] = min(since_ns // block_width_ns(self._metadata), BLOCKS - 1)
            made["nobody"][0] = True
            made["resumes"][0] = nobody and entered - ended <= JOINED_NS
            yield cpu, RecordedIntervals(**made, bucket=_buckets(made))
        self._open[:] = 0

    def _grow(self, cpus: int) -> None:
        more = cpus - len(self._open)
        if more > 0:
            self._open = np.concatenate([self._open, np.zeros((more, OPEN), np.int64)])
            self._table = self._tables.of(np.arange(cpus))
            self._polls = np.zeros((cpus, STATES), np.uint8)
            for cpu, state in self._metadata.polled:
                if cpu < cpus and 0 <= state < STATES:
                    self._polls[cpu, state] = 1

    def _made(
        self, columns: dict[str, Any], causes: dict[str, int], rooms: Ns
    ) -> Iterator[tuple[int, RecordedIntervals]]:
        ffi, costs = self._ffi, self._costs
        begins = np.concatenate([[0], np.cumsum(rooms)]).astype(np.uint64)
        nexts = begins[:-1].copy()
        made = _room(int(begins[-1]))
        lent = {name: ffi.from_buffer(KINDS[name], columns[name]) for name in KINDS}
        rows = ffi.new(
            "struct rows *",
            {
                "count": len(columns["cpu"]),
                "cpu": lent["cpu"],
                "entered_ns": lent["entered_ns"],
                "length_ns": lent["length_ns"],
                "state": lent["state"],
                "cause": ffi.from_buffer("int8_t[]", columns["cause"]),
                "waker": lent["waker_pid"],
                "waker_cpu": lent["waker_cpu"],
                "wakee": lent["wakee_pid"],
                "sleep_ns": ffi.from_buffer("int64_t[]", columns["sleep_ns"]),
                "somebody": ffi.from_buffer("uint8_t[]", columns["somebody"]),
                "wait_ns": lent["waking_to_running_ns"],
                "woken": ffi.from_buffer("uint8_t[]", columns["woken"]),
            },
        )
        prices = ffi.new(
            "struct costs *",
            {
                "cpus": len(self._open),
                "polls": ffi.from_buffer("uint8_t[]", self._polls),
                "state_ns": ffi.from_buffer("int64_t[]", self._state_ns),
                "ranks": ffi.from_buffer("int64_t[]", self._ranks),
                "rank_from_ns": ffi.from_buffer("int64_t[]", self._rank_from_ns),
                "rank_usual_ns": ffi.from_buffer("int64_t[]", self._rank_usual_ns),
                "table": ffi.from_buffer("int64_t[]", self._table),
                "halt_ns": ffi.from_buffer("int64_t[]", self._halt_ns),
                "halt_state": ffi.from_buffer("uint8_t[]", self._halt_state),
                "given": costs.given,
                "usual_ns": ffi.from_buffer("int64_t[]", self._usual_ns),
                "supposed_ns": round(costs.supposed_ns or 0),
                "joined_ns": JOINED_NS,
                "first_ns": self._metadata.first_ns or 0,
                "width_ns": block_width_ns(self._metadata),
                "blocks": BLOCKS,
                **causes,
                "loops": ffi.from_buffer("int64_t[]", self._loops),
                "peer_ns": ffi.from_buffer("int64_t[]", self._peers_ns),
                "loop_count": len(self._loops),
            },
        )
        pairs = {
            name: ffi.from_buffer(IN_C[kind], made[name], require_writable=True)
            for name, kind in MADE.items()
        }
        next_ = ffi.from_buffer("size_t[]", nexts, require_writable=True)
        out = ffi.new("struct recorded_intervals *", {"next": next_, **pairs})
        open_ = ffi.from_buffer("struct open_interval[]", self._open, require_writable=True)
        self._lib.intervals_make(rows, prices, open_, out)
        made["bucket"] = _buckets(made)
        for cpu in np.flatnonzero(nexts > begins[:-1]).tolist():
            part = slice(int(begins[cpu]), int(nexts[cpu]))
            yield cpu, RecordedIntervals(**{name: column[part] for name, column in made.items()})


def _room(count: int) -> dict[str, Any]:
    """Return room for intervals."""
    return {name: np.zeros(count, kind) for name, kind in MADE.items()}


def _buckets(made: dict[str, Any]) -> Any:
    return bucket(made["cost_ns"]).astype(np.uint16)


def _plain(batch: pa.RecordBatch, name: str) -> Any:
    """Return a column as numpy has it; 0 where a row has none."""
    column = batch.column(name)
    column = column.fill_null(0) if column.null_count else column
    return np.ascontiguousarray(np.asarray(column))
