# SPDX-License-Identifier: GPL-2.0-only
"""Recording in a guest whose idle states are known: its rows add up, and it leaves nothing."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from booted import boot

from lightsleep.document import load
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.boot.machine import Machine
from lightsleep.periods import histogram
from lightsleep.periods.lost import TimeLost, time_lost
from lightsleep.periods.source import open_recording
from lightsleep.record import sidecar

pytestmark = pytest.mark.boot

ENOUGH_S = 300.0
LIGHTSLEEP = ("python3", "-m", "lightsleep", "record")
RECORD = (*LIGHTSLEEP, "--recorder", "trace-cmd")
HISTOGRAM = (*LIGHTSLEEP, "--histogram")
TRACING = "/sys/kernel/tracing"
PIPE = ("perf", "bench", "-f", "simple", "sched", "pipe", "-l", "300")
"""Its CPUs hardly idle where both ends share one, and that is for the scheduler to decide."""
NAPS = "for nap in $(seq 200); do busybox usleep 1000; done"
"""A CPU is idle at least so often."""
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
    assert recording.metadata.lost == {}
    assert recording.metadata.states == {cpu: {0: "C1", 1: "C6"} for cpu in (0, 1)}

    begin, end = document["window_ns"]
    inside = [x for x in rows if x["state"] >= 0 and begin <= x["entered_ns"] < end]
    entered = sum(x["entered"] for states in document["usage"].values() for x in states.values())
    time_us = sum(x["time_us"] for states in document["usage"].values() for x in states.values())
    assert len(inside) == pytest.approx(entered, rel=0.02, abs=4)
    # The kernel counts a period as it ends, and all of it.
    across = sum(
        x["length_ns"]
        for x in rows
        for border_ns in (begin, end)
        if x["entered_ns"] < border_ns <= x["entered_ns"] + x["length_ns"]
    )
    lengths_us = sum(x["length_ns"] for x in inside) / 1000
    assert abs(lengths_us - time_us) <= 0.02 * time_us + across / 1000

    woken = Counter(x["wakee_comm"] for x in rows if x["waking_to_running_ns"] is not None)
    assert woken["sched-pipe"] + woken["perf"] > 0
    # menu asks for it unless it expects a short sleep anyway.
    assert document["recorded"]["sleep_length"] == "recorded"  # this kernel allows the probe
    assert any(x["sleep_length_ns"] is not None and x["sleep_length_ns"] > 0 for x in rows)


# With BPF programs, make check has finds_injected_latency() ask the same.
@pytest.mark.more
def test_every_period_of_a_state_is_in_the_report(guest: Guest, tmp_path: Path) -> None:
    guest.run([*RECORD, "-o", "/tmp/idle.dat", "--for", "3s"], timeout_s=ENOUGH_S)
    recording = open_recording(fetched(guest, "/tmp/idle.dat", tmp_path))
    batches = list(recording.batches)
    lost = time_lost(recording.metadata, batches)
    rows = [x for x in pa.Table.from_batches(batches).to_pylist() if x["state"] == 1]
    assert rows
    # A task may also be woken while its CPU is on the way out, and then waits for less.
    lengths = sorted(x["length_ns"] for x in rows)
    assert lengths[len(lengths) // 2] > 300_000
    assert lost.states["C6"].periods == len(rows)


WAKES = 200
READER = f"""\
    taskset -c 0 python3 -u -c 'if True:
        import time
        for _ in range({WAKES}):
            time.sleep(0.02)
            print()' | taskset -c 1 cat > /dev/null
