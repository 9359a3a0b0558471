# SPDX-License-Identifier: GPL-2.0-only
"""Running policies over stays: in compiled C where there is a compiler, else in Python.

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

from lightsleep.errors import LightsleepError
from lightsleep.periods.model import Known
from lightsleep.policy.binding import KERNEL, declarations, opened, shared_library
from lightsleep.replay.demand import Costs, Demands, Flags, Ns, Reader
from lightsleep.replay.policies import Fixed, Haltpoll, Lightsleep, Policy
from lightsleep.replay.stays import CompiledReader
from lightsleep.replay.tally import Stays, Tally

HERE = Path(__file__).parent


class Runner(Protocol):
    """One policy of one CPU."""

    def run(self, stays: Stays, weight: int, tally: Tally) -> None:
        """Replay stays that follow those of the last call; 1 ns of waiting counts ``weight``."""


class Reads(Protocol):
    """Makes stays of rows."""

    def demands(self, batch: pa.RecordBatch) -> Iterator[tuple[int, Demands]]:
        """Yield each CPU of a batch with its stays, in order."""

    def rest(self) -> Iterator[tuple[int, Demands]]:
        """Yield what was kept back, after the last batch."""


class Engine(Protocol):
    """What runs policies."""

    def reader(self, known: Known, costs: Costs) -> Reads:
        """Return what makes stays of the rows of a recording."""

    def runner(self, policy: Policy) -> Runner:
        """Return what runs a policy that has learned nothing yet."""

    def optimum(self, stays: Stays, weight: int, tally: Tally) -> None:
        """Replay stays by somebody who knows how long each lasts."""

    def given(self, stays: Stays, polled_ns: Ns, halted: Flags, weight: int, tally: Tally) -> None:
        """Add up what somebody else has decided."""


class _PythonRunner:
    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def run(self, stays: Stays, weight: int, tally: Tally) -> None:
        limit_ns = self._policy.limits(stays.idle_ns)
        halted = stays.idle_ns > limit_ns
        tally.add(stays, np.minimum(stays.idle_ns, limit_ns), halted, weight)


class PythonEngine:
    """Runs everywhere."""

    def reader(self, known: Known, costs: Costs) -> Reads:
        """Return demand.py's own reader."""
        return Reader(known, costs)

    def runner(self, policy: Policy) -> Runner:
        """Return what runs a policy's own code."""
        return _PythonRunner(policy)

    def optimum(self, stays: Stays, weight: int, tally: Tally) -> None:
        """Poll where a task will come before the price of its wakeup is reached."""
        halts = weight * stays.cost_ns < stays.idle_ns
        halts |= ~stays.woken  # nobody comes: it halts, and nothing is lost by that
        tally.add(stays, np.where(halts, 0, stays.idle_ns), halts, weight)

    def given(self, stays: Stays, polled_ns: Ns, halted: Flags, weight: int, tally: Tally) -> None:
        """Add it up."""
        tally.add(stays, polled_ns, halted, weight)


class CompiledEngine:
    """engine.c."""

    def __init__(self) -> None:
        """Compile it, or take it from the cache. Raises LightsleepError."""
        if platform.machine() not in ("x86_64", "aarch64", "ppc64le", "riscv64"):
            raise LightsleepError(f"{platform.machine()} is no machine with 64 bits that was tried")
        self.ffi, self.lib = _library()

    def reader(self, known: Known, costs: Costs) -> Reads:
        """Return stays.c."""
        return CompiledReader(self.ffi, self.lib, known, costs)

    def runner(self, policy: Policy) -> Runner:
        """Return what runs a policy in C; in Python where C does not know it."""
        made: Any
        if isinstance(policy, Fixed):
            made = functools.partial(self.lib.replay_fixed, policy.limit_ns)
        elif isinstance(policy, Haltpoll):
            made = functools.partial(
                self.lib.replay_haltpoll, self.ffi.new("struct haltpoll *", policy.as_struct())
            )
        elif isinstance(policy, Lightsleep):
            state = self.ffi.new("struct poll_limit *")
            prices = [policy.price_ns, policy.ceiling_ns]
            params = self.ffi.new("struct poll_limit_params *", prices)
            self.lib.poll_limit_init(state, params)
            made = functools.partial(self.lib.replay_lightsleep, state, params)
        else:
            return _PythonRunner(policy)
        return _CompiledRunner(self, made)

    def optimum(self, stays: Stays, weight: int, tally: Tally) -> None:
        """As PythonEngine does."""
        with self.lent(stays, tally) as (columns, sums):
            self.lib.replay_optimum(columns, weight, sums)

    def given(self, stays: Stays, polled_ns: Ns, halted: Flags, weight: int, tally: Tally) -> None:
        """As PythonEngine does."""
        polled = np.ascontiguousarray(polled_ns, np.int64).view(np.uint64)
        halts = np.ascontiguousarray(halted).view(np.uint8)
        with self.lent(stays, tally) as (columns, sums):
            self.lib.replay_given(
                self.ffi.from_buffer("u64[]", polled),
                self.ffi.from_buffer("uint8_t[]", halts),
                columns,
                weight,
                sums,
            )

    def lent(self, stays: Stays, tally: Tally) -> _Lent:
        """Lend the columns and the sums to C."""
        return _Lent(self.ffi, stays, tally)


class _Lent:
    """C's view of columns and sums; holds the buffers while it is used."""

    def __init__(self, ffi: Any, stays: Stays, tally: Tally) -> None:
        kinds = ("u64[]", "u64[]", "uint16_t[]", "uint8_t[]", "uint8_t[]")
        columns = (stays.idle_ns, stays.cost_ns, stays.bucket, stays.woken, stays.block)
        self._buffers = [
            ffi.from_buffer(kind, np.ascontiguousarray(column))
            for kind, column in zip(kinds, columns, strict=True)
        ]
        self._columns = ffi.new("struct stays *", [len(stays), *self._buffers])
        self._sums = ffi.from_buffer("struct tally *", tally.data, require_writable=True)

    def __enter__(self) -> tuple[Any, Any]:
        return self._columns, self._sums

    def __exit__(self, *_: object) -> None:
        self._buffers.clear()


class _CompiledRunner:
    def __init__(self, engine: CompiledEngine, replay: Any) -> None:
        self._engine, self._replay = engine, replay

    def run(self, stays: Stays, weight: int, tally: Tally) -> None:
        with self._engine.lent(stays, tally) as (columns, sums):
            self._replay(columns, weight, sums)


def library_file() -> Path:
    """Return the compiled loops. Raises LightsleepError as shared_library() does."""
    return shared_library("replay", [HERE / "engine.c", HERE / "stays.c", KERNEL / "poll_limit.c"])


@functools.cache
def _library() -> tuple[Any, Any]:
    import cffi

    ffi = cffi.FFI()
    ffi.cdef("typedef uint32_t u32; typedef uint64_t u64;")
    path = library_file()
    headers = (KERNEL / "poll_limit.h", HERE / "engine.h", HERE / "stays.h")
    ffi.cdef("".join(declarations(header) for header in headers))
    return ffi, opened(ffi, path)


@functools.cache
def engine() -> tuple[Engine, str | None]:
    """Return the fastest engine that runs here, and a sentence on why it is no faster one."""
    try:
        return CompiledEngine(), None
    except (LightsleepError, ImportError) as error:
        why = error.message if isinstance(error, LightsleepError) else str(error)
        return PythonEngine(), f"policies run in Python, far slower than compiled: {why}"
