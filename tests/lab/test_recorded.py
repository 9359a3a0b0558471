# SPDX-License-Identifier: GPL-2.0-only
"""A load that is recorded in a guest: one that fails gives no figures."""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest
from processes import runs

from lightsleep.errors import LightsleepError
from lightsleep.lab.boot.agent import Completed
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.boot.machine import Machine
from lightsleep.lab.experiments import halt_after_poll, prediction, prediction_loop
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


@pytest.fixture
def hanging(tmp_path: Path) -> Path:
    """A tool that never ends; once it runs, its PID is in the file ``pid`` beside it."""
    script = tmp_path / "tool"
    pid = tmp_path / "pid"
    script.write_text(f"#!/bin/sh\necho $$ > {pid}.new\nmv {pid}.new {pid}\nexec sleep 1000\n")
    script.chmod(0o755)
    return script


SAYS = """\
import sys
from pathlib import Path
from lightsleep.lab.loads import recorded
sys.executable = sys.argv[1]
recorded.said("replay", Path("recording"))
"""


def test_a_tool_that_reads_a_recording_dies_with_the_lab(hanging: Path) -> None:
    pid, deadline = hanging.with_name("pid"), time.monotonic() + 60
    with subprocess.Popen([sys.executable, "-c", SAYS, str(hanging)]) as lab:
        while not pid.exists():
            assert time.monotonic() < deadline
            assert lab.poll() is None
            time.sleep(0.05)
        lab.kill()
    tool = int(pid.read_text())
    try:
        while runs(tool):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(tool, signal.SIGKILL)


def test_a_tool_that_takes_too_long_is_an_error(
    hanging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(hanging))
    monkeypatch.setattr(loads, "SAID_S", 0.5)
    with pytest.raises(LightsleepError, match=r"^lightsleep replay: not done after 0\.5 s$"):
        loads.said("replay", Path("recording"))


@pytest.mark.parametrize(
    ("experiment", "arm"), [(prediction, "predicted"), (prediction_loop, "low")]
)
def test_recordings_are_where_those_of_a_killed_lab_are_swept(
    experiment: ModuleType, arm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def predicted(_: Guest, folder: Path, *__: object) -> dict[str, float]:
        folders.append(folder)
        assert folder.is_dir()
        return {}

    folders: list[Path] = []
    base = tmp_path / "cache"
    monkeypatch.setenv("LIGHTSLEEP_CACHE", str(base))
    monkeypatch.setattr(experiment, "predicted", predicted)
    guest = SimpleNamespace(name=arm, machine=Machine())
    assert experiment.measure(guest) == {}
    assert folders == [base / f".recorded-{os.getpid()}.scratch"]
    assert list(base.iterdir()) == []


def periods(rows: Sequence[tuple[int, int, str, int | None]]) -> pa.Table:
    """Return a table of idle periods: CPU, state, how it ended, and what its task waited, in ns."""
    cpus, states, ends, waited_ns = zip(*rows, strict=True)
    columns = {
        "cpu": pa.array(cpus, pa.uint32()),
        "state": pa.array(states, pa.int8()),
        "ended_by": pa.array(ends).dictionary_encode(),
        loads.WAITED: pa.array(waited_ns, pa.int64()),
    }
    return pa.table(columns)


def test_only_wakeups_of_the_server_out_of_the_halt_count() -> None:
    halted = [(1, 1, "ipi", ns) for ns in (40_000, 50_000, 90_000)] * 40
    others = [
        (0, 1, "ipi", 7),
        (1, 0, "store", 7),
        (1, 0, "ipi", 7),
        (1, 1, "timer", 7),
        (1, 1, "ipi", None),
    ]
    assert halt_after_poll.waited_us(periods(halted + others * 100)) == 50


def test_a_median_of_few_wakeups_is_an_error() -> None:
    rows = [(1, 1, "ipi", 40_000)] * (halt_after_poll.LEAST - 1) + [(1, 1, "timer", 7)] * 100
    with pytest.raises(LightsleepError, match="99 wakeups of the server from the halt"):
        halt_after_poll.waited_us(periods(rows))


def test_where_a_poll_looks_like_a_halt_nothing_is_measured() -> None:
    guest = SimpleNamespace(machine=Machine(arch="aarch64"))
    with pytest.raises(LightsleepError, match=r"on aarch64, a wakeup .* may take an interrupt"):
        halt_after_poll.begin(cast(Guest, guest))