"""


def finds_injected_latency(guest: Guest, record: Sequence[str], folder: Path) -> None:
    """A CPU that is woken from C6 takes 300 us: at least 95 % of that has to be time lost.

    That is so where another CPU wakes it. Who is woken by a timer of its own CPU is waited for only
    from the timer's handler on, after C6 has been left.
    """
    guest.run([*record, "-o", "/tmp/known.dat", "--", "sh", "-c", READER], timeout_s=ENOUGH_S)
    recording = open_recording(fetched(guest, "/tmp/known.dat", folder))
    batches = list(recording.batches)
    assert recording.metadata.lost == {}
    lost = time_lost(recording.metadata, batches)
    periods = [x for x in pa.Table.from_batches(batches).to_pylist() if x["state"] == 1]
    assert lost.states["C6"].periods == len(periods)
    rows = [x for x in periods if x["waking_to_running_ns"] is not None]
    read = [x for x in rows if x["wakee_comm"] == "cat" and x["waker_comm"] == "python3"]
    assert len(read) >= 0.9 * WAKES
    injected_ns = 300_000
    assert lost.groups["task"]["cat"].total_ns >= 0.95 * len(read) * injected_ns
    assert lost.groups["state"]["C6"].count == len(rows)
    assert lost.groups["state"]["C6"].total_ns == sum(x["waking_to_running_ns"] for x in rows)
    assert lost.groups["state"]["C6"].total_ns >= 0.95 * len(read) * injected_ns


# BPF programs do so in make check.
@pytest.mark.more
def test_injected_latency_is_found_under_its_state_and_task(guest: Guest, tmp_path: Path) -> None:
    finds_injected_latency(guest, RECORD, tmp_path)


def test_the_trace_of_somebody_else_goes_on(guest: Guest, tmp_path: Path) -> None:
    theirs = f"{TRACING}/events/power/cpu_idle/enable"
    guest.run(["sh", "-c", f"echo 1 > {theirs}; echo 1 > {TRACING}/tracing_on"])
    guest.run(["sh", "-c", f"echo theirs > {TRACING}/trace_marker"])
    try:
        guest.run([*RECORD, "-o", "/tmp/beside.dat", "--", *PIPE], timeout_s=ENOUGH_S)
        assert guest.read_text(theirs).strip() == "1"
        assert guest.read_text(f"{TRACING}/tracing_on").strip() == "1"
        kept = guest.run(["sh", "-c", f"cat {TRACING}/trace | grep -c theirs; true"]).stdout
        assert int(kept) >= 1, "their buffer is as it was"
        entries = guest.run(["sh", "-c", f"cat {TRACING}/trace | grep -c cpu_idle: ; true"]).stdout
        assert int(entries) > 0
    finally:
        guest.run(["sh", "-c", f"echo 0 > {theirs}; echo > {TRACING}/trace"])
    recording = open_recording(fetched(guest, "/tmp/beside.dat", tmp_path))
    assert sum(len(batch) for batch in recording.batches) > 0
    assert guest.run(["sh", "-c", NOTHING_LEFT]).stdout == ""


BEGUN = "sh -c 'touch /tmp/begun; exec sleep 600'"
"""A command to record: once it has made its file, the recording has begun."""


KILL_KEEPER = ("pkill", "-KILL", "-f", "record/keepe[r].py")


def killed(record: Sequence[str], output: str) -> list[str]:
    """Return a command that kills a recording which has begun, and waits for its file."""
    script = f"""\
        rm -f /tmp/begun
        {" ".join(record)} -o {output} -- {BEGUN} & record=$!
        until [ -e /tmp/begun ]; do sleep 0.1; done
        sleep 1
        kill -KILL $record
        wait $record
        pkill -x sleep
        until [ -e {output} ]; do sleep 0.1; done
    """
    return ["bash", "-c", script]


# BPF programs do so in make check.
@pytest.mark.more
def test_killed_it_leaves_a_whole_file_and_nothing_else(guest: Guest, tmp_path: Path) -> None:
    guest.run(killed(RECORD, "/tmp/killed.dat"), timeout_s=ENOUGH_S)
    assert guest.run(["sh", "-c", NOTHING_LEFT]).stdout == ""
    recording = open_recording(fetched(guest, "/tmp/killed.dat", tmp_path))
    assert sum(len(batch) for batch in recording.batches)
    assert "killed before its end" in " ".join(recording.metadata.notes)


def test_what_a_trace_cmd_that_died_had_recorded_can_be_read(guest: Guest, tmp_path: Path) -> None:
    script = f"""\
        {" ".join(RECORD)} -o /tmp/died.dat --for 10m 2> /tmp/said & record=$!
        until grep -q 1 {TRACING}/instances/*/events/power/cpu_idle/enable; do sleep 0.1; done
        perf bench -f simple sched pipe -l 20000
        pkill -KILL -o -x trace-cmd
        wait $record
        echo $?
    """
    assert guest.run(["bash", "-c", script], timeout_s=ENOUGH_S).stdout.split()[-1] == "1"
    said = guest.read_text("/tmp/said")
    assert "trace-cmd was ended by signal 9" in said
    restore = "(cd " + " ".join(said.split()).partition(": (cd ")[2]
    guest.run(["sh", "-ec", restore], timeout_s=ENOUGH_S)
    guest.run(["sh", "-c", "rm -r /tmp/.lightsleep-*"])
    assert guest.run(["sh", "-c", NOTHING_LEFT]).stdout == ""
    recording = open_recording(fetched(guest, "/tmp/died.dat", tmp_path))
    assert sum(len(batch) for batch in recording.batches) > 1000
    assert recording.metadata.states == {cpu: {0: "C1", 1: "C6"} for cpu in (0, 1)}


def test_trace_cmd_records_where_the_kernel_does_not_tell_its_types(
    guest: Guest, tmp_path: Path
) -> None:
    types = "/sys/kernel/btf/vmlinux"
    guest.run(["busybox", "mount", "--bind", "/dev/null", types])
    try:
        words = ["-o", "/tmp/untyped.dat", "--", "sleep", "0.5"]
        done = guest.run([*LIGHTSLEEP, *words], timeout_s=ENOUGH_S)
    finally:
        guest.run(["busybox", "umount", types])
    why = "the kernel's BTF is damaged"
    assert f"note: trace-cmd records, and not BPF programs: {why}" in done.stderr
    path = fetched(guest, "/tmp/untyped.dat", tmp_path)
    document = json.loads(sidecar.beside(path).read_text())
    assert document["settings"]["recorder"] == "trace-cmd"
    said = f"recorded by trace-cmd, and not by BPF programs: {why}"
    assert document["recorded"]["notes"][0].startswith(said)
    assert sum(len(batch) for batch in open_recording(path).batches)
    assert guest.run(["sh", "-c", NOTHING_LEFT]).stdout == ""


COUNTING = "ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c bpf_link"
COUNTS = ("sh", "-c", f"for try in $(seq 100); do {COUNTING} || break; sleep 0.1; done | tail -n 1")
"""Prints 0 once no program counts."""


def counted(guest: Guest, name: str, folder: Path) -> TimeLost:
    """Copy a histogram out of the guest, and read it."""
    path = folder / Path(name).name
    path.write_bytes(base64.b64decode(guest.run(["base64", name]).stdout))
    lost = load(path, histogram.FORMAT)
    assert not any("left" in note for note in lost.metadata.notes)
    return lost


def test_a_histogram_adds_up_to_what_the_kernel_counted(guest: Guest, tmp_path: Path) -> None:
    usage = "grep -H . /sys/devices/system/cpu/cpu*/cpuidle/state*/usage"
    counted_load = f"{usage} > /tmp/begin; {' '.join(PIPE)}; {NAPS}; {usage} > /tmp/end"
    script = f"""\
        {usage} > /tmp/before
        {" ".join(HISTOGRAM)} -o /tmp/counts.json -- sh -c '{counted_load}'
        {usage} > /tmp/after
    """
    done = guest.run(["sh", "-c", script], timeout_s=ENOUGH_S)
    assert "recorded" in done.stderr
    assert guest.run(["sh", "-c", NOTHING_LEFT]).stdout == ""
    assert guest.run(COUNTS).stdout == "0\n"
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
    assert sum(x.total_ns for x in lost.states.values()) < 2 * 1.05 * lost.metadata.span_ns
    # The kernel leaves C6 300 us after the wakeup, at the earliest.
    assert lost.groups["state"].keys() <= {"C1", "C6"}
    assert lost.all.count > 100
    for name, latency_ns in (("C1", 20_000), ("C6", 300_000)):
        wakes = lost.groups["state"][name]
        assert wakes.within_ns(0.5) > latency_ns, name
        assert wakes.total_ns > wakes.count * latency_ns, name


