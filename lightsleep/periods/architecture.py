# SPDX-License-Identifier: GPL-2.0-only
"""What idle state 0 is in a recording that nobody described: a poll or a halt?

An event has the number of a state only. On x86 and POWER, the kernel and its drivers let a CPU
poll in state 0, and halt in others; without a driver, a halt is state 1 of x86. Elsewhere, state 0
is the lightest halt. So the architecture tells, which some formats name.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightsleep import cpulist
from lightsleep.periods.model import Metadata

POLLS = re.compile(r"x86_64|i[3-6]86|ppc64(le)?")
"""Architectures whose state 0 polls."""

UNAME = re.compile(
    rb"Linux [^\0\n]{1,300} (x86_64|i[3-6]86|aarch64|arm\w{1,8}|ppc64(?:le)?|s390x|riscv64)\0"
)
"""What trace-cmd writes into each trace of the machine that recorded it."""

CPUS = 1024
"""Of so many CPUs, state 0 is known to poll; those that had no event are forgotten in the end."""


def of_trace_dat(path: Path) -> str | None:
    """Return the architecture that a trace.dat names; None where it names none."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            found = UNAME.search(text)
            return found[1].decode() if found else None
    except (OSError, ValueError):  # an empty one, or none that can be mapped
        return None


def suppose_states(metadata: Metadata, arch: str | None) -> None:
    """Take state 0 for what it is on ``arch``, and say in a note where that is not known."""
    if arch is None:
        metadata.notes.append(
            "which architecture this is of is not known, so idle state 0 counts as a halt. On x86 "
            "and POWER it polls: figures are then too high, and a replay promises too much"
        )
    elif POLLS.fullmatch(arch):
        metadata.supposed = set(range(CPUS))
        for cpu in metadata.supposed:
            metadata.add_state(
                {"cpu": cpu, "state": 0, "name": "state 0, polling", "polls": True}
                | dict.fromkeys(("advertised_us", "residency_us", "disabled"))
            )


def suppose_alike(metadata: Metadata, described: Mapping[str, list[dict[str, Any]]]) -> None:
    """Take the states of CPUs that are not ``described`` for those that all others have.

    They were offline when the recording began.
    """
    first, *others = described.values() or [[]]
    shared = [state for state in first if all(state in other for other in others)]
    if not shared:
        return
    metadata.supposed = set(range(CPUS)) - set(map(int, described))
    for cpu in metadata.supposed:
        metadata.add_described(cpu, shared)


def keep_seen(metadata: Metadata) -> None:
    """Forget the supposed states of CPUs that are not in the recording; note those that are."""
    forgotten = metadata.supposed - metadata.seen
    metadata.supposed -= forgotten
    for cpu in forgotten:
        del metadata.states[cpu]
    for states in (metadata.polling, metadata.disabled):
        states -= {key for key in states if key[0] in forgotten}
    for values in (metadata.advertised_us, metadata.residency_us):
        for key in [key for key in values if key[0] in forgotten]:
            del values[key]
    if metadata.supposed and metadata.states.keys() - metadata.supposed:
        metadata.notes.append(
            f"CPU {cpulist.format(metadata.supposed)} came online during the recording: its idle "
            "states are taken for those of the other CPUs"
        )
