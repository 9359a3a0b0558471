# SPDX-License-Identifier: GPL-2.0-only
"""Runs the command line as ``python3 -m lightsleep`` where nothing is installed."""

from lightsleep.cli import main

if __name__ == "__main__":
    main(prog_name="lightsleep")