def test_a_killed_histogram_leaves_a_whole_file_and_nothing_else(
    guest: Guest, tmp_path: Path
) -> None:
    guest.run(killed([*HISTOGRAM, "-c", "1"], "/tmp/killed.json"), timeout_s=ENOUGH_S)
    assert guest.run(["sh", "-c", NOTHING_LEFT]).stdout == ""
    assert guest.run(COUNTS).stdout == "0\n"
    lost = counted(guest, "/tmp/killed.json", tmp_path)
    assert lost.metadata.events > 0
    assert lost.groups["cpu"].keys() <= {"1"}


def test_a_histogram_ends_with_its_keeper(guest: Guest) -> None:
    command = [*HISTOGRAM, "-o", "/tmp/lost.json", "--", *KILL_KEEPER]
    done = guest.run(command, check=False, timeout_s=ENOUGH_S)
    assert done.rc == 1
    assert "was killed" in " ".join(done.stderr.split())
    assert guest.run(COUNTS).stdout == "0\n"


GOES = "/sys/devices/system/cpu/cpu1/online"
AND_COMES_BACK = f"""\
    sleep 0.5
    echo 0 > {GOES}; cut -d ' ' -f 1 /proc/uptime
    sleep 0.5
    cut -d ' ' -f 1 /proc/uptime; echo 1 > {GOES}
    sleep 0.5
"""


# BPF programs do so in make check.
@pytest.mark.more
def test_a_cpu_may_go_and_come_back(guest: Guest, tmp_path: Path) -> None:
    workload = ["sh", "-c", AND_COMES_BACK]
    done = guest.run([*RECORD, "-o", "/tmp/gone.dat", "--", *workload], timeout_s=ENOUGH_S)
    # Nothing suspends the guest: its uptime is the trace's clock.
    gone_ns, back_ns = (float(x) * 1e9 for x in done.stdout.split())
    guest.run([*HISTOGRAM, "-o", "/tmp/gone.json", "--", *workload], timeout_s=ENOUGH_S)
    assert guest.run(["sh", "-c", NOTHING_LEFT]).stdout == ""
    recording = open_recording(fetched(guest, "/tmp/gone.dat", tmp_path))
    rows = pa.Table.from_batches(list(recording.batches)).to_pylist()
    entered = [x["entered_ns"] for x in rows if x["cpu"] == 1 and x["state"] >= 0]
    assert min(entered) < gone_ns
    assert max(entered) > back_ns
    assert not any(gone_ns < x < back_ns for x in entered)
    assert counted(guest, "/tmp/gone.json", tmp_path).metadata.events > 0


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
