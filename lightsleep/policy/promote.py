# SPDX-License-Identifier: GPL-2.0-only
"""promote_policy.c, the kernel's own file, as a Python object."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import cffi

from lightsleep.policy.binding import HERE, KERNEL, compile_kernel_files

POLICY = KERNEL / "promote_policy.c"
TRACE = HERE / "promote_trace.c"
"""A program that reads questions and writes answers."""


@dataclass(frozen=True)
class State:
    """An idle state, as a driver advertises it and a user wants it."""

    residency_ns: int
    latency_ns: int
    allowed: bool = True
    leavable: bool = True


@functools.cache
def library() -> tuple[Any, Any]:
    """Return cffi's view of promote_policy.h and the loaded library. Raises LightsleepError."""
    header = (KERNEL / "promote_policy.h").read_text(encoding="utf-8").splitlines()
    ffi = cffi.FFI()
    ffi.cdef("typedef uint64_t u64;")
    ffi.cdef("\n".join(line for line in header if not line.startswith("#")))
    with tempfile.TemporaryDirectory(prefix="lightsleep-") as folder:  # may go once it is loaded
        target = Path(folder) / "promote_policy.so"
        compile_kernel_files([POLICY], target, ("-O2", "-shared", "-fPIC"))
        return ffi, ffi.dlopen(str(target))


class Plan:
    """The plan of one CPU. States are named by their index, by depth."""

    def __init__(self, states: Sequence[State]) -> None:
        """Plan for ``states``. Raises LightsleepError where there is no compiler."""
        ffi, self._lib = library()
        self._states = ffi.new("struct promote_state[]", [(*astuple(s), 0, 0) for s in states])
        self._lib.promote_plan(self._states, len(states))

    def timeout_ns(self, index: int, event_ns: int) -> int:
        """Return when a timer is to end a sleep in that state, in ns; 0: never.

        ``event_ns`` is the time until the clock's next event.
        """
        return int(self._lib.promote_timeout(self._states, index, event_ns))

    def floor(self, index: int, limit_ns: int) -> int | None:
        """Return the state that comes after that one under a latency limit, if there is one."""
        floor = int(self._lib.promote_floor(self._states, index, limit_ns))
        return None if floor < 0 else floor

    def returns(self, index: int, reached: int, limit_ns: int, event_ns: int) -> bool:
        """Return whether a CPU that had been promoted to ``reached`` goes back there.

        A governor has chosen ``index`` meanwhile, a shallower state.
        """
        return bool(self._lib.promote_returns(self._states, index, reached, limit_ns, event_ns))
