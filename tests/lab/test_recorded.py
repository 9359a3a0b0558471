# SPDX-License-Identifier: GPL-2.0-only
"""A load that is recorded in a guest: one that fails gives no figures."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from lightsleep.errors import LightsleepError
from lightsleep.lab.boot.agent import Completed
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.loads import recorded as loads


class Shell:
    """A guest that runs what ``lightsleep record`` would run, and ends as that does."""

    def run(self, argv: Sequence[str], **_: object) -> Completed:
        if "record" not in argv:
            return Completed(0, base64.b64encode(b"recorded").decode(), "", 0.0)
        done = subprocess.run(argv[argv.index("--") + 1 :], capture_output=True, text=True)
        if done.returncode:
            raise LightsleepError(f"exit status {done.returncode}: {done.stderr}")
        return Completed(0, "", "", 0.0)

    def read_text(self, path: str) -> str:
        return Path(path).read_text()


@pytest.fixture(autouse=True)
def polled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CPU that has polled for 500 ns so far."""
    monkeypatch.setattr(loads, "COUNTS", str(tmp_path / "polled"))
    monkeypatch.setattr(loads, "CPUS", str(tmp_path))
    file = tmp_path / "cpu0/lightsleep/polled_ns"
    file.parent.mkdir(parents=True)
    file.write_text("500\n")
    return file


def test_what_was_polled_before_a_load_does_not_count(tmp_path: Path, polled: Path) -> None:
    guest = cast(Guest, Shell())
    path = loads.recorded(guest, tmp_path, f"echo 700 > {polled}")
    assert path.read_bytes() == b"recorded"
    assert loads.polled_ns(guest, loads.MODULE) == 200


def test_a_load_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LightsleepError, match="exit status 3: refused"):
        loads.recorded(cast(Guest, Shell()), tmp_path, "sh -c 'echo refused >&2; exit 3'")


def test_a_guest_without_the_driver_is_recorded(tmp_path: Path, polled: Path) -> None:
    polled.unlink()
    loads.recorded(cast(Guest, Shell()), tmp_path, "true")
