# SPDX-License-Identifier: GPL-2.0-only
"""Replaying on a Dask cluster: the same figures, also if a worker dies, and errors in words."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import distributed
import pytest
from click.testing import CliRunner, Result
from paths import ROOT
from recordings import PIPE

from lightsleep.errors import LightsleepError
from lightsleep.periods.source import open_recording
from lightsleep.periods.table import ALL, Share, write_parquet
from lightsleep.replay import cluster, parts
from lightsleep.replay.account import Replay
from lightsleep.replay.cli import replay_command
from lightsleep.replay.costs import Costs

POLICIES = "lightsleep,haltpoll,fixed:50us"
HOSTS = 3


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the tables of several hosts."""
    folder = tmp_path_factory.mktemp("recordings")
    for host in range(HOSTS):
        recording = open_recording(PIPE)
        recording.metadata.host = f"host-{host}"
        for _ in write_parquet(recording, folder / f"{host}.parquet"):
            pass
    return folder


@contextlib.contextmanager
def started(workers: int, folder: Path) -> Iterator[tuple[str, int]]:
    """Start a cluster as the documentation says; yield its address and the scheduler's process."""
    # The workers run the lightsleep that is tested, which need not be the one that is installed.
    paths = ROOT, ROOT / "tests", Path(__file__).parent
    knows = {**os.environ, "PYTHONPATH": ":".join(map(str, paths))}
    written = folder / "scheduler.json"
    with contextlib.ExitStack() as stack:

        def start(*words: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "dask", *words, "--no-dashboard"]
            process = subprocess.Popen(command, env=knows, cwd=folder, start_new_session=True)
            stack.callback(process.wait)
            stack.callback(os.killpg, process.pid, signal.SIGKILL)
            return process

        where = ("--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(written))
        scheduler = start("scheduler", *where)
        deadline = time.monotonic() + 60
        while not written.exists() or not written.read_text().endswith("}"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        address = json.loads(written.read_text())["address"]
        for _ in range(workers):
            start("worker", address, "--nthreads", "1", "--local-directory", str(folder))
        # As many parts are sent as workers are there.
        if workers:
            with distributed.Client(address) as client:
                client.wait_for_workers(workers, timeout=60)
        yield address, scheduler.pid


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a cluster of two workers, each a process of one thread."""
    with started(2, tmp_path_factory.mktemp("cluster")) as (address, _):
        yield address


@pytest.fixture(autouse=True)
def split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split every table among the workers, however small it is."""
    monkeypatch.setattr(parts, "WORTH", 1)


def replayed(*words: object) -> Result:
    """Run the command. What it raises but to end is no error in words: see where it comes from."""
    given = [*map(str, words), "--policies", POLICIES, "--json"]
    return CliRunner().invoke(replay_command, given, catch_exceptions=False)


def local(tables: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    """Return the figures by this process alone."""
    with monkeypatch.context() as here:
        here.setattr(parts, "WORTH", 1 << 40)
        return replayed(tables)


class Done:
    """A future that has a result."""

    status = "finished"

    def __init__(self, value: object) -> None:
        self.value = value

    def result(self) -> object:
        return self.value


class AtOnce:
    """A client of Dask that does at once what it is asked for; tells of so many cores in turn."""

    loop = None

    def __init__(self, *cores: int) -> None:
        self.asked: list[object] = []
        self.cores = list(cores)

    def nthreads(self) -> dict[str, int]:
        cores = self.cores.pop(0) if len(self.cores) > 1 else self.cores[0]
        return {"worker": cores} if cores else {}

    def submit(self, work: Callable[..., object], *words: Any, pure: bool) -> Done:
        assert not pure
        known = [x.value if isinstance(x, Done) else x for x in words]
        known = [[y.value for y in x] if isinstance(x, list) else x for x in known]
        self.asked += words
        return Done(work(*known))


def by(
    client: AtOnce, paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Costs, Replay]]:
    """Replay tables by such a client."""
    monkeypatch.setattr(cluster, "_client", lambda _: contextlib.nullcontext(client))
    monkeypatch.setattr(distributed, "as_completed", lambda pieces, **_: iter(pieces))
    return cluster.replay_tables("", paths, "stock", None, 4)


def test_no_table_is_sent_far_ahead_of_the_results(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = AtOnce(1)
    first, second, third = paths = sorted(tables.glob("*.parquet"))
    each = by(client, paths, monkeypatch)
    hosts = [next(each)[1].host]
    assert first in client.asked
    assert second in client.asked
    assert third not in client.asked
    hosts += [made.host for _, made in each]
    assert hosts == [f"host-{host}" for host in range(HOSTS)]


@pytest.mark.parametrize("cores", [(1, 1, 4), (0, 0, 4)])
def test_workers_that_come_later_get_their_share(
    cores: tuple[int, ...], tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only one may also leave between its answer and the first table."""
    client = AtOnce(*cores)
    paths = [Path(shutil.copy(tables / "0.parquet", tmp_path / f"{n}.parquet")) for n in range(5)]
    each = by(client, paths, monkeypatch)
    next(each)
    assert [path in client.asked for path in paths] == [True, True, False, False, False]
    next(each)
    assert all(path in client.asked for path in paths)
    assert len(list(each)) == 3


def test_without_any_worker_left_tables_wait_for_the_next_one(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = sorted(tables.glob("*.parquet"))
    assert len(list(by(AtOnce(0), paths, monkeypatch))) == HOSTS


def dies_once(
    code: str, costs: Costs, table: Path, share: Share, policies: str, weight: int, *_: object
) -> Replay:
    """Replay a part as ever; of one part, kill the worker before it hands in the result."""
    made = parts.replay_part(parts.Part(table, share, costs, policies, weight))
    died = table.with_name("died")
    if share[0] == 1 and table.stem == "1" and not died.exists():
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
    (tmp_path / "shared").mkdir()
    (tmp_path / "link").symlink_to("shared")  # what another machine may have in another place
    damaged = tmp_path / "link" / "damaged.parquet"
    whole = (tables / "0.parquet").read_bytes()
    damaged.write_bytes(whole[:100] + bytes(400) + whole[500:])
    done = replayed(damaged, "--dask", address)
    assert done.exit_code == 1
    assert f"a worker at {address} says: {damaged}: " in done.output


def test_no_more_parts_than_cpus(tables: Path) -> None:
    assert parts.shares_of(tables / "0.parquet", 1000) == [(0, 2), (1, 2)]


def test_a_worker_with_another_lightsleep(
    address: str, tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_code", lambda: "another")
    done = replayed(tables, "--dask", address)
    assert done.exit_code == 1
    assert "has another lightsleep than the command that asks it" in done.output
    assert "start the worker again" in done.output


def test_any_file_of_the_package_makes_another_lightsleep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """scan/facts.py has haltpoll's defaults, and units.py says what fixed:TIME means."""
    code, package = cluster._code.__wrapped__, tmp_path / "lightsleep"
    digests = [code()]
    ignored = shutil.ignore_patterns("kernel", "__pycache__")
    shutil.copytree(cluster.PACKAGE, package, ignore=ignored)
    monkeypatch.setattr(cluster, "PACKAGE", package)
    assert code() == digests[0]
    for name in ("scan/facts.py", "units.py", "shim/linux/types.h"):
        with (package / name).open("a") as file:
            file.write("\n")
        digests.append(code())
    assert len(set(digests)) == len(digests)


def test_a_worker_that_has_another_table_at_the_same_path(tables: Path, tmp_path: Path) -> None:
    """As where each host has recorded itself, or has an older copy."""
    table = Path(shutil.copy(tables / "0.parquet", tmp_path / "web.parquet"))
    code, digest = cluster._code(), parts.digest_of(table)
    costs = cluster._costs(code, table, [cluster._evidence(code, table, ALL, digest)], None)
    sources: dict[str, str] = {}
    wanted = costs, table, ALL, "stock", 4, sources, digest
    assert cluster._piece(code, *wanted).wakes > 0
    shutil.copy(tables / "1.parquet", table)
    said = r"web\.parquet: this worker has another file there .*, or none: share the folder"
    with pytest.raises(LightsleepError, match=said):
        cluster._evidence(code, table, ALL, digest)
    with pytest.raises(LightsleepError, match=said):
        cluster._piece(code, *wanted)
    table.unlink()  # as where no folder is shared
    with pytest.raises(LightsleepError, match=said):
        cluster._evidence(code, table, ALL, digest)


def kills_the_scheduler(
    code: str, costs: Costs, table: Path, share: Share, policies: str, weight: int, *_: object
) -> Replay:
    os.kill(int(table.with_name("scheduler").read_text()), signal.SIGKILL)
    time.sleep(60)
    raise AssertionError("the scheduler lives")


def test_a_scheduler_that_is_killed(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_piece", kills_the_scheduler)
    copy = Path(shutil.copy(tables / "0.parquet", tmp_path))
    with started(1, tmp_path) as (address, scheduler):
        (tmp_path / "scheduler").write_text(str(scheduler))
        done = replayed(copy, "--dask", address)
    assert done.exit_code == 1
    assert f"the cluster at {address} gave up" in done.output


def test_a_recording_that_is_no_table_is_not_sent(address: str) -> None:
    done = replayed(PIPE, "--dask", address)
    assert done.exit_code == 1
    assert "lightsleep report --parquet saves one" in done.output


def test_no_scheduler(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "CONNECT_S", 1)
    # Without a port, no client is made, which would take 40 s to end.
    made: list[object] = []

    client: Any = distributed.Client

    def counted(*words: Any, **more: Any) -> Any:
        made.append(words)
        return client(*words, **more)

    monkeypatch.setattr(distributed, "Client", counted)
    for wrong in ("tcp://127.0.0.1:1", "nonsense://x", "nonsense", "tcp://host", ""):
        done = replayed(tables, "--dask", wrong)
        assert (done.exit_code, done.exception.__class__) == (1, SystemExit), done.output
        assert "no scheduler answers there" in done.output
        assert len(made) == 1  # for the first


def test_a_scheduler_without_workers(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "CONNECT_S", 5)  # a busy host takes its time
    with started(0, tmp_path) as (address, _):
        done = replayed(tables, "--dask", address)
    assert done.exit_code == 1
    assert "the scheduler has no workers: start some with dask worker" in done.output


class OddClient:
    """A client of Dask some of whose own assertions fail."""

    connects = False
    made = 0

    def __init__(self, *_: object, **__: object) -> None:
        type(self).made += 1
        assert self.connects

    def wait_for_workers(self, *_: object, **__: object) -> None:
        raise OSError("the stream is closed")

    def close(self) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("connects", "made", "said"),
    [(False, 2, "Dask fails to connect to"), (True, 1, "the scheduler has ended (the stream is")],
)
def test_assertions_of_dask_that_fail(
    tables: Path, monkeypatch: pytest.MonkeyPatch, connects: bool, made: int, said: str
) -> None:
    monkeypatch.setattr(distributed, "Client", OddClient)
    monkeypatch.setattr(OddClient, "connects", connects)
    monkeypatch.setattr(OddClient, "made", 0)
    done = replayed(tables, "--dask", "tcp://127.0.0.1:8786")
    assert done.exit_code == 1
    assert said in done.output
    assert OddClient.made == made


def test_without_dask(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing: Any = None
    monkeypatch.setitem(sys.modules, "distributed", missing)
    done = replayed(tables, "--dask", "tcp://127.0.0.1:8786")
    assert done.exit_code == 1
    assert "pip install '.[lab,dask]' in a clone" in done.output
