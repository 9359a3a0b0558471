# SPDX-License-Identifier: GPL-2.0-only
"""Run ``make check`` many times, unattended, whatever fails, and list what failed in which run.

Runs count for the commit that they checked. Started again, this continues after the last run of the
same commit that has ended. To begin anew, remove the document. Where the sources have changes that
are not committed, it begins anew each time. All runs are in one document, ``checks.json``; what a
run printed is in a log of its own. A run that ended before any test did is not kept, nor is one
that was ended before it was done: if such a run lies between two others, document and page say
so. The page also says where time passed between two runs.

``--kept`` runs nothing: it writes the page of a document.
"""

from __future__ import annotations

import datetime
import fcntl
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from lightsleep import units
from lightsleep.files import write_text
from lightsleep.markdown import table
from lightsleep.scan.collect import cpu_model
from lightsleep.sources import commit

ROOT = Path(__file__).parent.parent
COMMAND = ["make", "--no-print-directory", "check"]
SYNCED = {"PY_COLORS": "0", "MAKEFLAGS": "--output-sync=target"}
"""Linters and tests that run side by side do not print into each other's lines."""
PARTS = 3
"""make check runs no further where a test fails: the tests that need no guest, then builds and
guests, and at last what has the machine for itself."""

DOCUMENT, LOCK = "checks.json", "lock"
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
AGAIN = re.compile(r"UserWarning: (\S+), tried again: ([\w, ]+);")
COUNTED = re.compile(r"^=*\s*(?:\d+ \w+, )*\d+ (?:passed|failed).* in [\d.]+s", re.MULTILINE)
NUMBER = re.compile(r"(\d+) (passed|skipped)")
SKIPPED = re.compile(r"^SKIPPED \[(\d+)\] (.+)$", re.MULTILINE)

PAUSE_S = 60
"""Runs in a row begin within a second; what takes longer than this is told."""


@dataclass(frozen=True)
class Run:
    """One ``make check``: when it began (UTC), its exit status, and what its tests did.

    ``parts`` are those that ran (see PARTS). ``again`` names selftests in guests that were tried
    again; one that failed each time is in ``failed``, too. ``skips`` says how many tests were
    skipped by place and reason; None in documents that do not tell.
    """

    began: str
    seconds: int
    status: int
    parts: int
    passed: int
    skipped: int
    failed: list[str]
    again: list[str]
    skips: dict[str, int] | None = None


def run(log: Path, lock: int) -> Run:
    """Check once; what that prints goes to ``log``. Tests that outlive this hold ``lock``."""
    began, begin = now_utc(), time.monotonic()
    with log.open("w") as file:
        done = subprocess.run(
            COMMAND,
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | SYNCED,
            pass_fds=[lock],
            check=False,
        )
    printed = log.read_text(errors="replace")
    return Run(
        began,
        round(time.monotonic() - begin),
        done.returncode,
        *counted(printed),
        skips_of(printed),
    )


