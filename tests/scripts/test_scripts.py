# SPDX-License-Identifier: GPL-2.0-only
"""The scripts: how they are called, and what `make deb` and `make screens` write."""

import os
import re
import runpy
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path

import pytest
from paths import ROOT

from lightsleep import __version__

SCRIPTS = ROOT / "scripts"
PROGRAMS = [
    path
    for folder in ("scripts", "benchmarks")
    for path in sorted((ROOT / folder).glob("*.py"))
    if "__main__" in path.read_text()
]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
@pytest.mark.parametrize(("option", "status"), [("--help", 0), ("--nonsense", 2)])
def test_every_program_says_how_to_call_it(
    path: Path,
    option: str,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [str(path), option])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == status
    said = capsys.readouterr()
    assert (said.err if status else said.out).lower().startswith("usage: ")


debian_source = runpy.run_path(str(SCRIPTS / "debian_source.py"))
BEFORE, AFTER = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
WEST_OF_IT = datetime(2025, 12, 31, 23, tzinfo=timezone(timedelta(hours=-5)))
"""Later than BEFORE, on a clock that shows less."""


def test_a_later_state_of_the_tree_is_a_higher_version() -> None:
    version = debian_source["version"]
    rising = [
        "0.1.0~738.g84bd205aa",  # as versions were before
        version("0.1.0", False, BEFORE, "ffffffff", None),
        version("0.1.0", False, BEFORE, "ffffffff", BEFORE),
        version("0.1.0", False, BEFORE, "ffffffff", AFTER),
        version("0.1.0", False, WEST_OF_IT, "aaaaaaaa", None),
        version("0.1.0", False, AFTER, "00000000", None),
        version("0.1.0", True, AFTER, "aaaaaaaa", None),
        version("0.1.0", True, AFTER, "aaaaaaaa", BEFORE),
        version("0.1.1", False, AFTER, "00000000", None),
    ]
    for older, newer in pairwise(rising):
        subprocess.run(["dpkg", "--compare-versions", older, "lt", newer], check=True)


def test_the_source_of_the_packages_has_what_the_clone_has(tmp_path: Path) -> None:
    argv = [sys.executable, f"{SCRIPTS}/debian_source.py", str(tmp_path)]
    said = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
    assert (tmp_path / "debian/changelog").read_text().startswith(f"lightsleep ({said}) ")
    words = [sys.executable, "-m", "lightsleep", "--version"]
    printed = subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert printed.endswith(f"version {said}\n")
    assert (tmp_path / "lightsleep/kernel/Kbuild").exists()
    assert os.access(tmp_path / "debian/rules", os.X_OK)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "tests").exists()
    again = subprocess.run(argv, capture_output=True, text=True)
    assert again.returncode == 1
    assert (
        again.stderr == f"{tmp_path} is there, and not empty: remove it, or name another folder\n"
    )


def written(file: Path, seconds: int) -> None:
    """Write a file anew at this time. Its folder was made before that."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(str(seconds))
    os.utime(file, (seconds, seconds))
    os.utime(file.parent, (1, 1))


def test_what_the_packages_have_raises_their_version_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uncommitted = debian_source["uncommitted"]
    monkeypatch.setitem(uncommitted.__globals__, "ROOT", tmp_path)
    for argv in (["init", "--quiet"], ["config", "status.showUntrackedFiles", "no"]):
        subprocess.run(["git", "-C", tmp_path, *argv], check=True)
    written(tmp_path / "hosts", 9)
    assert uncommitted() is None
    (tmp_path / "lightsleep").mkdir()
    for seconds in (3, 5):
        written(tmp_path / "lightsleep/new/verb.py", seconds)
        assert uncommitted() == datetime.fromtimestamp(seconds, UTC)


def test_the_next_release_is_the_same_everywhere() -> None:
    changelog = (SCRIPTS.parent / "debian/changelog").read_text()
    assert changelog.startswith(f"lightsleep ({__version__}) ")


screens = runpy.run_path(str(SCRIPTS / "screens.py"))


def test_a_picture_shows_what_is_left_on_the_terminal() -> None:
    progress = (
        "\x1b[?25lwarm-up ---- 0:00:10\r\x1b[2Klightsleep ---- 0:00:05\r\n\x1b[1A\x1b[2K\x1b[?25h"
    )
    output = f"{progress}\x1b[1mWall time\x1b[0m\r\n  1.25 s\r\n"
    svg = screens["picture"]("try", "sudo lightsleep try -- true", output)
    shown = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg)).replace("&#160;", " ")
    assert "sudo lightsleep try -- true" in shown
    assert "Wall time" in shown
    assert "1.25 s" in shown
    assert "warm-up" not in shown
    assert "0:00:05" not in shown
    assert not re.findall(r"url\((?!#)|href|@import|@font-face", svg)


@pytest.mark.parametrize("name", screens["TYPED"])
def test_every_picture_is_shown_on_a_page(name: str) -> None:
    pages = (SCRIPTS.parent / "docs").glob("*.md")
    assert any(f"](results/{name}.svg)" in page.read_text() for page in pages)
    assert (SCRIPTS.parent / f"docs/results/{name}.svg").read_text().startswith("<svg")
