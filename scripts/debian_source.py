# SPDX-License-Identifier: GPL-2.0-only
"""Write the source tree of the Debian packages, with a version that names the commit.

Uses the standard library only, so that the Python of every Debian can run it.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RELEASE = re.compile(r"\(([^)]+)\)")
PARTS = (
    *("lightsleep", "kernel", "debian", "docs", "contrib", "scripts", "pyproject.toml", "LICENSE"),
    *("CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"),
)
"""What packages are built from. Other files, such as a list of machines, do not change them."""


def git(*argv: str) -> str:
    """Return what git prints. Exits with an error outside a clone."""
    try:
        done = subprocess.run(["git", "-C", ROOT, *argv], capture_output=True, text=True)
    except OSError as error:
        sys.exit(f"cannot run git: {error.strerror}; install git")
    if done.returncode:
        sys.exit(f"{ROOT} is no git clone, so the packages have no version: {done.stderr.strip()}")
    return done.stdout.removesuffix("\n")


def version(
    release: str, tagged: bool, committed: datetime, commit: str, changed: datetime | None
) -> str:
    """Return the version of the packages, which a later commit or a later change raises.

    ``release`` is the next release, unless this commit is ``tagged`` as it. ``changed`` is when a
    file was last changed that is not committed yet. The time of the commit is known in a shallow
    clone, too, where commits cannot be counted. Times are in seconds since 1970, as names of files
    must not be long.
    """
    text = release if tagged else f"{release}~{committed.timestamp():.0f}.g{commit}"
    return f"{text}+{changed.timestamp():.0f}" if changed else text


def uncommitted() -> datetime | None:
    """Return when the newest file that differs from the commit was changed."""
    status = "status", "--porcelain", "--no-renames", "--untracked-files=all", "-z"
    lines = git(*status, "--", *PARTS).split("\0")
    files = [ROOT / line[3:] for line in lines if line]
    if not files:
        return None
    times = [x.lstat().st_mtime for x in files if x.exists()] or [ROOT.stat().st_mtime]
    return datetime.fromtimestamp(max(times), UTC)


def main(target: Path) -> None:
    """Copy every file that packages are built from, and date the changelog."""
    if target.exists() and any(target.iterdir()):
        sys.exit(f"{target} is there, and not empty: remove it, or name another folder")
    changelog = (ROOT / "debian/changelog").read_text(encoding="utf-8")
    found = RELEASE.search(changelog)
    assert found
    release, changed = found[1], uncommitted()
    committed = datetime.fromisoformat(git("log", "-1", "--format=%cI"))
    tagged = f"v{release}" in git("tag", "--points-at", "HEAD").split()
    text = version(release, tagged, committed, git("rev-parse", "--short=9", "HEAD"), changed)
    there = "ls-files", "-z", "--cached", "--others", "--exclude-standard"
    for name in git(*there, "--", *PARTS).split("\0"):
        source = ROOT / name
        if source.is_symlink() or source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name, follow_symlinks=False)
    date = format_datetime(changed or committed)
    dated = re.sub(r"(?m)^( -- .*>  ).*$", rf"\g<1>{date}", changelog.replace(release, text, 1))
    (target / "debian/changelog").write_text(dated, encoding="utf-8")
    # For lightsleep --version. The modules keep the release: DKMS knows them by it.
    init = target / "lightsleep/__init__.py"
    own = init.read_text(encoding="utf-8")
    init.write_text(own.replace(f'"{release}"', f'"{text}"', 1), encoding="utf-8")
    print(text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where to write it; not there yet, or empty")
    main(parser.parse_args().folder)
