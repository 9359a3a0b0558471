# SPDX-License-Identifier: GPL-2.0-only
"""CPUs that interrupt one another as fast as they can: run in a guest.

``calls``: a process on each CPU has all others pass a memory barrier, by membarrier(2)'s
GLOBAL_EXPEDITED, over and over. The kernel calls a function on each CPU that runs one of them, and
waits.

``unmap``: threads of one process, one on each CPU, map, touch and unmap memory, over and over. The
kernel has to have each CPU that runs the process forget the mapping.

Prints how often that was done per second. Python's standard library only.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import threading
import time

MEMBARRIER = {"x86_64": 324, "aarch64": 283, "ppc64le": 365}
"""Numbers of the system call."""
GLOBAL_EXPEDITED, REGISTER_GLOBAL_EXPEDITED = 1 << 1, 1 << 2
"""Commands of it (include/uapi/linux/membarrier.h)."""

PROT_READ_WRITE = 1 | 2
MAP_PRIVATE_ANONYMOUS = 0x02 | 0x20
MAPPED = 256 << 10  # bytes

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def checked(result: int) -> int:
    """Return what a function of libc returned. Raises OSError where that is -1."""
    if result in (-1, ctypes.c_size_t(-1).value):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def barriers(cpu: int, seconds: float) -> int:
    """Return how many barriers CPU ``cpu`` had all CPUs pass in ``seconds``."""
    number = MEMBARRIER[platform.machine()]
    os.sched_setaffinity(0, [cpu])
    checked(LIBC.syscall(number, REGISTER_GLOBAL_EXPEDITED, 0, 0))
    done = 0
    end = time.monotonic() + seconds
    while not done or time.monotonic() < end:
        checked(LIBC.syscall(number, GLOBAL_EXPEDITED, 0, 0))
        done += 1
    return done


def calls(cpus: list[int], seconds: float) -> int:
    """Return how many barriers all ``cpus`` together made, a process on each."""
    results, say = os.pipe()
    for cpu in cpus:
        if os.fork() == 0:
            os.write(say, b"%d\n" % barriers(cpu, seconds))
            os._exit(0)
    os.close(say)
    with os.fdopen(results) as lines:
        done = [int(line) for line in lines]
    if len(done) != len(cpus):
        raise SystemExit(f"of {len(cpus)} processes only {len(done)} came to their end")
    return sum(done)


def unmaps(cpu: int, seconds: float, done: list[int]) -> None:
    """Append to ``done`` how often this thread, on ``cpu``, unmapped memory in ``seconds``."""
    os.sched_setaffinity(0, [cpu])
    end = time.monotonic() + seconds
    count = 0
    while not count or time.monotonic() < end:
        area = checked(LIBC.mmap(None, MAPPED, PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS, -1, 0))
        ctypes.memset(area, 1, MAPPED)
        checked(LIBC.munmap(area, MAPPED))
        count += 1
    done.append(count)


def unmap(cpus: list[int], seconds: float) -> int:
    """Return how often threads on all ``cpus`` together unmapped memory."""
    done: list[int] = []
    threads = [threading.Thread(target=unmaps, args=(cpu, seconds, done)) for cpu in cpus]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(done) != len(cpus):
        raise SystemExit(f"of {len(cpus)} threads only {len(done)} came to their end")
    return sum(done)


KINDS = {"calls": calls, "unmap": unmap}


def main() -> None:
    """Run one kind on all CPUs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seconds", type=float, default=3)
    args = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    print(KINDS[args.kind](cpus, args.seconds) / args.seconds)


if __name__ == "__main__":
    main()
