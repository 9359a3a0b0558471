# SPDX-License-Identifier: GPL-2.0-only
"""Writing files: what an output file's mode is, and what is found out before any work."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightsleep.files import write_text


@pytest.fixture
def umask() -> Iterator[int]:
    before = os.umask(0o027)
    yield 0o027
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_has_the_mode_that_the_umask_leaves(tmp_path: Path, umask: int) -> None:
    write_text(tmp_path / "new", "text")
    assert mode(tmp_path / "new") == 0o666 & ~umask


@pytest.mark.parametrize("before", [0o600, 0o664])
def test_a_file_keeps_its_mode(tmp_path: Path, umask: int, before: int) -> None:
    (tmp_path / "old").touch()
    (tmp_path / "old").chmod(before)
    write_text(tmp_path / "old", "text")
    assert mode(tmp_path / "old") == before


def test_a_name_may_be_as_long_as_a_name_can_be(tmp_path: Path) -> None:
    write_text(tmp_path / ("n" * 255), "text")
    assert [len(x.name) for x in tmp_path.iterdir()] == [255]
