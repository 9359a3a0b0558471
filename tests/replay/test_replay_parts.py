# SPDX-License-Identifier: GPL-2.0-only
"""A replay on several cores: the same figures, and no process that outlives it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from paths import ROOT
from processes import eventually, runs
from recordings import PIPE
from replays import NO_COSTS

from lightsleep.errors import LightsleepError
from lightsleep.periods.columns import COLUMNS
from lightsleep.periods.source import open_recording
from lightsleep.periods.table import METADATA, cpus_of_groups, write_parquet
from lightsleep.replay import cli, parts, words
from lightsleep.replay.cli import replay_command
from lightsleep.replay.evidence import costs_of
from lightsleep.replay.parts import replay_table
from lightsleep.replay.policies import STOCK


def test_more_processes_give_the_same(tmp_path: Path) -> None:
    table = tmp_path / "pipe.parquet"
    for _ in write_parquet(open_recording(PIPE), table):
        pass
    policies = "stock,lightsleep,haltpoll"
    (cost, one), (same, two) = (replay_table(table, policies, 4, jobs=jobs) for jobs in (1, 2))
    assert one.wakes == two.wakes > 0
    assert words.document(one, [("x", cost)]) == words.document(two, [("x", same)])
    assert len(cost.loops) >= 2
    recording = open_recording(PIPE)
    assert costs_of(recording.metadata, recording.batches) == cost == same


def test_a_process_reads_the_rows_of_its_cpus_only(tmp_path: Path) -> None:
    table = tmp_path / "pipe.parquet"
    list(write_parquet(open_recording(PIPE), table))
    kept = pq.read_metadata(table)
    assert list(cpus_of_groups(kept)) in ([(0, 0), (1, 1)], [(1, 1), (0, 0)])
    rows = [sum(map(len, open_recording(table, share=(x, 2)).batches)) for x in (0, 1)]
    assert sorted(rows) == sorted(kept.row_group(x).num_rows for x in (0, 1))
    # As an older lightsleep wrote it: CPUs are mixed.
    mixed = tmp_path / "mixed.parquet"
    with pq.ParquetWriter(mixed, COLUMNS) as writer:
        for batch in open_recording(PIPE).batches:
            writer.write_batch(batch)
        writer.add_key_value_metadata({METADATA: kept.metadata[METADATA]})
    assert rows == [sum(map(len, open_recording(mixed, share=(x, 2)).batches)) for x in (0, 1)]
    made, same = (replay_table(x, "stock,lightsleep", 4, jobs=2) for x in (table, mixed))
    assert words.document(made[1], []) == words.document(same[1], [])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with tables of several hosts, none of which is worth a second process."""
    for host in range(5):
        recording = open_recording(PIPE)
        recording.metadata.host = f"host-{host}"
        list(write_parquet(recording, tmp_path / f"{host}.parquet"))
    rows = pq.read_metadata(tmp_path / "0.parquet").num_rows
    monkeypatch.setattr(parts, "WORTH", rows // 2 + 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    return tmp_path


def run(*arguments: object) -> Result:
    words = ("--policies", "lightsleep,haltpoll", "--json")
    return CliRunner().invoke(replay_command, [*map(str, arguments), *words])


def test_small_tables_side_by_side_give_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone: list[Path] = []
    monkeypatch.setattr(cli, "_replayed", lambda path, *_: alone.append(path))
    by_two = run(folder)
    assert by_two.exit_code == 0, by_two.output
    assert alone == []
    monkeypatch.undo()
    one_by_one = run(folder)
    assert by_two.stdout == one_by_one.stdout
    assert by_two.stdout.count('"file"') == 5


def test_a_recording_that_is_no_table_has_its_turn_between_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = (folder / "0.parquet", PIPE, folder / "1.parquet", folder / "2.parquet")
    by_two = run(*files)
    assert by_two.exit_code == 0, by_two.output
    monkeypatch.undo()
    assert by_two.stdout == run(*files).stdout


def test_a_damaged_table_among_small_ones_is_named(folder: Path) -> None:
    damaged = folder / "3.parquet"
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:100] + bytes(400) + whole[500:])
    done = run(folder)
    assert done.exit_code == 1
    assert f"{damaged}: damaged" in done.output
    deadline = time.monotonic() + 60
    while multiprocessing.active_children():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def killed(_part: parts.Part) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_is_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_replayed", killed)
    with pytest.raises(LightsleepError, match=r"x\.parquet: a process of the replay was killed"):
        replay_table(tmp_path / "x.parquet", STOCK, 4, costs=NO_COSTS, jobs=2)


SLOW = """
import os, sys, time
from pathlib import Path
from lightsleep.ending import orderly_end
from lightsleep.replay import parts

def slow(part):
    (Path(sys.argv[1]) / str(os.getpid())).touch()
    time.sleep(600)

if __name__ == "__main__":
    parts._replayed = slow
    with orderly_end():
        parts.replay_table(Path("x.parquet"), "stock", 4, costs={}, jobs=2)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_its_processes_end_with_it(number: signal.Signals, tmp_path: Path) -> None:
    script, begun = tmp_path / "slow.py", tmp_path / "begun"
    script.write_text(SLOW)
    begun.mkdir()
    deadline = time.monotonic() + 60
    with subprocess.Popen(
        [sys.executable, script, begun],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    ) as process:
        while len(workers := [int(x.name) for x in begun.iterdir()]) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(60) != 0
    eventually(lambda: not any(map(runs, workers)))
