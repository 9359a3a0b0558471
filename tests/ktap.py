# SPDX-License-Identifier: GPL-2.0-only
"""Runs the kernel selftests of this project in a guest and reads what they say, in KTAP."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection
from dataclasses import dataclass

from paths import ROOT

from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.boot.initramfs import GUEST_MODULES

SELFTESTS = ROOT / "kernel/tools/testing/selftests/cpuidle"

TRIES = 2
"""How often a test that fails is run. Most of them let a guest work and look at what it did
meanwhile. Beside another guest, and whatever else the host does, that may not be enough."""

SKIPS = 3
"""How often one that failed may skip before that counts: a busy host is one of the reasons."""

SKIP_BESIDE_OTHER_WORK = {
    *("measures_the_halt_cost", "asks_the_programs", "weighs_waiting"),
    "probes_where_polls_are_too_short",
    *("leaves_measurements_out_of_its_statistics", "halts_at_the_latency_it_advertises"),
    *("halts_after_the_longest_poll", "says_why_it_cannot_measure"),
    *("does_not_poll_an_idle_machine", "assumes_a_cost_while_busy"),
}
"""Tests of cpuidle-lightsleep-cost.sh that skip where other work on the host drowns what they
measure."""

KSFT_SKIP = 4
"""How a script ends of which every test skipped."""

LINE = re.compile(r"(?P<not>not )?ok (?P<number>\d+) (?P<name>\w+)(?P<skip> # SKIP)?")


@dataclass(frozen=True)
class Result:
    """The results of one script: test names, and the output of those that failed."""

    passed: list[str]
    skipped: list[str]
    failed: dict[str, str]


def parse(text: str) -> Result:
    """Read KTAP. Raises ValueError where it is not whole: a plan that was not carried out."""
    passed: list[str] = []
    skipped: list[str] = []
    failed: dict[str, str] = {}
    notes: list[str] = []
    planned = 0
    for line in text.splitlines():
        if line.startswith("1.."):
            planned = int(line[3:].split()[0])
        elif line.startswith("#"):
            notes.append(line)
        elif match := LINE.fullmatch(line):
            if match["not"]:
                failed[match["name"]] = "\n".join(notes)
            elif match["skip"]:
                skipped.append(match["name"])
            else:
                passed.append(match["name"])
            notes = []
    if not planned or len(passed) + len(skipped) + len(failed) != planned:
        raise ValueError(f"planned {planned} tests, but the output is:\n{text}")
    return Result(passed, skipped, failed)


def all_but(script: str, left_out: Collection[str]) -> list[str]:
    """Return the tests that a script with one list of them runs by itself, but a few."""
    _, names = (SELFTESTS / script).read_text().split("\tset -- ")
    listed = names.split("\nfi")[0].replace("\\", " ").split()
    assert set(left_out) <= set(listed)
    return [name for name in listed if name not in left_out]


def run_selftest(
    guest: Guest,
    script: str,
    *tests: str,
    timeout_s: float = 900,
    tries: int = TRIES,
    **variables: int | str,
) -> Result:
    """Run a selftest script, all of it or only ``tests``, and return its results.

    ``variables`` are those of the script's environment that say how much to do. A test that fails
    is run up to ``tries`` times, alone, and each failure is a warning in the results: it may be a
    fault that shows now and then. To skip is no try, and what then goes on to skip has failed. A
    complaint of the kernel fails at once.
    """
    result = _run(guest, script, *tests, timeout_s=timeout_s, **variables)
    tried = skips = 1
    while result.failed and tried < tries and skips <= SKIPS:
        first = "; ".join(f"{name}: {said}" for name, said in result.failed.items())
        names = ", ".join(result.failed)
        warnings.warn(f"{script}, tried again: {names}; {first}", stacklevel=2)
        again = _run(guest, script, *result.failed, timeout_s=timeout_s, **variables)
        tried += bool(again.failed)
        skips += bool(again.skipped)
        left = {name: result.failed[name] for name in again.skipped}
        result = Result(result.passed + again.passed, result.skipped, left | again.failed)
    if result.skipped:
        warnings.warn(f"{script} skipped: {', '.join(result.skipped)}", stacklevel=2)
    return result


def _run(
    guest: Guest, script: str, *tests: str, timeout_s: float, **variables: int | str
) -> Result:
    for file in SELFTESTS.glob("*.sh"):
        guest.write_text(f"/tmp/{file.name}", file.read_text())
    environment = [f"{name}={value}" for name, value in variables.items()]
    done = guest.run(
        ["env", *environment, "sh", f"/tmp/{script}", GUEST_MODULES, *tests],
        timeout_s=timeout_s,
        check=False,
    )
    guest.check()
    print(done.stdout)  # pytest -rP shows how long each test took
    result = parse(done.stdout)
    status = 1 if result.failed else 0 if result.passed else KSFT_SKIP
    assert done.rc == status, f"exit status {done.rc}: {done.stdout}"
    return result
