# SPDX-License-Identifier: GPL-2.0-only
"""A comparison from its experiment file to its page, in real guests: what make demo does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lightsleep.compare.result import FORMAT
from lightsleep.document import load

pytestmark = pytest.mark.boot

EXPERIMENT = '''
from lightsleep.lab.run.experiment import IDLE_RESIDENCY, Arm, Experiment, Metric

def measure(guest):
    """Tell the arms apart by what they were given, and by nothing that takes time."""
    guest.run(["sleep", "0.2"])
    words = guest.read_text("/proc/cmdline").split()
    loaded = guest.run(["test", "-e", "/sys/module/cpuidle_lightsleep"], check=False).rc == 0
    return {"marks": sum(word.startswith("mark") for word in words), "loaded": int(loaded)}

EXPERIMENT = Experiment(
    title="Guests that differ by a word and a module",
    hypothesis="Each arm gets its parameters and its modules.",
    arms=(
        Arm("plain", "baseline", "as it is", append="mark1"),
        Arm("marked", "treatment", "two words, a module", "mark1 mark2", ("cpuidle_lightsleep",)),
    ),
    metrics=(
        Metric("marks", "", "none", "Words", "Of the kernel's command line"),
        Metric("loaded", "", "higher", "Loaded", "Whether the module is there"),
        IDLE_RESIDENCY,
    ),
    measure=measure,
    rest_s=0.2,
    warmup=0,
)
'''
ROUNDS, BOOTS = 6, 3


def lightsleep(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder; one that fails shows what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "lightsleep", *words], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done


def test_from_an_experiment_file_to_its_page(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(EXPERIMENT)
    rounds = ("--rounds", str(ROUNDS), "--boots", str(BOOTS), "--accel", "tcg")
    done = lightsleep(
        *("lab", "compare", "./mine.py", *rounds, "-o", "out/mine.json"), folder=tmp_path
    )
    assert "Guests that differ by a word and a module" in done.stdout
    result = load(tmp_path / "out/mine.json", FORMAT)
    assert (result.protocol["runs"], result.boots) == (ROUNDS, BOOTS)
    samples = {name: metric.samples for name, metric in result.metrics.items()}
    plain, marked = [1.0] * ROUNDS, [2.0] * ROUNDS
    assert samples["marks"] == {"plain": plain, "marked": marked}
    assert samples["loaded"]["marked"] == plain
    assert samples["loaded"]["plain"] == [0.0] * ROUNDS
    asleep = [x for arm in samples["idle_residency_pct"].values() for x in arm]
    assert len(asleep) == 2 * ROUNDS
    assert all(0 <= x <= 100 for x in asleep)
    assert {len(rates) for rates in result.protocol["clock_rates"].values()} == {BOOTS}
    assert result.environment["guests"]["marked"]["kernel"]
    lightsleep("report", "out/mine.json", "-o", "page.html", folder=tmp_path)
    assert "Words" in (tmp_path / "page.html").read_text()
    again = json.loads(lightsleep("report", "out/mine.json", "--json", folder=tmp_path).stdout)
    (shown,) = again["results"]
    assert shown["title"] == "Guests that differ by a word and a module"
    assert shown["metrics"]["loaded"]["arms"]["marked"]["baseline"]["verdict"] == "better"
    assert sorted(x.name for x in tmp_path.iterdir()) == ["mine.py", "out", "page.html"]
