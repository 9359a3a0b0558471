# SPDX-License-Identifier: GPL-2.0-only
"""promtool of the distribution's package, in the cache: to install the package starts a server."""

import shutil
import subprocess
from pathlib import Path

import pytest

from lightsleep import cache

PACKAGE = "prometheus"


def promtool() -> Path:
    """Return promtool; skips the test where this machine's apt knows no such package."""
    if found := shutil.which("promtool"):
        return Path(found)
    shown = subprocess.run(["apt-cache", "show", PACKAGE], capture_output=True, text=True)
    if shown.returncode or not shown.stdout.strip():
        pytest.skip(f"apt knows no package {PACKAGE}, which has promtool")

    def build(scratch: Path) -> None:
        subprocess.run(["apt-get", "-q", "download", PACKAGE], cwd=scratch, check=True)
        (package,) = scratch.glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", package, scratch / "tree"], check=True)
        shutil.copy2(scratch / "tree/usr/bin/promtool", scratch / "promtool")
        shutil.rmtree(scratch / "tree")
        package.unlink()

    return cache.entry(f"promtool-{cache.digest(shown.stdout)}", build, needs_mb=200) / "promtool"
