# SPDX-License-Identifier: GPL-2.0-only
"""A recording that keeps no events: what the kernel is told, and what its counts are read as."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lightsleep.document import load
from lightsleep.errors import LightsleepError
from lightsleep.periods import histogram as counts
from lightsleep.periods.lost import TimeLost
from lightsleep.record import histogram, keeper, run
from lightsleep.replay.cli import replay_command
from lightsleep.report.cli import report

IDLE = """\
# event histogram
#
# trigger info: hist:keys=cpu,state,ns.buckets=1000:vals=hitcount,ns:sort=hitcount [active]
#

{ cpu:          0, state:          0, ns: ~ 63000-63999 } hitcount:         10  ns:     634000
{ cpu:          1, state:          1, ns: ~ 2^21 } hitcount:          3  ns:    4500000

Totals:
    Hits: 13
    Entries: 2
    Dropped: 0
"""
WAKE = """\
# event histogram
{ cpu:          0, state:          0, ns: ~ 5000-5999 } hitcount:         40  ns:     220000
{ cpu:          1, state:          1, ns: ~ 64000-79999 } hitcount:         99  ns:    6633000
{ cpu:          1, state:          1, ns: ~ 2^21 } hitcount:          1  ns:    1500000

Totals:
    Hits: 140
    Entries: 3
    Dropped: 2
"""


def document(**more: object) -> dict[str, Any]:
    states = [
        {"index": 0, "name": "POLL", "latency_us": 0, "residency_us": 0, "polls": True},
        {"index": 1, "name": "C6", "latency_us": 60, "residency_us": 200, "polls": False},
    ]
    return {
        "schema": "lightsleep.histogram",
        "version": 1,
        "created": "2026-11-23T00:00:00+00:00",
        "host": "somebody",
        "environment": {},
        "settings": {},
        "states": {"0": states, "1": states},
        "elapsed_s": 2.0,
        "histograms": {"idle": IDLE, "wake": WAKE},
        **more,
    }


def read(folder: Path, **more: object) -> TimeLost:
    path = folder / "counts.json"
    path.write_text(json.dumps(document(**more)))
    return load(path, counts.FORMAT)


def test_sums_are_exact_and_polling_is_the_reference(tmp_path: Path) -> None:
    lost = read(tmp_path)
    assert {name: (x.periods, x.total_ns) for name, x in lost.states.items()} == {
        "POLL": (10, 634_000),
        "C6": (3, 4_500_000),
    }
    assert (lost.reference.count, lost.reference.total_ns) == (40, 220_000)
    assert (lost.all.count, lost.all.total_ns) == (100, 8_133_000)
    assert lost.groups["state"].keys() == {"C6"}
    assert lost.groups["cpu"].keys() == {"1"}
    assert lost.all.percentile_ns(0.5) == pytest.approx(67_000, rel=0.03)
    # 100 wakeups of 67 us, where a CPU that polls takes 5.5 us.
    assert lost.above_reference_ns(lost.all) == pytest.approx(6_150_000, rel=0.05)
    assert lost.share(lost.all) == pytest.approx(0.0040665)
    assert any("no room for 2" in note for note in lost.known.notes)


def test_the_report_of_a_histogram(tmp_path: Path) -> None:
    read(tmp_path)
    path, page = tmp_path / "counts.json", tmp_path / "report.html"
    done = CliRunner().invoke(report, [str(path), "-o", str(page)])
    assert done.exit_code == 0, done.output
    assert "100 wakeups found their CPU in an idle state" in " ".join(done.output.split())
    assert "C6" in done.output
    html = page.read_text()
    assert "By idle state<" in html
    assert "By woken task" not in html
    done = CliRunner().invoke(report, [str(path), "--json"])
    (found,) = json.loads(done.stdout)["results"]
    assert found["by_state"][0]["total_ns"] == 8_133_000
    done = CliRunner().invoke(report, [str(path), "--parquet", str(tmp_path / "x")])
    assert done.exit_code == 2
    done = CliRunner().invoke(replay_command, [str(path)])
    assert done.exit_code == 1
    assert "no recording" in done.output


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{ cpu: 0, state: 0, ns: ~ 5000-5999 } hitcount: 40  ns: 22", "counts do not fit"),
        ("{ cpu: 0, state: 0, ns: ~ 5000-5999 } hitcount: 0  ns: 0", "counts do not fit"),
        ("{ cpu: 0, state: 0, ns: ~ 5000-59", "no bucket"),
        ("rubbish", "no bucket: 'rubbish'"),
    ],
)
def test_damaged_counts(line: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(LightsleepError, match=r"counts\.json: histograms\.wake: line 2") as caught:
        read(tmp_path, histograms={"idle": IDLE, "wake": f"# event histogram\n{line}\n"})
    assert said in caught.value.message


def test_a_damaged_file_is_an_error_or_a_result(tmp_path: Path) -> None:
    chance, path = random.Random(3), tmp_path / "counts.json"
    whole = json.dumps(document()).encode()
    errors = list[str]()
    for _ in range(300):
        copy = bytearray(whole)
        copy[chance.randrange(len(copy))] ^= 1 << chance.randrange(8)
        path.write_bytes(copy[: chance.choice((len(copy), chance.randrange(len(copy))))])
        try:
            load(path, counts.FORMAT)
        except LightsleepError as error:
            errors.append(error.message)
    assert len(errors) > 100
    assert all("counts.json" in error for error in errors)


def test_a_kernel_that_cannot_count(tmp_path: Path) -> None:
    with pytest.raises(LightsleepError, match="no tracepoint power:cpu_idle"):
        histogram.available(tmp_path)
    for name in histogram.NEEDED:
        (tmp_path / "events" / name).mkdir(parents=True)
    with pytest.raises(LightsleepError, match="CONFIG_HIST_TRIGGERS"):
        histogram.available(tmp_path)
    (tmp_path / "events/power/cpu_idle/hist").touch()
    with pytest.raises(LightsleepError, match="CONFIG_SYNTH_EVENTS"):
        histogram.available(tmp_path)
    (tmp_path / "synthetic_events").touch()
    histogram.available(tmp_path)


def test_only_these_cpus_and_room_for_all_of_them() -> None:
    order = histogram.order([1, 2], states=12, tasks=5000)
    filters = [line.partition(" if ")[2] for file, line in order["triggers"] if "power" in file]
    assert all(x.endswith("&&((cpu_id>=1&&cpu_id<=2))") for x in filters)
    (switch,) = (line for file, line in order["triggers"] if "sched_switch" in file)
    assert switch.endswith("if (prev_pid==0)&&((CPU>=1&&CPU<=2))")
    (waking,) = (line for file, line in order["triggers"] if "sched_waking" in file)
    assert waking.endswith("size=32768")
    assert ":size=32768:" in switch
    assert order["forget"]["forks"] == 8192
    # More than the kernel takes is not asked for.
    assert "size=131072" in histogram.order(None, states=10**6, tasks=10**6)["triggers"][-1][1]


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder that looks like tracefs; an instance has its files at once."""
    folder = tmp_path / "tracing"
    folder.mkdir()
    (folder / "synthetic_events").touch()
    (folder / "instances").symlink_to(tmp_path / "made")
    return folder


