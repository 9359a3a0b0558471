# SPDX-License-Identifier: GPL-2.0-only
"""make check: it finds the files with guests and builds by words in them, and fetches ahead."""

import re
import types
from pathlib import Path
from typing import cast

import conftest
import prefetch
import pytest
from paths import ROOT

from lightsleep.errors import LightsleepError


def collected(path: Path, marker: str) -> pytest.Item:
    """Return a test as pytest has it after reading ``path``."""
    item = types.SimpleNamespace(
        path=path,
        nodeid=f"{path.name}::test_a",
        get_closest_marker=lambda name: name if name == marker else None,
    )
    return cast(pytest.Item, item)


@pytest.mark.parametrize("marker", conftest.FOUND_BY)
def test_a_file_without_the_word_for_its_tests_is_an_error(tmp_path: Path, marker: str) -> None:
    path = tmp_path / f"test_{marker}.py"
    path.write_text(f"pytestmark = pytest.mark.{marker}\n")
    conftest.pytest_collection_modifyitems([collected(path, marker)])
    hidden = tmp_path / "test_hidden.py"
    hidden.write_text("from guests import pytestmark\n")
    with pytest.raises(
        pytest.UsageError, match=rf"would not find test_hidden\.py::test_a: .*{marker}"
    ):
        conftest.pytest_collection_modifyitems([collected(hidden, marker)])


def test_these_are_the_words_that_make_looks_for() -> None:
    words = re.findall(r"(?m)^\t.*\$\(call marked,([\w|]+)\)", (ROOT / "Makefile").read_text())
    assert sorted("|".join(words).split("|")) == sorted(conftest.FOUND_BY)


def test_what_cannot_be_fetched_ahead_is_left_to_the_tests(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[str] = []

    def fails() -> None:
        raise LightsleepError("no mirror")

    steps = (fails, lambda: pytest.skip("no package"), lambda: made.append("kernel"))
    monkeypatch.setattr(prefetch, "STEPS", steps)
    prefetch.main()
    assert made == ["kernel"]
    assert capsys.readouterr().out.endswith("2 of 3 failed, and are left to the tests\n")
