# SPDX-License-Identifier: GPL-2.0-only
"""The verbs of make, where they cannot work: they say what to do, and install nothing before."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from paths import ROOT


def refused(tmp_path: Path, verb: str, cache: Path, folder: str = ".") -> str:
    """Return what make says. It has to fail before it looks for packages, or installs any."""
    tools, called = tmp_path / "bin", tmp_path / "called"
    tools.mkdir()
    for name in ("apt-get", "dpkg-query", "sudo"):
        (tools / name).write_text(f"#!/bin/sh\necho {name} >> '{called}'\nexit 1\n")
        (tools / name).chmod(0o755)
    (tmp_path / folder).mkdir(exist_ok=True)
    done = subprocess.run(
        ["make", "-f", ROOT / "Makefile", verb, f"LIGHTSLEEP_CACHE={cache}"],
        cwd=tmp_path / folder,
        env={"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(tmp_path), "LC_ALL": "C"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert not called.exists(), done.stderr
    return done.stderr


def test_packages_are_not_built_where_the_path_has_spaces(tmp_path: Path) -> None:
    """Debian's pybuild would fail, in 30 lines that do not name the reason."""
    said = refused(tmp_path, "deb", tmp_path / "cache", folder="my projects")
    assert f"{tmp_path}/my projects/out/deb: Debian's pybuild cannot handle spaces" in said
    assert "make deb OUT=" in said


@pytest.mark.parametrize("taken", ["cache", "cache/.packages.lock/folder"])
def test_a_cache_that_cannot_be_written_is_told_with_advice(taken: str, tmp_path: Path) -> None:
    """A file is where its folder should be, or a folder where its lock should be."""
    (tmp_path / taken).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / taken).touch()
    said = refused(tmp_path, "env", tmp_path / "cache")
    advice = "set LIGHTSLEEP_CACHE to a writable folder"
    assert f"cannot write the cache folder {tmp_path}/cache: {advice}\n" in said
