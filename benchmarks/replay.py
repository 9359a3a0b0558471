# SPDX-License-Identifier: GPL-2.0-only
"""How fast a replay is, and how much memory it takes, by policy.

Idle periods are made on the fly, so that a billion of them need no disk. Two things are timed on
one core: each policy alone over columns that are ready, and a whole replay from batches of rows.
The memory's bandwidth is measured beside them: what a policy reads, 30 bytes a period, cannot come
faster than that. Last, a table on the disk is replayed on one core, and on all. Writes the figures
as JSON, and as a page. ``replay.json`` beside this file are the kept figures of that page.
"""

from __future__ import annotations

import datetime
import json
import multiprocessing
import os
import platform
import queue
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa

from lightsleep.errors import LightsleepError
from lightsleep.files import write_json, write_text
from lightsleep.markdown import table
from lightsleep.periods.columns import COLUMNS
from lightsleep.periods.lost import bucket
from lightsleep.periods.model import CAUSES, Metadata
from lightsleep.periods.table import ROWS, Recording, write_parquet
from lightsleep.replay.account import replay
from lightsleep.replay.costs import Costs, Ranks
from lightsleep.replay.engine import engine
from lightsleep.replay.governed import Advertised, Governor, GovernorRunner
from lightsleep.replay.intervals import BLOCKS
from lightsleep.replay.parts import replay_table
from lightsleep.replay.policies import parse
from lightsleep.replay.stays import Limits
from lightsleep.replay.tally import Intervals, Tally
from lightsleep.scan import machine

CPUS = 4
POLICIES = "fixed:100us,haltpoll,lightsleep"
GOVERNORS = ("menu@6.12", "teo@6.12", "teo@7.3", "teo@6.12+promote")
STATES = Advertised((20_000, 60_000, 300_000), (40_000, 200_000, 900_000), (False,) * 3)
LIMITS = Limits()
TURN_NS = 1000
"""From a poll to a halt."""
STATE_COSTS_NS = np.array([20_000, 60_000, 300_000, 0])
MILLION = 1_000_000
BYTES = 8 + 8 + 2 + 1 + 1 + 1 + 8 + 1
"""What struct intervals has of each period."""

KNOWN = Metadata("host", "made up", first_ns=0)
RANKS = Ranks(tuple(range(0, 64_000, 1000)), tuple(range(4_000, 4_064)))
"""Twice as many steps as the recordings of the tests have."""
COSTS = Costs(5_000.0, {(0, 1): 40_000.0}, 40_000, {}, ranks={(0, 1): RANKS})


def durations(rng: np.random.Generator, count: int) -> Any:
    """Return idle times: mostly short, some long, in ns."""
    short = rng.exponential(60_000, count)
    return np.where(rng.random(count) < 0.2, rng.exponential(2e6, count), short).astype(np.int64)


def batches(periods: int) -> Iterator[pa.RecordBatch]:
    """Make rows of CPUS CPUs, in batches as a file has them; the same for each call."""
    rng = np.random.default_rng(1)
    idle_ns = durations(rng, ROWS)
    wait_ns = rng.integers(30_000, 60_000, ROWS)
    cpus = np.arange(ROWS) % CPUS
    now_ns = 0
    same = {
        "host": pa.DictionaryArray.from_arrays(pa.array(np.zeros(ROWS, np.int32)), ["host"]),
        "cpu": pa.array(cpus, pa.int32()),
        "length_ns": pa.array(idle_ns + 40_000),
        "state": pa.array(np.ones(ROWS, np.int16)),
        "ended_by": pa.DictionaryArray.from_arrays(pa.array(np.zeros(ROWS, np.int8)), list(CAUSES)),
        "waker_pid": pa.array(rng.integers(1, 100, ROWS), pa.int32()),
        "wakee_pid": pa.array(rng.integers(1, 100, ROWS), pa.int32()),
        "waker_cpu": pa.array((cpus + 1) % CPUS, pa.int32()),
        "waking_to_running_ns": pa.array(wait_ns),
    }
    for name in ("waker_comm", "wakee_comm"):
        same[name] = pa.array(["task"] * ROWS)
    begins_ns = np.concatenate([[0], np.cumsum(idle_ns + 60_000)[:-1]])
    for first in range(0, periods, ROWS):
        same["entered_ns"] = pa.array(begins_ns + now_ns)
        now_ns += int(begins_ns[-1]) + 10 * 1_000_000
        columns = [
            same[x.name].cast(x.type) if x.name in same else pa.nulls(ROWS, x.type) for x in COLUMNS
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=COLUMNS).slice(0, periods - first)


