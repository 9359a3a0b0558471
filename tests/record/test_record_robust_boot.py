# SPDX-License-Identifier: GPL-2.0-only
"""Recording by trace-cmd where something is in the way: a small ring, a full disk, no TSC."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from booted import boot
from test_record_boot import ENOUGH_S, NOTHING_LEFT, PIPE, RECORD, fetched

from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.boot.machine import Machine
from lightsleep.periods.source import open_recording
from lightsleep.record import sidecar

# In make check, BPF programs record where a ring is small and a disk full. Which clock the kernel
# reads is its own affair: of our files, only the document differs, which names it.
pytestmark = [pytest.mark.boot, pytest.mark.more]

WITHOUT_TSC = "clocksource=acpi_pm tsc=unstable"


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    states = "cpuidle_synthetic states=C1:20:40,C6:300:900"
    machine = Machine(modules=(states,), accel="tcg-single", append=WITHOUT_TSC)
    with boot(machine, "robust", ENOUGH_S) as guest:
        yield guest


def test_a_guest_without_tsc(guest: Guest, tmp_path: Path) -> None:
    source = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
    assert guest.read_text(source).strip() == "acpi_pm"
    guest.run([*RECORD, "-o", "/tmp/slow.dat", "--", *PIPE], timeout_s=ENOUGH_S)
    path = fetched(guest, "/tmp/slow.dat", tmp_path)
    assert sum(len(batch) for batch in open_recording(path).batches) > 0
    assert json.loads(sidecar.beside(path).read_text())["environment"]["clocksource"] == "acpi_pm"


def test_what_a_small_ring_loses_is_counted(guest: Guest, tmp_path: Path) -> None:
    # trace-cmd is stopped meanwhile: what it does not read is overwritten.
    stop = "pkill -STOP trace-cmd; {} -l 2000; pkill -CONT trace-cmd".format(" ".join(PIPE))
    options = ("--buffer-kb", "64", "-o", "/tmp/small.dat")
    done = guest.run([*RECORD, *options, "--", "sh", "-c", stop], timeout_s=ENOUGH_S)
    assert "lost" in done.stderr
    path = fetched(guest, "/tmp/small.dat", tmp_path)
    recorded = json.loads(sidecar.beside(path).read_text())["recorded"]
    assert sum(recorded["lost_events"].values()) > 100
    recording = open_recording(path)
    assert sum(len(batch) for batch in recording.batches) > 0
    assert sum(recording.metadata.lost.values()) > 0


def test_a_full_disk_leaves_what_was_recorded(guest: Guest, tmp_path: Path) -> None:
    guest.run(["mkdir", "-p", "/run/small"])
    guest.run(["busybox", "mount", "-t", "tmpfs", "-o", "size=8m", "none", "/run/small"])
    try:
        options = ("-o", "/run/small/full.dat")
        done = guest.run([*RECORD, *options, "--for", "20s"], check=False, timeout_s=ENOUGH_S)
        assert done.rc == 1
        assert done.stderr.count("nearly full") == 1
        assert "Traceback" not in done.stderr
        path = fetched(guest, "/run/small/full.dat", tmp_path)
        recorded = json.loads(sidecar.beside(path).read_text())["recorded"]
        assert 0 < recorded["elapsed_s"] < 20
        assert "nearly full" in recorded["notes"][-1]
        recording = open_recording(path)
        list(recording.batches)
        assert recording.metadata.events > 0
        assert recorded["notes"][-1] in recording.metadata.notes
    finally:
        guest.run(["busybox", "umount", "-l", "/run/small"])
    assert guest.run(["sh", "-c", NOTHING_LEFT]).stdout == ""
