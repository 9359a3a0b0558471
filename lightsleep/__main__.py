# SPDX-License-Identifier: GPL-2.0-only
"""Starts the command line, also as ``python3 -m lightsleep`` where nothing is installed."""

import signal


def start() -> None:
    """Run the command line. Ctrl-C before a verb runs, and after it has ended, has no traceback."""
    # Whoever ignores SIGINT, as a shell does in its background jobs, keeps that.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from lightsleep.cli import main  # takes its time

    main(prog_name="lightsleep")


if __name__ == "__main__":
    start()
