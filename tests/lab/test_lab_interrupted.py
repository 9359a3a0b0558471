# SPDX-License-Identifier: GPL-2.0-only
"""A lab that is interrupted, in a real QEMU: nothing is left of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import eventually, runs

from lightsleep import cache
from lightsleep.lab.boot import guest
from lightsleep.lab.boot.machine import Machine

pytestmark = pytest.mark.boot

TCG = Machine(accel="tcg")
ENOUGH_S = 300.0


def qemu_of(pid: int) -> list[int]:
    """Return the QEMU processes among the children of a process."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = []
    for child in map(int, children):
        # One from the cache is run by its dynamic loader, whose name the process has.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            if b"qemu-system" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


@pytest.mark.parametrize(
    "command",
    [["shell"], ["compare", "idle"], ["shell", "--drive", "id=d0,scratch=64M"]],
    ids=["shell", "idle", "a file on a disk"],
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_an_interrupted_lab(
    command: list[str], number: signal.Signals, tmp_path: Path
) -> None:
    guest.prepare(TCG)
    own_cache, cwd = tmp_path / "cache", tmp_path / "cwd"
    own_cache.mkdir()
    cwd.mkdir()
    for entry in cache.folder().glob("[!.]*"):  # others may use that one meanwhile
        (own_cache / entry.name).symlink_to(entry)
    cached = sorted(own_cache.iterdir())
    mounts = Path("/proc/self/mountinfo").read_text()
    with subprocess.Popen(
        [sys.executable, "-m", "lightsleep", "lab", *command, "--accel", "tcg"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=cwd,
        env=os.environ | {"TMPDIR": str(cwd), "LIGHTSLEEP_CACHE": str(own_cache)},
    ) as process:
        try:
            deadline = time.monotonic() + ENOUGH_S
            while not (qemus := qemu_of(process.pid)):
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.1)
            time.sleep(1)
            process.send_signal(number)
            assert process.wait(60) != 0
        finally:
            process.kill()
    eventually(lambda: not any(map(runs, qemus)))
    assert list(cwd.iterdir()) == []
    assert sorted(own_cache.iterdir()) == cached
    assert Path("/proc/self/mountinfo").read_text() == mounts


def test_a_killed_unpacking_leaves_only_what_the_next_one_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTSLEEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "lightsleep", "lab", "shell"],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        deadline = time.monotonic() + ENOUGH_S
        while not list(tmp_path.glob("cache/.kernel*.scratch/tree/var")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.kill()
    assert list((tmp_path / "tmp").iterdir()) == []
    deadline = time.monotonic() + ENOUGH_S
    while not all(x.name.endswith(".lock") for x in (tmp_path / "cache").iterdir()):
        assert time.monotonic() < deadline  # a builder takes a moment to die
        cache.sweep(tmp_path / "cache")
        time.sleep(0.1)
    time.sleep(2)  # one that survived would write on
    assert all(x.name.endswith(".lock") for x in (tmp_path / "cache").iterdir())
