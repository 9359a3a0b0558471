# SPDX-License-Identifier: GPL-2.0-only
"""The rules that the benchmark compares poll_limit.c with."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from click.testing import CliRunner
from paths import ROOT

BENCHMARK = runpy.run_path(str(ROOT / "benchmarks" / "poll_limit.py"))
PAGE = ROOT / "docs" / "polling-policy-figures.md"
US = 1_000


@pytest.mark.parametrize(
    ("idle_us", "limits_us"),
    [
        ([60, 60, 150, 190, 150], [50, 100, 200, 200, 200]),  # grows until it catches
        ([60, 150, 150, 300, 300, 300], [50, 100, 200, 100, 50, 0]),  # shrinks where none would
        ([300, 200, 201], [0, 50, 0]),  # the ends of the range
    ],
)
def test_haltpoll_follows_its_documentation(idle_us: list[int], limits_us: list[int]) -> None:
    haltpoll = BENCHMARK["Haltpoll"]()
    seen = []
    for idle in idle_us:
        haltpoll.update(idle * US)
        seen.append(haltpoll.limit_ns // US)
    assert seen == limits_us


def test_the_numbers_are_the_same_each_time(tmp_path: Path) -> None:
    output, page = tmp_path / "result.json", tmp_path / "page.md"
    result = CliRunner().invoke(BENCHMARK["main"], [str(output), "--page", str(page)])
    assert result.exit_code == 0, result.output
    assert page.read_text() == PAGE.read_text(), "make bench-policy writes the page anew"
    document = json.loads(output.read_text())
    costs = {(o["pattern"], o["halt_cost_ns"], o["strategy"]): o for o in document["outcomes"]}
    for (pattern, halt_cost_ns, _), outcome in costs.items():
        assert outcome["cost_ns"] >= outcome["optimum_ns"]
        best = costs[pattern, halt_cost_ns, "best fixed"]
        for fixed in ("halt", "poll", "100 us"):
            assert best["cost_ns"] <= costs[pattern, halt_cost_ns, fixed]["cost_ns"]
