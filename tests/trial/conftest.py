# SPDX-License-Identifier: GPL-2.0-only
"""The machine on which ``lightsleep try`` is tested."""

from pathlib import Path

import pytest
from trials import machine


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return machine(tmp_path, monkeypatch)
