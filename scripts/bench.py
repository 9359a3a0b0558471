# SPDX-License-Identifier: GPL-2.0-only
"""Run the experiments whose results pages cite, one after the other, unattended.

An experiment that has a result of the same commit already is not run again, so a run that was
ended goes on where it was. One whose control differs is set aside and run again, once; the result
that counts says how often that was. Results of one's own file, or with options that somebody named,
are left out: not all of it may be here. So are comparisons of the same with the same. The command
of each is printed. Where the sources have changes that are not committed, all
are run. How long each takes follows from its last result: as long for each round. A result from
before times were recorded has none: its time is estimated, from what others take for each turn (one
round of one arm).
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import click
import repeat
import same
from result_page import command

from lightsleep.compare.analysis import control_failed
from lightsleep.compare.result import FORMAT, CompareResult
from lightsleep.document import load
from lightsleep.errors import LightsleepError
from lightsleep.files import write_json
from lightsleep.lab import experiments
from lightsleep.lab.run import protocol

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs/results"
CITED = re.compile(r"results/([\w-]+)\.md")
TRIES = 2
"""How often an experiment is run at most whose control differs."""
LEFT_OUT = (
    "left out: results with options (such as a kernel) or of no experiment of ours, and "
    "comparisons of the same with the same; run their commands by hand, where what these "
    "name is there"
)
"""What is said of results that an unattended run cannot repeat."""
UNKNOWN_TURN_S = 10.0
"""How long a turn is assumed to take where no result has a time, not even of others."""


@dataclass(frozen=True)
class Planned:
    """An experiment to run, how many seconds it takes, and whether that is an estimate."""

    experiment: str
    arch: str
    seconds: float
    estimated: bool = False

    @property
    def name(self) -> str:
        """The name of its result."""
        return f"{self.experiment}-{self.arch}"

    @property
    def arguments(self) -> list[str]:
        """What ``lightsleep lab compare`` is given."""
        return [self.experiment, "--arch", self.arch]

    @property
    def minutes(self) -> str:
        """How long it takes, in words."""
        minutes = f"{self.seconds / 60:.0f} min"
        return f"about {minutes} (as others take)" if self.estimated else minutes


def plan(pages: Iterable[Path]) -> tuple[list[Planned], list[tuple[str, str]]]:
    """Return the experiments that pages cite, each with each architecture once.

    And the results that are left out (see LEFT_OUT), by name, with the command that repeats each.
    """
    cited = {name for page in pages for name in CITED.findall(page.read_text())}
    found: dict[tuple[str, str], float | None] = {}
    left_out: list[tuple[str, str]] = []
    for name in sorted(cited):
        if (RESULTS / name).is_dir():
            if many := same.read(RESULTS / name):  # not the results of rejudged.py
                left_out.append((name, same.command(many)))
            continue
        result = load(RESULTS / f"{name}.json", FORMAT)
        key = (result.experiment, result.environment.get("arch", "x86_64"))
        if not _is_plain(result, Planned(*key, seconds=0)):
            left_out.append((name, command(result)))
            continue
        found[key] = seconds_of(result) or found.get(key)
    per_turn = statistics.median(
        [took / turns(name) for (name, _), took in found.items() if took] or [UNKNOWN_TURN_S]
    )
    planned = [
        Planned(name, arch, took or turns(name) * per_turn, estimated=not took)
        for (name, arch), took in found.items()
    ]
    return planned, left_out


def _is_plain(result: CompareResult, planned: Planned) -> bool:
    """Whether a result is of an experiment of ours, without options but that of an architecture."""
    # An older result does not say by which arguments it was made.
    given = result.protocol.get("arguments", planned.arguments)
    plain = given in (planned.arguments, planned.arguments[:1])
    return plain and result.experiment in experiments.names()


def turns(name: str) -> int:
    """Return how many turns an experiment has by now, where nobody chose, those of warm-up too."""
    experiment = experiments.load(name)
    rounds = experiment.rounds or protocol.ROUNDS
    boots = experiment.boots or protocol.boots_for(rounds)
    return len(experiment.arms) * (rounds + boots * experiment.warmup)


def seconds_of(result: CompareResult) -> float | None:
    """Return how long an experiment takes by now, with another number of rounds perhaps."""
    took_s = result.protocol.get("took_s")
    rounds = experiments.load(result.experiment).rounds or protocol.ROUNDS
    return None if took_s is None else took_s * rounds / result.protocol["runs"]


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--plan", "only_plan", is_flag=True, help="Print what would be run, and run nothing.")
def main(folder: Path, only_plan: bool) -> None:
    """Run what the pages cite; results are in FOLDER."""
    planned, left_out = plan(
        [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/how-to/*.md")]
    )
    left = [x for x in planned if not _is_there(folder / f"{x.name}.json", x)]
    for each in planned:
        click.echo(f"{each.name:32} {each.minutes if each in left else 'there already'}")
    for name, how in left_out:
        click.echo(f"{name:32} left out: {how}")
    if left_out:
        click.echo(LEFT_OUT)
    minutes = sum(x.seconds for x in left) / 60
    estimated = sum(x.estimated for x in left)
    some = f", {estimated} of them with an estimated time" if estimated else ""
    click.echo(f"{len(left)} to run{some}: {minutes:.0f} min")
    if only_plan:
        return
    failed, differs = [], []
    for number, each in enumerate(left, 1):
        click.echo(f"{number} of {len(left)}: {each.name} ({each.minutes})")
        path = folder / f"{each.name}.json"
        try:
            kept = _run(each, path)
        except LightsleepError as error:
            failed.append(error.message)
            click.echo(error.message)
            continue
        if kept:
            differs.append(
                f"{each.name}: the control differs (see {', '.join(kept)}); run it again on a "
                "quiet host"
            )
            click.echo(differs[-1])
    if failed or differs:
        sys.exit("\n".join([*(["no result:", *failed] if failed else []), *differs]))


def _run(planned: Planned, path: Path) -> list[str]:
    """Run an experiment, once more where its control differs; return what was set aside if both.

    Raises LightsleepError where there is no result.
    """
    kept: list[str] = []
    for _ in range(TRIES):
        result = repeat.run(planned.arguments, path)
        if not control_failed(result):
            result.protocol["control_differed"] = sum(
                _commit(aside) == _commit(path) for aside in _aside(path).values()
            )
            write_json(path, result.document())
            return []
        kept.append(_set_aside(path).name)
        click.echo(f"{planned.name}: the control differs (see {kept[-1]})")
    return kept


def _set_aside(path: Path) -> Path:
    """Rename a result whose control differs: how often that happens is part of what is known."""
    return path.rename(path.with_suffix(f".differs-{1 + max(_aside(path), default=0)}"))


def _aside(path: Path) -> dict[int, Path]:
    """Return the results of the same experiment that were set aside, of any commit, by number."""
    files = path.parent.glob(f"{path.stem}.differs-*")
    found = [(file.suffix.removeprefix(".differs-"), file) for file in files]
    return {int(number): file for number, file in found if number.isdecimal()}


def _commit(path: Path) -> str | None:
    """Return the commit that a result was measured by; None where nothing tells."""
    try:
        commit: str | None = load(path, FORMAT).environment["source"]["commit"]
    except (KeyError, LightsleepError):
        return None
    return commit


def _is_there(path: Path, planned: Planned) -> bool:
    """Whether there is a result that counts."""
    result = repeat.there(path, planned.arguments)
    return result is not None and not control_failed(result)


if __name__ == "__main__":
    main()
