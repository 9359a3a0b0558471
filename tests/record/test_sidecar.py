# SPDX-License-Identifier: GPL-2.0-only
"""What stands beside a recording."""

import time
from pathlib import Path

import pytest
from scan_trees import unfold

from lightsleep.record import sidecar
from lightsleep.record.sidecar import Count


def test_counts_that_begin_again_are_not_known() -> None:
    """As where a CPU went and came back, under a driver that then counts anew."""

    def usage(entered: int) -> sidecar.Usage:
        state = {"entered": entered, "time_us": 7 * entered}
        return {"0": {"0": {"entered": 5, "time_us": 9}, "1": state}}

    found = sidecar.end({}, Count(1, usage(1000)), Count(2, usage(30)), {})
    assert found["usage"] == {"0": {"0": {"entered": 0, "time_us": 0}}}
    found = sidecar.end({}, Count(1, usage(30)), Count(2, usage(1000)), {})
    assert found["usage"]["0"]["1"] == {"entered": 970, "time_us": 6790}


@pytest.mark.parametrize(
    ("offset", "ahead_ns"), [("86400 7", 86_400_000_000_007), ("-5 250000000", -4_750_000_000)]
)
def test_times_are_those_of_the_machine_in_a_time_namespace(
    offset: str, ahead_ns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic_ns", lambda: 10**15)
    monkeypatch.setattr(sidecar, "TIME_OFFSETS", tmp_path / "timens_offsets")
    assert sidecar.now_ns() == 10**15
    (tmp_path / "timens_offsets").write_text(f"monotonic  {offset}\nboottime  1 0\n")
    namespaces = (tmp_path / "time", tmp_path / "time_for_children")
    monkeypatch.setattr(sidecar, "TIME_NAMESPACES", namespaces)
    assert sidecar.now_ns() == 10**15  # no such namespaces
    namespaces[0].symlink_to("time:[4026531834]")
    namespaces[1].symlink_to("time:[4026532300]")
    assert sidecar.now_ns() == 10**15  # the offset is not ours
    namespaces[1].unlink()
    namespaces[1].symlink_to("time:[4026531834]")
    root = unfold("lightsleep-guest", tmp_path)
    assert sidecar.begin(root, {})["begun_ns"] == 10**15 - ahead_ns
    assert sidecar.count(root, []).at_ns == 10**15 - ahead_ns


def test_a_time_before_the_recording_is_told(tmp_path: Path) -> None:
    root, before_ns = unfold("lightsleep-guest", tmp_path), time.monotonic_ns()
    assert before_ns <= sidecar.begin(root, {})["begun_ns"] <= time.monotonic_ns()
    assert "begun_ns" not in sidecar.begin_histogram(root, {})
