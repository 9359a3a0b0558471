# SPDX-License-Identifier: GPL-2.0-only
"""Machines to watch: counts that are made up, and a tree of files."""

from pathlib import Path
from typing import Any

import pytest
from scan_trees import plant, unfold

from lightsleep.watch.model import CpuCount, Snapshot, States

CPU = "sys/devices/system/cpu"


NAMES = ("POLL", "HALT")


def count(**changes: Any) -> CpuCount:
    fields = {
        "names": NAMES,
        "states": States((0, 0), (0, 0)),
        "own": None,
        "interrupts": None,
        "idle_s": 0.0,
        "stolen_s": None,
        "polling": frozenset({"POLL"}),
    }
    return CpuCount(**(fields | changes))


def snapshot(time_s: float, *cpus: CpuCount) -> Snapshot:
    return Snapshot(time_s, "lightsleep", "menu", "adaptive", dict(enumerate(cpus)))


@pytest.fixture
def four_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of four CPUs with cpuidle-lightsleep, which watch takes for this one."""
    root = unfold("lightsleep-guest", tmp_path / "machine")
    rows = ["           CPU0 CPU1 CPU2 CPU3", "24: 0 0 0 7 PCI-MSI nvme"]
    rows += ["LOC: 1 1 1 1 timer", "RES: 0 0 0 0 Rescheduling"]
    plant(root, "\n".join(f"proc/interrupts: {row}" for row in rows))
    stat_rows = ["cpu 0 0 0 0 0 0 0 0", *(f"cpu{n} 0 0 0 100 0 0 0 5" for n in range(4)), "intr 1"]
    plant(root, "\n".join(f"proc/stat: {row}" for row in stat_rows))
    monkeypatch.setattr("lightsleep.watch.cli.ROOT", root)
    return root
