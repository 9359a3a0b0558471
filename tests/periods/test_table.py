# SPDX-License-Identifier: GPL-2.0-only
"""Tables of idle periods: their row groups, and reading some of the CPUs."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from recordings import PIPE, described_state, rows_of
from traces import idle, left

from lightsleep.errors import LightsleepError
from lightsleep.periods import table
from lightsleep.periods.build import Row
from lightsleep.periods.columns import COLUMNS
from lightsleep.periods.lost import time_lost
from lightsleep.periods.model import VERSION, Metadata
from lightsleep.periods.source import as_batch, open_recording
from lightsleep.periods.table import (
    CLASSES_OF,
    METADATA,
    ROWS,
    Recording,
    cpus_of_groups,
    open_table,
    write_parquet,
    write_rows,
)
from lightsleep.replay import cli
from lightsleep.replay.parts import replay_table

CPUS = 20

READ = "import sys, pyarrow.parquet as pq; print(pq.read_metadata(sys.argv[1]).num_rows)"


def made(count: int) -> list[Row]:
    """Return periods of CPUS CPUs in turn; CPU 19 has few."""
    rows: list[Row] = []
    for number in range(count):
        cpu = number % CPUS
        if cpu == CPUS - 1 and number > 3 * CPUS:
            continue
        who = (None, None, None, None)
        rows.append((cpu, 1000 * number, 500, 1, None, "ipi", *who, None, None, None, None))
    return rows


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(table, "WINDOW", 100)
    rows = made(1000)
    batches = [as_batch("host", rows[first : first + 30]) for first in range(0, len(rows), 30)]
    target = tmp_path / "periods.parquet"
    metadata = Metadata("host", "made up", first_ns=0, last_ns=10**6)
    list(write_parquet(Recording(metadata, iter(batches)), target))
    return target


def times_of(path: Path, share: tuple[int, int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for batch in open_table(path, None, share)[1]:
        for row in batch.select(["cpu", "entered_ns"]).to_pylist():
            found.setdefault(row["cpu"], []).append(row["entered_ns"])
    return found


@pytest.mark.parametrize("of", [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 64])
def test_shares_have_each_row_once_and_in_order(path: Path, of: int) -> None:
    whole: dict[int, list[int]] = {}
    for cpu, at, *_ in made(1000):
        whole.setdefault(cpu, []).append(at)
    found: dict[int, list[int]] = {}
    for index in range(of):
        mine = times_of(path, (index, of))
        assert all(cpu % of == index for cpu in mine)
        assert not mine.keys() & found.keys()
        found |= mine
    assert found == whole


def test_a_process_reads_no_groups_of_others(path: Path) -> None:
    kept = pq.read_metadata(path)
    groups = list(cpus_of_groups(kept))
    assert len(groups) <= 8 * -(-1000 // 100)
    assert all(low % 8 == high % 8 for low, high in groups)
    rows = [
        sum(kept.row_group(group).num_rows for group in table._groups(kept, (index, 4))[0])
        for index in range(4)
    ]
    assert sum(rows) == kept.num_rows
    assert not table._groups(kept, (1, 4))[1], "there is nothing to filter"
    assert table._groups(kept, (1, 3))[1]


@pytest.mark.parametrize("classes", [None, b"1", b"4", b"80", b"x"])
def test_a_table_that_has_no_such_classes_is_read_whole(
    path: Path, classes: bytes | None, tmp_path: Path
) -> None:
    other = tmp_path / "other.parquet"
    with pq.ParquetWriter(other, COLUMNS) as writer:
        writer.write_batch(as_batch("host", made(400)))
        writer.add_key_value_metadata({METADATA: pq.read_metadata(path).metadata[METADATA]})
        if classes is not None:
            writer.add_key_value_metadata({CLASSES_OF: classes})
    assert sum(len(times) for times in times_of(other, (3, 4)).values()) == sum(
        row[0] % 4 == 3 for row in made(400)
    )


def test_an_empty_table(tmp_path: Path) -> None:
    target = tmp_path / "empty.parquet"
    empty = iter([as_batch("host", [])])
    list(write_parquet(Recording(Metadata("host", "made up"), empty), target))
    assert pa.Table.from_batches(open_table(target)[1], COLUMNS).num_rows == 0


def test_rows_that_were_written_again_with_the_old_metadata(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "sorted.parquet"
    with pq.ParquetFile(path) as file:
        rows = file.read().sort_by("entered_ns")
        metadata = file.metadata.metadata
    pq.write_table(rows.replace_schema_metadata(metadata), other, row_group_size=130)
    counts = [
        sum(len(times) for times in times_of(other, (index, 16)).values()) for index in range(16)
    ]
    assert sum(counts) == rows.num_rows


def test_damage_is_told_by_its_row_group(path: Path) -> None:
    kept = pq.read_metadata(path)
    column = kept.row_group(5).column(2)
    damaged = bytearray(path.read_bytes())
    begin = column.dictionary_page_offset or column.data_page_offset
    damaged[begin : begin + 40] = bytes(40)
    path.write_bytes(damaged)
    with pytest.raises(LightsleepError, match="damaged in row group 5"):
        times_of(path, (0, 1))


@pytest.mark.parametrize("place", range(len(COLUMNS)))
def test_a_flipped_bit_makes_no_figure(path: Path, place: int) -> None:
    column = pq.read_metadata(path).row_group(5).column(place)
    end = (column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size
    damaged = bytearray(path.read_bytes())
    damaged[end - 1] ^= 1  # of the last page
    path.write_bytes(damaged)
    with pytest.raises(LightsleepError, match="damaged in row group 5"):
        list(open_table(path)[1])


def test_a_table_without_checksums_is_read(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.parquet"
    with pq.ParquetFile(path) as file:
        rows, metadata = file.read(), file.metadata.metadata
    pq.write_table(rows.replace_schema_metadata(metadata), other, write_page_checksum=False)
    assert pa.Table.from_batches(open_table(other)[1], COLUMNS).num_rows == rows.num_rows


def test_a_period_that_began_before_those_of_the_first_group(tmp_path: Path) -> None:
    who = (None, None, None, None)
    late: Row = (0, 5_000_000_000, 10_000, 1, None, "ipi", *who, None, None, None, None)
    long: Row = (1, 0, 5_100_000_000, 1, None, "ipi", *who, None, None, None, None)
    metadata = Metadata("host", "made up", first_ns=0, last_ns=6 * 10**9)
    target = tmp_path / "periods.parquet"
    list(write_parquet(Recording(metadata, iter([as_batch("host", [late, long])])), target))
    timeline = time_lost(*open_table(target)).timeline
    assert timeline.start_ns == 0
    assert timeline.idle_ns[1]["state 1"].sum() == pytest.approx(5_100_000_000, rel=1e-6)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("driver_cost_ns", []),
        ("driver_cost_ns", {"0": float("inf")}),
        ("driver_cost_ns", {"0": 10**30}),
        ("driver_cost_ns", {"0": 0}),
        ("driver_cost_ns", {"-1": 5}),
        ("lost", []),
        ("first_ns", 1 << 70),
        ("states", [{"cpu": 1 << 60, "state": 0, "name": "x", "polls": True}]),
    ],
)
def test_metadata_that_no_machine_has(path: Path, key: str, value: object) -> None:
    metadata = open_table(path)[0].to_json() | {key: value}
    with pq.ParquetWriter(path, COLUMNS) as writer:
        writer.add_key_value_metadata({METADATA: json.dumps(metadata).encode()})
    with pytest.raises(LightsleepError, match=r"periods\.parquet: damaged"):
        open_table(path)


@pytest.mark.parametrize("lacking", [(), ("next_event_ns",)])
def test_a_table_of_an_older_version_is_refused(path: Path, lacking: tuple[str, ...]) -> None:
    document = open_table(path)[0].to_json() | {"version": 1}
    columns = pa.schema([field for field in COLUMNS if field.name not in lacking])
    with pq.ParquetWriter(path, columns) as writer:
        writer.add_key_value_metadata({METADATA: json.dumps(document).encode()})
    with pytest.raises(LightsleepError) as caught:
        open_table(path)
    assert caught.value.message == (
        f"{path}: a table of an older lightsleep (version 1): make it again from the trace, with "
        "report --parquet"
    )


@pytest.mark.parametrize("more", [[], [pa.field("exit_ns", pa.int64())]])
def test_a_table_of_a_newer_version_is_called_so(path: Path, more: list[pa.Field]) -> None:
    document = open_table(path)[0].to_json() | {"version": VERSION + 1}
    with pq.ParquetWriter(path, pa.schema([*COLUMNS, *more])) as writer:
        writer.add_key_value_metadata({METADATA: json.dumps(document).encode()})
    with pytest.raises(LightsleepError) as caught:
        open_table(path)
    newer = f"made by a newer lightsleep (version {VERSION + 1}): upgrade lightsleep"
    assert caught.value.message == f"{path}: {newer}"


@pytest.mark.parametrize("columns", [None, ("cpu", "waker_pid", "waker_cpu"), ("cpu", "state")])
def test_a_table_that_does_not_say_which_cpu_woke_is_read(
    columns: tuple[str, ...] | None, tmp_path: Path
) -> None:
    """An idle CPU woke itself, as such tables meant it. Of other CPUs, the number is not known."""
    path = tmp_path / "old.parquet"
    wakers = (("swapper/3", 0), ("a", 7), (None, None))
    rows = [
        (3, 1000 * at, 500, 1, None, "ipi", *waker, "b", 8, 900, None, None, None)
        for at, waker in enumerate(wakers)
    ]
    document = Metadata("host", "made up", first_ns=0, last_ns=9000).to_json() | {"version": 2}
    old = COLUMNS.remove(COLUMNS.get_field_index("waker_cpu"))
    with pq.ParquetWriter(path, old) as writer:
        writer.write_batch(as_batch("host", rows).select(old.names))
        writer.add_key_value_metadata({METADATA: json.dumps(document).encode()})
    (batch,) = open_table(path, columns)[1]
    assert batch.schema.names == list(columns or COLUMNS.names)
    if "waker_cpu" in batch.schema.names:
        assert batch.column("waker_cpu").to_pylist() == [3, -1, None]


@pytest.mark.parametrize(
    ("lacking", "of_state"), [("driver_cost_ns", False), ("disabled", True), ("lost", False)]
)
def test_a_table_whose_metadata_lacks_something(path: Path, lacking: str, of_state: bool) -> None:
    """Fields were added before there was a version for them."""
    metadata = open_table(path)[0]
    metadata.add_described(0, [described_state(1, "C1", 1, 2)])
    document = metadata.to_json()
    for each in document["states"] if of_state else [document]:
        del each[lacking]
    with pq.ParquetWriter(path, COLUMNS) as writer:
        writer.add_key_value_metadata({METADATA: json.dumps(document).encode()})
    with pytest.raises(LightsleepError) as caught:
        open_table(path)
    assert caught.value.message == (
        f"{path}: its metadata lacks {lacking!r}: a table of an older lightsleep, or a damaged "
        "one: make it again from the trace, with report --parquet"
    )


def test_the_table_of_a_replay_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables: list[str] = []

    def replayed(table: Path, *words: Any, **more: Any) -> Any:
        tables.append(str(table.readlink()))
        assert list(tmp_path.iterdir()) == []
        read = [sys.executable, "-c", READ, str(table)]  # as each process of the replay does
        rows = subprocess.run(read, check=True, capture_output=True, text=True).stdout
        assert int(rows) > 100
        return replay_table(table, *words, **more)

    monkeypatch.setattr(cli, "replay_table", replayed)
    for variable in (str(tmp_path), ""):
        monkeypatch.setenv("TMPDIR", variable)
        done = CliRunner().invoke(cli.replay_command, [str(PIPE), "--json"])
        assert done.exit_code == 0, done.output
    assert tables[0].startswith(f"{tmp_path}/")
    assert tables[1].startswith("/var/tmp/")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_at_a_replay_names_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    done = CliRunner().invoke(cli.replay_command, [str(PIPE)])
    assert f"idle periods to {tmp_path}/gone: No such file or directory; set TMPDIR" in done.output

    class Full(io.BytesIO):
        def write(self, _data: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def to_full(recording: Recording, _file: Any) -> Iterator[pa.RecordBatch]:
        return write_rows(recording, Full())

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(cli, "write_rows", to_full)
    done = CliRunner().invoke(cli.replay_command, [str(PIPE)])
    assert done.exit_code == 1
    said = f"to {tmp_path}: No space left on device; set TMPDIR to a folder with room for them"
    assert said in done.output


def test_parquet_holds_all_of_it(tmp_path: Path) -> None:
    rows, metadata = rows_of(PIPE)
    target = tmp_path / "pipe.parquet"
    for _ in write_parquet(open_recording(PIPE), target):
        pass
    again, described = rows_of(target)
    for cpu in (0, 1):
        assert [x for x in again if x["cpu"] == cpu] == [x for x in rows if x["cpu"] == cpu]
    assert len(again) == len(rows)
    assert again[0] == rows[0], "groups are in the order in which they begin"
    assert described.to_json() == metadata.to_json()
    assert [x.name for x in tmp_path.iterdir()] == ["pipe.parquet"]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("environment", [], r"environment is \[\]"),
        ("notes", "x", "notes is 'x'"),
        ("first_ns", 0.5, "first_ns is 0.5"),
        ("last_ns", True, "last_ns is True"),
    ],
)
def test_odd_metadata_of_a_table_is_an_error(
    tmp_path: Path, key: str, value: object, said: str
) -> None:
    path = tmp_path / "odd.parquet"
    list(write_parquet(open_recording(PIPE), path))
    document = json.loads(pq.ParquetFile(path).metadata.metadata[METADATA]) | {key: value}
    with pq.ParquetWriter(path, COLUMNS) as writer:
        writer.add_key_value_metadata({METADATA: json.dumps(document).encode()})
    with pytest.raises(LightsleepError, match=said):
        open_recording(path)


def test_a_parquet_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.txt"
    damaged.write_text(idle(0, 1, 1) + left(1, 1) + "rubbish\n")
    with pytest.raises(LightsleepError):
        list(write_parquet(open_recording(damaged), tmp_path / "x.parquet"))
    assert [x.name for x in tmp_path.iterdir()] == ["damaged.txt"]


PEAK = """\
import re, sys
from pathlib import Path
from lightsleep.periods.source import open_recording
for _ in open_recording(Path(sys.argv[1])).batches:
    pass
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


