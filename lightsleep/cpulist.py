# SPDX-License-Identifier: GPL-2.0-only
"""CPU lists as the kernel writes and reads them: ``0-3,8`` and ``0-15:2/4``.

``0-15:2/4`` means the first two CPUs of every four in 0-15: 0, 1, 4, 5, 8, 9, 12, 13.
"""

import re
from collections.abc import Iterable

from lightsleep.errors import LightsleepError

# Above every CONFIG_NR_CPUS; keeps "0-99999999999" from eating the memory.
MAX_CPU = 65535

_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9})/(\d{1,9}))?)?", re.ASCII)


def parse(text: str) -> list[int]:
    """Return the CPUs of a kernel CPU list, sorted, each once; an empty list has none.

    Raises LightsleepError, naming the part that is wrong.
    """
    cpus: set[int] = set()
    if not text.strip():
        return []
    for part in text.split(","):
        cpus.update(_parse_part(part.strip(), text))
    return sorted(cpus)


def _parse_part(part: str, text: str) -> Iterable[int]:
    match = _PART.fullmatch(part)
    if not match:
        raise LightsleepError(f"CPU list {text!r}: {part!r} is not a CPU or range like 0-3")
    first, last, used, group = (int(number) if number else None for number in match.groups())
    assert first is not None
    if last is None:
        last = first
    if last < first:
        raise LightsleepError(f"CPU list {text!r}: range {part!r} runs backwards")
    if last > MAX_CPU:
        raise LightsleepError(f"CPU list {text!r}: no kernel has a CPU {last}")
    if used is None or group is None:
        return range(first, last + 1)
    if not 0 < used <= group:
        raise LightsleepError(f"CPU list {text!r}: {part!r} must satisfy 1 <= used <= group")
    return (cpu for cpu in range(first, last + 1) if (cpu - first) % group < used)


def format(cpus: Iterable[int]) -> str:
    """Return CPUs in the kernel's list format, shortest form: ``[0, 1, 2, 8]`` is ``0-2,8``."""
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs(cpus))


def runs(cpus: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last CPU of each run of consecutive CPUs, in order."""
    found: list[tuple[int, int]] = []
    for cpu in sorted(set(cpus)):
        if found and cpu == found[-1][1] + 1:
            found[-1] = (found[-1][0], cpu)
        else:
            found.append((cpu, cpu))
    return found
