# SPDX-License-Identifier: GPL-2.0-only
"""Ratios within rounds, of several metrics together."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts/rounds_ratio.py"


def test_what_all_rounds_share_does_not_widen_the_interval() -> None:
    spec = importlib.util.spec_from_file_location("rounds_ratio", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    slow = [[100.0, 10.0, 50.0], [7.0, 900.0, 8.0]]
    fast = [[2 * x for x in row] for row in slow]
    assert module.ratio(fast, slow) == pytest.approx((2, 2, 2))
    # Two metrics, 4 times and the same: twice, in a round; rounds of 2 and 8: 4, if only just.
    middle, low, high = module.ratio([[4.0, 16.0], [1.0, 4.0]], [[1.0, 1.0], [1.0, 1.0]])
    assert middle == pytest.approx(4)
    assert low < 1 < high
