# SPDX-License-Identifier: GPL-2.0-only
"""CPUs that interrupt one another: what the guests run, on this machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from lightsleep.lab import experiments
from lightsleep.lab.loads import storm


@pytest.mark.parametrize("kind", storm.KINDS)
def test_all_cpus_take_part(kind: str) -> None:
    argv = [sys.executable, "-m", "lightsleep.lab.loads.storm", kind, "--seconds", "0.2"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True)
    # At least one turn of each CPU.
    assert round(float(done.stdout) * 0.2) >= len(os.sched_getaffinity(0))


def test_what_the_system_refuses_is_an_error() -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        storm.checked(storm.LIBC.munmap(0, 0))


def test_the_experiment_promises_what_it_measures() -> None:
    metrics = experiments.load("smp-storm").metrics
    assert isinstance(metrics, tuple)
    kinds = {name for kind in storm.KINDS for name in (f"{kind}_per_s", f"{kind}_ipis_per_s")}
    assert {metric.name for metric in metrics} == kinds
