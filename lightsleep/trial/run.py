# SPDX-License-Identifier: GPL-2.0-only
"""Measures under each setting, in rounds of random order, and undoes the setting in between.

A round runs every setting once. Between two runs everything is as it was found, so no setting sees
what an earlier one left. The first round is a warm-up and is not kept.

What is measured is a sample: a run of the command, or a period of a service that runs on
(lightsleep/trial/switchback.py).

Whatever goes wrong ends the rounds: the command fails, a figure is missing, somebody else changes a
setting meanwhile, the kernel refuses something, or the user has seen enough. Rounds that were
complete by then are kept.
"""

import contextlib
import os
import random
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lightsleep.errors import LightsleepError
from lightsleep.settings.apply import applied
from lightsleep.settings.catalogue import Change
from lightsleep.settings.journalled import Session
from lightsleep.trial import metrics, reading

WARMUP = 1
MOST_ROUNDS = 1000
"""The time that the statistics take grows with the square of the rounds: here, some seconds."""

MOST_OUTPUT = 16 << 20
"""Of what a command prints, the end: there the last match of a metric is."""
END_S = 5.0
"""How long what a command leaves running has to end by itself."""

LOOK_S = 0.02

Sample = Callable[[], dict[str, float]]
"""Measures once what runs under the setting of the moment. Raises LightsleepError."""

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

    ``ended`` is what a signal raised, None where none did.
    """

    runs: dict[str, list[dict[str, float]]]
    order: list[list[str]] = field(default_factory=list)
    trouble: str | None = None
    ended: KeyboardInterrupt | SystemExit | None = None


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
) -> Trial:
    """Run all rounds, or as many as go well; ``sample`` is taken once under each setting."""
    by_name = {arm.name: arm for arm in arms}
    order = schedule(list(by_name), rounds, rng)
    trial = Trial({name: [] for name in by_name})
    done, total, what = 0, len(order) * len(arms), ""
    try:
        for number, names in enumerate(order):
            found = {}
            for name in names:
                when = "warm-up" if number < WARMUP else f"round {number - WARMUP + 1}"
                what = f"{name}, {when}"
                progress(name, done, total)
                done += 1
                found[name] = _under(by_name[name], sample, session, root)
            trial.order.append(names)
            if number >= WARMUP:
                for name, measured in found.items():
                    trial.runs[name].append(measured)
    except LightsleepError as error:
        trial.trouble = f"{what}: {error.message}"
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        trial.trouble = f"{what}: {where}{error.strerror or error}"
    except (KeyboardInterrupt, SystemExit) as ended:
        trial.trouble, trial.ended = f"{what}: interrupted", ended
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


def command(argv: Sequence[str], printed: list[metrics.Printed], root: Path) -> dict[str, float]:
    """Run the command once, and return its metrics. Raises LightsleepError."""
    before = reading.read(root)
    wall_s, cpu_s, output = execute(argv)
    after = reading.read(root)
    found = {x.name: metrics.find(x, output) for x in printed}
    return found | metrics.of_run(before, after, wall_s, cpu_s)


def execute(argv: Sequence[str], limit_s: float | None = None) -> tuple[float, float, str]:
    """Run a command; return its wall and CPU time in seconds, and what it printed.

    It has a session of its own: Ctrl-C does not reach it, and it cannot wait for a terminal. What
    it leaves running in its process group would load the machine under the next setting, so that
    is ended, too. A daemon, which has a group of its own, runs on.

    Raises LightsleepError where it cannot be started, or does not end well and within ``limit_s``.
    """
    with os.fdopen(os.memfd_create("output"), "r+b") as file:
        start = time.monotonic()
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        except OSError as error:
            raise LightsleepError(f"cannot run {argv[0]}: {error.strerror}") from error
        try:
            if limit_s is not None:
                _wait(process, limit_s)
            _, status, usage = os.wait4(process.pid, 0)
            wall_s = time.monotonic() - start
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            _end(process)
        file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_OUTPUT))
        output = file.read(MOST_OUTPUT).decode(errors="replace")
    if process.returncode:
        how = f"exit status {process.returncode}"
        if process.returncode < 0:
            how = f"signal {_signal_name(-process.returncode)}"
        raise LightsleepError(f"the command failed ({how}); its output ends with {output[-300:]!r}")
    return wall_s, usage.ru_utime + usage.ru_stime, output


def _signal_name(number: int) -> str:
    """Return the name of a signal; a real-time signal has none in Python."""
    return signal.Signals(number).name if number in set(signal.Signals) else str(number)


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> None:
    """Wait until a command ends, and leave it to be reaped. Raises LightsleepError."""
    ended = os.pidfd_open(process.pid)
    try:
        if not select.select([ended], [], [], limit_s)[0]:
            raise LightsleepError(f"the command has not ended after {limit_s:g} s")
    finally:
        os.close(ended)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what still runs of a command and of what it has started, kindly first."""
    try:
        _end_kindly(process)
    except BaseException:  # a second Ctrl-C: whoever waits for it is impatient
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        raise
    process.poll()  # reaps it


def _end_kindly(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            break
        deadline = time.monotonic() + END_S
        while _runs(process.pid) and time.monotonic() < deadline:
            time.sleep(LOOK_S)


def _runs(group: int) -> bool:
    """Return whether a process of a group still runs; one that nobody has reaped does not."""
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group = file.read_bytes().rpartition(b")")[2].split()[:3]
            if int(its_group) == group and state not in (b"Z", b"X"):
                return True
    return False
