# SPDX-License-Identifier: GPL-2.0-only
"""``lightsleep watch``: rates of two snapshots, reading a machine that changes, what is shown."""

import contextlib
import itertools
import json
import os
import pty
import re
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from scan_trees import plant, unfold
from schemas import validator

from lightsleep import interrupts, terminal
from lightsleep.cli import main
from lightsleep.errors import LightsleepError
from lightsleep.interrupts import KINDS
from lightsleep.scan.model import PollStats, State, distinct_names
from lightsleep.watch import cli, draw
from lightsleep.watch.model import CpuCount, Snapshot, States
from lightsleep.watch.rates import CpuRates, rates, total
from lightsleep.watch.reading import OWN, Reader

CPU = "sys/devices/system/cpu"
VALID = validator(
    json.loads((resources.files("lightsleep.watch") / "watch.schema.json").read_text())
)
NAMES = ("POLL", "HALT")


def count(**changes: Any) -> CpuCount:
    fields = {
        "names": NAMES,
        "states": States((0, 0), (0, 0), None),
        "own": None,
        "interrupts": None,
        "idle_s": 0.0,
        "stolen_s": None,
    }
    return CpuCount(**(fields | changes))


def snapshot(time_s: float, *cpus: CpuCount) -> Snapshot:
    return Snapshot(time_s, "lightsleep", "menu", "adaptive", dict(enumerate(cpus)))


def one(before: CpuCount, after: CpuCount, span_s: float = 2.0) -> CpuRates:
    (found,) = rates(snapshot(10, before), snapshot(10 + span_s, after))
    return found


# Rates.


def test_shares_and_wakes() -> None:
    after = count(states=States((10, 30), (200_000, 1_200_000), 100_000), idle_s=1.5)
    found = one(count(states=States((0, 0), (0, 0), 0)), after)
    assert found.states == pytest.approx({"POLL": 0.1, "HALT": 0.6})
    assert found.busy == pytest.approx(0.25)
    assert found.asleep == pytest.approx(0.05)
    assert found.wakes == 20
    assert found.stuck == pytest.approx(0.05)


def test_a_cpu_that_sleeps_all_the_time_is_not_busy() -> None:
    found = one(count(), count(idle_s=2.0))
    assert (found.busy, found.asleep, found.wakes) == (0, 1, 0)


def test_a_sleep_that_began_long_ago_is_no_more_than_the_idle_time() -> None:
    found = one(count(), count(states=States((0, 1), (0, 60_000_000), None), idle_s=1.0))
    assert found.states == pytest.approx({"POLL": 0, "HALT": 0.5})
    assert found.asleep == 0


def test_polls() -> None:
    before = PollStats(0, 0, 0, 0, 0, 50_000, 40_000)
    after = PollStats(1000, 700, 400, 200_000_000, 100_000_000, 60_000, 50_000)
    found = one(count(own=before, interrupts=(0, 0, 0)), count(own=after, interrupts=(100, 50, 50)))
    assert (found.polls, found.hits, found.halts, found.hit_rate) == (500, 350, 200, 0.7)
    assert (found.polled, found.wasted) == pytest.approx((0.1, 0.05))
    assert (found.limit_us, found.cost_us) == (60, 50)
    assert found.lost == pytest.approx(200 * 50e-6)
    assert found.store == 350 - 100  # an interrupt may have ended each of the others


def test_a_counter_that_starts_again_rose_from_zero() -> None:
    before = PollStats(9000, 0, 0, 0, 0, 0, 0)
    assert one(count(own=before), count(own=PollStats(10, 0, 0, 0, 0, 0, 0))).polls == 5


def test_a_sum() -> None:
    found = [
        CpuRates(0, busy=0.5, wakes=10, states={"POLL": 0.5}),
        CpuRates(1, busy=0.1, wakes=30, states={"HALT": 0.9}),
        CpuRates(2),
    ]
    whole = total(found)
    assert (whole.busy, whole.wakes, whole.polls, whole.limit_us) == (0.3, 40, None, None)
    assert whole.states == pytest.approx({"POLL": 0.5 / 3, "HALT": 0.3})


def test_cpus_come_and_go_and_time_stands_still() -> None:
    assert [x.cpu for x in rates(snapshot(1, count()), snapshot(2, count(), count()))] == [0]
    assert rates(snapshot(1, count()), snapshot(1, count())) == []
    assert total([]) == CpuRates(None)


