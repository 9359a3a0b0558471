# SPDX-License-Identifier: GPL-2.0-only
"""The command as a whole: help, and verbs that lack what they need."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
sys.modules.update(dict.fromkeys({blocked!r}))
from lightsleep.cli import main
main({arguments!r})
"""


def without(blocked: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command where these packages cannot be imported."""
    program = PROGRAM.format(blocked=blocked, arguments=list(arguments))
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


@pytest.mark.parametrize("arguments", [["report", "x.json"], ["lab", "list"], ["lab", "--help"]])
@pytest.mark.parametrize("blocked", ["numpy", "qemu"])
def test_without_the_lab_extra(blocked: str, arguments: list[str]) -> None:
    # What one verb imports, another need not.
    done = without([blocked, "jsonschema", "scipy"], *arguments)
    assert "Traceback" not in done.stderr
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert "is not installed" in said
    assert "pip install -e '.[lab]'" in said


@pytest.mark.parametrize("blocked", ["lightsleep.report.page", "json"])
def test_a_bug_is_not_taken_for_a_missing_package(blocked: str) -> None:
    done = without([blocked], "report", "x.json")
    assert "Traceback" in done.stderr
    assert "pip" not in done.stderr
