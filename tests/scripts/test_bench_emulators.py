# SPDX-License-Identifier: GPL-2.0-only
"""How many guests an emulator spoils: the page is that of the kept result."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner
from paths import ROOT
from programs_here import loaded

emulators = loaded("benchmarks/emulators.py")

PAGE = ROOT / "docs/emulators-figures.md"


def test_the_page_is_of_the_kept_results(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    result = CliRunner().invoke(emulators.main, ["--kept", str(page)])
    assert result.exit_code == 0, result.output
    assert page.read_text() == PAGE.read_text()


def test_each_outcome_has_a_row_and_the_clean_ones_are_first() -> None:
    result = {
        "arch": "x86_64",
        "cpu": "max",
        "kernel": "6.12",
        "boots": 5,
        "seed": 1,
        "versions": {"host": "QEMU 7", "lab": "QEMU 10"},
        "outcomes": {"host": {"hung: boot": 3, "clean": 2}, "lab": {"clean": 4, "splat: x": 1}},
    }
    page = emulators.page_of([result, result | {"arch": "aarch64", "asked_cpu": "max,sve=off"}])
    assert "\n    python benchmarks/emulators.py --arch x86_64 --boots 5 --seed 1\n" in page
    assert "\n    python benchmarks/emulators.py --arch aarch64 --cpu max,sve=off --boots 5" in page
    rows = [line for line in page.splitlines() if line.startswith(("| ", "## "))]
    assert rows[:2] == ["## x86_64", "| outcome | QEMU 7 | QEMU 10 |"]
    assert rows[3:6] == ["| clean | 2 | 4 |", "| hung: boot | 3 | 0 |", "| splat: x | 0 | 1 |"]
    assert rows[6] == "## aarch64"
