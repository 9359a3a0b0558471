# SPDX-License-Identifier: GPL-2.0-only
"""The document beside a trace: what it tells, and whether it belongs there."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from recordings import PIPE, described_state, rows_of
from traces import idle, left

from lightsleep.errors import LightsleepError
from lightsleep.periods.source import open_recording
from lightsleep.record import sidecar


def test_a_cpu_without_any_event_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text(idle(0, 1, 1) + left(50, 1) + "CPU:4 [LOST 2 EVENTS]\n")
    document = json.loads(sidecar.beside(PIPE).read_text())
    document["states"] = {str(cpu): [] for cpu in range(8)}
    said = "no event is recorded of CPU {}, which slept or ran a single task all the time"
    for cpus, silent in ((None, "0,2-3,5-7"), ("1-2,4,9", "2"), ("1", ""), ("odd", "")):
        document["settings"]["cpus"] = cpus
        sidecar.beside(path).write_text(json.dumps(document))
        notes = [x for x in rows_of(path)[1].notes if "no event is recorded" in x]
        assert notes == ([said.format(silent)] if silent else [])


def test_a_recording_by_another_name_is_described(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    real, link = tmp_path / "real/trace.txt", tmp_path / "link.txt"
    real.write_text(idle(0, 1, 1))
    sidecar.beside(real).write_text("{")
    link.symlink_to(real)
    with pytest.raises(LightsleepError, match=r"real/trace\.txt\.json: "):
        open_recording(link)


def test_an_empty_description_may_be_removed(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text(idle(0, 1, 1) + left(50, 1))
    sidecar.beside(path).touch()
    with pytest.raises(LightsleepError, match="is empty: remove it"):
        open_recording(path)
    sidecar.beside(path).unlink()
    assert len(rows_of(path)[0]) == 1


@pytest.mark.parametrize(("key", "value"), [("elapsed_s", 1e300), ("latency_us", 1 << 40)])
def test_a_description_without_measure_is_refused(key: str, value: float, tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text(idle(0, 1, 1) + left(50, 1))
    document = json.loads(sidecar.beside(PIPE).read_text())
    place = document["recorded"] if key == "elapsed_s" else document["states"]["0"][0]
    place[key] = value
    sidecar.beside(path).write_text(json.dumps(document))
    with pytest.raises(LightsleepError, match=key):
        open_recording(path)


def test_a_trace_that_ends_too_early_is_doubted(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text(idle(0, 1, 1) + left(50, 1))
    for end_ns, doubted in ((10_500_000_000, False), (12_000_000_000, True)):
        document = json.loads(sidecar.beside(PIPE).read_text()) | {"window_ns": [0, end_ns]}
        sidecar.beside(path).write_text(json.dumps(document))
        _, metadata = rows_of(path)
        assert any("the file may be damaged" in note for note in metadata.notes) == doubted


@pytest.mark.parametrize("periods", [0, 1])
@pytest.mark.parametrize(
    ("window_s", "ours"), [((9, 12), True), ((11, 12), True), ((12, 13), False), ((7, 8), False)]
)
def test_a_description_of_another_recording_is_refused(
    window_s: tuple[int, int], ours: bool, periods: int, tmp_path: Path
) -> None:
    path = tmp_path / "trace.txt"
    path.write_text(idle(0, 1, 1) + left(50, 1) * periods)
    window_ns = [x * 10**9 for x in window_s]
    document = json.loads(sidecar.beside(PIPE).read_text()) | {"window_ns": window_ns}
    sidecar.beside(path).write_text(json.dumps(document))
    if ours:
        assert len(rows_of(path)[0]) == periods
        return
    read: list[pa.RecordBatch] = []
    with pytest.raises(LightsleepError) as caught:
        read.extend(open_recording(path).batches)
    assert not any(map(len, read))  # nothing is made of a wrong name
    assert caught.value.message == (
        f"{path}.json describes another recording, from {window_s[0]} s to {window_s[1]} s: "
        "trace.txt begins at 10 s. Remove that description, or put the right one there"
    )


@pytest.mark.parametrize(("begun_s", "ours"), [(9, True), (12, False)])
def test_a_recording_whose_begin_took_long_is_ours(
    begun_s: int, ours: bool, tmp_path: Path
) -> None:
    """Usage is counted from when the recorder has answered."""
    path = tmp_path / "trace.txt"
    path.write_text(idle(0, 1, 1) + left(50, 1))
    times = {"begun_ns": begun_s * 10**9, "window_ns": [15 * 10**9, 16 * 10**9]}
    document = json.loads(sidecar.beside(PIPE).read_text()) | times
    sidecar.beside(path).write_text(json.dumps(document))
    if ours:
        assert len(rows_of(path)[0]) == 1
        return
    with pytest.raises(LightsleepError, match="another recording, from 12 s to 16 s"):
        rows_of(path)


@pytest.mark.parametrize("differs", [False, True])
def test_a_cpu_that_comes_online_has_the_states_of_the_others(
    differs: bool, tmp_path: Path
) -> None:
    path = tmp_path / "trace.txt"
    path.write_text(idle(0, 1, 0) + idle(0, 9, 0) + idle(10, 9, 2) + left(50, 1) + left(60, 9))
    document = json.loads(sidecar.beside(PIPE).read_text())
    poll, deep = described_state(0, "POLL", 0, 0), described_state(2, "C6", 90, 200)
    other = deep | {"latency_us": 91} if differs else deep
    document["states"] = {"0": [poll, deep], "1": [poll, other]}
    sidecar.beside(path).write_text(json.dumps(document))
    metadata = rows_of(path)[1]
    assert metadata.polling == {(0, 0), (1, 0), (9, 0)}
    assert metadata.name(9, 2) == ("state 2" if differs else "C6")
    assert metadata.states.keys() == {0, 1, 9}
    assert metadata.advertised_us.keys() == {
        (cpu, n) for cpu in metadata.states for n in (0, 2)
    } - ({(9, 2)} if differs else set())
    assert [note for note in metadata.notes if "came online" in note] == [
        "CPU 9 came online during the recording: its idle states are taken for those of the "
        "other CPUs"
    ]


@pytest.mark.parametrize(
    "scan", [{"lightsleep": "x"}, {"cpus": [1]}, {"cpus": [{"lightsleep": {"halt_cost_ns": 9}}]}]
)
def test_a_scan_that_is_none_is_refused(scan: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text(idle(0, 1, 1) + left(50, 1))
    document = json.loads(sidecar.beside(PIPE).read_text()) | {"scan": scan}
    sidecar.beside(path).write_text(json.dumps(document))
    with pytest.raises(LightsleepError, match=r"trace\.txt\.json: scan: not what"):
        rows_of(path)
    del document["scan"]  # it need not be there
    sidecar.beside(path).write_text(json.dumps(document))
    assert len(rows_of(path)[0]) == 1


def test_a_name_that_leaves_no_room_for_that_of_the_description(tmp_path: Path) -> None:
    path = tmp_path / f"{'x' * 251}.txt"  # 255 bytes, the most that a name can have
    path.write_text(idle(0, 1, 1) + left(50, 1))
    assert len(rows_of(path)[0]) == 1
