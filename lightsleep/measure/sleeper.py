# SPDX-License-Identifier: GPL-2.0-only
"""The sleeper: a process that is woken over and over, and stamps when it notices.

Reads requests from stdin, one JSON document a line, and answers each with one on stdout:

    {"source": "ipi", "src": 0, "dest": 1, "busy": false, "samples": 200,
     "min_ns": 50000, "max_ns": 150000, "usage": ["/sys/devices/system/cpu/cpu1/.../usage", ...]}
        -> {"launches_ns": [...], "wakes_ns": [...], "cpus": [...], "entries": [...],
            "realtime": true}
    or  -> {"errno": 22}

``entries`` is by how much each file of ``usage`` grew meanwhile. The sleeper is bound to ``dest``,
and woken there by its own timer, or by a process bound to ``src`` that writes the launch time into
a pipe. For a busy ``dest`` another process spins there, of a priority that yields to everything.

What could add noise is kept away: processes instead of threads (one interpreter lock each),
real-time priority where permitted, no timer slack, no garbage collection, the first wakes thrown
away (they find cold caches and pages not yet there). Between two wakes nothing is printed.

Nothing outlives whoever asks: every process gets SIGKILL when its parent ends. This file runs on
its own (``python -I -S``, by its path): it needs only the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

WARM_UP = 5

# The source CPU wakes this long before the launch, so as not to launch while it is itself cold.
SPIN_NS = 50_000

# From linux/prctl.h and linux/time.h.
PR_SET_PDEATHSIG = 1
PR_SET_TIMERSLACK = 29
TIMER_ABSTIME = 1

libc = ctypes.CDLL(None, use_errno=True)


class Timespec(ctypes.Structure):
    """struct timespec."""

    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


def die_with(parent: int) -> None:
    """Have this process killed when its parent, the process ``parent``, ends."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before
        os._exit(1)


def be_prompt() -> bool:
    """Be woken without delay; return whether real-time priority is permitted."""
    libc.prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except PermissionError:
        return False
    return True


def sleep_until(moment_ns: int) -> None:
    """Sleep until an instant of CLOCK_MONOTONIC."""
    moment = Timespec(*divmod(moment_ns, 1_000_000_000))
    pointer = ctypes.byref(moment)
    while libc.clock_nanosleep(time.CLOCK_MONOTONIC, TIMER_ABSTIME, pointer, None) == errno.EINTR:
        pass


@contextlib.contextmanager
def helper(work: Callable[[], None]) -> Iterator[None]:
    """Run ``work`` in another process, which is killed at the end of the context."""
    parent = os.getpid()
    child = os.fork()
    if not child:
        try:
            die_with(parent)
            work()
        finally:
            os._exit(1)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def spin() -> None:
    """Keep this CPU busy while nobody else needs it."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while True:
        pass


Wake = Callable[[], tuple[int, int]]
"""Sleeps until woken; returns the times of launch and wake in ns."""


@contextlib.contextmanager
def by_timer(_src: int, min_ns: int, max_ns: int) -> Iterator[Wake]:
    """Wakes by an own timer; the launch is its expiry."""

    def wake() -> tuple[int, int]:
        launch_ns = time.monotonic_ns() + random.randint(min_ns, max_ns)
        sleep_until(launch_ns)
        return launch_ns, time.monotonic_ns()

    yield wake


@contextlib.contextmanager
def by_process(src: int, min_ns: int, max_ns: int) -> Iterator[Wake]:
    """Wakes by a process on ``src``; the launch is right before it writes to the pipe."""
    ready_read, ready_write = os.pipe()
    wake_read, wake_write = os.pipe()

    def waker() -> None:
        os.close(ready_write)
        os.close(wake_read)
        os.sched_setaffinity(0, {src})
        be_prompt()
        while os.read(ready_read, 1):
            launch_ns = time.monotonic_ns() + random.randint(min_ns, max_ns)
            sleep_until(launch_ns - SPIN_NS)
            while time.monotonic_ns() < launch_ns:
                pass
            os.write(wake_write, time.monotonic_ns().to_bytes(8, sys.byteorder))

    def wake() -> tuple[int, int]:
        os.write(ready_write, b"!")
        launch = os.read(wake_read, 8)
        wake_ns = time.monotonic_ns()
        if not launch:
            raise OSError(errno.ESRCH, "the process that wakes was killed")
        return int.from_bytes(launch, sys.byteorder), wake_ns

    with contextlib.ExitStack() as stack:
        stack.callback(os.close, ready_write)
        stack.callback(os.close, wake_read)
        stack.enter_context(helper(waker))
        # Only the waker may hold these: their end is its end.
        os.close(ready_read)
        os.close(wake_write)
        yield wake


SOURCES = {"timer": by_timer, "ipi": by_process}


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Answer a request; raises OSError."""
    samples = request["samples"]
    launches, wakes, cpus = [0] * samples, [0] * samples, [0] * samples
    files = [Path(file) for file in request["usage"]]
    # Both, so that a CPU that is not permitted shows here.
    os.sched_setaffinity(0, {request["src"]})
    os.sched_setaffinity(0, {request["dest"]})
    source = SOURCES[request["source"]]
    with contextlib.ExitStack() as stack:
        if request["busy"]:
            stack.enter_context(helper(spin))
        wake = stack.enter_context(source(request["src"], request["min_ns"], request["max_ns"]))
        for _ in range(WARM_UP):
            wake()
        before = [int(file.read_text()) for file in files]
        for index in range(samples):
            launches[index], wakes[index] = wake()
            cpus[index] = libc.sched_getcpu()
        after = [int(file.read_text()) for file in files]
    entries = [late - early for early, late in zip(before, after, strict=True)]
    return {"launches_ns": launches, "wakes_ns": wakes, "cpus": cpus, "entries": entries}


def main(parent: int) -> None:
    """Answer requests until stdin ends."""
    die_with(parent)
    realtime = be_prompt()
    gc.disable()
    for line in sys.stdin:
        try:
            answer = run(json.loads(line)) | {"realtime": realtime}
        except OSError as error:
            answer = {"errno": error.errno}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
