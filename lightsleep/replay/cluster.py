# SPDX-License-Identifier: GPL-2.0-only
"""Replaying tables of idle periods on a Dask cluster, whose workers read the same files.

A table is split by CPU, as parts.py splits it among processes, so neither the number of workers nor
which of them has which CPUs makes a difference to any figure. Dask gives the parts of a worker that
died to another one. Results are handed on here, in the order of the files, and no part is sent far
ahead of that, so memory does not grow with their number.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightsleep import cache
from lightsleep.compiled import HEADERS, KERNEL
from lightsleep.errors import LightsleepError
from lightsleep.governors.build import sources_digest
from lightsleep.periods.table import Share
from lightsleep.replay.account import Replay
from lightsleep.replay.costs import Costs
from lightsleep.replay.evidence import Evidence
from lightsleep.replay.given import Given
from lightsleep.replay.governed import Governor
from lightsleep.replay.parts import (
    Part,
    digest_of,
    evidence_of,
    replay_part,
    shares_of,
    together,
)
from lightsleep.replay.policies import parse
from lightsleep.sources import LINK
from lightsleep.terminal import progress

CONNECT_S = 20
"""How long the scheduler, and then a first worker, may take to answer."""

CONNECT_TRIES = 2
"""How often a connection is tried that fails by an assertion of Dask's own. On a busy machine, one
did."""

AHEAD = 2
"""So many parts for each core are sent before the results of the first table are handed on."""

REPLAYING = "replaying on the cluster"
PACKAGE = Path(__file__).parents[1]
SUFFIXES = (".py", ".c", ".h")

FAILED = ("error", "cancelled")
"""States of a future that do not change any more, apart from finished."""


@dataclass(frozen=True)
class _Table:
    """A table to replay; ``digest`` is that of its footer here."""

    path: Path
    shares: list[Share]
    digest: str

    @classmethod
    def of(cls, path: Path, cores: int) -> _Table:
        """Look at a table. Raises LightsleepError where it is none."""
        return cls(path, shares_of(path, cores), digest_of(path))


@dataclass
class _Asked:
    """The futures of a table: of its costs, and of what each share of its CPUs did."""

    costs: Any
    pieces: list[Any]


def replay_tables(
    address: str, tables: Sequence[Path], policies: str, given: Given | None, weight: int
) -> Generator[tuple[Costs, Replay], None, None]:
    """Replay tables by the policies named, on the cluster whose scheduler is at ``address``.

    Yields the costs and the replay of each table, in their order, as replay_table() would return
    them. Raises LightsleepError where the cluster does not answer, cannot read a table, or gives
    up.
    """
    with _client(address) as client:
        cores = _cores(client, address)
        ours, sources = _code(), _sources(policies)

        def ask(table: _Table) -> _Asked:
            path, shares, digest = table.path, table.shares, table.digest
            found = [client.submit(_evidence, ours, path, x, digest, pure=False) for x in shares]
            costs = client.submit(_costs, ours, path, found, given, pure=False)
            wanted = policies, weight, sources, digest
            pieces = [
                client.submit(_piece, ours, costs, path, share, *wanted, pure=False)
                for share in shares
            ]
            return _Asked(costs, pieces)

        every = [_Table.of(path.absolute(), cores) for path in tables]
        yield from _in_order(client, address, every, ask)


def _cores(client: Any, address: str) -> int:
    """Return how many cores the workers have by now; 1, where all have just gone."""
    try:
        threads: dict[str, int] = client.nthreads()
    except OSError as error:
        raise _gone(address, error) from error
    return max(1, sum(threads.values()))


def _in_order(
    client: Any,
    address: str,
    tables: Sequence[_Table],
    ask: Callable[[_Table], _Asked],
) -> Iterator[tuple[Costs, Replay]]:
    """Yield what becomes of tables, and show on a terminal how many parts are done.

    Tables are sent ahead until there are AHEAD parts for each core; workers may come and go. The
    first failure ends all.
    """
    left, begun, done = iter(tables), deque[_Asked](), 0
    total = sum(len(table.shares) for table in tables)
    try:
        with progress() as tell:
            tell(REPLAYING, done, total)
            for _ in tables:
                most = AHEAD * _cores(client, address)
                while sum(len(x.pieces) for x in begun) < most and (table := next(left, None)):
                    begun.append(ask(table))
                for _ in _awaited(client, address, begun[0].pieces):
                    done += 1
                    tell(REPLAYING, done, total)
                yield _taken(address, begun)
    except BaseException:
        with contextlib.suppress(Exception):  # the first failure is the one to tell
            client.cancel([piece for asked in begun for piece in asked.pieces])
        raise


def _awaited(client: Any, address: str, pieces: list[Any]) -> Iterator[None]:
    """Wait for all pieces; yield whenever one is done. Raises LightsleepError where one fails.

    A piece whose worker dies later is lost, not failed: Dask makes it again.
    """
    from distributed import as_completed

    for piece in as_completed(pieces, loop=client.loop):
        if piece.status in FAILED:
            _result(address, piece)
        yield


def _taken(address: str, begun: deque[_Asked]) -> tuple[Costs, Replay]:
    """Return the results of the first table, which the cluster may forget then."""
    found = _result(address, begun[0].costs), _joined(address, begun[0].pieces)
    begun.popleft()
    return found


def _evidence(code: str, table: Path, share: Share, digest: str) -> Evidence:
    _require_same(code)
    _require_same_table(table, digest)
    return evidence_of(table, share)


def _costs(code: str, table: Path, found: list[Evidence], given: Given | None) -> Costs:
    _require_same(code)
    return together(table, copy.deepcopy(found), given)  # they may be needed again


def _piece(
    code: str,
    costs: Costs,
    table: Path,
    share: Share,
    policies: str,
    weight: int,
    sources: dict[str, str],
    digest: str,
) -> Replay:
    _require_same(code)
    _require_same_sources(sources)
    _require_same_table(table, digest)
    return replay_part(Part(table, share, costs, policies, weight))


def _joined(address: str, pieces: list[Any]) -> Replay:
    first: Replay = _result(address, pieces[0])
    for piece in pieces[1:]:
        first.join(_result(address, piece))
    return first


@functools.cache
def _code() -> str:
    """Return a digest of this version's code, and of the kernel's files that a replay compiles.

    It is the same however lightsleep was installed. A process goes on with the code that it has
    read, so what it said once stays true.
    """
    kernel = PACKAGE / LINK.name
    ours = [x for x in PACKAGE.rglob("*") if x.suffix in SUFFIXES and kernel not in x.parents]
    theirs = [KERNEL / f"{x}.{y}" for x in ("promote", "promote_policy") for y in "ch"]
    theirs += [KERNEL / "poll_limit.c", HEADERS / "poll_limit.h"]
    named = [(str(x.relative_to(PACKAGE)), x) for x in ours] + [(x.name, x) for x in theirs]
    return cache.digest(*(part for name, x in sorted(named) for part in (name, x.read_bytes())))


def _sources(policies: str) -> dict[str, str]:
    """Return a digest of the sources of each kernel whose governors are among the policies.

    Raises LightsleepError where one is not here.
    """
    governors = [x for x in parse(policies).values() if isinstance(x, Governor)]
    return {x.version: sources_digest(x.version) for x in governors}


def _require_same_sources(sources: dict[str, str]) -> None:
    for version, digest in sources.items():
        if sources_digest(version) != digest:
            raise LightsleepError(
                f"this worker has other governors of Linux {version} than the command that asks "
                f"it: install the same release of linux-source-{version} on both"
            )


def _require_same_table(table: Path, digest: str) -> None:
    if digest_of(table) != digest:
        raise LightsleepError(
            f"{table}: this worker has another file there than the command that asks it, or none: "
            "share the folder of the tables, or copy them to all"
        )


def _require_same(code: str) -> None:
    if code != _code():
        raise LightsleepError(
            "this worker has another lightsleep than the command that asks it: install the same "
            "on both, and start the worker again"
        )


@contextlib.contextmanager
def _client(address: str) -> Iterator[Any]:
    client = _connected(address)
    try:
        try:
            client.wait_for_workers(1, timeout=CONNECT_S)
        except TimeoutError as error:
            raise LightsleepError(
                f"--dask {address}: the scheduler has no workers: start some with dask worker "
                f"{address}"
            ) from error
        except OSError as error:
            raise _gone(address, error) from error
        yield client
    finally:
        with contextlib.suppress(Exception):  # what was found, or went wrong, is known by now
            client.close()


def _connected(address: str) -> Any:
    try:
        from distributed import Client
        from distributed.comm.addressing import get_address_host_port
    except ImportError as error:
        raise LightsleepError(
            "--dask needs Dask, which is not installed: pip install '.[lab,dask]' in a clone of "
            "lightsleep"
        ) from error
    for left in reversed(range(CONNECT_TRIES)):
        try:
            get_address_host_port(address)  # else a client would be made, and end in 40 s
            return Client(address, timeout=CONNECT_S, set_as_default=False)
        except AssertionError as error:
            if not left:
                raise LightsleepError(
                    f"--dask {address}: Dask fails to connect to the scheduler, and does not say "
                    "why: see what the scheduler prints"
                ) from error
        except ImportError as error:
            raise LightsleepError(
                f"--dask {address}: the scheduler has another version of Dask ({error}): install "
                "the same on both"
            ) from error
        except (OSError, ValueError) as error:
            raise LightsleepError(
                f"--dask {address}: no scheduler answers there; its address is like "
                f"tcp://host:8786, as dask scheduler prints it ({error})"
            ) from error
    raise AssertionError


def _gone(address: str, error: OSError) -> LightsleepError:
    return LightsleepError(
        f"--dask {address}: the scheduler has ended ({error}): it must go on until the end; start "
        "it again, and then this command"
    )


def _result(address: str, future: Any) -> Any:
    """Return what a worker found, when it has. Raises LightsleepError with what went wrong."""
    try:
        return future.result()
    except LightsleepError as error:
        raise LightsleepError(f"a worker at {address} says: {error.message}") from error
    except Exception as error:  # whatever a worker of some installation raises
        raise LightsleepError(
            f"the cluster at {address} gave up: {type(error).__name__}: {error}. It must go on "
            "until the end, and each worker needs this version of lightsleep[lab,dask], the "
            "tables at the same paths, and memory"
        ) from error
