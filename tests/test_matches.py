# SPDX-License-Identifier: GPL-2.0-only
"""Files by a pattern, while folders go."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from lightsleep import matches


class Going:
    """A folder of Python 3.11 that others change so many times while it is read."""

    def __init__(self, times: int) -> None:
        """It has one file."""
        self.left = times

    def glob(self, pattern: str) -> Iterator[Path]:
        """Yield the file, or raise as Path.glob() does."""
        if self.left:
            self.left -= 1
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        yield Path(pattern)


def test_what_goes_while_it_is_read_is_read_again() -> None:
    assert matches.matches(cast(Path, Going(matches.TRIES - 1)), "x") == [Path("x")]


def test_what_goes_each_time_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        matches.matches(cast(Path, Going(matches.TRIES)), "x")


def test_what_was_never_there_has_no_files(tmp_path: Path) -> None:
    assert matches.matches(tmp_path / "never-there", "*") == []
