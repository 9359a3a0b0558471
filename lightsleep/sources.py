# SPDX-License-Identifier: GPL-2.0-only
"""Where the kernel part of this project is: beside the package, and in no installed one."""

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
