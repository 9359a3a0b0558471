# SPDX-License-Identifier: GPL-2.0-only
"""Compare the same with the same many times, and count how often a difference is shown."""

from __future__ import annotations

from pathlib import Path

import click
import repeat
from same import NAME, report

from lightsleep.compare.boots import LEAST_BOOTS
from lightsleep.lab.run import protocol


@click.command()
@click.argument("runs", type=click.IntRange(1))
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--boots", type=click.IntRange(LEAST_BOOTS), default=protocol.BOOTS)
@click.option("--rounds", type=int, default=protocol.ROUNDS, help="Rounds of each comparison.")
def main(runs: int, folder: Path, boots: int, rounds: int) -> None:
    """Compare the same RUNS times; results are in FOLDER, and those there are not run again."""
    results = []
    for number in range(1, runs + 1):
        path = folder / NAME.format(number)
        arguments = ["same", "--boots", str(boots), "--rounds", str(rounds), "--seed", str(number)]
        results.append(repeat.there(path, arguments) or repeat.run(arguments, path))
        click.echo(f"{number} of {runs}: {report(results)}")


if __name__ == "__main__":
    main()
