# SPDX-License-Identifier: GPL-2.0-only
"""How fast a replay is: the page is that of the kept figures, and a small run works."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

from click.testing import CliRunner
from paths import ROOT

bench = runpy.run_path(str(ROOT / "benchmarks/replay.py"))

KEPT = ROOT / "benchmarks/replay.json"
PAGE = ROOT / "docs/replay-figures.md"


def test_the_page_is_of_the_kept_figures(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    result = CliRunner().invoke(bench["main"], [str(KEPT), "--kept", "--page", str(page)])
    assert result.exit_code == 0, result.output
    assert page.read_text() == PAGE.read_text()
    assert CliRunner().invoke(bench["main"], [str(KEPT), "--kept"]).exit_code == 2


def test_every_figure_is_on_the_page() -> None:
    document = json.loads(KEPT.read_text())
    page = bench["page_of"](document)
    for name in document["policies_alone_per_s"]:
        assert f"| {name} |" in page
    runs = [run for runs in document["replays"].values() for run in runs]
    assert page.count("\n| ") == 6 + len(document["policies_alone_per_s"]) + len(runs) + len(
        document["tables"]
    )


def test_made_up_periods_are_replayed_from_a_table_on_any_number_of_cores() -> None:
    found = bench["on_disk"](100_000)
    assert [run["periods"] for run in found] == [100_000] * len(found)
    assert found[0]["cores"] == 1
    assert all(run["periods_per_s"] > 0 for run in found)
    peak_mib = found[0]["peak_bytes"] >> 20
    document = json.loads(KEPT.read_text()) | {"tables": found}
    assert peak_mib > 10
    assert f"the process had at most {peak_mib} MiB" in bench["page_of"](document)
