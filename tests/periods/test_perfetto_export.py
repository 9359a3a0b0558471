# SPDX-License-Identifier: GPL-2.0-only
"""The Perfetto trace of a recording adds up to the figures of its report."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from recordings import PIPE
from traces import SWITCH, event, idle, left, switched, waking

from lightsleep.report.cli import report


def slices(path: Path) -> list[tuple[str, str, str, int]]:
    """Return each slice of a trace: its track, category, name and duration."""
    pb: Any = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    trace = pb.Trace()
    trace.ParseFromString(path.read_bytes())
    tracks = {
        x.track_descriptor.uuid: x.track_descriptor.name
        for x in trace.packet
        if x.HasField("track_descriptor")
    }
    found, begun = [], dict[int, Any]()
    for packet in trace.packet:
        event = packet.track_event
        if event.type == pb.TrackEvent.TYPE_SLICE_BEGIN:
            assert event.track_uuid not in begun, "slices of a track overlap"
            begun[event.track_uuid] = packet
        elif event.type == pb.TrackEvent.TYPE_SLICE_END:
            first = begun.pop(event.track_uuid)
            said = first.track_event
            found.append(
                (
                    tracks[event.track_uuid],
                    said.categories[0],
                    said.name,
                    packet.timestamp - first.timestamp,
                )
            )
    assert not begun
    return found


def test_totals_are_those_of_the_report(tmp_path: Path) -> None:
    pytest.importorskip("perfetto")
    trace = tmp_path / "pipe.pftrace"
    done = CliRunner().invoke(report, [str(PIPE), "--json", "--perfetto", str(trace)])
    assert done.exit_code == 0, done.output
    (figures,) = json.loads(done.stdout)["results"]
    found = slices(trace)
    idle_ns, periods, tasks_ns, kinds = (Counter[str]() for _ in range(4))
    for track, kind, name, length_ns in found:
        assert track.startswith("CPU ")
        kinds[kind] += length_ns
        if kind == "idle":
            idle_ns[name] += length_ns
            periods[name] += 1
        elif kind == "wakeup":
            tasks_ns[name] += length_ns
    assert idle_ns == {name: x["total_ns"] for name, x in figures["idle"].items()}
    assert periods == {name: x["periods"] for name, x in figures["idle"].items()}
    assert kinds["wakeup"] == figures["all"]["total_ns"] > 0
    assert kinds["reference"] == figures["reference"]["total_ns"]
    assert tasks_ns == {x["task"]: x["total_ns"] for x in figures["by_task"]}


def test_what_a_cpu_that_is_awake_wakes_itself_is_in_no_total(tmp_path: Path) -> None:
    pytest.importorskip("perfetto")
    source, target = tmp_path / "trace.txt", tmp_path / "trace.pftrace"
    lines = [idle(0, 1, 1), left(50, 1), switched(60, 1, "y", 3)]
    for us, cpu, task in ((100, 0, "waker-7"), (200, 1, "<idle>-0")):
        lines.append(event(us, 1, SWITCH.format("y", 3, "swapper/1", 0), "y-3"))
        lines += [waking(us + 5, cpu, 42, task), switched(us + 9 + cpu, 1, "x", 42)]
    source.write_text("# tracer: nop\n#\n" + "".join(lines))
    done = CliRunner().invoke(report, [str(source), "--json", "--perfetto", str(target)])
    assert done.exit_code == 0, done.output
    (figures,) = json.loads(done.stdout)["results"]
    found = [(kind, length_ns) for _, kind, _, length_ns in slices(target) if kind != "idle"]
    assert found == [("reference", 4000), ("interrupt", 5000)]
    assert figures["reference"]["total_ns"] == 4000


def test_a_machine_that_never_idles_has_its_tracks(tmp_path: Path) -> None:
    pb: Any = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    busy, target = tmp_path / "busy.txt", tmp_path / "busy.pftrace"
    busy.write_text("# tracer: nop\n#\n" + switched(20, 1, "x", 42) + switched(30, 1, "y", 43))
    done = CliRunner().invoke(report, [str(busy), "--json", "--perfetto", str(target)])
    assert done.exit_code == 0, done.output
    assert slices(target) == []
    trace = pb.Trace()
    trace.ParseFromString(target.read_bytes())
    named = [x.track_descriptor.name for x in trace.packet]
    assert named == ["CPU 1 idle", "CPU 1 wakeups"]


def test_of_one_recording_only(tmp_path: Path) -> None:
    files = [str(PIPE), str(PIPE), "--perfetto", str(tmp_path / "x")]
    done = CliRunner().invoke(report, files)
    assert done.exit_code == 2
    assert "--perfetto saves the idle periods of one recording" in " ".join(done.output.split())


@pytest.mark.parametrize("option", ["--parquet", "--perfetto"])
def test_missing_folders_are_made(tmp_path: Path, option: str) -> None:
    pytest.importorskip("perfetto")
    target = tmp_path / "new" / "x"
    done = CliRunner().invoke(report, [str(PIPE), "--json", option, str(target)])
    assert done.exit_code == 0, done.output
    assert target.stat().st_size > 0


@pytest.mark.parametrize("option", ["--parquet", "--perfetto"])
def test_a_link_stays_a_link(tmp_path: Path, option: str) -> None:
    pytest.importorskip("perfetto")
    link = tmp_path / "link"
    link.symlink_to("target")
    done = CliRunner().invoke(report, [str(PIPE), "--json", option, str(link)])
    assert done.exit_code == 0, done.output
    assert link.is_symlink()
    assert (tmp_path / "target").stat().st_size > 0


@pytest.mark.parametrize("option", ["--parquet", "--perfetto"])
def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path, option: str) -> None:
    pytest.importorskip("perfetto")
    pipe, passed = tmp_path / "pipe", tmp_path / "passed"
    os.mkfifo(pipe)
    with passed.open("wb") as file, subprocess.Popen(["cat", pipe], stdout=file) as reader:
        done = CliRunner().invoke(report, [str(PIPE), "--json", option, str(pipe)])
        if done.exit_code or not pipe.is_fifo():
            reader.kill()  # nobody has opened the pipe
    assert done.exit_code == 0, done.output
    assert pipe.is_fifo()
    assert passed.stat().st_size > 1000


def test_two_outputs_are_two_files(tmp_path: Path) -> None:
    target = str(tmp_path / "x")
    done = CliRunner().invoke(report, [str(PIPE), "--parquet", target, "--perfetto", target])
    assert done.exit_code == 1
    assert "is named twice" in done.output
    assert list(tmp_path.iterdir()) == []
