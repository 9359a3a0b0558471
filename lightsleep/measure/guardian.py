# SPDX-License-Identifier: GPL-2.0-only
"""The guardian of borrowed sysfs knobs: sets them back, however their borrower ended.

A process that is killed with SIGKILL cannot clean up, so another one does: the guardian. It is
started before the first knob is changed, in a session of its own and deaf to the signals that end
its borrower, and blocks in reading a pipe of which the borrower holds the only write end. The pipe
ends when the borrower says so, or with the borrower; to the guardian that is the same. There is no
other way back: the orderly end takes the path that has to work after SIGKILL.

What to set back stands in the journal, which is written before the knob is. One JSON document a
line, the first names the boot, every other one change:

    {"boot_id": "..."}
    {"knob": "/sys/devices/system/cpu/cpu1/cpuidle/state0/disable", "old": "0", "new": "1"}

A line without its newline is the last breath of a borrower that never came to the change itself.
The journal survives the guardian. Whoever finds it, sets back by the same rules:

- in reverse order of the first change, to the value found at that change;
- only knobs that still hold a value that the borrower wrote: whatever else they hold somebody set
  meanwhile, who knew better than a note from the past;
- a knob that is gone (CPU offline, driver unloaded) has nothing to set back;
- nothing outside the tree of CPUs, and nothing after a reboot, which has set back everything.

This file runs on its own (``python -I -S``, by its path): it needs only the standard library, and
neither the environment, the working folder nor the threads of its borrower can disturb it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import signal
import sys
from pathlib import Path

READY = b"ready\n"
DEAF_TO = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
GONE = (errno.ENOENT, errno.ENODEV, errno.ENXIO)


@dataclasses.dataclass
class Loan:
    """A borrowed knob: the value to set back, and every value that the borrower wrote."""

    old: str
    written: set[str] = dataclasses.field(default_factory=set)


def boot_id() -> str:
    """Return what tells this boot of the machine from every other."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def read_knob(knob: Path) -> str:
    """Return the value of a knob; raises OSError."""
    return knob.read_text().strip()


def write_knob(knob: Path, value: str) -> None:
    """Write to a knob that exists; raises OSError."""
    descriptor = os.open(knob, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(descriptor, f"{value}\n".encode())
    finally:
        os.close(descriptor)


def inside(knob: Path, root: Path) -> bool:
    """Whether a knob lies under ``root``, wherever links and dots lead."""
    return knob.is_absolute() and knob.resolve().is_relative_to(root.resolve())


def load(journal: Path, root: Path) -> dict[Path, Loan]:
    """Return what the journal says is borrowed, oldest first; nothing if of an earlier boot.

    Raises ValueError, saying what is wrong with the journal, and OSError.
    """
    # What follows the last newline was never acted upon.
    lines = journal.read_text().split("\n")[:-1]
    if not lines:
        return {}
    try:
        header, *changes = [json.loads(line) for line in lines]
        if header["boot_id"] != boot_id():
            return {}
        loans: dict[Path, Loan] = {}
        for change in changes:
            knob, old, new = Path(change["knob"]), change["old"], change["new"]
            if not (isinstance(old, str) and isinstance(new, str)):
                raise ValueError(f"{knob} has a value that is no text")
            if not inside(knob, root):
                raise ValueError(f"{knob} does not lie under {root}")
            loans.setdefault(knob, Loan(old)).written.add(new)
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError("a line is not what the guardian writes") from error
    return loans


def restore(journal: Path, root: Path) -> tuple[list[str], list[str]]:
    """Set back all knobs, and remove the journal unless one refused.

    Returns what is worth telling, and the knobs that refused with the reasons. Raises ValueError
    where the journal is not to be trusted, and OSError.
    """
    notes, refused = [], []
    for knob, loan in reversed(load(journal, root).items()):
        try:
            note = give_back(knob, loan)
        except OSError as error:
            if error.errno in GONE:
                note = f"{knob} is gone: nothing to set back"
            else:
                refused.append(f"cannot set {knob} back to {loan.old}: {error.strerror}")
                continue
        notes += [note] if note else []
    if not refused:
        journal.unlink()
    return notes, refused


def give_back(knob: Path, loan: Loan) -> str | None:
    """Set one knob back; return why it was left alone. Raises OSError."""
    value = read_knob(knob)
    if value == loan.old:
        return None
    if value not in loan.written:
        return f"{knob} was set to {value} by somebody else meanwhile: left so"
    write_knob(knob, loan.old)
    if read_knob(knob) != loan.old:
        raise OSError(errno.EIO, "it does not take the value")
    return None


def main(journal: Path, root: Path) -> None:
    """Wait for the borrower's end, set back, and tell those who still listen."""
    for number in DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    os.write(sys.stdout.fileno(), READY)
    while os.read(sys.stdin.fileno(), 1):
        pass
    try:
        notes, refused = restore(journal, root)
    except (OSError, ValueError) as error:
        notes, refused = [], [f"cannot use {journal}: {error}"]
    with contextlib.suppress(OSError):  # nobody left to tell
        os.write(sys.stdout.fileno(), json.dumps([notes, refused]).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