COUNTERS = st.integers(0, 2**64 - 1)


@given(*[st.tuples(COUNTERS, COUNTERS, COUNTERS)] * 2, st.floats(1e-3, 1e6), st.floats(0, 1e9))
def test_no_counter_makes_a_share_above_one(
    old: tuple[int, int, int], new: tuple[int, int, int], span_s: float, idle_s: float
) -> None:
    own_old, own_new = (PollStats(*x, *x, 0) for x in (old, new))
    found = one(
        count(states=States(old[:2], old[1:], old[0]), own=own_old),
        count(states=States(new[:2], new[1:], new[0]), own=own_new, idle_s=idle_s),
        span_s,
    )
    shares = [found.busy, found.asleep, found.polled, found.wasted, found.stuck]
    assert all(x is not None and 0 <= x <= 1 for x in shares)
    assert sum(found.states.values()) <= 1.000001


# Interrupts.


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (b"RES:  1  2  Rescheduling interrupts", "ipi"),
        (b"IPI0:  1  2  Rescheduling interrupts", "ipi"),
        (b"LOC:  1  2  Local timer interrupts", "timer"),
        (b" 11:  1  2  GIC-0  27 Level  arch_timer", "timer"),
        (b"HVS:  1  2   Hyper-V stimer0 interrupts", "timer"),
        (b"HYP:  1  2   Hypervisor callback interrupts", "device"),
        (b"IWI:  1  2   IRQ work interrupts", "ipi"),
        (b" 24:  1  2  PCI-MSI 512-edge  virtio0-req.0", "device"),
        (b"NMI:  1  2  Non-maskable interrupts", None),
        (b"ERR:  1", None),
        (b" 24:  1", None),
        (b" 24:  x  2  y", None),
        (b"", None),
    ],
)
def test_kinds_of_interrupts(row: bytes, kind: str | None) -> None:
    assert interrupts.split(row, 2) == (kind, [1, 2] if kind else [])


# Reading.


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = unfold("lightsleep-guest", tmp_path / "machine")
    rows = ("           CPU0 CPU1 CPU2 CPU3", "LOC: 1 1 1 1 timer", "24: 0 0 0 7 PCI-MSI nvme")
    plant(root, "\n".join(f"proc/interrupts: {row}" for row in rows))
    stat_rows = ["cpu 0 0 0 0 0 0 0 0", *(f"cpu{n} 0 0 0 100 0 0 0 5" for n in range(4)), "intr 1"]
    plant(root, "\n".join(f"proc/stat: {row}" for row in stat_rows))
    monkeypatch.setattr("lightsleep.watch.cli.ROOT", root)
    return root


Opener = Callable[..., Reader]


@pytest.fixture
def reader(root: Path) -> Iterator[Opener]:
    """Opens the machine, and closes its files in the end."""
    with contextlib.ExitStack() as opened:
        yield lambda *cpus: opened.enter_context(contextlib.closing(Reader(root, [*cpus] or None)))


def test_a_reading(reader: Opener) -> None:
    found = reader(1, 3).read()
    assert list(found.cpus) == [1, 3]
    cpu = found.cpus[3]
    assert cpu.names == NAMES
    assert cpu.states == States((100_000, 200_000), (300_000_000, 600_000_000), None)
    assert cpu.own
    assert (cpu.own.hits, cpu.own.limit_ns, cpu.own.halt_cost_ns) == (70_000, 0, None)
    assert cpu.interrupts == (0, 1, 7)
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    assert (cpu.idle_s, cpu.stolen_s) == (100 * tick_s, 5 * tick_s)


def test_what_changes_is_read_again(root: Path, reader: Opener) -> None:
    opened = reader()
    opened.read()
    plant(root, f"{CPU}/cpu1/cpuidle/state1/usage: 200001\n{CPU}/cpu1/lightsleep/polls: 100009")
    rows = ("           CPU0 CPU1 CPU2 CPU3", "LOC: 1 1 1 1 timer", "24: 0 9 0 7 PCI-MSI nvme")
    plant(root, "\n".join(f"proc/interrupts: {row}" for row in rows))
    cpu = opened.read().cpus[1]
    assert cpu.states
    assert cpu.own
    assert (cpu.states.usage[1], cpu.own.polls) == (200_001, 100_009)
    assert cpu.interrupts == (0, 1, 9)