def test_a_table_of_somebody_else_does_not_command_the_terminal(tmp_path: Path) -> None:
    target = tmp_path / "periods.parquet"
    metadata = Metadata("evil\x1b[2J\x1b]0;x\x07", "made\x9bup", first_ns=0, last_ns=1)
    list(write_parquet(Recording(metadata, iter([as_batch("host", made(10))])), target))
    found = open_table(target)[0]
    assert (found.host, found.source) == ("evil?[2J?]0;x?", "made?up")


def test_memory_does_not_grow_with_the_table(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    batch = next(iter(open_recording(PIPE).batches))
    rows = pa.concat_batches([batch] * (ROWS // len(batch)))
    peaks, sizes = [], []
    for count in (4, 40):
        path = tmp_path / f"{count}.parquet"
        metadata = Metadata("host", "x", first_ns=0, last_ns=1)
        with pq.ParquetWriter(path, COLUMNS, compression="none", use_dictionary=False) as writer:
            for _ in range(count):  # of noise, which no encoding makes smaller
                noise = pa.array(rng.integers(0, 1 << 60, len(rows)))
                writer.write_batch(rows.set_column(2, COLUMNS.field(2), noise))
            writer.add_key_value_metadata({METADATA: json.dumps(metadata.to_json()).encode()})
        done = subprocess.run(
            [sys.executable, "-c", PEAK, str(path)], check=True, capture_output=True, text=True
        )
        peaks.append(1024 * int(done.stdout))
        sizes.append(path.stat().st_size)
    assert sizes[1] - sizes[0] > 100e6
    assert peaks[1] - peaks[0] < 50e6
