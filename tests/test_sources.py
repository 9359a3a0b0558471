# SPDX-License-Identifier: GPL-2.0-only
"""Which sources a result is of."""

import subprocess
from pathlib import Path

import pytest

from lightsleep import sources


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with one commit, whose sources these are."""
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel/Kbuild").touch()
    (tmp_path / "lightsleep").mkdir()
    (tmp_path / "lightsleep/kernel").symlink_to("../kernel")
    (tmp_path / ".gitignore").write_text("*.o\n")
    me = ("-c", "user.name=me", "-c", "user.email=me@localhost", "-c", "commit.gpgsign=false")
    for words in (("init", "-q"), ("add", "."), (*me, "commit", "-q", "-m", "first")):
        subprocess.run(["git", "-C", tmp_path, *words], check=True)
    monkeypatch.setattr(sources, "LINK", tmp_path / "lightsleep/kernel")
    monkeypatch.setattr(sources, "KERNEL", tmp_path / "kernel")
    return tmp_path


@pytest.mark.parametrize("file", ["kernel/Kbuild", "kernel/new.c", "lightsleep/new.py"])
def test_sources_that_no_commit_has_are_no_commit(clone: Path, file: str) -> None:
    first = sources.commit()
    assert first
    assert not first.endswith("-dirty")
    (clone / "kernel/built.o").touch()
    (clone / "mine.py").touch()
    assert sources.commit() == first
    (clone / file).write_text("new\n")
    assert sources.commit() == f"{first}-dirty"


def test_an_installed_package_has_no_commit(clone: Path) -> None:
    (clone / "lightsleep/kernel").unlink()
    assert sources.commit() is None
