# SPDX-License-Identifier: GPL-2.0-only
"""Which tests are slow: from pytest's own file of a run, and still there."""

import re
import runpy
from pathlib import Path

import pytest
from paths import ROOT

from lightsleep.errors import LightsleepError

slow_tests = runpy.run_path(str(ROOT / "scripts" / "slow_tests.py"))
CASE = '<testcase classname="tests.a.test_b" name="{}" time="{}" />'


def junit(tmp_path: Path, *cases: tuple[str, str]) -> Path:
    path = tmp_path / "unit.xml"
    listed = "".join(CASE.format(*case) for case in cases)
    path.write_text(f"<testsuites><testsuite>{listed}</testsuite></testsuites>")
    return path


def test_the_cases_of_a_function_count_together(tmp_path: Path) -> None:
    cases = (("test_z", "0.8"), ("test_d[a]", "0.4"), ("test_d[b[0]]", "0.4"), ("test_e", "0.7"))
    assert slow_tests["slow"](junit(tmp_path, *cases)) == [
        "tests/a/test_b.py::test_d",
        "tests/a/test_b.py::test_z",
    ]


@pytest.mark.parametrize(
    "text", ["", "<testsuites>", '<a><testcase classname="b"/></a>', CASE.format("test_c", "fast")]
)
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "unit.xml"
    path.write_text(text)
    with pytest.raises(LightsleepError, match=r"unit\.xml: not a file that pytest --junit-xml"):
        slow_tests["slow"](path)


def test_a_run_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LightsleepError, match=r"unit\.xml: no test ran"):
        slow_tests["slow"](junit(tmp_path))


def test_each_slow_test_is_there() -> None:
    names = slow_tests["KEPT"].read_text().splitlines()
    assert names
    assert names == sorted(set(names))
    for name in names:
        path, function = name.split("::")
        assert re.search(rf"^def {function}\(", (ROOT / path).read_text(), re.MULTILINE), name
