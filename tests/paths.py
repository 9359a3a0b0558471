# SPDX-License-Identifier: GPL-2.0-only
"""Where things are."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent
"""The tree of the project."""

FIXTURES = ROOT / "tests/fixtures"
"""Files that tests read."""