STAT = "1000 700 400 200000000 100000000 60000 50000 900 2000000 410 3000000"


def test_all_counters_of_a_cpu_in_one_file(root: Path, reader: Opener) -> None:
    plant(root, f"{CPU}/cpu{{0-3}}/lightsleep/stat: {STAT}")
    opened = reader()
    first = opened.read().cpus[1]
    assert first.states == States((900, 410), (2_000_000, 3_000_000), None)
    assert first.own == PollStats(1000, 700, 400, 200_000_000, 100_000_000, 60_000, 50_000)
    again = opened.read().cpus[1]
    assert again.states is first.states  # what has not changed is not parsed
    plant(root, f"{CPU}/cpu1/lightsleep/stat: {STAT.replace('410', '411')}")
    now = opened.read().cpus[1]
    assert now.states
    assert now.states.usage == (900, 411)


@pytest.mark.parametrize("content", ["", "1 2 3", f"{STAT} 7", STAT.replace("410", "x")])
def test_a_line_of_counters_that_is_not_ours(content: str, root: Path, reader: Opener) -> None:
    plant(root, f"{CPU}/cpu{{0-3}}/lightsleep/stat: {STAT}\n")
    plant(root, f"{CPU}/cpu2/lightsleep/stat: {content}")
    assert list(reader().read().cpus) == [0, 1, 3]


def test_one_file_and_many_show_the_same(root: Path, reader: Opener) -> None:
    """The driver has each counter twice."""
    each = reader().read()
    for cpu, found in each.cpus.items():
        assert found.own
        assert found.states
        own = [getattr(found.own, name) or 0 for name in OWN]
        states = [x for both in zip(*found.states[:2], strict=True) for x in both]
        plant(root, f"{CPU}/cpu{cpu}/lightsleep/stat: {' '.join(map(str, own + states))}")
    for cpu, found in reader().read().cpus.items():
        assert found.states == each.cpus[cpu].states
        assert found.own
        assert found.own.polls == each.cpus[cpu].own.polls  # type: ignore[union-attr]


def test_counts_of_interrupts_never_fall(root: Path, reader: Opener) -> None:
    """An interrupt is freed and its number given to another; then a CPU goes offline."""

    def devices(header: str, *rows: str) -> dict[int, int]:
        lines = (header, "LOC: 1 1 1 1 timer", *rows)
        plant(root, "\n".join(f"proc/interrupts: {row}" for row in lines))
        found = opened.read().cpus
        return {
            cpu: x.interrupts[KINDS.index("device")] for cpu, x in found.items() if x.interrupts
        }

    opened = reader()
    header = "     CPU0 CPU1 CPU2 CPU3"
    assert devices(header, "24: 5 0 0 1000 PCI-MSI nvme") == {0: 5, 1: 0, 2: 0, 3: 1000}
    assert devices(header, "24: 9 0 0 2 PCI-MSI net") == {0: 14, 1: 0, 2: 0, 3: 1002}
    assert devices(header) == {0: 14, 1: 0, 2: 0, 3: 1002}
    plant(root, f"{CPU}/online: 0,2-3")
    assert devices(" CPU0 CPU2 CPU3", "24: 9 1 2 PCI-MSI net") == {0: 14, 2: 1, 3: 1002}


def test_a_count_of_32_bits_that_begins_again(root: Path, reader: Opener) -> None:
    def timers(*counts: int) -> list[int]:
        row = " ".join(map(str, counts))
        lines = ("CPU0 CPU1 CPU2 CPU3", f"LOC: {row} Local timer interrupts")
        plant(root, "\n".join(f"proc/interrupts: {line}" for line in lines))
        found = opened.read().cpus.values()
        return [x.interrupts[KINDS.index("timer")] for x in found if x.interrupts]

    opened = reader()
    before = timers((1 << 32) - 296, 3_000_000_000, 3_500_000_000, 1_000_000_000)
    after = timers(704, 3_000_001_000, 3_500_001_000, 1_000_001_000)
    assert [new - old for old, new in zip(before, after, strict=True)] == [1000] * 4
    again = timers(10, 3_000_001_000, 0, 0)  # the row began again
    assert [new - old for old, new in zip(after, again, strict=True)] == [10, 3_000_001_000, 0, 0]