def timed(work: Callable[[], object], periods: int, rounds: int = 3) -> float:
    """Return how many periods per second ``work`` gets done, at best."""
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
    return periods / best


def bandwidth() -> float:
    """Return how many bytes per second one core reads from memory."""
    column = np.ones(1 << 25, np.int64)
    return timed(column.sum, column.nbytes)


def policies_alone(count: int = 4 * MILLION) -> dict[str, float]:
    """Return periods per second of each policy, over columns that are ready."""
    idle_ns = durations(np.random.default_rng(1), count)
    cost_ns = np.full(count, 40_000)
    block = (np.arange(count) * BLOCKS // count).astype(np.uint8)
    begins_ns = np.cumsum(idle_ns + 100_000)
    never = np.zeros(count, np.bool_)
    intervals = Intervals(
        idle_ns=idle_ns,
        cost_ns=cost_ns,
        bucket=bucket(cost_ns).astype(np.uint16),
        woken=cost_ns > 0,
        block=block,
        state=np.zeros(count, np.uint8),
        exit_ns=cost_ns,
        resumes=never,
        nobody=never,
        tick=never,
        limits=LIMITS,
        turn_ns=TURN_NS,
        entered_ns=begins_ns,
        typical_ns=cost_ns,
        timer_ns=idle_ns,
        arrival_ns=idle_ns,
    )
    runs, found = engine()[0], {}
    for name, make in parse(POLICIES).items():
        assert make
        assert not isinstance(make, Governor)
        runner = runs.runner(make(40_000, 4))
        found[name] = timed(lambda runner=runner: runner.run(intervals, 4, Tally()), count)  # type: ignore[misc]
    for name in GOVERNORS:
        governor = Governor.named(name)
        assert governor
        try:
            governed = GovernorRunner(governor.cpu(STATES), STATE_COSTS_NS, STATES)
        except LightsleepError as error:
            click.echo(f"{name} is left out: {error.message}", err=True)
            continue
        found[name] = timed(lambda governed=governed: governed.run(intervals, 4, Tally()), count)  # type: ignore[misc]
    found["optimum"] = timed(lambda: runs.optimum(intervals, 4, Tally()), count)
    return found


def peak_bytes(status: str | None = None) -> int:
    """Return the most memory that this process has had, or the one with that status in /proc."""
    told = Path("/proc/self/status").read_text() if status is None else status
    found = re.search(r"VmHWM:\s+(\d+) kB", told)
    assert found
    return int(found[1]) * 1024


def _whole(periods: int, policies: str, answer: Any) -> None:
    begin = time.perf_counter()
    KNOWN.last_ns = 10**15
    replay(KNOWN, COSTS, batches(periods), parse(policies))
    elapsed_s = time.perf_counter() - begin
    answer.put((elapsed_s, peak_bytes()))


def _told(answer: Any) -> tuple[float, int] | None:
    try:
        found: tuple[float, int] = answer.get(timeout=1)
    except queue.Empty:
        return None
    return found


def whole(periods: int, policies: str) -> dict[str, float]:
    """Return the speed and the peak memory of a replay in a process of its own."""
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    process = context.Process(target=_whole, args=(periods, policies, answer))
    process.start()
    while (told := _told(answer)) is None:
        if not process.is_alive() and (told := _told(answer)) is None:
            raise LightsleepError(f"the replay of {periods} periods died: {process.exitcode}")
    process.join()
    elapsed_s, peak = told
    return {"periods": periods, "periods_per_s": periods / elapsed_s, "peak_bytes": peak}


ON_ONE_CORE = """
import sys
from pathlib import Path
from lightsleep.replay.parts import replay_table
replay_table(Path(sys.argv[1]), sys.argv[2], 4, jobs=1)
print(Path("/proc/self/status").read_text())
"""


def peak_on_one_core(path: Path) -> int:
    """Return the most memory that a process has which replays a table."""
    command: list[str | Path] = [sys.executable, "-c", ON_ONE_CORE, path, POLICIES]
    return peak_bytes(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def on_disk(periods: int) -> list[dict[str, float]]:
    """Return the speed of a replay of a table on the disk, on one core and on all.

    On one core, also its peak memory.
    """
    found: list[dict[str, float]] = []
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "periods.parquet"
        for _ in write_parquet(Recording(KNOWN, batches(periods)), path):
            pass
        for jobs in dict.fromkeys((1, cores)):
            per_s = timed(lambda jobs=jobs: replay_table(path, POLICIES, 4, jobs=jobs), periods)  # type: ignore[misc]
            found.append({"cores": jobs, "periods": periods, "periods_per_s": per_s})
        found[0]["peak_bytes"] = peak_on_one_core(path)
    return found


def making(periods: int) -> float:
    """Return how many periods per second are made: what a replay of them costs beside itself."""
    return timed(lambda: [None for _ in batches(periods)], periods)


def _listed(policies: str) -> str:
    return policies.replace(",", ", ")


def page_of(document: dict[str, Any]) -> str:
    """Return the figures as a page of Markdown."""

    def million(per_s: float) -> str:
        return f"{per_s / MILLION:,.1f}"

    here = document["machine"]
    limit = document["bandwidth_limit_per_s"]
    alone = [
        (name, million(per_s), f"{100 * per_s / limit:.0f} %")
        for name, per_s in document["policies_alone_per_s"].items()
    ]
    whole = [
        (
            _listed(policies),
            f"{run['periods']:,}",
            million(run["periods_per_s"]),
            f"{run['peak_bytes'] >> 20}",
        )
        for policies, runs in document["replays"].items()
        for run in runs
    ]
    disk = [
        (str(run["cores"]), f"{run['periods']:,}", million(run["periods_per_s"]))
        for run in document["tables"]
    ]
    parts = [
        "<!-- SPDX-License-Identifier: GPL-2.0-only -->",
        "<!-- Written by benchmarks/replay.py; do not edit. -->",
        "# How fast lightsleep replay is",
        f"Measured on {here['date']} on {here['cores']} CPUs of {here['cpu']}, with made-up idle "
        f"periods of {CPUS} CPUs. Best of three runs; a whole replay of periods that are made on "
        "the fly ran once.",
        "    make bench-replay",
        "## Policies alone",
        "On one core, over columns that are ready in memory. Each period has "
        f"{BYTES} bytes. This core read {document['memory_read_bytes_per_s'] / 1e9:.1f} GB/s, so "
        f"no policy can be faster than {million(limit)} million periods per second.",
        table(("policy", "million periods per second", "of that limit"), alone),
        "## Whole replays",
        "On one core, from rows that are made on the fly: intervals, costs, all named policies, "
        "stock, and the optimum. The same rows alone were made at "
        f"{million(document['batches_made_per_s'])} million per second.",
        table(("policies", "periods", "million periods per second", "peak memory, MiB"), whole),
        "## Tables on the disk",
        "A table (Parquet) is read twice: for what wakeups cost, and to be replayed by "
        f"{_listed(POLICIES)}. Processes that share the work are started first.",
        table(("cores", "periods", "million periods per second"), disk),
    ]
    if peak := document["tables"][0].get("peak_bytes"):  # older figures lack it
        parts.append(f"On one core, the process had at most {peak >> 20} MiB of memory.")
    return "\n\n".join(parts) + "\n"


@click.command()
@click.argument("output", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--most", default=100 * MILLION, show_default=True, help="Periods of the longest.")
@click.option("--page", type=click.Path(path_type=Path, dir_okay=False), help="Write it, too.")
@click.option("--kept", is_flag=True, help="Time nothing: write the page of OUTPUT.")
def main(output: Path, most: int, page: Path | None, kept: bool) -> None:
    """Time replays and write the figures to OUTPUT."""
    if kept:
        if not page:
            raise click.UsageError("--kept needs --page")
        write_text(page, page_of(json.loads(output.read_text())))
        return
    pa.set_cpu_count(1)
    read = bandwidth()
    alone = policies_alone()
    document: dict[str, Any] = {
        "machine": {
            "cpu": machine.read(Path("/")).environment["cpu_model"] or platform.machine(),
            "cores": os.cpu_count(),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        },
        "compiled": engine()[1] is None,
        "memory_read_bytes_per_s": read,
        "policies_alone_per_s": alone,
        "bandwidth_limit_per_s": read / BYTES,
        "batches_made_per_s": making(10 * MILLION),
        "replays": {
            policies: [whole(count, policies) for count in (MILLION, 10 * MILLION)]
            for policies in POLICIES.split(",")
        },
    }
    document["replays"][POLICIES] = [whole(MILLION, POLICIES), whole(most, POLICIES)]
    document["tables"] = on_disk(16 * MILLION)
    write_json(output, document)
    if page:
        write_text(page, page_of(document))
    click.echo(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
