# SPDX-License-Identifier: GPL-2.0-only
"""Replaying on a Dask cluster: the same figures, also if a worker dies, and errors in words."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from distributed import LocalCluster

from lightsleep.periods.source import open_recording, write_parquet
from lightsleep.replay import cluster, parts
from lightsleep.replay.account import Replay
from lightsleep.replay.cli import replay_command
from lightsleep.replay.demand import Costs

pytestmark = pytest.mark.slow

PIPE = Path(__file__).parent / "fixtures" / "record" / "pipe.txt.gz"
POLICIES = "lightsleep,haltpoll,fixed:50us"
HOSTS = 3


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the tables of several hosts."""
    folder = tmp_path_factory.mktemp("recordings")
    for host in range(HOSTS):
        recording = open_recording(PIPE)
        recording.known.host = f"host-{host}"
        for _ in write_parquet(recording, folder / f"{host}.parquet"):
            pass
    return folder


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Yield the address of a cluster of two workers, each a process of one thread."""
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as local:
        yield local.scheduler_address


@pytest.fixture(autouse=True)
def split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split every table among the workers, however small it is."""
    monkeypatch.setattr(parts, "WORTH", 1)


def replayed(*words: object) -> Result:
    return CliRunner().invoke(replay_command, [*map(str, words), "--policies", POLICIES, "--json"])


def local(tables: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    """Return the figures by this process alone."""
    with monkeypatch.context() as here:
        here.setattr(parts, "WORTH", 1 << 40)
        return replayed(tables)


def dies_once(costs: Costs, table: Path, index: int, of: int, policies: str, weight: int) -> Replay:
    """Replay a part as ever; of one part, kill the worker before it hands in the result."""
    made = parts.replay_part(parts.Part(table, index, of, costs, policies, weight))
    died = table.with_name("died")
    if index == 1 and table.stem == "1" and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return made


def test_a_cluster_gives_the_same_to_the_last_digit(
    tables: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_cluster = replayed(tables, "--dask", address)
    assert by_cluster.exit_code == 0, by_cluster.output
    assert by_cluster.stdout == local(tables, monkeypatch).stdout
    assert by_cluster.stdout.count('"policy": "haltpoll"') == 1


def test_a_worker_that_is_killed_half_way_changes_nothing(
    tables: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_piece", dies_once)
    by_cluster = replayed(tables, "--dask", address)
    assert (tables / "died").exists()
    assert by_cluster.exit_code == 0, by_cluster.output
    assert by_cluster.stdout == local(tables, monkeypatch).stdout


def test_what_a_worker_cannot_read(address: str, tables: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.parquet"
    whole = (tables / "0.parquet").read_bytes()
    damaged.write_bytes(whole[:100] + bytes(400) + whole[500:])
    done = replayed(damaged, "--dask", address)
    assert done.exit_code == 1
    assert f"a worker at {address} says: {damaged}: " in done.output


def test_a_recording_that_is_no_table_is_not_sent(address: str) -> None:
    done = replayed(PIPE, "--dask", address)
    assert done.exit_code == 1
    assert "lightsleep report --parquet saves one" in done.output


def test_no_scheduler(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "CONNECT_S", 1)
    for wrong in ("tcp://127.0.0.1:1", "nonsense://x", ""):
        done = replayed(tables, "--dask", wrong)
        assert (done.exit_code, done.exception.__class__) == (1, SystemExit), done.output
        assert "no scheduler answers there" in done.output


def test_a_scheduler_without_workers(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "CONNECT_S", 1)
    with LocalCluster(n_workers=0, dashboard_address=None) as empty:
        done = replayed(tables, "--dask", empty.scheduler_address)
    assert done.exit_code == 1
    assert "the scheduler has no workers: start some with dask worker" in done.output


def test_without_dask(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing: Any = None
    monkeypatch.setitem(sys.modules, "distributed", missing)
    done = replayed(tables, "--dask", "tcp://127.0.0.1:8786")
    assert done.exit_code == 1
    assert "pip install 'lightsleep[dask]'" in done.output
