# SPDX-License-Identifier: GPL-2.0-only
"""Reading the counters of a machine that changes."""

import contextlib
import gc
import os
import re
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scan_trees import plant
from watched import CPU, NAMES

from lightsleep import interrupts
from lightsleep.errors import LightsleepError
from lightsleep.interrupts import KINDS, Kind
from lightsleep.scan.collect import collect
from lightsleep.scan.model import PollStats
from lightsleep.watch import openmetrics
from lightsleep.watch.model import Snapshot, States
from lightsleep.watch.rates import rates
from lightsleep.watch.reading import Reader

pytest_plugins = "watched"


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
        (b" 16:  1  2  XIVE-IPI   0 Edge      IPI-0", "ipi"),
        (b" 16:  1  2  XICS   2 Edge      IPI", "ipi"),
        (b"254:  1  2  MPIC 1791 Edge  ipi reschedule", "ipi"),
        (b"  5:  1  2  RISC-V INTC   5 Edge      riscv-timer", "timer"),
        (b"  0:  1  2  IO-APIC   2-edge      timer", "timer"),
        (b" 17:  1  2  XIVE-IRQ 4097 Edge  pci-timer", "device"),
        (b" 48:  1  2  xen-percpu    -virq      timer0", "timer"),
        (b" 49:  1  2  xen-percpu    -ipi       resched0", None),
        (b" 53:  1  2  xen-dyn    -event     eth0-q0-rx", "device"),
        (b"NMI:  1  2  Non-maskable interrupts", None),
        (b"ERR:  1", None),
        (b"", None),
        # Chips of GPIO lines are named after where their registers are.
        (b" 24:  1  2  48055000.gpio  5 Level  button", "device"),
        (b" 24:  1  2  74x164  5 Level  button", "device"),
        (b" 24:  1  2     -     button", "device"),
        (b"RES:  1  2", "ipi"),
        (b"RES:  1  2  ", "ipi"),
    ],
)
def test_kinds_of_interrupts(row: bytes, kind: str | None) -> None:
    assert interrupts.split(row, 2) == (kind, [1, 2] if kind else [])


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (b" 24:  1", "device"),
        (b" 24:  x  2  y", "device"),
        (b"RES:  1  Rescheduling interrupts", "ipi"),
        (b"RES:  1  2  3  Rescheduling interrupts", "ipi"),
        (b"RES:  1  2  3", "ipi"),
        (b" 24:  1  2  3  PCI-MSI 512-edge  virtio0-req.0", "device"),
    ],
)
def test_a_row_that_is_of_more_or_fewer_cpus_tells_nothing(row: bytes, kind: str) -> None:
    assert interrupts.split(row, 2) == (kind, [])


@pytest.mark.parametrize(
    ("device", "kept"),
    [(b"xen-dyn    -event     blkif", 2), (b"PCI-MSI 512-edge  virtio0-req.0", 3)],
)
def test_in_a_xen_guest_an_event_counts_once(device: bytes, kept: int) -> None:
    rows = [b" 24:  1  2  " + device, b"RES:  1  2", b"HYP:  1  2   Hypervisor callback interrupts"]
    header, found = interrupts.table(b"\n".join([b"  CPU0  CPU1", *rows]))
    assert (header, found) == (b"  CPU0  CPU1", rows[:kept])


Opener = Callable[..., Reader]


@pytest.fixture
def reader(four_cpus: Path) -> Iterator[Opener]:
    """Opens the machine, and closes its files in the end."""
    with contextlib.ExitStack() as opened:
        yield lambda *cpus: opened.enter_context(
            contextlib.closing(Reader(four_cpus, [*cpus] or None))
        )


def test_a_reading(reader: Opener) -> None:
    found = reader(1, 3).read()
    assert list(found.cpus) == [1, 3]
    cpu = found.cpus[3]
    assert cpu.names == NAMES
    assert cpu.polling == {"POLL"}
    assert cpu.states == States((100_000, 200_000), (300_000_000, 600_000_000))
    assert cpu.own
    assert (cpu.own.hits, cpu.own.limit_ns, cpu.own.halt_cost_ns) == (70_000, 0, 52_000)
    assert cpu.interrupts == (0, 1, 7)
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    assert (cpu.idle_s, cpu.stolen_s) == (100 * tick_s, 5 * tick_s)


