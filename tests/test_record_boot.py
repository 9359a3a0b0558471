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

from lightsleep.document import load
from lightsleep.lab.guest import Guest, boot
from lightsleep.lab.machine import Machine
from lightsleep.periods import histogram
from lightsleep.periods.lost import TimeLost, time_lost
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


LAST = "events/synthetic/*_wake"
COUNTS = ("sh", "-c", f"ls {TRACING}/instances; cat {TRACING}/synthetic_events")


def counted(guest: Guest, name: str, folder: Path) -> TimeLost:
    """Copy a histogram out of the guest, and read it."""
    path = folder / Path(name).name
    path.write_bytes(base64.b64decode(guest.run(["base64", name]).stdout))
    lost = load(path, histogram.FORMAT)
    assert not any("no room" in note for note in lost.known.notes)
    return lost


def test_a_histogram_adds_up_to_what_the_kernel_counted(guest: Guest, tmp_path: Path) -> None:
    usage = "grep -H . /sys/devices/system/cpu/cpu*/cpuidle/state*/usage"
    script = f"""\
        {usage} > /tmp/before
        {" ".join(RECORD)} --histogram -o /tmp/counts.json -- \
            sh -c '{usage} > /tmp/begin; perf bench -f simple sched pipe -l 500; {usage} > /tmp/end'
        {usage} > /tmp/after
    """
    done = guest.run(["sh", "-c", script], timeout_s=ENOUGH_S)
    assert "recorded" in done.stderr
    assert guest.run(["sh", "-c", NOTHING_LEFT]).stdout == ""
    assert guest.run(COUNTS).stdout == ""
    lost = counted(guest, "/tmp/counts.json", tmp_path)

    def entered(name: str) -> int:
        return sum(int(x.rpartition(":")[2]) for x in guest.read_text(name).split())

    # Counting begins before the command does, and ends after it.
    periods = sum(state.periods for state in lost.states.values())
    least, most = (
        entered(b) - entered(a)
        for a, b in (("/tmp/begin", "/tmp/end"), ("/tmp/before", "/tmp/after"))
    )
    assert 100 < least <= periods <= most
    assert lost.states.keys() == {"C1", "C6"}
    assert sum(x.total_ns for x in lost.states.values()) < 2 * 1.05 * lost.known.span_ns
    # The kernel leaves C6 300 us after the wakeup, at the earliest.
    assert lost.groups["state"].keys() <= {"C1", "C6"}
    # Where both ends of the pipe share a CPU for a while, fewer wakeups find one idle.
    assert lost.all.count > 100
    for name, latency_ns in (("C1", 20_000), ("C6", 300_000)):
        wakes = lost.groups["state"][name]
        assert wakes.percentile_ns(0.5) > latency_ns, name
        assert wakes.total_ns > wakes.count * latency_ns, name


def test_a_killed_histogram_leaves_a_whole_file_and_nothing_else(
    guest: Guest, tmp_path: Path
) -> None:
    script = f"""\
        {" ".join(RECORD)} --histogram -c 1 -o /tmp/killed.json & record=$!
        until grep -qs hist: {TRACING}/instances/*/{LAST}/trigger; do sleep 0.1; done
        sleep 1
        kill -KILL $record
        wait $record
        until [ -e /tmp/killed.json ]; do sleep 0.1; done
    """
    guest.run(["bash", "-c", script], timeout_s=ENOUGH_S)
    assert guest.run(["sh", "-c", NOTHING_LEFT]).stdout == ""
    assert guest.run(COUNTS).stdout == ""
    lost = counted(guest, "/tmp/killed.json", tmp_path)
    assert lost.known.events > 0
    assert lost.groups["cpu"].keys() <= {"1"}


FORKS = """\
import json, os, subprocess, sys
from pathlib import Path
from lightsleep.record import histogram, run, sidecar
folder = Path("/sys/kernel/tracing")
order = histogram.order(None, 4, 100)
order["forget"] |= {"forks": 50, "look_s": 0.5}
document = sidecar.begin_histogram(Path("/"), {})
with run.counting(folder, order, document, Path("/tmp/forks.json")) as running:
    (instance,) = (folder / "instances").iterdir()
    # So many tasks in a row that what remembers pids is made anew several times meanwhile.
    subprocess.run(["sh", "-c", "for i in $(seq 1500); do /bin/true; done"], check=True)
    pids = (instance / "events/sched/sched_waking/hist").read_text().count("hitcount:")
    log = (instance / "error_log").read_text()
print(json.dumps([running.notes, pids, log]))
"""


def test_a_histogram_goes_on_where_tasks_come_and_go(guest: Guest, tmp_path: Path) -> None:
    done = guest.run(["python3", "-c", FORKS], timeout_s=ENOUGH_S)
    notes, pids, log = json.loads(done.stdout)
    assert notes == []
    assert log == ""
    assert pids < 1500  # the kernel does not remember all of them
    lost = counted(guest, "/tmp/forks.json", tmp_path)
    assert lost.all.count > 50
    assert guest.run(COUNTS).stdout == ""


def test_what_a_killed_keeper_of_a_histogram_leaves_goes_with_the_next_one(guest: Guest) -> None:
    script = f"""\
        {" ".join(RECORD)} --histogram -o /tmp/lost.json & record=$!
        until grep -qs hist: {TRACING}/instances/*/{LAST}/trigger; do sleep 0.1; done
        pkill -KILL -f record/keepe[r].py
        wait $record; echo status $?
        grep -c hist: {TRACING}/instances/*/events/power/cpu_idle/trigger
        {" ".join(RECORD)} --histogram -o /tmp/next.json --for 1s
    """
    done = guest.run(["bash", "-c", script], timeout_s=ENOUGH_S)
    assert done.stdout.split() == ["status", "1", "2"]
    assert "was killed" in " ".join(done.stderr.split())
    assert guest.run(COUNTS).stdout == ""


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
