# SPDX-License-Identifier: GPL-2.0-only
"""Pages as a browser lays them out: nothing is wider than the window of 1280 pixels."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from paths import ROOT
from programs_here import loaded

from lightsleep.report.cli import report

RESULTS = sorted((ROOT / "docs/results").glob("*.json"))
looks_of = loaded("scripts/page_screens.py").looks_of

pytestmark = pytest.mark.more


@pytest.mark.parametrize("result", RESULTS, ids=lambda path: path.stem)
def test_no_table_clips(result: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert CliRunner().invoke(report, [str(result), "-o", str(page)]).exit_code == 0
    assert looks_of(page).wide == []


def test_an_overview_of_all_results_does_not_clip(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert CliRunner().invoke(report, [*map(str, RESULTS), "-o", str(page)]).exit_code == 0
    assert looks_of(page).wide == []


def test_what_is_too_wide_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    row = "<td style='white-space: nowrap'>" + "wide " * 400 + "</td>"
    page.write_text(f"<div style='overflow-x: auto'><table><tr>{row}</tr></table></div>")
    assert any(each.startswith("DIV: wide") for each in looks_of(page).wide)
    page.write_text("<p>narrow</p>")
    assert looks_of(page).wide == []


def test_the_end_of_the_first_plot_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    above = "<body style='margin: 0'><div style='height: 3000px'></div>"
    page.write_text(f"{above}<figure style='margin: 0; height: 100px'></figure><figure></figure>")
    assert looks_of(page).plotted == 3100
    page.write_text(above)
    assert looks_of(page).plotted == 0
