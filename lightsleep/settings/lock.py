# SPDX-License-Identifier: GPL-2.0-only
"""Who may change settings of the machine: one process at a time, which holds the lock.

The restorer of its session (restorer.py) inherits the lock and holds it, too, until everything is
set back. A child that is forked meanwhile does not: the lock would outlive its owner.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from lightsleep.errors import LightsleepError

# The restorer of an owner just killed needs a moment before it lets go of the lock.
PATIENCE_S = 2.0

_not_for_children: list[IO[bytes]] = []


def _forget_in_child() -> None:
    for file in _not_for_children:
        file.close()


os.register_at_fork(after_in_child=_forget_in_child)


@contextlib.contextmanager
def not_inherited(file: IO[bytes]) -> Iterator[None]:
    """Close ``file`` in every child that is forked in this context."""
    _not_for_children.append(file)
    try:
        yield
    finally:
        _not_for_children.remove(file)


@contextlib.contextmanager
def locked(run_dir: Path, verb: str) -> Iterator[IO[bytes]]:
    """Hold the lock of ``run_dir``, which is created where it is not there; yield the lock's file.

    ``verb`` is told to whoever wants the lock meanwhile.

    Raises LightsleepError where another process holds it for longer than PATIENCE_S, and where
    others can write to ``run_dir``; OSError where that cannot be used.
    """
    if not run_dir.exists():
        run_dir.mkdir(parents=True, exist_ok=True)
        run_dir.chmod(0o755)  # whatever the umask: status reads there, without being root
    status = run_dir.stat()
    # Whoever can write here decides what is written to the settings.
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:
        raise LightsleepError(
            f"others can write to {run_dir}; remove it, or make it yours and chmod it to 0755"
        )
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
    with opened(run_dir / "lock", flags) as lock, not_inherited(lock):
        _acquire(lock, run_dir)
        lock.truncate(0)
        lock.write(f"lightsleep {verb}, process {os.getpid()},".encode())
        yield lock


def holder(run_dir: Path) -> str | None:
    """Return who holds the lock now, None where nobody does. Raises PermissionError."""
    try:
        with (run_dir / "lock").open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _named(lock)
    except FileNotFoundError:
        pass
    return None


def opened(file: Path, flags: int) -> IO[bytes]:
    """Open a file to append to, unbuffered; who cannot read others' settings need not read it."""
    return open(os.open(file, flags | os.O_CLOEXEC, 0o600), "ab+", buffering=0)  # noqa: PTH123


def _acquire(lock: IO[bytes], run_dir: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise LightsleepError(
                    f"{_named(lock)} is changing settings of this machine ({run_dir}); "
                    "wait for its end"
                ) from None
            time.sleep(0.05)


def _named(lock: IO[bytes]) -> str:
    lock.seek(0)
    return lock.read().decode(errors="replace") or "another process"
