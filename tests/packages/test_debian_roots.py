# SPDX-License-Identifier: GPL-2.0-only
"""Roots of Debian that tests use: one that is not finished leaves the machine as it was."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import debian_roots
import pytest

from lightsleep.errors import LightsleepError


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a folder")
def test_a_build_that_is_cut_short_leaves_no_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who removes the root would remove what is mounted there, such as the machine's /dev/shm."""
    mounted, cache = tmp_path / "shm", tmp_path / "cache"
    (mounted / "of others").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin/mmdebstrap"
    there = f"{cache}/.packaging-bookworm-*.scratch"
    tool.write_text(
        f"#!/bin/sh -e\ncd {there}\nmkdir -p tree\nmount --bind {mounted} tree\nexit 1\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("LIGHTSLEEP_CACHE", str(cache))
    monkeypatch.setattr(debian_roots, "sources", lambda *_: [])
    try:
        with pytest.raises(LightsleepError, match="installing bookworm failed"):
            debian_roots.cached("bookworm", ("dkms",))
        assert (mounted / "of others").exists()
    finally:
        for left in cache.glob(".*.scratch/tree"):
            subprocess.run(["umount", left], check=False)
