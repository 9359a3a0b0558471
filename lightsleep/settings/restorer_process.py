# SPDX-License-Identifier: GPL-2.0-only
"""The process that sets settings back (restorer.py), for the one that starts it and hears its end.

It works when the pipe to it ends, whether its owner closes that or is killed. A child of the owner
closes its copy: the pipe would outlive the owner.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import IO

from lightsleep.errors import LightsleepError
from lightsleep.settings import restorer
from lightsleep.settings.lock import not_inherited


class RestorerProcess:
    """A restorer that waits for its owner's end, to set back what ``journal`` tells."""

    def __init__(self, journal: Path, root: Path, lock: IO[bytes]) -> None:
        """Start it, with the lock; return when it is deaf to signals. Raises LightsleepError."""
        self._journal = journal
        self._root = root
        failed = f"cannot start the process that sets settings back: {sys.executable}"
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", restorer.__file__, str(journal), str(root)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                pass_fds=[lock.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            raise LightsleepError(f"{failed}: {error.strerror}") from error
        assert self._process.stdin
        assert self._process.stdout
        self._pipe, self._said = self._process.stdin, self._process.stdout
        self._own = contextlib.ExitStack()
        self._own.enter_context(not_inherited(self._pipe))
        if self._said.readline() != restorer.READY:
            self._own.close()
            self._pipe.close()
            raise LightsleepError(f"{failed} {restorer.__file__}")

    @property
    def pid(self) -> int:
        """Its process number."""
        return self._process.pid

    @property
    def held(self) -> restorer.Held:
        """What a command that changes settings is to hold: this process waits for its end, too."""
        return (self._pipe.fileno(),)

    def killed(self) -> bool:
        """Return whether it has ended, which it does not do before its owner."""
        return self._process.poll() is not None

    def end(self) -> tuple[list[str], list[str]]:
        """Have it set back; return what is worth telling, and what refused.

        Where it was killed, its owner sets back.
        """
        self._pipe.close()
        self._own.close()
        report = self._said.read()
        self._said.close()
        if self._process.wait() == 0:
            notes, refused = json.loads(report)
            return notes, refused
        if not self._journal.exists():
            return [], []
        try:
            notes, refused = restorer.end(self._journal, self._root)
        except (OSError, ValueError) as error:
            return [], [f"cannot set back the settings: {self._journal}: {error}"]
        killed = "the process that sets settings back was killed: set them back myself"
        return [killed, *notes], refused