def made(tmp_path: Path, pid: int, order: dict[str, Any]) -> Path:
    """Make the files of the instance of a keeper beforehand."""
    group = keeper.group_of(pid)
    instance = tmp_path / "made" / group
    for file, _ in order["triggers"]:
        folder = instance / "events" / file.replace("{group}", group)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "trigger").touch()
        (folder / "hist").write_text(IDLE)
    (instance / "tracing_on").touch()
    return instance


def test_the_keeper_forgets_pids_before_there_is_no_room(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = histogram.order(None, 4, 100)
    instance = made(tmp_path, os.getpid(), order)
    forks = iter([100, 200, 200 + order["forget"]["forks"]])
    looks = iter([True, True, False])
    group = keeper.group_of(os.getpid())
    for file in order["forget"]["full"]:
        (instance / "events" / file).write_text("Totals:\n    Hits: 9\n    Dropped: 4\n")
    monkeypatch.setattr(keeper, "_forks", lambda: next(forks))
    ends, other = os.pipe()
    os.close(other)

    def ready(*_: object) -> tuple[list[int], ...]:
        return ([], [], []) if next(looks) else ([ends], [], [])

    monkeypatch.setattr("lightsleep.record.keeper.select.select", ready)
    monkeypatch.setattr("lightsleep.record.keeper.sys.stdin", os.fdopen(ends))
    (instance / "tracing_on").write_text("1\n")
    _, dropped, note = keeper._wait(instance, order["forget"], group)
    assert (dropped, note) == (8, None)
    # That a kernel takes these lines, a boot test shows.
    for name in ("sched_waking", "sched_switch"):
        gone, made_again = (instance / f"events/sched/{name}/trigger").read_text().splitlines()
        assert gone == f"!{made_again}"


def test_what_the_kernel_refuses_is_said(machine: Path, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    output = tmp_path / "counts.json"  # mkdir makes an instance here, but no kernel fills it
    with (
        pytest.raises(LightsleepError, match="the kernel refuses a histogram: No such file"),
        run.counting(machine, histogram.order(None, 4, 100), document(), output),
    ):
        pass
    assert not output.exists()


def test_a_disk_that_is_full_is_said(tmp_path: Path) -> None:
    said = keeper._write(Path("/dev/full/x"), tmp_path / "counts.json", {})
    assert said == f"cannot write {tmp_path / 'counts.json'}: Not a directory"
    assert list(tmp_path.iterdir()) == []