def now_utc() -> str:
    """Return the time as documents have it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def counted(printed: str) -> tuple[int, int, int, list[str], list[str]]:
    """Return how many parts ran, how many tests passed and skipped, which failed, which again."""
    parts = COUNTED.findall(printed)
    numbers = [x for line in parts for x in NUMBER.findall(line)]
    passed, skipped = (
        sum(int(number) for number, what in numbers if what == wanted)
        for wanted in ("passed", "skipped")
    )
    failed = list(dict.fromkeys(FAILED.findall(printed)))
    # test_ktap.py has selftests that are made to fail.
    again = [
        f"{script} {name}"
        for script, names in AGAIN.findall(printed)
        for name in names.split(", ")
        if script != "x.sh"
    ]
    return len(parts), passed, skipped, failed, list(dict.fromkeys(again))


def skips_of(printed: str) -> dict[str, int]:
    """Return how many tests were skipped, by place and reason."""
    found: Counter[str] = Counter()
    for number, where in SKIPPED.findall(printed):
        found[where] += int(number)
    return dict(found)


def earlier(path: Path, now: str | None) -> tuple[list[Run], list[str]]:
    """Return the runs of a document, where they are of the very sources that are here.

    And when those between them began that were ended before they were done.
    """
    if now is None or now.endswith("-dirty") or _untracked():
        return [], []
    try:
        document = json.loads(path.read_text())
        if document["commit"] != now:
            return [], []
        return [Run(**x) for x in document["runs"]], list(document.get("ended", []))
    except (OSError, ValueError, KeyError, TypeError):
        return [], []


def _untracked() -> bool:
    """Whether there are files that no commit has, and no .gitignore names."""
    command = ["git", "-C", str(ROOT), "ls-files", "--others", "--exclude-standard"]
    return bool(subprocess.run(command, capture_output=True, check=True).stdout)


def page_of(document: dict[str, Any]) -> str:
    """Return a document as a page of Markdown."""
    runs = [Run(**x) for x in document["runs"]]
    rows = [
        (
            str(number),
            x.began.replace("T", " ").partition("+")[0],
            _time(x.seconds),
            str(x.passed),
            str(x.skipped),
            _failed(x),
            ", ".join(x.again) or "none",
        )
        for number, x in enumerate(runs, 1)
    ]
    parts = [
        "<!-- SPDX-License-Identifier: GPL-2.0-only -->",
        "<!-- Written by scripts/check_repeat.py; do not edit. -->",
        "# make check, again and again",
        f"Commit {document['commit']}, on {document['cpus']} CPUs ({document['cpu_model']}). "
        f"{report(runs)}. {in_a_row(runs, document.get('ended', []))}".rstrip(),
        table(("run", "began (UTC)", "took", "passed", "skipped", "failed", "tried again"), rows),
        "A selftest that fails in a guest is tried again, as a busy host is one of the reasons. "
        "The last column names those.",
        *_skips(runs),
        f"    make check-repeat REPEAT={len(runs)}",
    ]
    return "\n\n".join(parts) + "\n"


def in_a_row(runs: Sequence[Run], ended: Sequence[str]) -> str:
    """Say whether each run began as the one before it ended, and else what was between them.

    ``ended`` says when those began that were ended before they were done.
    """
    holes = []
    for number, (one, following) in enumerate(itertools.pairwise(runs), 1):
        began, then = (datetime.datetime.fromisoformat(x.began) for x in (one, following))
        pause_s = round((then - began).total_seconds()) - one.seconds
        left = sum(began < datetime.datetime.fromisoformat(x) <= then for x in ended)
        were = "was ended before it was" if left == 1 else "were ended before they were"
        found = [
            *([f"{_time(pause_s)} passed"] if pause_s > PAUSE_S else []),
            *([f"{units.counted(left, 'run')} {were} done"] if left else []),
        ]
        if found:
            holes.append(f"between runs {number} and {number + 1}, {', and '.join(found)}")
    if holes:
        return f"Not in a row: {'; '.join(holes)}."
    return "Each run began as the one before it ended." if len(runs) > 1 else ""


def _time(seconds: int) -> str:
    return f"{seconds // 60} min {seconds % 60:02} s"


def _skips(runs: Sequence[Run]) -> list[str]:
    """Return which tests were skipped, as parts of the page."""
    told = [x.skips for x in runs if x.skips is not None]
    if not any(x.skipped for x in runs):
        return []
    if not told:
        return ["Which tests were skipped was not recorded."]
    counts = Counter(x for skips in told for x in skips.items())
    rows = [
        (str(number), where, f"{count} of {len(told)}")
        for (where, number), count in sorted(counts.items())
    ]
    return ["## Tests that were skipped", table(("tests", "where, and why", "runs"), rows)]


def _failed(one: Run) -> str:
    words = list(one.failed)
    if one.parts < PARTS:
        words.append(f"only {one.parts} of {PARTS} parts were run")
    return ", ".join(words) or ("see its log" if one.status else "none")


def report(runs: Sequence[Run]) -> str:
    """Return how many runs failed."""
    return f"{sum(x.status != 0 for x in runs)} of {len(runs)} runs failed"


@click.command()
@click.argument("runs", type=click.IntRange(1), required=False)
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), required=False)
@click.option(
    "--kept",
    nargs=2,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="JSON PAGE",
    help="Run nothing: write the page of a document.",
)
def main(runs: int | None, folder: Path | None, kept: tuple[Path, Path] | None) -> None:
    """Run make check RUNS times; the document and the logs are in FOLDER."""
    if kept:
        write_text(kept[1], page_of(json.loads(kept[0].read_text())))
        return
    if runs is None or folder is None:
        raise click.UsageError("say how many RUNS, and the FOLDER for what they print")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"a make check that was started here, in {folder}, still runs: end it first")
        done = repeat(runs, folder, lock.fileno())
    click.echo(
        f"{report(done)}; what they printed is in {folder}. To begin anew, remove "
        f"{folder / DOCUMENT}"
    )
    sys.exit(any(x.status for x in done))


def repeat(runs: int, folder: Path, lock: int) -> list[Run]:
    """Check until there are as many runs of these sources; return them all."""
    now = commit()
    done, ended = earlier(folder / DOCUMENT, now)
    for number, each in enumerate(done, 1):
        click.echo(f"run {number}, earlier: {said(each)}")
    while len(done) < runs:
        log = folder / f"{len(done) + 1}.log"
        if done:  # stays there if this run is ended before it is done
            _write(folder, now, done, [*ended, now_utc()])
        each = run(log, lock)
        if not each.parts:
            sys.exit(f"make check ended before any test did: see {log}")
        if commit() != now:
            sys.exit(
                "the sources have changed during this run, or git does not say: it is not counted"
            )
        done.append(each)
        click.echo(f"run {len(done)}: {said(each)}")
        _write(folder, now, done, ended)
    return done


def _write(folder: Path, now: str | None, done: Sequence[Run], ended: Sequence[str]) -> None:
    document = {
        "commit": now,
        "cpu_model": cpu_model(Path("/proc/cpuinfo").read_text()) or "unknown",
        "cpus": os.cpu_count(),
        "runs": [asdict(x) for x in done],
        "ended": list(ended),
    }
    write_text(folder / DOCUMENT, json.dumps(document, indent=1) + "\n")


def said(each: Run) -> str:
    """Return one run as a line."""
    parts = [f"exit status {each.status} after {each.seconds} s, {each.passed} tests passed"]
    if each.status:
        parts.append(f"failed: {_failed(each)}")
    if each.again:
        parts.append(f"tried again: {', '.join(each.again)}")
    return "; ".join(parts)


if __name__ == "__main__":
    main()
