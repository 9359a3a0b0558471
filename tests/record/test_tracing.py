# SPDX-License-Identifier: GPL-2.0-only
"""What is traced: events, filters, what this kernel has of them, and what was left of others."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lightsleep.errors import LightsleepError
from lightsleep.record import tracefs as tracefs_module
from lightsleep.record import tracing

pytest_plugins = "recorders"


def test_a_keeper_of_another_installation_is_alive(tmp_path: Path) -> None:
    other = tmp_path / "lightsleep/record/keeper.py"
    other.parent.mkdir(parents=True)
    other.write_text("input()")
    with subprocess.Popen([sys.executable, str(other)], stdin=subprocess.PIPE) as process:
        deadline = time.monotonic() + 30
        while not tracing._alive(str(process.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
    assert not tracing._alive(str(os.getpid()))


@pytest.mark.parametrize("seen", ["all", "not all", "its own"])
def test_leftovers_of_dead_keepers_are_removed_and_no_others(
    seen: str, tracefs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container is one PID namespace, and all that it was goes with it."""
    here = tracefs_module.group_of(0).removesuffix("0")
    number = tracefs_module.PID_NAMESPACE.stat().st_ino
    monkeypatch.setattr(tracing, "INITIAL_PID_NAMESPACE", number if seen != "its own" else 8)
    monkeypatch.setattr(tracing, "PROC", tmp_path)
    (tmp_path / "4711/ns").mkdir(parents=True)  # of a namespace that is there
    (tmp_path / "4711/ns/pid").touch()
    (tmp_path / "4712").mkdir()  # ended just now
    if seen == "not all":
        (tmp_path / "4713").symlink_to("4713")  # is an error
    there = (tmp_path / "4711/ns/pid").stat().st_ino
    gone = f"lightsleep_{there + 1}_4194304"
    foreign = {"somebody", "lightsleep_mine", "lightsleep_4194304", here}
    foreign.add(f"lightsleep_{there}_4194304")
    # The second has the number of a process that is no keeper.
    for name in (f"{here}4194304", f"{here}{os.getpid()}", gone, *foreign):
        (tracefs / "instances" / name).mkdir()
    groups = ("other", "lightsleep_foo", f"lightsleep_{there}_4194304", f"{here}4194304")
    probes = "".join(f"r10:{group}/sleep_length f\n" for group in groups)
    (tracefs / "kprobe_events").write_text(probes)
    assert tracing.remove_leftovers(tracefs) == []
    left = {x.name for x in (tracefs / "instances").iterdir()}
    assert left == (foreign if seen == "all" else foreign | {gone})
    lines = (tracefs / "kprobe_events").read_text()
    assert lines == f"{probes}-:{here}4194304/sleep_length\n"


def test_a_leftover_that_is_in_use_is_not_waited_for(
    tracefs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_arguments: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    group = tracefs_module.group_of(4194304)
    (tracefs / "instances" / group).mkdir()
    (tracefs / "kprobe_events").write_text(f"r10:{group}/sleep_length f\n")
    monkeypatch.setattr(Path, "rmdir", busy)
    monkeypatch.setattr(tracefs_module, "_append", busy)
    began_s = time.monotonic()
    left = tracing.remove_leftovers(tracefs)
    assert time.monotonic() - began_s < tracefs_module.BUSY_S / 2
    assert [note.count("Device or resource busy") for note in left] == [1, 1]


def test_where_it_is_not_known_which_keepers_run_nothing_is_removed(
    tracefs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where /proc is of another PID namespace."""
    leftover = tracefs / "instances" / tracefs_module.group_of(4194304)
    leftover.mkdir()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert tracing.remove_leftovers(tracefs) == []
    assert leftover.is_dir()


def test_only_these_cpus() -> None:
    filters = {event.name: event.filter_for([1, 3, 4, 5]) for event in tracing.EVENTS}
    assert filters["power:cpu_idle"] == "(cpu_id==1||(cpu_id>=3&&cpu_id<=5))"
    switch = "(prev_pid==0||next_pid==0)&&(CPU==1||(CPU>=3&&CPU<=5))"
    assert filters["sched:sched_switch"] == switch
    assert filters["sched:sched_waking"] == ""  # the waker may be anywhere


def test_a_filter_that_no_kernel_takes_is_refused() -> None:
    """The kernel takes less than a page; most machines have pages of 4 KiB."""
    for cpus in (range(4096), range(0, 400, 2)):
        words = tracing.command(tracing.EVENTS, cpus, 64)
        assert max(map(len, words)) < mmap.PAGESIZE
    with pytest.raises(LightsleepError, match="-c are 10,000 ranges, more than the kernel accepts"):
        tracing.command(tracing.EVENTS, range(0, 20_000, 2), 64)


def test_events_that_a_kernel_lacks(tracefs: Path) -> None:
    events, missing = tracing.available(tracing.tracepoints(tracefs))
    assert not missing
    assert not [event for event in events if event.instead_of]
    (tracefs / "events/ipi/ipi_send_cpu").rmdir()
    events, missing = tracing.available(tracing.tracepoints(tracefs))
    assert missing == ["ipi:ipi_send_cpu"]
    assert "irq_vectors:reschedule_entry" in [event.name for event in events]
    (tracefs / "events/power/cpu_idle").rmdir()
    with pytest.raises(LightsleepError, match="no tracepoint power:cpu_idle"):
        tracing.available(tracing.tracepoints(tracefs))


def test_where_tracing_is_and_is_not_mounted(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/filesystems").write_text("nodev\ttracefs\n")
    with pytest.raises(LightsleepError, match="mount -t tracefs"):
        tracing.tracing_folder(tmp_path)
    old = tmp_path / "sys/kernel/debug/tracing"
    (old / "instances").mkdir(parents=True)
    (old / "events").mkdir()
    assert tracing.tracing_folder(tmp_path) == old


@pytest.mark.usefixtures("paths_that_hide_errors")
def test_tracing_that_others_may_not_look_into(tmp_path: Path) -> None:
    folder = tmp_path / "sys/kernel/tracing"
    (folder / "instances").mkdir(parents=True)
    before = os.geteuid()
    try:
        folder.chmod(0)
        if before == 0:
            os.seteuid(65534)
        with pytest.raises(LightsleepError, match=r"no permission to use .*/tracing: record"):
            tracing.tracing_folder(tmp_path)
    finally:
        os.seteuid(before)
        folder.chmod(0o700)