def test_a_driver_that_goes_and_a_cpu_that_goes_offline(root: Path, reader: Opener) -> None:
    opened = reader()
    plant(root, f"{CPU}/online: 0-2")
    assert list(opened.read().cpus) == [0, 1, 2]
    plant(root, f"{CPU}/cpuidle/current_driver: none")
    for cpu in range(3):
        subprocess.run(["rm", "-r", root / f"{CPU}/cpu{cpu}/cpuidle"], check=True)
        subprocess.run(["rm", "-r", root / f"{CPU}/cpu{cpu}/lightsleep"], check=True)
    found = opened.read()
    assert found.driver is None
    assert found.cpus[0].states is None
    assert found.cpus[0].own is None
    assert found.cpus[0].idle_s is not None


def lose_files(cpu: int) -> None:
    """Make the open files of a CPU fail, as those in sysfs do once the CPU has been offline."""
    folder = os.open("/", os.O_RDONLY)
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own
            if f"/{CPU}/cpu{cpu}/" in str(file.readlink()):
                os.dup2(folder, int(file.name), inheritable=False)
    os.close(folder)


@pytest.mark.parametrize("with_stat", [False, True])
def test_a_cpu_that_was_offline_between_two_readings_comes_back(
    with_stat: bool, root: Path, reader: Opener
) -> None:
    """The lists of CPUs and drivers are the same before and after."""
    if with_stat:
        plant(root, f"{CPU}/cpu{{0-3}}/lightsleep/stat: {STAT}")
    opened = reader()
    for cpu in (1, 3):
        assert list(opened.read().cpus) == [0, 1, 2, 3]
        lose_files(cpu)
        assert cpu not in opened.read().cpus
    plant(root, f"{CPU}/cpu3/lightsleep/polls: 9\n{CPU}/cpu3/lightsleep/stat: 9{STAT[4:]}")
    cpu3 = opened.read().cpus[3]
    assert cpu3.own
    assert cpu3.own.polls == 9


