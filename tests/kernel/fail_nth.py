# SPDX-License-Identifier: GPL-2.0-only
"""Runs in a guest: repeats a call, and each time lets another allocation of our modules fail.

/proc/PID/task/TID/fail-nth counts the allocations of a thread down, and the one at 0 fails. Only
those count that have code of a module on their stack (see Documentation/fault-injection): the
loader of modules, and what else runs for the call, is not on trial.

What it is given is JSON: "call", the call's name; "words", its arguments; "threads", the names of
the kernel's threads whose allocations fail, or none for those of this program. What it prints is
a JSON list: for each allocation that failed, the errno of the call, or 0.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
FAILSLAB = Path("/sys/kernel/debug/failslab")
MODULES = (0xFFFFFFFFA0000000, 0xFFFFFFFFFF000000)
"""Where x86_64 has the code of modules, with a random offset and without."""


def only_ours() -> None:
    """Let allocations fail that may sleep, too, where a module asks for them; without a word."""
    for name, value in {
        "ignore-gfp-wait": "N",
        "verbose": "0",
        "stacktrace-depth": "32",
        "require-start": hex(MODULES[0]),
        "require-end": hex(MODULES[1]),
    }.items():
        (FAILSLAB / name).write_text(value)


def load(file: str, parameters: str) -> int:
    """Load a module; return the errno, or 0."""
    image = Path(file).read_bytes()
    if LIBC.init_module(image, ctypes.c_ulong(len(image)), parameters.encode()):
        return ctypes.get_errno()
    return 0


def unload(file: str, _: str) -> None:
    """Unload a module that nobody uses."""
    if LIBC.delete_module(Path(file).stem.encode(), os.O_NONBLOCK):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), file)


def write(path: str, text: str, _: str = "") -> int:
    """Write to a file; return the errno, or 0."""
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, text.encode())
    except OSError as error:
        return error.errno or -1
    finally:
        os.close(file)
    return 0


def write_back(path: str, _: str, back: str = "") -> None:
    """Write what undoes it, where something does."""
    if back and (failed := write(path, back)):
        raise OSError(failed, os.strerror(failed), path)


Call = Callable[..., int]
CALLS: dict[str, tuple[Call, Callable[..., None]]] = {
    "load": (load, unload),
    "write": (write, write_back),
}
"""What is called, and what undoes it where it worked: while nothing fails."""


def thread_id(name: str) -> int:
    """Return the number of a thread of the kernel."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        # Others end meanwhile. A pattern "[0-9]*/comm" would ask for a file of each, too.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if (process / "comm").read_text().strip() == name:
                found.append(int(process.name))
    [thread] = found
    return thread


def outcomes(call: Call, undo: Callable[..., None], words: list[str], thread: int) -> list[int]:
    """Repeat the call until none of the thread's allocations is left to fail."""
    found: list[int] = []
    switch = os.open(f"/proc/{thread}/task/{thread}/fail-nth", os.O_RDWR)
    while True:
        os.pwrite(switch, str(len(found) + 1).encode(), 0)
        try:
            outcome = call(*words)
            left = int(os.pread(switch, 20, 0))
        finally:
            os.pwrite(switch, b"0", 0)
        if not outcome:
            undo(*words)
        if left:
            if outcome:
                raise OSError(outcome, f"nothing failed, but {errno.errorcode[outcome]}")
            return found
        found.append(outcome)


def main(text: str) -> None:
    """Do what the order says."""
    order = json.loads(text)
    only_ours()
    threads = [thread_id(x) for x in order["threads"]] or [os.getpid()]
    call, undo = CALLS[order["call"]]
    found = [x for thread in threads for x in outcomes(call, undo, order["words"], thread)]
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
