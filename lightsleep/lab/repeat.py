# SPDX-License-Identifier: GPL-2.0-only
"""Comparisons run unattended, one after the other: what is there already is not run again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lightsleep.compare.result import FORMAT, CompareResult
from lightsleep.document import load
from lightsleep.errors import LightsleepError
from lightsleep.sources import commit

LOG = ".log"


def there(path: Path) -> CompareResult | None:
    """Return the result of a file, if it is whole and of the very sources that we have now."""
    now = commit()
    if not path.exists() or now is None or now.endswith("-dirty"):
        return None
    try:
        result = load(path, FORMAT)
    except LightsleepError:
        return None
    return result if result.environment.get("source", {}).get("commit") == now else None


def run(arguments: Sequence[str], path: Path) -> CompareResult:
    """Run ``lightsleep lab compare`` and return its result; what it prints is in a log beside it.

    A control that differs fails no run: it is in the result. Raises LightsleepError where there
    is no result.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "lightsleep",
        "lab",
        "compare",
        *arguments,
        "--json",
        str(path),
    ]
    with path.with_suffix(LOG).open("w") as log:
        done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)
    if not path.exists():
        lines = path.with_suffix(LOG).read_text().splitlines()
        raise LightsleepError(
            f"{' '.join(command[3:])}: exit status {done.returncode}, no result: "
            f"{lines[-1] if lines else 'it printed nothing'}; see {path.with_suffix(LOG)}"
        )
    return load(path, FORMAT)
