# SPDX-License-Identifier: GPL-2.0-only
"""Pages as a browser lays them out: nothing is wider than the window of 1280 pixels."""

import runpy
from pathlib import Path

import pytest
from click.testing import CliRunner
from paths import ROOT

from lightsleep.report.cli import report

RESULTS = sorted((ROOT / "docs/results").glob("*.json"))
clipped = runpy.run_path(str(ROOT / "scripts/page_screens.py"))["clipped"]

pytestmark = pytest.mark.more


@pytest.mark.parametrize("result", RESULTS, ids=lambda path: path.stem)
def test_no_table_clips(result: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert CliRunner().invoke(report, [str(result), "-o", str(page)]).exit_code == 0
    assert clipped(page) == []


def test_an_overview_of_all_results_does_not_clip(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert CliRunner().invoke(report, [*map(str, RESULTS), "-o", str(page)]).exit_code == 0
    assert clipped(page) == []


def test_what_is_too_wide_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    row = "<td style='white-space: nowrap'>" + "wide " * 400 + "</td>"
    page.write_text(f"<div style='overflow-x: auto'><table><tr>{row}</tr></table></div>")
    assert any(each.startswith("DIV: wide") for each in clipped(page))
    page.write_text("<p>narrow</p>")
    assert clipped(page) == []
