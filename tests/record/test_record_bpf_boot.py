# SPDX-License-Identifier: GPL-2.0-only
"""Recording by BPF programs in a guest: what they write is what trace-cmd writes."""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from booted import boot
from recordings import rows_of
from test_record_boot import (
    AND_COMES_BACK,
    COUNTS,
    ENOUGH_S,
    KILL_KEEPER,
    LIGHTSLEEP,
    NAPS,
    NOTHING_LEFT,
    PIPE,
    fetched,
    finds_injected_latency,
    killed,
)
from test_record_boot import RECORD as BY_TRACE_CMD

from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.boot.machine import Machine
from lightsleep.periods.source import open_recording
from lightsleep.record import sidecar

pytestmark = pytest.mark.boot

RECORD = LIGHTSLEEP
"""By BPF programs, where nobody says who records."""

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    # Tracepoints are attached to a kernel that runs; see test_synthetic.py.
    states = "cpuidle_synthetic states=C1:20:40,C6:300:900"
    with boot(Machine(modules=(states,), accel="tcg-single"), "bpf", ENOUGH_S) as guest:
        yield guest


@pytest.fixture(autouse=True)
def nothing_left(guest: Guest) -> Iterator[None]:
    yield
    assert guest.run(["sh", "-c", NOTHING_LEFT]).stdout == ""
    assert guest.run(COUNTS).stdout == "0\n"


