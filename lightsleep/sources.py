# SPDX-License-Identifier: GPL-2.0-only
"""Where the kernel part of this project is: beside the package, and in no installed one."""

import subprocess
from pathlib import Path

from lightsleep.errors import LightsleepError

KERNEL = Path(__file__).parents[1] / "kernel"


def kernel_sources() -> Path:
    """Return the folder. Raises LightsleepError where only the Python package is installed."""
    # Somebody else's package may be called kernel.
    if not (KERNEL / "Kbuild").is_file():
        raise LightsleepError(
            f"this command needs lightsleep's kernel sources, and {KERNEL} does not exist: an "
            "installed package does not contain them; in the source tree, run "
            "pip install -e '.[lab]'"
        )
    return KERNEL


def commit() -> str | None:
    """Return the commit of these sources, with -dirty where they were changed since.

    None where nothing tells: in an installed package, or without git.
    """
    command = ["git", "-C", str(KERNEL), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
