# SPDX-License-Identifier: GPL-2.0-only
"""Times of the host: those of threads, and of other work."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from fake_guests import spinner

from lightsleep.lab.boot import hosttime
from lightsleep.lab.boot.hosttime import ThreadTime


def test_waiting_for_a_core_counts_as_awake() -> None:
    before, after = ThreadTime(100, 50), ThreadTime(400, 650)
    assert after.awake_since(before) == 900


def test_what_the_lab_runs_on_the_host_is_no_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as context:
        context.setattr(hosttime, "busy_s", lambda _: 100.0)  # nobody else did anything
        load = hosttime.Load([])
        spin = "import time\nwhile time.process_time() < 0.5: pass"
        subprocess.run([sys.executable, "-c", spin], check=True)
        context.setattr(hosttime, "busy_s", lambda _: 100.4)  # times are in whole ticks
        assert load.percent() == 0


BEFORE_S = 1000
"""For how long each CPU of a made up host has been busy since its boot."""


@pytest.fixture
def five_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., float]:
    """The load of 5 s in which some of the CPUs that /proc/stat shows were busy, in %."""
    stat = tmp_path / "stat"
    now_s = 0.0

    def write(shown: range, busy_s: Mapping[int, float]) -> None:
        hz = os.sysconf("SC_CLK_TCK")
        ticks = {x: round((BEFORE_S + busy_s.get(x, 0)) * hz) for x in shown}
        rows = [f"cpu{x} {busy} 0 0 9 9 0 0 0 0 0" for x, busy in ticks.items()]
        whole = f"cpu  {sum(ticks.values())} 0 0 9 9 0 0 0 0 0"
        stat.write_text("\n".join([whole, *rows, "ctxt 12", "btime 1"]) + "\n")

    def load_pct(
        shown: range,
        busy: int | Mapping[int, float],
        ours: set[int],
        ours_later: set[int],
        cpus: int | None = None,
    ) -> float:
        nonlocal now_s
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: ours)
        write(shown, {})
        load = hosttime.Load([], cpus)
        now_s += 5
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: ours_later)
        write(shown, {busy: 5} if isinstance(busy, int) else busy)
        return load.percent()

    monkeypatch.setattr(hosttime, "Path", lambda _: stat)
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    monkeypatch.setattr(os, "times", lambda: os.times_result((0.0,) * 5))
    return load_pct


def test_other_work_counts_where_the_lab_may_run(five_seconds: Callable[..., float]) -> None:
    """Of 64 CPUs, other work has half of the two that are left to the lab."""
    assert five_seconds(range(64), 6, {4, 6}, {4, 6}) == 50
    assert five_seconds(range(64), 7, {4, 6}, {4, 6}) == 0


@pytest.mark.parametrize(
    ("ours", "cpus", "percent"),
    [
        (64, 3, 100 / 3),  # one of the three that a guest of two CPUs can use
        (64, 1, 100),
        (4, 3, 100 / 3),
        (2, 3, 50),
        (2, None, 50),
    ],
)
def test_a_large_host_does_not_hide_other_work(
    ours: int, cpus: int | None, percent: float, five_seconds: Callable[..., float]
) -> None:
    allowed = set(range(ours))
    assert five_seconds(range(64), 1, allowed, allowed, cpus) == pytest.approx(percent)


@pytest.mark.parametrize(
    ("cpus", "each_s", "percent"),
    [
        (64, 0.02, 0),  # 0.4 % of each, which is a quarter of a CPU in all
        (256, 0.02, 0),
        (64, 0.1, 100 * 64 * 0.02 / 3),
        (3, 0.02, 0.4),
    ],
)
def test_a_large_host_that_is_idle_is_quiet(
    cpus: int, each_s: float, percent: float, five_seconds: Callable[..., float]
) -> None:
    allowed = set(range(cpus))
    busy = dict.fromkeys(allowed, each_s)
    assert five_seconds(range(cpus), busy, allowed, allowed, 3) == pytest.approx(percent)


def test_in_a_container_its_cpus_have_other_numbers(five_seconds: Callable[..., float]) -> None:
    """Of lxcfs: CPUs 4 and 6 of the host are the first two, and the only ones."""
    assert five_seconds(range(2), 1, {4, 6}, {4, 6}) == 50


@pytest.mark.parametrize("later", [{4}, {4, 5, 6, 7}])
def test_cpus_that_come_or_go_meanwhile_are_no_other_work(
    later: set[int], five_seconds: Callable[..., float]
) -> None:
    assert five_seconds(range(64), 6, {4, 6}, later) == 50


def test_other_work_on_the_host_is_seen() -> None:
    with spinner() as pid:
        ours, all_others = hosttime.Load([pid]), hosttime.Load([])
        time.sleep(1)
        assert all_others.percent() > ours.percent()
