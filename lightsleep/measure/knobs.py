# SPDX-License-Identifier: GPL-2.0-only
"""Borrowing sysfs knobs, which are given back on every end of the process, SIGKILL included.

The guardian (guardian.py) gives back; here it is started, and told what is borrowed. One borrower
at a time: it and its guardian hold a lock, so that nobody borrows what is not yet given back. Where
even the guardian was killed, the next borrower finds the journal and gives back first.
"""

import contextlib
import errno
import fcntl
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from lightsleep.errors import LightsleepError
from lightsleep.measure import guardian

RUN_DIR = Path("/run/lightsleep")
CPU_TREE = Path("/sys/devices/system/cpu")

# The guardian of a borrower just killed needs a moment before it lets go of the lock.
LOCK_PATIENCE_S = 2.0

# Open files that a forked child must not keep: the pipe would not end with this process, and the
# lock would outlive it.
_not_for_children: list[IO[bytes]] = []


def _forget_in_child() -> None:
    for file in _not_for_children:
        file.close()


os.register_at_fork(after_in_child=_forget_in_child)


class KnobGone(LightsleepError):
    """A knob is not there: its CPU goes offline, or its driver was unloaded."""


class Borrowed:
    """The knobs a process has borrowed. For one thread at a time."""

    def __init__(self, journal: IO[bytes], keeper: subprocess.Popen[bytes], root: Path) -> None:
        """Note changes in ``journal``, which ``keeper`` gives back; only knobs under ``root``."""
        self.notes: list[str] = []
        self._journal = journal
        self._keeper = keeper
        self._root = root

    def set(self, knob: Path, value: str) -> None:
        """Set a knob until the end of the loan; does nothing if it has that value.

        Raises KnobGone where there is no such knob, LightsleepError where it cannot be read or
        written or does not take the value, and ValueError for a path outside the tree of knobs.
        """
        if not guardian.inside(knob, self._root):
            raise ValueError(f"{knob} does not lie under {self._root}")
        if self._keeper.poll() is not None:
            raise LightsleepError(
                f"{knob} is left alone: the process that would set it back was killed; start again"
            )
        try:
            old = guardian.read_knob(knob)
            if old == value:
                return
            _append(self._journal, {"knob": str(knob), "old": old, "new": value})
            guardian.write_knob(knob, value)
            found = guardian.read_knob(knob)
            if found != value:
                # Neither ours nor the old value: the guardian would leave it alone.
                guardian.write_knob(knob, old)
        except OSError as error:
            # ENODEV: it went while it was open.
            gone = error.errno in (errno.ENOENT, errno.ENODEV)
            kind = KnobGone if gone else LightsleepError
            raise kind(f"cannot set {knob} to {value}: {error.strerror}") from error
        if found != value:
            raise LightsleepError(f"cannot set {knob} to {value}: it reads {found} afterwards")


@contextlib.contextmanager
def borrow(run_dir: Path = RUN_DIR, root: Path = CPU_TREE) -> Iterator[Borrowed]:
    """Lend knobs under ``root``, all of which are given back when the context or process ends.

    ``run_dir`` holds the lock and the journal. ``notes`` of what is lent tells, from the start,
    what an earlier run had left behind, and after the context, what could not be given back.
    Raises LightsleepError where another process borrows, where an earlier one's journal cannot be
    trusted or its knobs not set back, and where ``run_dir`` cannot be used.
    """
    run_dir = run_dir.absolute()
    journal = run_dir / "journal"
    with contextlib.ExitStack() as stack:
        try:
            lock = stack.enter_context(_locked(run_dir))
            notes = _recover(journal, root)
            file = stack.enter_context(journal.open("xb", buffering=0))
            _append(file, {"boot_id": guardian.boot_id()})
            _sync_folder(run_dir)
        except OSError as error:
            raise LightsleepError(
                f"cannot keep a journal in {run_dir}: {error.strerror}; are you root?"
            ) from error
        keeper = _start(journal, root, lock)
        borrowed = Borrowed(file, keeper, root)
        borrowed.notes += notes
        try:
            yield borrowed
        finally:
            borrowed.notes += _finish(keeper, journal, root)


def _append(journal: IO[bytes], entry: dict[str, str]) -> None:
    journal.write(f"{json.dumps(entry)}\n".encode())
    os.fsync(journal.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _locked(run_dir: Path) -> Iterator[IO[bytes]]:
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = run_dir.stat()
    # Whoever can write here decides what is written to the knobs.
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:
        raise LightsleepError(
            f"others can write to {run_dir}; remove it, or make it yours and chmod it to 0700"
        )
    with (run_dir / "lock").open("ab+", buffering=0) as lock, _not_inherited(lock):
        _acquire(lock, run_dir)
        lock.truncate(0)
        lock.write(str(os.getpid()).encode())
        yield lock


def _acquire(lock: IO[bytes], run_dir: Path) -> None:
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                lock.seek(0)
                holder = lock.read().decode(errors="replace") or "unknown"
                raise LightsleepError(
                    f"another measurement, process {holder}, has borrowed the knobs of this "
                    f"machine ({run_dir}); wait for its end"
                ) from None
            time.sleep(0.05)


@contextlib.contextmanager
def _not_inherited(file: IO[bytes]) -> Iterator[None]:
    _not_for_children.append(file)
    try:
        yield
    finally:
        _not_for_children.remove(file)


def _recover(journal: Path, root: Path) -> list[str]:
    """Give back what an earlier process left borrowed; return what is worth telling."""
    if not journal.exists():
        return []
    try:
        borrowed = bool(guardian.load(journal, root))
        notes, refused = guardian.restore(journal, root)
    except ValueError as error:
        raise LightsleepError(
            f"the journal of an earlier measurement, {journal}, cannot be trusted: {error}; set "
            "back by hand what it names (mostly the disable files of idle states), and remove it"
        ) from error
    if refused:
        raise LightsleepError(
            f"an earlier measurement was killed, and {'; '.join(refused)}; set it back by hand and "
            f"remove {journal}"
        )
    if borrowed:
        notes.insert(0, "an earlier measurement was killed: set back the knobs it had changed")
    return notes


def _start(journal: Path, root: Path, lock: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the guardian, which keeps the lock, too; return when it is deaf to signals."""
    keeper = subprocess.Popen(
        [sys.executable, "-I", "-S", guardian.__file__, str(journal), str(root.absolute())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        pass_fds=[lock.fileno()],
        start_new_session=True,
    )
    assert keeper.stdin
    assert keeper.stdout
    _not_for_children.append(keeper.stdin)
    if keeper.stdout.readline() != guardian.READY:
        raise LightsleepError(
            f"cannot start the process that sets knobs back: {sys.executable} {guardian.__file__}"
        )
    return keeper


def _finish(keeper: subprocess.Popen[bytes], journal: Path, root: Path) -> list[str]:
    """End the loan; return what is worth telling."""
    assert keeper.stdin
    assert keeper.stdout
    keeper.stdin.close()
    _not_for_children.remove(keeper.stdin)
    report = keeper.stdout.read()
    keeper.stdout.close()
    if keeper.wait() == 0:
        notes, refused = json.loads(report)
        return [*notes, *refused]
    try:
        notes, refused = guardian.restore(journal, root)
    except (OSError, ValueError) as error:
        return [f"cannot set back the knobs: {journal}: {error}"]
    return ["the process that sets knobs back was killed: set them back myself", *notes, *refused]
