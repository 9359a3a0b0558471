# SPDX-License-Identifier: GPL-2.0-only
"""Measures under each setting, in rounds of random order, and undoes the setting in between.

First each setting is made and undone once: what only the kernel knows to refuse, such as a module
that is not signed, or a value, ends it before anything is measured.

A round runs every setting once. Between two runs everything is as it was found, so no setting sees
what an earlier one left. The first round is a warm-up and is not kept.

What is measured is a sample: a run of the command, or a period of a service that runs on
(lightsleep/trial/switchback.py).

Whatever goes wrong ends the rounds: the command fails, a figure is missing, somebody else changes a
setting meanwhile, the kernel refuses something, or the user has seen enough. Rounds that were
complete by then are kept.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lightsleep.errors import LightsleepError
from lightsleep.settings.apply import applied
from lightsleep.settings.catalogue import Change
from lightsleep.settings.journalled import Session
from lightsleep.trial import metrics, process, reading

WARMUP = 1
MOST_ROUNDS = 1000
"""The time that the statistics take grows with the square of the rounds: here, some seconds."""

Sample = Callable[[], dict[str, float]]
"""Measures once what runs under the setting of the moment. Raises LightsleepError."""

GoesOn = Callable[[int, float], bool]
"""Whether another round begins, after so many, the warm-up included, in so many seconds. Raises
LightsleepError."""

Progress = Callable[[str, int, int], None]
"""Called with what runs now, how many runs are done, and how many there are."""


@dataclass(frozen=True)
class Arm:
    """One setting under a name of its own, and what it changes."""

    name: str
    changes: list[Change]


@dataclass
class Trial:
    """What came of the rounds: metrics by arm and round, the order, and what ended them early.

    ``ended`` is what a signal raised, None where none did; ``where`` is the setting and the round
    of the moment, in words.
    """

    runs: dict[str, list[dict[str, float]]]
    order: list[list[str]] = field(default_factory=list)
    trouble: str | None = None
    ended: KeyboardInterrupt | SystemExit | None = None
    where: str = ""


def schedule(names: Sequence[str], rounds: int, rng: random.Random) -> list[list[str]]:
    """Return the order of the arms in each round, the warm-up first."""
    return [rng.sample(list(names), len(names)) for _ in range(WARMUP + rounds)]


def run(
    arms: Sequence[Arm],
    rounds: int,
    sample: Sample,
    session: Session,
    root: Path,
    rng: random.Random,
    progress: Progress,
    goes_on: GoesOn = lambda _rounds, _elapsed_s: True,
) -> Trial:
    """Run all rounds, or as many as go well; ``sample`` is taken once under each setting."""
    by_name = {arm.name: arm for arm in arms}
    order = schedule(list(by_name), rounds, rng)
    trial = Trial({name: [] for name in by_name})
    done, total = 0, len(order) * len(arms)
    try:
        for arm in arms:
            trial.where = f"{arm.name}, before the first run"
            progress(arm.name, done, total)  # a driver that comes measures first
            _under(arm, dict, session, root)
        begun_s = time.monotonic()
        for number, names in enumerate(order):
            trial.where = "between rounds"
            if number and not goes_on(number, time.monotonic() - begun_s):
                break
            found = {}
            for name in names:
                when = "warm-up" if number < WARMUP else f"round {number - WARMUP + 1}"
                trial.where = f"{name}, {when}"
                progress(name, done, total)
                done += 1
                found[name] = _under(by_name[name], sample, session, root)
            trial.order.append(names)
            if number >= WARMUP:
                for name, measured in found.items():
                    trial.runs[name].append(measured)
    except LightsleepError as error:
        trial.trouble = f"{trial.where}: {error.format_message()}"
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        trial.trouble = f"{trial.where}: {where}{error.strerror or error}"
    except (KeyboardInterrupt, SystemExit) as ended:
        trial.trouble, trial.ended = f"{trial.where}: interrupted", ended
        _drop_halves(trial)
    return trial


def _drop_halves(trial: Trial) -> None:
    """Drop a round in which a signal came after only some arms had their samples."""
    whole = min(map(len, trial.runs.values()))
    for runs in trial.runs.values():
        del runs[whole:]
    del trial.order[WARMUP + whole :]


def _under(arm: Arm, sample: Sample, session: Session, root: Path) -> dict[str, float]:
    """Measure once under a setting, and undo that."""
    with applied(arm.changes, session, root):
        found = sample()
        session.check()
    if notes := session.restore():
        raise LightsleepError("; ".join(notes))
    return found


def command(
    argv: Sequence[str], printed: list[metrics.Printed], units: dict[str, str], root: Path
) -> dict[str, float]:
    """Run the command once, and return its metrics; ``units`` as in metrics.find().

    Raises LightsleepError.
    """
    before = reading.read(root)
    wall_s, cpu_s, output = process.execute(argv)
    after = reading.read(root)
    found = {x.name: metrics.find(x, output, units) for x in printed}
    return found | metrics.of_run(before, after, wall_s, cpu_s)