def openings(opened: Reader, rounds: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the readings that open all files."""
    found = []
    real = Reader._open

    def noted(reader: Reader, number: int) -> None:
        found.append(number)
        real(reader)

    with monkeypatch.context() as patch:
        for number in range(rounds):
            patch.setattr(Reader, "_open", lambda x, n=number: noted(x, n))
            opened.read()
    return found


def test_a_cpu_that_stays_unreadable_costs_ever_less(
    root: Path, reader: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightsleep.watch.reading.LONGEST_WAIT", 8)
    opened = reader()
    assert openings(opened, 3, monkeypatch) == []
    plant(root, f"{CPU}/cpu2/lightsleep/polls: many\n{CPU}/cpu2/cpuidle/state0/usage: 7")
    assert openings(opened, 32, monkeypatch) == [1, 3, 7, 15, 23, 31]
    lose_files(1)  # another one's loss does not wait for long
    assert openings(opened, 2, monkeypatch) == [1]
    assert list(opened.read().cpus) == [0, 1, 3]
    plant(root, f"{CPU}/cpu2/lightsleep/polls: 5")
    openings(opened, 8, monkeypatch)
    assert list(opened.read().cpus) == [0, 1, 2, 3]
    assert openings(opened, 20, monkeypatch) == []


def test_files_that_fail_right_after_a_change_are_tried_again(root: Path, reader: Opener) -> None:
    """A CPU is in the list before its files are ready."""
    plant(root, f"{CPU}/online: 0-2")
    opened = reader()
    plant(root, f"{CPU}/online: 0-3\n{CPU}/cpu3/lightsleep/polls: not yet")
    assert list(opened.read().cpus) == [0, 1, 2]
    plant(root, f"{CPU}/cpu3/lightsleep/polls: 5")
    assert list(opened.read().cpus) == [0, 1, 2, 3]


def test_a_cpu_that_is_listed_before_its_states_are_there(root: Path, reader: Opener) -> None:
    plant(root, f"{CPU}/online: 0-2")
    opened = reader()
    (root / f"{CPU}/cpu3/cpuidle").rename(root / "later")
    plant(root, f"{CPU}/online: 0-3")
    found = opened.read().cpus[3]
    assert (found.states, found.idle_s is None) == (None, False)
    (root / "later").rename(root / f"{CPU}/cpu3/cpuidle")
    assert opened.read().cpus[3].states


def test_a_cpu_that_never_gets_states_costs_ever_less(
    root: Path, reader: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightsleep.watch.reading.LONGEST_WAIT", 8)
    (root / f"{CPU}/cpu3/cpuidle").rename(root / "never")
    opened = reader()
    assert openings(opened, 32, monkeypatch) == [1, 3, 7, 15, 23, 31]
    assert list(opened.read().cpus) == [0, 1, 2, 3]


def test_garbage_loses_the_cpu_and_no_more(root: Path, reader: Opener) -> None:
    plant(root, f"{CPU}/cpu2/lightsleep/polls: many\nproc/stat: cpu x\nproc/interrupts: ?")
    found = reader().read()
    assert list(found.cpus) == [0, 1, 3]
    assert found.cpus[0].interrupts is None
    assert found.cpus[0].idle_s is None


@pytest.fixture
def few_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (90, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_low_limit_of_open_files_is_raised(reader: Opener, few_files: None) -> None:
    assert len(reader().read().cpus) == 4
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 90


def test_a_low_limit_that_cannot_be_raised(reader: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (90, 90))
    before = open_files()
    assert len(reader().read().cpus) == 4
    assert open_files() - before < 10


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def test_no_cpu(root: Path) -> None:
    with pytest.raises(LightsleepError, match="no CPU to watch"):
        Reader(root, [77])


# How often.


@pytest.mark.parametrize(
    ("spent_s", "between_s", "wanted_s"),
    [
        (0.0, (1, 10), 1),
        (0.0009, (1, 10), 1),
        (0.0011, (1, 10), 2),
        (0.0042, (1, 10), 5),
        (0.01, (15, 60), 15),
        (9.0, (1, 10), 10),
    ],
)
def test_the_interval_follows_from_what_a_round_costs(
    spent_s: float, between_s: tuple[int, int], wanted_s: int
) -> None:
    assert cli.pause_s(spent_s, between_s) == wanted_s
    assert wanted_s == between_s[1] or spent_s <= cli.SHARE * wanted_s


class Clocks:
    """Clocks that only move when somebody waits or works."""

    def __init__(self) -> None:
        self.now_s, self.worked_s = 0.0, 0.0

    def monotonic(self) -> float:
        return self.now_s

    def process_time(self) -> float:
        return self.worked_s

    def sleep(self, time_s: float) -> None:
        self.now_s += time_s

    def work(self, time_s: float) -> None:
        self.now_s += time_s
        self.worked_s += time_s


@pytest.mark.parametrize("cost_s", [0.0001, 0.0007, 0.002, 0.005, 0.0295])
def test_watch_stays_below_its_share_of_a_cpu(
    cost_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = Clocks()
    monkeypatch.setattr(cli, "time", clocks)
    paced = cli._paced(None, cli.LIVE_S, None)
    for number, _ in zip(range(500), paced, strict=False):
        clocks.work(cost_s)
        if number == 1:
            assert clocks.now_s <= cli.LIVE_S[0] + 2 * cost_s  # the first view comes at once
            start_s, clocks.worked_s = clocks.now_s, 0.0
    assert clocks.worked_s <= cli.SHARE * (clocks.now_s - start_s)


@pytest.mark.parametrize("steady", [False, True])
def test_a_round_that_costs_far_more_changes_no_interval(
    steady: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks, starts = Clocks(), []
    monkeypatch.setattr(cli, "time", clocks)
    for number, _ in zip(range(60), cli._paced(None, (1, 30), None, steady), strict=False):
        starts.append(clocks.now_s)
        clocks.work(0.05 if number % 7 == 5 else 0.0005)
    assert {round(b - a) for a, b in itertools.pairwise(starts)} == {1}


def test_an_interval_that_prometheus_sees_gets_no_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks, starts = Clocks(), []
    monkeypatch.setattr(cli, "time", clocks)
    for number, _ in zip(range(90), cli._paced(None, (1, 30), None, steady=True), strict=False):
        starts.append(clocks.now_s)
        clocks.work(0.0045 if 30 < number < 60 else 0.0015)
    intervals = [round(b - a) for a, b in itertools.pairwise(starts)]
    assert intervals == sorted(intervals)
    assert set(intervals) == {1, 2, 5}


def test_who_counts_does_not_wait_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks()
    monkeypatch.setattr(cli, "time", clocks)
    for _ in cli._paced(None, cli.LIVE_S, 4):
        clocks.work(0.5)
    assert clocks.now_s == pytest.approx(3 * cli.LIVE_S[0] + 0.5)


def test_a_given_interval_is_kept_and_missed_rounds_are_not_made_up_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks, starts = Clocks(), []
    monkeypatch.setattr(cli, "time", clocks)
    for number, _ in enumerate(cli._paced(2.0, cli.LIVE_S, 6)):
        starts.append(clocks.now_s)
        clocks.work(7.0 if number == 2 else 0.5)
    assert starts == [0, 2, 4, 11, 13, 15]


# What is shown.


def watched(*words: str) -> Result:
    result = CliRunner().invoke(main, ["watch", "-i", "0.1", *words], env={"COLUMNS": "200"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_the_page(root: Path) -> None:
    lines = watched("-n", "1").stdout.splitlines()
    assert re.fullmatch(r"over [\d.]+ s: driver lightsleep, governor menu, mode adaptive", lines[0])
    assert lines[2].split("  ")[0] == "cpu"
    assert [line.split()[0] for line in lines[3:8]] == ["all", "0", "1", "2", "3"]
    assert "HALT %" in lines[2]
    assert "limit us" in lines[2]


def test_json_lines_follow_their_schema(root: Path) -> None:
    lines = watched("-n", "2", "--json", "-c", "0-1").stdout.splitlines()
    documents = [json.loads(line) for line in lines]
    assert len(documents) == 2
    for document in documents:
        VALID.validate(document)
        assert [x["cpu"] for x in document["cpus"]] == [0, 1]
        assert document["span_s"] > 0


def test_the_file_of_metrics_is_whole_and_readable(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "lightsleep.prom"
    umask = os.umask(0o077)
    try:
        assert watched("-n", "2", "--openmetrics", str(file)).output == ""
    finally:
        os.umask(umask)
    assert file.read_text().endswith("\n")
    assert 'lightsleep_polls_total{cpu="0"} 100000\n' in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) & 0o044 == 0o044  # node_exporter is another user
    assert [x.name for x in tmp_path.glob("*prom*")] == ["lightsleep.prom"]


def test_no_file_of_metrics_is_written_through_a_link(root: Path, tmp_path: Path) -> None:
    """The folder may be that of node_exporter's user, and the command root's."""
    (tmp_path / "victim").touch(0o600)
    (tmp_path / "x.prom").symlink_to("victim")
    result = watched("-n", "1", "--openmetrics", str(tmp_path / "x.prom"))
    assert result.exit_code == 1
    assert "it is a link" in result.output
    victim = tmp_path / "victim"
    assert (stat.S_IMODE(victim.stat().st_mode), victim.read_text()) == (0o600, "")


def test_states_of_one_name_are_told_apart(root: Path) -> None:
    for state in (0, 1):
        plant(root, f"{CPU}/cpu{{0-3}}/cpuidle/state{state}/name: cluster-sleep-0")
    (line,) = watched("-n", "1", "--json").stdout.splitlines()
    document = json.loads(line)
    VALID.validate(document)
    assert [*document["all"]["states"]] == ["cluster-sleep-0#0", "cluster-sleep-0#1"]


@given(st.lists(st.sampled_from(["C1", "C1#0", "C1#1", "C1#0#1", "C6"]), min_size=4, max_size=4))
def test_names_of_states_are_distinct(names: list[str]) -> None:
    states = [State(number, name, *[None] * 12) for number, name in enumerate(names)]
    found = [*distinct_names(states).values()]
    assert len(set(found)) == len(names)
    assert found.count("C6") == (names.count("C6") == 1)


def view(found: list[CpuRates], **options: Any) -> list[str]:
    defaults = {"sort": "cpu", "rows": None, "width": None}
    return draw.lines(snapshot(1), found, 1.0, **(defaults | options))


def test_256_cpus_fit_a_screen_the_busiest_first() -> None:
    found = [CpuRates(n, busy=n / 256, wakes=float(n)) for n in range(256)]
    lines = view(found, sort="wakes", rows=20, width=80)
    assert [line.split()[0] for line in lines[3:6]] == ["all", "255", "254"]
    assert lines[-1] == "236 more CPUs; --top, --sort and --cpus choose"
    assert len(lines) == 3 + 21 + 1
    assert max(map(len, lines)) <= 80


def test_a_narrow_screen_says_what_it_leaves_out() -> None:
    found = [CpuRates(0, busy=0.1, wakes=5.0, ipi=2.0, timer=1.0)]
    lines = view(found, width=24)
    assert max(map(len, lines[2:-1])) <= 24
    assert lines[-1] == "too narrow for: ipi/s, timer/s"


def test_without_a_driver_it_says_so() -> None:
    nothing = Snapshot(1, None, None, None, {})
    assert (
        "driver none: nothing counts idle states"
        in draw.lines(nothing, [], 1.0, sort="cpu", rows=None, width=None)[0]
    )


@pytest.mark.parametrize(
    "words", [["-i", "0"], ["-i", "nan"], ["-i", "x"], ["--sort", "x"], ["--top", "0"], ["-n", "0"]]
)
def test_wrong_words(words: list[str], root: Path) -> None:
    assert watched("-n", "1", *words).exit_code == 2


def test_json_and_metrics_exclude_each_other(root: Path, tmp_path: Path) -> None:
    assert watched("--json", "--openmetrics", str(tmp_path / "x.prom")).exit_code == 2


@pytest.mark.parametrize(
    ("output", "words"),
    [(["--json"], ["--top", "5"]), (["--json"], ["--sort", "cpu"])]
    + [(["--openmetrics", "x.prom"], words) for words in (["--top", "5"], ["--sort", "wakes"])],
)
def test_only_a_view_has_an_order(
    output: list[str], words: list[str], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    result = watched("-n", "1", *output, *words)
    assert result.exit_code == 2
    assert f"{words[0]} has no effect with {output[0]}: leave out {words[0]}" in result.output
    assert not (root / "x.prom").exists()


WATCH = [sys.executable, "-m", "lightsleep", "watch", "-i", "0.1"]


# systemd ends a service by SIGTERM, and a terminal that closes is lost.
ENDS = {signal.SIGINT: 0, signal.SIGTERM: 0, signal.SIGHUP: 129}


@pytest.mark.parametrize("number", ENDS, ids=lambda number: number.name)
def test_a_signal_ends_it_well(number: signal.Signals) -> None:
    command = [*WATCH, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline()
        time.sleep(0.05)
        process.send_signal(number)
        _, errors = process.communicate()
    assert process.returncode == ENDS[number]
    assert errors == b""


def test_a_service_that_is_stopped_ends_well(tmp_path: Path) -> None:
    file = tmp_path / "x.prom"
    with subprocess.Popen([*WATCH, "--openmetrics", file]) as process:
        deadline = time.monotonic() + 60
        while not file.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.terminate()
    assert process.returncode == 0
    assert [*tmp_path.iterdir()] == [file]


@pytest.mark.parametrize(
    ("a_terminal", "variables", "moves"),
    [
        (True, {"TERM": "xterm"}, True),
        (True, {"TERM": "dumb"}, False),
        (True, {"TERM": "dumb", "FORCE_COLOR": "1"}, False),
        (False, {"TERM": "xterm", "FORCE_COLOR": "1"}, False),
        (False, {"TERM": "xterm", "TTY_COMPATIBLE": "1"}, False),
    ],
)
def test_only_a_screen_is_drawn_anew(
    a_terminal: bool, variables: dict[str, str], moves: bool
) -> None:
    reader, writer = pty.openpty() if a_terminal else os.pipe()
    said = b""
    with subprocess.Popen(WATCH, stdout=writer, env=os.environ | variables) as process:
        while b"over" not in said:
            said += os.read(reader, 4096)
        process.send_signal(signal.SIGINT)
    for descriptor in (reader, writer):
        os.close(descriptor)
    assert process.returncode == 0
    assert (b"\x1b" in said) == moves


def test_progress_needs_a_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with terminal.progress() as tell:
        tell("CPU 1", 1, 2)
    assert capsys.readouterr().err == ""


def test_needs_neither_numpy_nor_prometheus() -> None:
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['numpy', 'prometheus_client']))\n"
        "import lightsleep.watch.cli"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