def under_another_driver(root: Path) -> None:
    """Leave what any driver has: usage and time of each state, in a file each."""
    for folder in root.glob(f"{CPU}/cpu*/lightsleep"):
        shutil.rmtree(folder)


@pytest.mark.parametrize("ours", [False, True])
def test_what_changes_is_read_again(ours: bool, four_cpus: Path, reader: Opener) -> None:
    if not ours:
        under_another_driver(four_cpus)
    opened = reader()
    opened.read()
    stat = four_cpus / f"{CPU}/cpu1/lightsleep/stat"
    if ours:
        stat.write_text(stat.read_text().replace(" 200000 ", " 200001 "))
    plant(four_cpus, f"{CPU}/cpu1/cpuidle/state1/usage: 200001")
    interrupts = four_cpus / "proc/interrupts"
    interrupts.write_text(interrupts.read_text().replace("0 0 0 7", "0 9 0 7"))
    cpu = opened.read().cpus[1]
    assert cpu.states == States((100_000, 200_001), (300_000_000, 600_000_000))
    assert (cpu.own is not None) == ours
    assert cpu.interrupts == (0, 1, 9)


STAT = "1000 700 400 200000000 100000000 60000 50000 900 2000000 410 3000000"


def test_all_counters_of_a_cpu_in_one_file(four_cpus: Path, reader: Opener) -> None:
    plant(four_cpus, f"{CPU}/cpu{{0-3}}/lightsleep/stat: {STAT}")
    opened = reader()
    first = opened.read().cpus[1]
    assert first.states == States((900, 410), (2_000_000, 3_000_000))
    assert first.own == PollStats(1000, 700, 400, 200_000_000, 100_000_000, 60_000, 50_000)
    again = opened.read().cpus[1]
    assert again.states is first.states  # what has not changed is not parsed
    plant(four_cpus, f"{CPU}/cpu1/lightsleep/stat: {STAT.replace('410', '411')}")
    now = opened.read().cpus[1]
    assert now.states
    assert now.states.usage == (900, 411)


def test_that_the_host_is_short_of_cores_is_read_each_time(four_cpus: Path, reader: Opener) -> None:
    """It may change every few seconds, so it opens no file anew."""
    file = "sys/module/cpuidle_lightsleep/parameters/host_is_short"
    plant(four_cpus, f"{file}: 0")
    opened = reader()
    first = opened.read()
    plant(four_cpus, f"{file}: 1")
    second = opened.read()
    assert (first.host_is_short, second.host_is_short) == (False, True)
    assert second.cpus[0].states is first.cpus[0].states


def test_pauses_stand_behind_the_states(four_cpus: Path, reader: Opener) -> None:
    """They end with time, while the CPU sleeps. The driver of an older version has none."""
    plant(four_cpus, f"{CPU}/cpu{{0-2}}/lightsleep/stat: {STAT} 21000000000 15900")
    plant(four_cpus, f"{CPU}/cpu3/lightsleep/stat: {STAT}")
    opened = reader()
    for left_ms in (15900, 200, 0):
        plant(four_cpus, f"{CPU}/cpu1/lightsleep/stat: {STAT} 21000000000 {left_ms}")
        found = opened.read().cpus
        assert found[1].states == States((900, 410), (2_000_000, 3_000_000))
        known = [(x.own.paused_ns, x.own.pause_left_ms) for x in found.values() if x.own]
        assert known[1] == (21 * 10**9, left_ms)
        assert known[3] == (None, None)


def test_a_state_that_is_not_there_yet_is_no_pause(four_cpus: Path, reader: Opener) -> None:
    """An older driver's line of two states is as long as one of a state and pauses would be."""
    plant(four_cpus, f"{CPU}/cpu{{0-3}}/lightsleep/stat: {STAT}")
    state, later = four_cpus / f"{CPU}/cpu0/cpuidle/state1", four_cpus / "later"
    state.rename(later)
    opened = reader()
    first = opened.read().cpus[0]
    assert first.own is None or first.own.paused_ns is None
    later.rename(state)
    for _ in range(2):
        found = opened.read().cpus[0]
    assert found.states == States((900, 410), (2_000_000, 3_000_000))
    assert found.own
    assert found.own.paused_ns is None


