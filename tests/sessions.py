# SPDX-License-Identifier: GPL-2.0-only
"""A tree of knobs, processes that change them in a session, and journals that are left behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightsleep.settings import journalled, restorer

# Changes two knobs, one of them twice, says so, and ends as it is told.
BORROWER = """
import os, subprocess, sys, time
from pathlib import Path
from lightsleep.settings import journalled
root, end = Path(sys.argv[1]), sys.argv[2]
with journalled.session(root) as session:
    session.set(root / "sys/cpu0/disable", "1")
    session.set(root / "sys/cpu1/disable", "1")
    session.set(root / "sys/cpu1/disable", "2")
    if end == "children":
        if not os.fork():
            time.sleep(1000)
        subprocess.Popen(["sleep", "1000"], close_fds=False)
    print(session._restorer.pid, flush=True)
    if end == "raise":
        raise RuntimeError
    if end == "exit":
        sys.exit(3)
    if end != "return":
        time.sleep(1000)
"""


class Machine:
    """A tree of knobs, and where sessions keep their journal."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.run_dir = folder / "run/lightsleep"
        for cpu in range(3):
            self.knob(cpu).parent.mkdir(parents=True)
            self.knob(cpu).write_text("0\n")

    def knob(self, cpu: int) -> Path:
        return self.root / f"sys/cpu{cpu}/disable"

    @property
    def journal(self) -> Path:
        return self.run_dir / "journal"

    def values(self) -> list[str]:
        return [self.knob(cpu).read_text().strip() for cpu in range(3)]

    def command(self, end: str) -> list[str]:
        return [sys.executable, "-c", BORROWER, str(self.root), end]

    @contextlib.contextmanager
    def owner(self, end: str = "wait") -> Iterator[tuple[subprocess.Popen[str], int]]:
        """A process that is changing the knobs, and the process ID of its restorer."""
        with subprocess.Popen(
            self.command(end),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        ) as process:
            assert process.stdout
            line = process.stdout.readline()
            assert line, "the owner did not start"
            try:
                yield process, int(line)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def session(self) -> contextlib.AbstractContextManager[journalled.Session]:
        return journalled.session(self.root)

    def plant(self, *changes: object, boot: str | None = None) -> None:
        """Leave a journal behind."""
        self.run_dir.mkdir(mode=0o700, parents=True)
        lines = [{"boot_id": boot or restorer.boot_id()}, *changes]
        self.journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    def change(self, cpu: int, old: str, new: str) -> dict[str, str]:
        return {"knob": str(self.knob(cpu)), "old": old, "new": new}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)
