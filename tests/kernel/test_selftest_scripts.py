# SPDX-License-Identifier: GPL-2.0-only
"""What selftest scripts ask of a machine that is not theirs alone, without a guest."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from ktap import SELFTESTS

LATENCY = (SELFTESTS / "test-cpuidle_latency.sh").read_text()
FUNCTION = re.compile(r"^(\w+)\(\) \{.*?^\}$", re.MULTILINE | re.DOTALL)
DEFAULTS = re.compile(r"set -- ((?:\w+[ \t\\\n]+)+)")


@pytest.mark.parametrize("script", sorted(x.name for x in SELFTESTS.glob("*.sh")))
def test_no_machine_is_suspended_without_being_asked(script: str) -> None:
    text = (SELFTESTS / script).read_text()
    suspends = {
        found[1]
        for found in FUNCTION.finditer(text)
        if re.search(r"/sys/power/state|need_suspend_to_idle\b", found[0])
    }
    by_default = {name for found in DEFAULTS.finditer(text) for name in found[1].split()}
    assert not suspends & by_default
    if script == "test-cpuidle_latency.sh":
        assert "survives_suspend" in suspends
        assert "survives_garbage" in by_default


@pytest.mark.parametrize(
    ("content", "locked"),
    [
        (None, False),
        ("[none] integrity confidentiality\n", False),
        ("none [integrity] confidentiality\n", True),
        ("none integrity [confidentiality]\n", True),
    ],
)
def test_a_kernel_that_is_locked_down_is_known(
    content: str | None, locked: bool, tmp_path: Path
) -> None:
    if content:
        (tmp_path / "lockdown").write_text(content)
    (function,) = (x[0] for x in FUNCTION.finditer(LATENCY) if x[1] == "is_locked_down")
    script = f"LOCKDOWN={tmp_path}/lockdown\n{function}\nis_locked_down"
    assert (subprocess.run(["sh", "-c", script]).returncode == 0) == locked