@pytest.mark.parametrize("ours", [False, True])
def test_polls_in_the_idle_loop(ours: bool, four_cpus: Path, reader: Opener) -> None:
    if not ours:
        under_another_driver(four_cpus)
    plant(four_cpus, f"{CPU}/cpu{{0-2}}/idle_poll/polled_ns: 7000")
    opened = reader()
    assert [x.loop_polled_ns for x in opened.read().cpus.values()] == [7000, 7000, 7000, None]
    plant(four_cpus, f"{CPU}/cpu1/idle_poll/polled_ns: 9000")  # and no state is entered
    assert [x.loop_polled_ns for x in opened.read().cpus.values()] == [7000, 9000, 7000, None]


@pytest.mark.parametrize("content", ["", "not yet", STAT.replace("410", "x")])
def test_a_line_of_counters_that_is_not_ours(content: str, four_cpus: Path, reader: Opener) -> None:
    plant(four_cpus, f"{CPU}/cpu{{0-3}}/lightsleep/stat: {STAT}\n")
    plant(four_cpus, f"{CPU}/cpu2/lightsleep/stat: {content}")
    assert list(reader().read().cpus) == [0, 1, 3]


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("content", ["1 2 3", f"{STAT} 7", f"{STAT} 7 8 9"])
def test_a_driver_of_another_version_counts_states_all_the_same(
    content: str, keep: bool, four_cpus: Path, reader: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the package was upgraded, and the old module is loaded until the next boot."""
    monkeypatch.setattr("lightsleep.watch.reading._room_for", lambda _: keep)
    plant(four_cpus, f"{CPU}/cpu{{0-3}}/lightsleep/stat: {content}")
    opened = reader()
    found = opened.read().cpus
    assert list(found) == [0, 1, 2, 3]
    assert found[1].states == States((100_000, 200_000), (300_000_000, 600_000_000))
    assert found[1].own is None
    plant(four_cpus, f"{CPU}/cpu{{0-3}}/lightsleep/stat: {STAT}")
    own = opened.read().cpus[1].own  # or not all states were there yet
    assert own
    assert own.polls == 1000


def test_one_file_and_many_show_the_same(four_cpus: Path, reader: Opener) -> None:
    """The driver has each counter twice; scan reads the many."""
    folder = f"{CPU}/cpu2/lightsleep"
    stat = (four_cpus / folder / "stat").read_text().strip()
    plant(four_cpus, f"{folder}/stat: {stat} 5000000000 300\n{folder}/paused_ns: 5000000000")
    plant(four_cpus, f"{folder}/pause_left_ms: 300")
    each = {cpu.number: cpu for cpu in collect(four_cpus)[0].cpus}
    found = reader().read().cpus
    assert found.keys() == each.keys()
    for number, cpu in each.items():
        usage, time_us = (tuple(getattr(x, y) for x in cpu.states) for y in ("usage", "time_us"))
        assert found[number].states == States(usage, time_us)
        assert found[number].own == cpu.lightsleep


def counted(opened: Reader, kind: Kind) -> dict[int, int]:
    """Return the interrupts of a kind, by CPU."""
    place = KINDS.index(kind)
    each = {cpu: x.interrupts[place] for cpu, x in opened.read().cpus.items() if x.interrupts}
    return {cpu: count for cpu, count in each.items() if count is not None}


def test_rows_with_the_same_label(four_cpus: Path, reader: Opener) -> None:
    """POWER tells the ticks of its timers from their other interrupts, in two rows LOC."""

    def timers(ticks: int) -> int:
        rows = (
            "         CPU0 CPU1 CPU2 CPU3",
            f"LOC:  {ticks} 1 1 1 Local timer interrupts for timer event device",
            "BCT:  0 0 0 0 Broadcast timer interrupts for timer event device",
            "LOC:  5 5 5 5 Local timer interrupts for others",
        )
        plant(four_cpus, "\n".join(f"proc/interrupts: {row}" for row in rows))
        return counted(opened, "timer")[0]

    opened = reader()
    assert [timers(x) for x in (1_000_000, 1_000_000, 1_000_007)] == [1_000_005] * 2 + [1_000_012]


def test_a_kind_of_interrupts_that_no_row_counts_is_not_known(
    four_cpus: Path, reader: Opener
) -> None:
    """As on s390, whose rows are others."""
    rows = ["     CPU0 CPU1 CPU2 CPU3", "EXT: 4 4 4 4 [EXT] External", "CLK: 9 9 9 9 [EXT] Clock"]
    plant(four_cpus, "\n".join(f"proc/interrupts: {row}" for row in rows))
    opened = reader()
    assert opened.read().cpus[1].interrupts == (None, None, None)
    rows[1:] = ["24: 0 6 0 0 nvme"]
    plant(four_cpus, "\n".join(f"proc/interrupts: {row}" for row in rows))
    before = opened.read()
    assert before.cpus[1].interrupts == (None, None, 6)
    plant(four_cpus, f"{CPU}/online: 0-1\nproc/interrupts: CPU0 CPU1\nproc/interrupts: 24: 0 7")
    after = opened.read()
    assert after.cpus[1].interrupts == (None, None, 7)
    found = rates(before, after)[1]
    assert (found.ipi_per_s, found.timer_per_s, found.stores_per_s) == (None, None, None)
    assert found.device_per_s
    text = openmetrics.text(after).decode()
    assert re.findall('interrupts_total{cpu="1",kind="(.*)"} (.*)', text) == [("device", "7")]


def test_counts_of_interrupts_never_fall(four_cpus: Path, reader: Opener) -> None:
    """An interrupt is freed and its number given to another; then a CPU goes offline."""

    def devices(header: str, *rows: str) -> dict[int, int]:
        lines = (header, "LOC: 1 1 1 1 timer", *rows)
        plant(four_cpus, "\n".join(f"proc/interrupts: {row}" for row in lines))
        return counted(opened, "device")

    opened = reader()
    header = "     CPU0 CPU1 CPU2 CPU3"
    assert devices(header, "24: 5 0 0 1000 PCI-MSI nvme") == {0: 5, 1: 0, 2: 0, 3: 1000}
    assert devices(header, "24: 9 0 0 2 PCI-MSI net") == {0: 14, 1: 0, 2: 0, 3: 1002}
    assert devices(header) == {0: 14, 1: 0, 2: 0, 3: 1002}
    plant(four_cpus, f"{CPU}/online: 0,2-3")
    assert devices(" CPU0 CPU2 CPU3", "24: 9 1 2 PCI-MSI net") == {0: 14, 2: 1, 3: 1002}


def test_a_cpu_comes_online_while_rows_are_read(four_cpus: Path, reader: Opener) -> None:
    """The kernel writes the header at once, and each row when it comes to it."""

    def ipis(*counts: int) -> dict[int, int]:
        row = " ".join(map(str, counts))
        lines = ("     CPU0 CPU1 CPU3", f"RES: {row} Rescheduling interrupts")
        plant(four_cpus, "\n".join(f"proc/interrupts: {line}" for line in lines))
        return counted(opened, "ipi")

    opened = reader()
    assert ipis(1000, 2000, 4000) == {0: 1000, 1: 2000, 3: 4000}
    assert ipis(1000, 2000, 3, 4001) == {0: 1000, 1: 2000, 3: 4000}
    assert ipis(1000, 2000) == {0: 1000, 1: 2000, 3: 4000}
    # It may have gone again before the next reading.
    assert ipis(1005, 2000, 4002) == {0: 1005, 1: 2000, 3: 4002}


@pytest.mark.parametrize("torn", ["RES: 1000 2000 0 9\nproc/interrupts: CAL: 5 6 0 9", "RES: 1000"])
def test_a_row_that_is_torn_where_a_header_is_new_counts_once(
    torn: str, four_cpus: Path, reader: Opener
) -> None:
    def ipis(rows: str) -> list[int]:
        plant(four_cpus, f"proc/interrupts: {rows}")
        return [*counted(opened, "ipi").values()]

    opened = reader()
    before = "CPU0 CPU1\nproc/interrupts: RES: 1000 2000\nproc/interrupts: CAL: 5 6"
    assert ipis(before) == [1005, 2006]
    assert ipis(f"CPU0 CPU1 CPU2\nproc/interrupts: {torn}") == [1005, 2006]
    after = "CPU0 CPU1 CPU2\nproc/interrupts: RES: 1001 2001 1\nproc/interrupts: CAL: 5 6 0"
    assert ipis(after) == [1006, 2007, 1]
    assert ipis(after.replace("1001", "1003")) == [1008, 2007, 1]


@pytest.mark.parametrize("readings", [1, 2])
def test_a_row_that_is_torn_where_a_cpu_is_new_is_no_spike(
    readings: int, four_cpus: Path, reader: Opener
) -> None:
    """A CPU that comes back has counted for weeks, and another one comes while rows are read."""

    def exported(header: str, counts: str) -> list[tuple[int | None, ...]]:
        """Return interrupts between CPUs, of timers, and of devices."""
        devices = "5 " * len(header.split())
        rows = (header, f"RES: {counts} Rescheduling interrupts", f"24: {devices} PCI-MSI nvme")
        plant(four_cpus, "\n".join(f"proc/interrupts: {row}" for row in rows))
        shown.append(openmetrics.since(first, opened.read()))
        return [cpu.interrupts for cpu in shown[-1].cpus.values() if cpu.interrupts]

    opened = reader()
    first: openmetrics.First = {}
    shown: list[Snapshot] = []
    plant(four_cpus, f"{CPU}/online: 0-2")
    two, three = "CPU0 CPU1", "CPU0 CPU1 CPU2"
    assert exported(two, "1000 2000") == [(0, None, 0)] * 2
    for _ in range(readings):
        found = exported(three, "1000 2000 5000000 9")
        assert found == [(0, None, 0), (0, None, 0), (None, None, 0)]
    assert exported(three, "1001 2001 5000000") == [(1, None, 0), (1, None, 0), (0, None, 0)]
    assert [x.ipi_per_s is None for x in rates(*shown[-2:])] == [False, False, True]
    assert exported(three, "1001 2001 5000008")[2] == (8, None, 0)


def test_the_first_reading_of_a_row_that_is_torn(four_cpus: Path, reader: Opener) -> None:
    def timers(row: str) -> list[int]:
        rows = ("CPU0 CPU1 CPU2 CPU3", f"LOC: {row}", "HVS: 1 1 1 1 Hyper-V stimer0 interrupts")
        plant(four_cpus, "\n".join(f"proc/interrupts: {row}" for row in rows))
        return [*counted(opened, "timer").values()]

    opened = reader()
    assert timers("50 50 50 50 50 timer") == []
    assert timers("50 50 50 50 timer") == [51, 51, 51, 51]


def test_a_count_of_32_bits_that_begins_again(four_cpus: Path, reader: Opener) -> None:
    def timers(*counts: int) -> list[int]:
        row = " ".join(map(str, counts))
        lines = ("CPU0 CPU1 CPU2 CPU3", f"LOC: {row} Local timer interrupts")
        plant(four_cpus, "\n".join(f"proc/interrupts: {line}" for line in lines))
        return [*counted(opened, "timer").values()]

    opened = reader()
    before = timers((1 << 32) - 296, 3_000_000_000, 3_500_000_000, 1_000_000_000)
    after = timers(704, 3_000_001_000, 3_500_001_000, 1_000_001_000)
    assert [new - old for old, new in zip(before, after, strict=True)] == [1000] * 4
    # However long the interval was.
    later = timers(1_288_000_704, 3_288_000_000, 3_500_001_000, 1_000_001_000)
    assert [new - old for old, new in zip(after, later, strict=True)] == [
        1_288_000_000,
        287_999_000,
        0,
        0,
    ]
    after = later
    again = timers(10, 3_000_001_000, 0, 0)  # the row began again
    assert [new - old for old, new in zip(after, again, strict=True)] == [10, 3_000_001_000, 0, 0]


def test_a_driver_that_goes_and_a_cpu_that_goes_offline(four_cpus: Path, reader: Opener) -> None:
    opened = reader()
    plant(four_cpus, f"{CPU}/online: 0-2")
    assert list(opened.read().cpus) == [0, 1, 2]
    plant(four_cpus, f"{CPU}/cpuidle/current_driver: none")
    for cpu in range(3):
        subprocess.run(["rm", "-r", four_cpus / f"{CPU}/cpu{cpu}/cpuidle"], check=True)
        subprocess.run(["rm", "-r", four_cpus / f"{CPU}/cpu{cpu}/lightsleep"], check=True)
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


@pytest.mark.parametrize("ours", [False, True])
def test_a_cpu_that_was_offline_between_two_readings_comes_back(
    ours: bool, four_cpus: Path, reader: Opener
) -> None:
    """The lists of CPUs and drivers are the same before and after."""
    if not ours:
        under_another_driver(four_cpus)
    opened = reader()
    for cpu in (1, 3):
        assert list(opened.read().cpus) == [0, 1, 2, 3]
        lose_files(cpu)
        assert cpu not in opened.read().cpus
    if ours:
        plant(four_cpus, f"{CPU}/cpu3/lightsleep/stat: {STAT}")
    plant(four_cpus, f"{CPU}/cpu3/cpuidle/state0/usage: 900")
    cpu3 = opened.read().cpus[3]
    assert cpu3.states
    assert cpu3.states.usage[0] == 900


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
    four_cpus: Path, reader: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightsleep.watch.reading.LONGEST_WAIT", 8)
    opened = reader()
    assert openings(opened, 3, monkeypatch) == []
    plant(four_cpus, f"{CPU}/cpu2/lightsleep/stat: many")
    assert openings(opened, 32, monkeypatch) == [1, 3, 7, 15, 23, 31]
    lose_files(1)  # another one's loss does not wait for long
    assert openings(opened, 2, monkeypatch) == [1]
    assert list(opened.read().cpus) == [0, 1, 3]
    plant(four_cpus, f"{CPU}/cpu2/lightsleep/stat: {STAT}")
    openings(opened, 8, monkeypatch)
    assert list(opened.read().cpus) == [0, 1, 2, 3]
    assert openings(opened, 20, monkeypatch) == []


def test_files_that_fail_right_after_a_change_are_tried_again(
    four_cpus: Path, reader: Opener
) -> None:
    """A CPU is in the list before its files are ready."""
    plant(four_cpus, f"{CPU}/online: 0-2")
    opened = reader()
    plant(four_cpus, f"{CPU}/online: 0-3\n{CPU}/cpu3/lightsleep/stat: not yet")
    assert list(opened.read().cpus) == [0, 1, 2]
    plant(four_cpus, f"{CPU}/cpu3/lightsleep/stat: {STAT}")
    assert list(opened.read().cpus) == [0, 1, 2, 3]


def test_a_cpu_that_is_listed_before_its_states_are_there(four_cpus: Path, reader: Opener) -> None:
    plant(four_cpus, f"{CPU}/online: 0-2")
    opened = reader()
    cpu3, later = four_cpus / f"{CPU}/cpu3", four_cpus / "later"
    later.mkdir()
    for name in ("cpuidle", "lightsleep"):
        (cpu3 / name).rename(later / name)
    plant(four_cpus, f"{CPU}/online: 0-3")
    found = opened.read().cpus[3]
    assert (found.states, found.idle_s is None) == (None, False)
    for name in ("cpuidle", "lightsleep"):
        (later / name).rename(cpu3 / name)
    assert opened.read().cpus[3].states


def test_a_cpu_that_never_gets_states_costs_ever_less(
    four_cpus: Path, reader: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightsleep.watch.reading.LONGEST_WAIT", 8)
    shutil.rmtree(four_cpus / f"{CPU}/cpu3/cpuidle")
    shutil.rmtree(four_cpus / f"{CPU}/cpu3/lightsleep")
    opened = reader()
    assert openings(opened, 32, monkeypatch) == [1, 3, 7, 15, 23, 31]
    assert list(opened.read().cpus) == [0, 1, 2, 3]


def test_garbage_loses_the_cpu_and_no_more(four_cpus: Path, reader: Opener) -> None:
    plant(four_cpus, f"{CPU}/cpu2/lightsleep/stat: many\nproc/stat: cpu x\nproc/interrupts: ?")
    found = reader().read()
    assert list(found.cpus) == [0, 1, 3]
    assert found.cpus[0].interrupts is None
    assert found.cpus[0].idle_s is None


@pytest.fixture
def few_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()  # other tests of this process may have left files open
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


def test_a_cpu_that_is_offline_is_waited_for(four_cpus: Path, reader: Opener) -> None:
    plant(four_cpus, f"{CPU}/online: 0-2\n{CPU}/offline: 3")
    opened = reader(3)
    assert not opened.read().cpus
    plant(four_cpus, f"{CPU}/online: 0-3\n{CPU}/offline:")
    assert list(opened.read().cpus) == [3]


def test_no_cpu(tmp_path: Path) -> None:
    with pytest.raises(LightsleepError, match="no CPU to watch"):
        Reader(tmp_path, None)
