# SPDX-License-Identifier: GPL-2.0-only
"""Files by a pattern, while folders go."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightsleep import matches


def test_a_cpu_that_goes_meanwhile_costs_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cpu in range(3):
        (tmp_path / f"cpu{cpu}/cpuidle/state0").mkdir(parents=True)
    scandir, going = os.scandir, tmp_path / "cpu1/cpuidle"

    def gone_meanwhile(path: Path) -> Iterator[os.DirEntry[str]]:
        if Path(path) == going and going.exists():
            (going / "state0").rmdir()
            going.rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", gone_meanwhile)
    found = matches.matches(tmp_path, "cpu*/cpuidle/state*")
    assert sorted(x.parts[-3] for x in found) == ["cpu0", "cpu2"]


def test_what_goes_each_time_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def gone(path: Path) -> Iterator[os.DirEntry[str]]:
        asked.append(path)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

    monkeypatch.setattr(os, "scandir", gone)
    with pytest.raises(FileNotFoundError):
        matches.matches(tmp_path, "*")
    assert len(asked) == matches.TRIES
    assert matches.matches(tmp_path / "never-there", "*") == []
