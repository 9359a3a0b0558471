# SPDX-License-Identifier: GPL-2.0-only
"""Replaying tables of idle periods on a Dask cluster, whose workers read the same files.

A table is split by CPU, as parts.py splits it among processes, so neither the number of workers nor
which of them has which CPUs makes a difference to any figure. Dask gives the parts of a worker that
died to another one. Results are added up here, in the order of the files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from lightsleep.errors import LightsleepError
from lightsleep.replay.account import Replay
from lightsleep.replay.demand import Costs
from lightsleep.replay.parts import Part, costs_of_table, parts_of, replay_part

CONNECT_S = 20
"""How long the scheduler, and then a first worker, may take to answer."""


def replay_tables(
    address: str, tables: Sequence[Path], policies: str, cost_ns: int | None, weight: int
) -> list[tuple[Costs, Replay]]:
    """Replay tables by the policies named, on the cluster whose scheduler is at ``address``.

    Returns the costs and the replay of each table, as replay_table() would. Raises LightsleepError
    where the cluster does not answer, cannot read a table, or gives up.
    """
    with _client(address) as client:
        cores = sum(client.nthreads().values())
        asked = []
        for table in (path.resolve() for path in tables):
            costs = client.submit(costs_of_table, table, cost_ns, pure=False)
            pieces = [
                client.submit(_piece, costs, table, index, of, policies, weight, pure=False)
                for index, of in parts_of(table, cores)
            ]
            asked.append((costs, pieces))
        _await(client, address, [piece for _, pieces in asked for piece in pieces])
        return [(costs.result(), _joined(pieces)) for costs, pieces in asked]


def _piece(costs: Costs, table: Path, index: int, of: int, policies: str, weight: int) -> Replay:
    return replay_part(Part(table, index, of, costs, policies, weight))


def _joined(pieces: list[Any]) -> Replay:
    first: Replay = pieces[0].result()
    for piece in pieces[1:]:
        first.join(piece.result())
    return first


@contextlib.contextmanager
def _client(address: str) -> Iterator[Any]:
    try:
        from distributed import Client
    except ImportError as error:
        raise LightsleepError(
            "--dask needs Dask, which is not installed: pip install 'lightsleep[dask]'"
        ) from error
    try:
        client = Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise LightsleepError(
            f"--dask {address}: no scheduler answers there; its address is like tcp://host:8786, "
            f"as dask scheduler prints it ({error})"
        ) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=CONNECT_S)
        except TimeoutError as error:
            raise LightsleepError(
                f"--dask {address}: the scheduler has no workers: start some with dask worker "
                f"{address}"
            ) from error
        yield client


def _await(client: Any, address: str, pieces: list[Any]) -> None:
    """Wait for all pieces, and show on a terminal how many are done. The first failure ends it."""
    from distributed import as_completed

    console = Console(stderr=True)
    try:
        with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
            task = bar.add_task("replaying on the cluster", total=len(pieces))
            for piece in as_completed(pieces, loop=client.loop):
                if piece.status != "finished":
                    raise _failure(address, piece)
                bar.advance(task)
    finally:
        for piece in pieces:
            if not piece.done():
                piece.cancel()


def _failure(address: str, piece: Any) -> LightsleepError:
    error = piece.exception()
    if isinstance(error, LightsleepError):
        return LightsleepError(f"a worker at {address} says: {error.message}")
    return LightsleepError(
        f"the cluster at {address} gave up: {type(error).__name__}: {error}. Each worker needs "
        "this version of lightsleep[lab], the tables at the same paths, and memory"
    )
