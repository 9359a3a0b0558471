# SPDX-License-Identifier: GPL-2.0-only
"""A folder of tables is one data set, for the queries of docs/record.md, replay and report."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from paths import ROOT
from recordings import PIPE
from replays import period

from lightsleep.periods.model import Metadata
from lightsleep.periods.source import as_batch, open_recording
from lightsleep.periods.table import Recording, write_parquet
from lightsleep.periods.words import FIGURES, TITLES, TOP
from lightsleep.replay.cli import replay_command
from lightsleep.report.cli import report
from lightsleep.report.recording_section import SHOWN

PAGE = ROOT / "docs" / "record.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    one = tmp_path / "recordings" / "host=a" / "monday.parquet"
    one.parent.mkdir(parents=True)
    for _ in write_parquet(open_recording(PIPE), one):
        pass
    two = tmp_path / "recordings" / "host=b" / "monday.parquet"
    two.parent.mkdir()
    shutil.copy(one, two)
    return tmp_path


def test_the_queries_of_the_page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    duckdb = pytest.importorskip("duckdb")
    queries = re.findall(r"^    (SELECT .*?)\n\n", PAGE.read_text(), re.M | re.S)
    assert len(queries) == 3
    monkeypatch.chdir(folder)
    for query in queries:
        assert duckdb.sql(query).fetchall(), query
    table = open_recording(folder / "recordings/host=a/monday.parquet")
    rows = sum(len(batch) for batch in table.batches)
    ((count,),) = duckdb.sql("SELECT count(*) FROM 'recordings/**/*.parquet'").fetchall()
    assert count == 2 * rows


def test_halts_in_state_0_are_in_the_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on arm64, where no state polls."""
    duckdb = pytest.importorskip("duckdb")
    (tmp_path / "recordings").mkdir()
    rows = [period(1000 * n, 100, state=0) for n in range(5)]
    metadata = Metadata("host", "made up", first_ns=0, last_ns=10**6)
    recording = Recording(metadata, iter([as_batch("host", rows)]))
    list(write_parquet(recording, tmp_path / "recordings" / "a.parquet"))
    monkeypatch.chdir(tmp_path)
    for query in re.findall(r"^    (SELECT .*?)\n\n", PAGE.read_text(), re.M | re.S):
        assert duckdb.sql(query).fetchall(), query


def test_the_page_explains_each_table_and_column_of_a_report() -> None:
    text = " ".join(PAGE.read_text().split())
    read = text.partition(" ## Read ")[2].partition(" ## Ask more")[0]
    assert [title for title, _ in TITLES.values() if title not in read] == []
    assert [title for title in FIGURES if f"**{title}**" not in read] == []
    assert f"the first {TOP} rows of each table" in read
    assert f"`report.html` shows {SHOWN}." in read


def test_a_folder_is_replayed_as_its_files_are(folder: Path) -> None:
    def replayed(*paths: Path) -> object:
        words = [*map(str, paths), "--policies", "haltpoll", "--json"]
        done = CliRunner().invoke(replay_command, words)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)["policies"]

    files = sorted(folder.rglob("*.parquet"))
    assert replayed(folder) == replayed(*files)
    empty = folder / "empty"
    empty.mkdir()
    done = CliRunner().invoke(replay_command, [str(empty)])
    assert done.exit_code == 1
    assert "no tables of idle periods below" in " ".join(done.output.split())


def test_a_folder_is_reported_as_its_files_are(folder: Path) -> None:
    def reported(*paths: Path) -> object:
        done = CliRunner().invoke(report, [*map(str, paths), "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)["results"]

    files = sorted(folder.rglob("*.parquet"))
    assert reported(folder) == reported(*files)
    page = folder / "page.html"
    assert CliRunner().invoke(report, [str(folder), "-o", str(page)]).exit_code == 0
    assert page.exists()
