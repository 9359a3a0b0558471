# SPDX-License-Identifier: GPL-2.0-only
"""Compare the same with the same many times, and count how often a difference is shown."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import click

from lightsleep.compare.analysis import analyse, control_failed
from lightsleep.compare.result import CompareResult
from lightsleep.lab import protocol, repeat

EXPECTED = 0.05


def report(results: list[CompareResult]) -> str:
    """Return what so many comparisons of the same showed."""
    alarms = sum(map(control_failed, results))
    most = next(n for n in range(len(results) + 1) if _at_most(n, len(results)) >= 0.95)
    lines = [
        f"{alarms} of {len(results)} comparisons showed a difference; "
        f"at {EXPECTED:.0%} each, up to {most} are within 95 %"
    ]
    for name in results[0].metrics if results else []:
        found = [
            arm.baseline
            for result in results
            for metric in analyse(result)
            for arm in metric.arms_as("control")
            if metric.name == name and arm.baseline and arm.baseline.ratio
        ]
        spreads = [x.boot_spread for x in found if x.boot_spread is not None]
        if spreads:
            least = statistics.median(x.detectable for x in found if x.detectable)
            lines.append(
                f"{name}: boots scatter by {100 * (statistics.median(spreads) - 1):.1f} %, "
                f"the least difference shown is {100 * (least - 1):.0f} % (medians)"
            )
    return "\n".join(lines)


def _at_most(alarms: int, runs: int) -> float:
    """Return the probability of so many alarms or fewer."""
    return math.fsum(
        math.comb(runs, n) * EXPECTED**n * (1 - EXPECTED) ** (runs - n) for n in range(alarms + 1)
    )


@click.command()
@click.argument("runs", type=click.IntRange(1))
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--boots", type=click.IntRange(protocol.LEAST_BOOTS), default=protocol.BOOTS)
@click.option("--rounds", type=int, default=12, help="Rounds of each comparison.")
def main(runs: int, folder: Path, boots: int, rounds: int) -> None:
    """Compare the same RUNS times; results are in FOLDER, and those there are not run again."""
    results = []
    for number in range(1, runs + 1):
        path = folder / f"same-{number:02}.json"
        arguments = ["same", "--boots", str(boots), "--runs", str(rounds), "--seed", str(number)]
        results.append(repeat.there(path, arguments) or repeat.run(arguments, path))
        click.echo(f"{number} of {runs}: {report(results)}")


if __name__ == "__main__":
    main()
