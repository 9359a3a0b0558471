# SPDX-License-Identifier: GPL-2.0-only
"""A recording that lacks an event without which figures tell nothing says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from recordings import PIPE, rows_of
from traces import SWITCH, event, idle, left, switched, waking

from lightsleep.periods.lost import time_lost
from lightsleep.periods.model import NEEDED
from lightsleep.periods.source import open_recording
from lightsleep.periods.table import open_table, write_parquet
from lightsleep.periods.words import headline
from lightsleep.replay.cli import replay_command

ALL = {
    "cpu_idle": [idle(1, 1, 2), left(150, 1)],
    "sched_waking": [waking(100, 0, 42)],
    "sched_switch": [
        event(0, 1, SWITCH.format("y", 3, "swapper/1", 0), "y-3"),
        switched(160, 1, "x", 42),
    ],
}


def without(tmp_path: Path, *missing: str) -> Path:
    lines = [line for name in ALL if name not in missing for line in ALL[name]]
    path = tmp_path / "trace.txt"
    path.write_text("".join(sorted(lines, key=lambda x: x.split("] ")[1].split()[1])))
    return path


@pytest.mark.parametrize("missing", [("cpu_idle",), ("sched_waking",), NEEDED[1:]])
def test_which_event_is_missing_is_said(missing: tuple[str, ...], tmp_path: Path) -> None:
    path = without(tmp_path, *missing)
    _, metadata = rows_of(path)
    (note,) = [note for note in metadata.warnings() if "has no event" in note]
    assert f"no event {' and no '.join(missing)}, so" in note
    recording = open_recording(path)
    assert headline(time_lost(recording.metadata, recording.batches)) == [
        "The recording cannot tell whether tasks waited for a CPU in an idle state."
    ]
    table = tmp_path / "x.parquet"
    list(write_parquet(open_recording(path), table))
    assert open_table(table)[0].lacking == note
    for each in (path, table):
        done = CliRunner().invoke(replay_command, [str(each)])
        assert done.exit_code == 1
        assert note in done.output.replace("\n", " ")


def test_nothing_is_said_where_all_are_there(tmp_path: Path) -> None:
    assert rows_of(without(tmp_path))[1].lacking is None
    assert rows_of(PIPE)[1].lacking is None


def test_what_lightsleep_recorded_may_hold_one_kind_of_event(tmp_path: Path) -> None:
    """As where a single task runs all the time."""
    path = without(tmp_path, "cpu_idle", "sched_switch")
    recording = open_recording(path)
    recording.metadata.cpus = {0}
    list(recording.batches)
    assert recording.metadata.lacking is None
