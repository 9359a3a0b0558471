# SPDX-License-Identifier: GPL-2.0-only
"""Running policies over intervals: in compiled C where there is a compiler, else in Python.

engine.c holds the loops, and calls the kernel's own poll_limit.c. It is compiled at its first use
and kept in the cache. Without a compiler, or without the kernel sources, each policy's own code in
policies.py runs instead. Both give the same sums, to the last digit.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from lightsleep.compiled import HEADERS, KERNEL, bound, shared_library
from lightsleep.errors import LightsleepError
from lightsleep.periods.model import Metadata
from lightsleep.replay.compiled_reader import CompiledReader
from lightsleep.replay.costs import Costs
from lightsleep.replay.intervals import Reader, RecordedIntervals
from lightsleep.replay.policies import Fixed, Haltpoll, Lightsleep, Policy
from lightsleep.replay.rows import Flags, Ns
from lightsleep.replay.stays import stays_of
from lightsleep.replay.tally import Intervals, Tally

HERE = Path(__file__).parent


class Runner(Protocol):
    """One policy of one CPU."""

    def run(self, intervals: Intervals, weight: int, tally: Tally) -> None:
        """Replay intervals that follow the last call's; 1 ns of waiting counts ``weight`` ns."""


class Reads(Protocol):
    """Makes intervals of rows."""

    def intervals(self, batch: pa.RecordBatch) -> Iterator[tuple[int, RecordedIntervals]]:
        """Yield each CPU of a batch with its intervals, in order."""

    def rest(self) -> Iterator[tuple[int, RecordedIntervals]]:
        """Yield what was kept back, after the last batch."""


class Engine(Protocol):
    """What runs policies."""

    def reader(self, metadata: Metadata, costs: Costs) -> Reads:
        """Return what makes intervals of the rows of a recording."""

    def runner(self, policy: Policy) -> Runner:
        """Return what runs a policy that has learned nothing yet."""

    def optimum(self, intervals: Intervals, weight: int, tally: Tally) -> None:
        """Replay intervals by somebody who knows how long each lasts."""

    def given(
        self, intervals: Intervals, polled_ns: Ns, halted: Flags, weight: int, tally: Tally
    ) -> None:
        """Add up what somebody else has decided."""


class _PythonRunner:
    """``limited()`` and ``learns()`` of engine.c, where ``struct poll`` is explained."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._limit_ns = self._polled_ns = self._slept_ns = 0
        self._halted_ns: int | None = None
        self._unlearned = False

    def run(self, intervals: Intervals, weight: int, tally: Tally) -> None:
        polled_ns, stay_ns, before_ns = np.zeros((3, len(intervals)), np.int64)
        halted = np.zeros(len(intervals), np.bool_)
        columns = (intervals.idle_ns, intervals.exit_ns, intervals.resumes)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for i, (idle_ns, exit_ns, resumes) in enumerate(rows):
            if not (resumes and (self._policy.whole or self._halted_ns is None)):
                self._begin()
            has_halted = self._halted_ns is not None
            left_ns = 0 if has_halted else self._limit_ns - self._polled_ns
            turn_ns = intervals.turn_ns if left_ns else 0
            before_ns[i] = 0 if has_halted else self._polled_ns
            halted[i] = not left_ns or idle_ns > left_ns + turn_ns
            polled_ns[i] = left_ns if halted[i] else idle_ns
            stay_ns[i] = min(idle_ns, left_ns)
            self._polled_ns += int(stay_ns[i])
            away_ns = idle_ns - left_ns - turn_ns + max(exit_ns, 0)
            self._halted_ns = max(away_ns, 0) if halted[i] else None
            self._slept_ns += self._halted_ns or 0
            self._unlearned = True
        stays = stays_of(intervals, stay_ns, halted, before_ns)
        tally.add(intervals, polled_ns, halted, weight, stays, before_ns)

    def _begin(self) -> None:
        if self._unlearned:
            earlier_ns = self._slept_ns - (self._halted_ns or 0)
            self._policy.learn(self._polled_ns, self._halted_ns, earlier_ns)
        self._limit_ns = self._policy.limit_ns
        self._polled_ns = self._slept_ns = 0
        self._halted_ns = None


class PythonEngine:
    """Runs everywhere."""

    def reader(self, metadata: Metadata, costs: Costs) -> Reads:
        """Return intervals.py's own reader."""
        return Reader(metadata, costs)

    def runner(self, policy: Policy) -> Runner:
        """Return what runs a policy's own code."""
        return _PythonRunner(policy)

    def optimum(self, intervals: Intervals, weight: int, tally: Tally) -> None:
        """Poll where a task will come before the price of its wakeup is reached."""
        halts = weight * intervals.cost_ns < intervals.idle_ns
        halts |= ~intervals.woken  # nobody comes: it halts, and nothing is lost by that
        tally.add(intervals, np.where(halts, 0, intervals.idle_ns), halts, weight)

    def given(
        self, intervals: Intervals, polled_ns: Ns, halted: Flags, weight: int, tally: Tally
    ) -> None:
        """Add it up."""
        tally.add(intervals, polled_ns, halted, weight)


