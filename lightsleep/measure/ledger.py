# SPDX-License-Identifier: GPL-2.0-only
"""The kernel's ledger of wakes, over the time of a measurement.

The module says of each sample how the CPU was woken. The ledger, which our kernel series has, says
it of all wakes by other CPUs, and needs no module.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from lightsleep.scan.collect import read_wakes
from lightsleep.scan.model import Wakes
from lightsleep.scan.tree import Tree


def read(root: Path) -> list[Wakes]:
    """Return the ledger below ``root``, empty where the kernel has none."""
    return read_wakes(Tree(root))


def between(before: list[Wakes], after: list[Wakes], cpus: Collection[int]) -> list[Wakes]:
    """Return the wakes of ``cpus`` since ``before`` was read."""
    old = {wakes.cpu: wakes for wakes in before}
    return [
        Wakes(
            now.cpu,
            _more(now.by_ipi, old[now.cpu].by_ipi),
            _more(now.by_store, old[now.cpu].by_store),
        )
        for now in after
        if now.cpu in cpus and now.cpu in old
    ]


def _more(now: dict[str, int], then: dict[str, int]) -> dict[str, int]:
    return {why: count - then.get(why, 0) for why, count in now.items()}
