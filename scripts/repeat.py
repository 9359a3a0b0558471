# SPDX-License-Identifier: GPL-2.0-only
"""Comparisons run unattended, one after the other: what is there already is not run again."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lightsleep.compare.result import FORMAT, CompareResult
from lightsleep.document import load
from lightsleep.errors import LightsleepError
from lightsleep.sources import commit

LOG = ".log"
MADE_BY, NEW = ".made-by", ".new"
"""Beside each result: which sources and arguments it was made by; and the next one, for a moment.
Whatever ends in .json there is a result."""
LOCK = ".lock"


def _identity(arguments: Sequence[str]) -> dict[str, object] | None:
    """Return what a result depends on; None where the sources cannot be told, or are changed."""
    now = commit()
    if now is None or now.endswith("-dirty"):
        return None
    return {"commit": now, "arguments": list(arguments)}


def there(path: Path, arguments: Sequence[str]) -> CompareResult | None:
    """Return the result of a file, if it is whole and of our very sources and ``arguments``."""
    identity = _identity(arguments)
    try:
        if identity is None or json.loads(path.with_suffix(MADE_BY).read_text()) != identity:
            return None
        return load(path, FORMAT)
    except (OSError, ValueError, LightsleepError):
        return None


def run(arguments: Sequence[str], path: Path) -> CompareResult:
    """Run ``lightsleep lab compare`` and return its result; what it prints is in a log beside it.

    A control that differs fails no run: it is in the result. Raises LightsleepError where there
    is no result; an older one is then still there. So it does where another process runs one in the
    same folder. A comparison ends when we do.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LightsleepError(
                f"another comparison is writing to {path.parent}: wait for its end"
            ) from None
        return _run(arguments, path, lock.fileno())


def _run(arguments: Sequence[str], path: Path, lock: int) -> CompareResult:
    identity = _identity(arguments)
    new = path.with_suffix(NEW)
    new.unlink(missing_ok=True)
    command = [
        *("setpriv", "--pdeathsig", "TERM"),
        sys.executable,
        "-m",
        "lightsleep",
        "lab",
        "compare",
        *arguments,
        "--output",
        str(new),
    ]
    with path.with_suffix(LOG).open("w") as log:
        # It keeps the lock until it has ended, too.
        done = subprocess.run(
            command, stdout=log, stderr=subprocess.STDOUT, pass_fds=[lock], check=False
        )
    if not new.exists():
        lines = path.with_suffix(LOG).read_text().splitlines()
        raise LightsleepError(
            f"{' '.join(command[5:])}: exit status {done.returncode}, no result: "
            f"{lines[-1] if lines else 'it printed nothing'}; see {path.with_suffix(LOG)}"
        )
    result = load(new, FORMAT)
    # In this order: a result never stands beside the identity of another one. And the sources may
    # have changed meanwhile.
    path.with_suffix(MADE_BY).unlink(missing_ok=True)
    new.replace(path)
    if identity and identity == _identity(arguments):
        path.with_suffix(MADE_BY).write_text(json.dumps(identity))
    return result
