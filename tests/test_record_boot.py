# SPDX-License-Identifier: GPL-2.0-only
"""Recording in a guest whose idle states are known: its rows add up, and it leaves nothing."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lightsleep.lab.guest import Guest, Machine, boot
from lightsleep.periods.lost import time_lost
from lightsleep.periods.source import open_recording
from lightsleep.record import sidecar

pytestmark = pytest.mark.boot

ENOUGH_S = 300.0
RECORD = ("python3", "-m", "lightsleep", "record")
TRACING = "/sys/kernel/tracing"
NOTHING_LEFT = f"""\
set -e
for try in $(seq 100); do
    [ -z "$(ls {TRACING}/instances)" ] && break
    sleep 0.1
done
ls {TRACING}/instances
cat {TRACING}/kprobe_events
ls -A /tmp | grep lightsleep- || true
pgrep -l trace-cmd || true
"""


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    # Tracepoints are attached to a kernel that runs; see test_synthetic.py.
    states = "cpuidle_synthetic states=C1:20:40,C6:300:900"
    with boot(Machine(modules=(states,), accel="tcg-single"), "record", ENOUGH_S) as guest:
        yield guest


def fetched(guest: Guest, name: str, folder: Path) -> Path:
    """Copy a recording out of the guest."""
    for path in (Path(name), sidecar.beside(Path(name))):
        text = guest.run(["base64", str(path)]).stdout
        (folder / path.name).write_bytes(base64.b64decode(text))
    return folder / Path(name).name


def test_rows_add_up_to_what_the_kernel_counted(guest: Guest, tmp_path: Path) -> None:
    workload = ["perf", "bench", "-f", "simple", "sched", "pipe", "-l", "500"]
    done = guest.run([*RECORD, "-o", "/tmp/pipe.dat", "--", *workload], timeout_s=ENOUGH_S)
    assert "recorded" in done.stderr
    assert guest.run(["sh", "-c", NOTHING_LEFT]).stdout == ""
    path = fetched(guest, "/tmp/pipe.dat", tmp_path)
    document: dict[str, Any] = json.loads(sidecar.beside(path).read_text())
    recording = open_recording(path)
    rows = pa.Table.from_batches(list(recording.batches)).to_pylist()
    assert recording.known.lost == {}
    assert recording.known.states == {cpu: {0: "C1", 1: "C6"} for cpu in (0, 1)}

    begin, end = document["window_ns"]
    inside = [x for x in rows if x["state"] >= 0 and begin <= x["entered_ns"] < end]
    entered = sum(x["entered"] for states in document["usage"].values() for x in states.values())
    time_us = sum(x["time_us"] for states in document["usage"].values() for x in states.values())
    assert len(inside) == pytest.approx(entered, rel=0.02, abs=4)
    assert sum(x["length_ns"] for x in inside) / 1000 == pytest.approx(time_us, rel=0.02)

    woken = Counter(x["wakee_comm"] for x in rows if x["waking_to_running_ns"] is not None)
    assert woken["sched-pipe"] + woken["perf"] > 0
    # menu asks for it unless it expects a short sleep anyway.
    if document["recorded"]["sleep_length"] == "recorded":
        assert any(x["sleep_length_ns"] is not None and x["sleep_length_ns"] > 0 for x in rows)


def test_every_period_of_a_state_is_in_the_report(guest: Guest, tmp_path: Path) -> None:
    guest.run([*RECORD, "-o", "/tmp/idle.dat", "--for", "3s"], timeout_s=ENOUGH_S)
    recording = open_recording(fetched(guest, "/tmp/idle.dat", tmp_path))
    batches = list(recording.batches)
    lost = time_lost(recording.known, batches)
    rows = [x for x in pa.Table.from_batches(batches).to_pylist() if x["state"] == 1]
    assert rows
    # A task may also be woken while its CPU is on the way out, and then waits for less.
    lengths = sorted(x["length_ns"] for x in rows)
    assert lengths[len(lengths) // 2] > 300_000
    assert lost.states["C6"].periods == len(rows)


def test_killed_it_leaves_a_whole_file_and_nothing_else(guest: Guest, tmp_path: Path) -> None:
    script = f"""\
        {" ".join(RECORD)} -o /tmp/killed.dat & record=$!
        until grep -q 1 {TRACING}/instances/*/events/power/cpu_idle/enable; do sleep 0.1; done
        sleep 1
        kill -KILL $record
        wait $record
        until [ -e /tmp/killed.dat ]; do sleep 0.1; done
    """
    guest.run(["bash", "-c", script], timeout_s=ENOUGH_S)
    assert guest.run(["sh", "-c", NOTHING_LEFT]).stdout == ""
    recording = open_recording(fetched(guest, "/tmp/killed.dat", tmp_path))
    assert sum(len(batch) for batch in recording.batches)
    assert "killed before its end" in " ".join(recording.known.notes)


def test_refusals(guest: Guest) -> None:
    for words, said in (
        (["-o", "/tmp"], "is a directory"),
        (["-c", "7", "--for", "1s"], "CPU 7 is not online"),
        (["--", "no-such-program"], "there is no such program"),
    ):
        done = guest.run([*RECORD, *words], check=False)
        assert done.rc != 0
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    assert guest.run(["sh", "-c", NOTHING_LEFT]).stdout == ""
