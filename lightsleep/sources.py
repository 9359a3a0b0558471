# SPDX-License-Identifier: GPL-2.0-only
"""Where the kernel part of this project is: in the package, where a clone has a link to it."""

import subprocess
from pathlib import Path

from lightsleep.errors import LightsleepError

LINK = Path(__file__).parent / "kernel"
KERNEL = LINK.resolve()
DKMS_INSTALL = 'sudo make -C "$(lightsleep --sources)" dkms-install'
"""The command that installs the modules from there, however lightsleep was installed."""


def kernel_sources() -> Path:
    """Return the folder. Raises LightsleepError where the package is incomplete."""
    if not (KERNEL / "Kbuild").is_file():
        raise LightsleepError(
            f"this command needs lightsleep's kernel sources, and {KERNEL} does not exist: "
            "lightsleep is installed incompletely here; install it again with "
            "pip install '.[lab]' in the source tree"
        )
    return KERNEL


def commit() -> str | None:
    """Return the commit of these sources, with -dirty where they were changed or added to since.

    None where nothing tells: in an installed package, or without git.
    """
    if not LINK.is_symlink():
        return None  # a repository around it is somebody else's
    described = ["describe", "--always", "--dirty", "--exclude=*"]
    added = ["ls-files", "--others", "--exclude-standard", LINK.parent.name, KERNEL.name]
    try:
        now = _git(described)
        return now if now.endswith("-dirty") or not _git(added) else f"{now}-dirty"
    except (OSError, subprocess.SubprocessError):
        return None


def _git(words: list[str]) -> str:
    """Return what git says of the clone that these sources are in."""
    command = ["git", "-C", str(LINK.parent.parent), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.strip()
