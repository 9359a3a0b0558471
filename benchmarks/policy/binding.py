# SPDX-License-Identifier: GPL-2.0-only
"""poll_limit.c, the kernel's own file, as a Python object."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lightsleep.compiled import HEADERS, KERNEL, bound, compile_kernel_files, shared_library

HERE = Path(__file__).parent

# A program that reads PERIODs and writes the struct poll_limit after each.
TRACE = HERE / "trace.c"
PERIOD = np.dtype([("halt_cost_ns", "u8"), ("ceiling_ns", "u8"), ("idle_ns", "u8")])

Ns = npt.NDArray[np.int64]


def compile_policy(source: Path, target: Path, flags: Sequence[str]) -> None:
    """Compile ``source`` together with poll_limit.c into ``target``. Raises LightsleepError."""
    compile_kernel_files([source, KERNEL / "poll_limit.c"], target, flags)


@functools.cache
def library() -> tuple[Any, Any]:
    """Return cffi's view of poll_limit.h and the loaded library. Raises LightsleepError."""
    files = [HERE / "replay.c", KERNEL / "poll_limit.c"]
    headers = [HEADERS / "poll_limit.h", HERE / "replay.h"]
    return bound(headers, shared_library("poll-limit", files))


class PollLimit:
    """What one CPU has learned: struct poll_limit, with its functions as methods."""

    def __init__(self, halt_cost_ns: int, ceiling_ns: int) -> None:
        """Start with nothing learned. Raises LightsleepError where there is no compiler."""
        self._ffi, self._lib = library()
        self.state = self._ffi.new("struct poll_limit *")
        self.params = self._ffi.new("struct poll_limit_params *", [halt_cost_ns, ceiling_ns])
        self._lib.poll_limit_init(self.state, self.params)

    @property
    def limit_ns(self) -> int:
        """How long to poll in the next idle period."""
        return int(self.state.limit_ns)

    def update(self, idle_ns: int) -> int:
        """Learn from one idle period; return the limit of the next one, in ns."""
        return int(self._lib.poll_limit_update(self.state, self.params, idle_ns))

    def replay(self, idle_ns: Ns) -> Ns:
        """Learn from a trace of n periods; return the n limits that they were given, in ns."""
        idle = np.ascontiguousarray(idle_ns, np.uint64)
        limits = np.empty_like(idle)
        self._lib.poll_limit_replay(
            self.state,
            self.params,
            self._ffi.from_buffer("u64[]", idle),
            self._ffi.from_buffer("u64[]", limits, require_writable=True),
            len(idle),
        )
        return limits.astype(np.int64)