def what(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what is the same whoever recorded a row. The waker's table may have lost its name."""
    same = ("cpu", "state", "ended_by", "waker_pid", "wakee_comm", "wakee_pid", "miss")
    return tuple(row[key] for key in same)


def paired(rows: Rows, others: Rows) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each row with the one of the same CPU that began nearest to it."""
    for cpu in {x["cpu"] for x in rows}:
        of_cpu = sorted((x for x in others if x["cpu"] == cpu), key=itemgetter("entered_ns"))
        for row in (x for x in rows if x["cpu"] == cpu):
            place = bisect(of_cpu, row["entered_ns"], key=itemgetter("entered_ns"))
            nearest = of_cpu[max(0, place - 1) : place + 1]
            yield row, min(nearest, key=lambda x: abs(x["entered_ns"] - row["entered_ns"]))


def test_both_recorders_see_the_same(guest: Guest, tmp_path: Path) -> None:
    load = ["sh", "-c", f"{' '.join(PIPE)}; {NAPS}"]
    inner = [*BY_TRACE_CMD, "-o", "/tmp/theirs.dat", "--", *load]
    guest.run([*RECORD, "-o", "/tmp/ours.dat", "--", *inner], timeout_s=2 * ENOUGH_S)
    ours, known = rows_of(fetched(guest, "/tmp/ours.dat", tmp_path))
    theirs, other = rows_of(fetched(guest, "/tmp/theirs.dat", tmp_path))
    assert known.lost == other.lost == {}
    begin, end = theirs[0]["entered_ns"], theirs[-1]["entered_ns"]
    # Each event is a little later for one of them.
    margin_ns = 1_000_000
    inside = range(begin + margin_ns, end - margin_ns)
    both = [[x for x in rows if x["entered_ns"] in inside] for rows in (ours, theirs)]
    # Nor do they order two events alike where one happens between the times that they note.
    few = 0.05 * len(both[0])
    assert few > 5
    for rows, others in ((both[0], theirs), (both[1], ours)):
        differing = [(x, y) for x, y in paired(rows, others) if what(x) != what(y)]
        assert len(differing) <= few, differing
    for key in ("length_ns", "waking_to_running_ns"):
        # The host may stop the guest between the times that they note.
        pairs = [(x[key] or 0, y[key] or 0) for x, y in paired(both[0], theirs)]
        far = [(x, y) for x, y in pairs if abs(x - y) > 50_000 + 0.1 * y]
        assert len(far) <= few, (key, far)
    known_by = ("cpu", "sleep_length_ns", "next_event_ns")
    lengths = [{tuple(x[key] for key in known_by) for x in rows} for rows in both]
    assert len(lengths[1] - lengths[0]) <= 0.01 * len(lengths[1])
    document = json.loads(sidecar.beside(tmp_path / "ours.dat").read_text())
    assert document["recorded"]["sleep_length"] == "recorded"
    assert document["settings"]["recorder"] == "bpf"


def test_only_some_cpus(guest: Guest, tmp_path: Path) -> None:
    guest.run([*RECORD, "-c", "1", "-o", "/tmp/one.dat", "--", *PIPE], timeout_s=ENOUGH_S)
    rows, metadata = rows_of(fetched(guest, "/tmp/one.dat", tmp_path))
    assert {x["cpu"] for x in rows} == {1}
    assert any(x["waker_pid"] for x in rows), "a waker may be anywhere"
    assert not metadata.lost


def test_killed_it_leaves_a_whole_file_and_nothing_else(guest: Guest, tmp_path: Path) -> None:
    guest.run(killed(RECORD, "/tmp/killed.dat"), timeout_s=ENOUGH_S)
    recording = open_recording(fetched(guest, "/tmp/killed.dat", tmp_path))
    assert sum(len(batch) for batch in recording.batches)
    assert "killed before its end" in " ".join(recording.metadata.notes)


def test_without_its_keeper_it_writes_what_was_copied(guest: Guest, tmp_path: Path) -> None:
    words = ["sh", "-c", f"{' '.join(PIPE)}; {' '.join(KILL_KEEPER)}"]
    command = [*RECORD, "--buffer-kb", "64", "-o", "/tmp/orphan.dat", "--", *words]
    done = guest.run(command, check=False, timeout_s=ENOUGH_S)
    assert done.rc == 1
    assert "was killed: the recording ended early" in " ".join(done.stderr.split())
    rows, metadata = rows_of(fetched(guest, "/tmp/orphan.dat", tmp_path))
    assert rows  # how many were copied by then is a matter of time
    assert "was killed" in " ".join(metadata.notes)


def test_what_a_small_ring_loses_is_counted(guest: Guest, tmp_path: Path) -> None:
    stop = "pkill -STOP -f record/keepe[r].py; {} -l 2000; pkill -CONT -f record/keepe[r].py"
    options = ("--buffer-kb", "64", "-o", "/tmp/small.dat", "--json")
    words = ["sh", "-c", stop.format(" ".join(PIPE))]
    done = guest.run([*RECORD, *options, "--", *words], timeout_s=ENOUGH_S)
    lost = json.loads(done.stdout)["lost_events"]
    assert sum(lost.values()) > 100
    _, metadata = rows_of(fetched(guest, "/tmp/small.dat", tmp_path))
    # Where none follows, no event tells of those that are missing.
    assert 100 < sum(metadata.lost.values()) <= sum(lost.values())


def test_a_full_disk_leaves_what_was_recorded(guest: Guest, tmp_path: Path) -> None:
    guest.run(["mkdir", "-p", "/run/small"])
    guest.run(["busybox", "mount", "-t", "tmpfs", "-o", "size=18m", "none", "/run/small"])
    try:
        options = ("--buffer-kb", "64", "-o", "/run/small/full.dat", "--json")
        words = ["sh", "-c", "{} -l 1000; sleep 2".format(" ".join(PIPE))]
        done = guest.run([*RECORD, *options, "--", *words], check=False, timeout_s=ENOUGH_S)
        assert done.rc == 1
        assert "nearly full" in done.stderr
        assert "Traceback" not in done.stderr
        path = fetched(guest, "/run/small/full.dat", tmp_path)
        recorded = json.loads(sidecar.beside(path).read_text())["recorded"]
        _, metadata = rows_of(path)
        assert metadata.events > 0
        assert recorded["notes"][-1] in metadata.notes
    finally:
        guest.run(["busybox", "umount", "-l", "/run/small"])


def test_a_cpu_may_go_and_come_back(guest: Guest, tmp_path: Path) -> None:
    workload = ["sh", "-c", AND_COMES_BACK]
    done = guest.run([*RECORD, "-o", "/tmp/gone.dat", "--", *workload], timeout_s=ENOUGH_S)
    gone_ns, back_ns = (float(x) * 1e9 for x in done.stdout.split())
    rows, metadata = rows_of(fetched(guest, "/tmp/gone.dat", tmp_path))
    entered = [x["entered_ns"] for x in rows if x["cpu"] == 1 and x["state"] >= 0]
    assert min(entered) < gone_ns
    assert max(entered) > back_ns
    assert not any(gone_ns < x < back_ns for x in entered)
    assert metadata.lost == {}


def test_the_report_of_a_known_latency(guest: Guest, tmp_path: Path) -> None:
    finds_injected_latency(guest, RECORD, tmp_path)