class CompiledEngine:
    """engine.c."""

    def __init__(self) -> None:
        """Compile it, or take it from the cache. Raises LightsleepError."""
        if platform.machine() not in ("x86_64", "aarch64", "ppc64le", "riscv64"):
            raise LightsleepError(f"{platform.machine()} is no machine with 64 bits that was tried")
        self.ffi, self.lib = _library()

    def reader(self, metadata: Metadata, costs: Costs) -> Reads:
        """Return intervals.c."""
        return CompiledReader(self.ffi, self.lib, metadata, costs)

    def runner(self, policy: Policy) -> Runner:
        """Return what runs a policy in C; in Python where C does not know it."""
        made: Any
        poll = self.ffi.new("struct poll *")
        if isinstance(policy, Fixed):
            made = functools.partial(self.lib.replay_fixed, policy.limit_ns, poll)
        elif isinstance(policy, Haltpoll):
            haltpoll = self.ffi.new("struct haltpoll *", policy.as_struct())
            made = functools.partial(self.lib.replay_haltpoll, haltpoll, poll)
        elif isinstance(policy, Lightsleep):
            prices = [policy.miss_cost_ns, policy.ceiling_ns]
            given = {"params": prices, "halt_cost_ns": policy.halt_cost_ns}
            state = self.ffi.new("struct lightsleep *", given)
            self.lib.poll_limit_init(
                self.ffi.addressof(state, "policy"), self.ffi.addressof(state, "params")
            )
            made = functools.partial(self.lib.replay_lightsleep, state, poll)
        else:
            return _PythonRunner(policy)
        return _CompiledRunner(self, made)

    def optimum(self, intervals: Intervals, weight: int, tally: Tally) -> None:
        """As PythonEngine does."""
        with self.lent(intervals, tally) as (columns, sums):
            self.lib.replay_optimum(columns, weight, sums)

    def given(
        self, intervals: Intervals, polled_ns: Ns, halted: Flags, weight: int, tally: Tally
    ) -> None:
        """As PythonEngine does."""
        polled = np.ascontiguousarray(polled_ns, np.int64).view(np.uint64)
        halts = np.ascontiguousarray(halted).view(np.uint8)
        with self.lent(intervals, tally) as (columns, sums):
            self.lib.replay_given(
                self.ffi.from_buffer("u64[]", polled),
                self.ffi.from_buffer("uint8_t[]", halts),
                columns,
                weight,
                sums,
            )

    def lent(self, intervals: Intervals, tally: Tally) -> _Lent:
        """Lend the columns and the sums to C."""
        return _Lent(self.ffi, intervals, tally)


class _Lent:
    """C's view of columns and sums; holds the buffers while it is used."""

    def __init__(self, ffi: Any, intervals: Intervals, tally: Tally) -> None:
        kinds = ("u64[]", "u64[]", "uint16_t[]", *("uint8_t[]",) * 3, "int64_t[]", "uint8_t[]")
        columns = (
            intervals.idle_ns,
            intervals.cost_ns,
            intervals.bucket,
            intervals.woken,
            intervals.block,
            intervals.state,
            intervals.exit_ns,
            intervals.resumes,
        )
        self._buffers = [
            ffi.from_buffer(kind, np.ascontiguousarray(column))
            for kind, column in zip(kinds, columns, strict=True)
        ]
        self._buffers.append(ffi.from_buffer("struct stay_limits *", intervals.limits.data))
        fields = [len(intervals), *self._buffers, intervals.turn_ns]
        self._columns = ffi.new("struct intervals *", fields)
        self._sums = ffi.from_buffer("struct tally *", tally.data, require_writable=True)

    def __enter__(self) -> tuple[Any, Any]:
        return self._columns, self._sums

    def __exit__(self, *_: object) -> None:
        self._buffers.clear()


class _CompiledRunner:
    def __init__(self, engine: CompiledEngine, replay: Any) -> None:
        self._engine, self._replay = engine, replay

    def run(self, intervals: Intervals, weight: int, tally: Tally) -> None:
        with self._engine.lent(intervals, tally) as (columns, sums):
            self._replay(columns, weight, sums)


def library_file() -> Path:
    """Return the compiled loops. Raises LightsleepError as shared_library() does."""
    files = [HERE / "engine.c", HERE / "intervals.c", KERNEL / "poll_limit.c"]
    # As the kernel has it: times of a damaged recording wrap, as they do in numpy.
    return shared_library("replay", files, ["-fno-strict-overflow"])


@functools.cache
def _library() -> tuple[Any, Any]:
    headers = (HEADERS / "poll_limit.h", HERE / "engine.h", HERE / "intervals.h")
    return bound(headers, library_file())


@functools.cache
def engine() -> tuple[Engine, str | None]:
    """Return the fastest engine that runs here, and a sentence on why it is no faster one."""
    try:
        return CompiledEngine(), None
    except (LightsleepError, ImportError) as error:
        why = error.message if isinstance(error, LightsleepError) else str(error)
        return PythonEngine(), f"policies run in Python, far slower than compiled: {why}"
