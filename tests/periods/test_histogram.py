# SPDX-License-Identifier: GPL-2.0-only
"""A recording that keeps no events: what the kernel is told, and what its counts are read as."""

from __future__ import annotations

import ctypes
import itertools
import json
import random
import struct
from pathlib import Path

import pytest
from click.testing import CliRunner
from recordings import IDLE, WAKE, histogram_document

from lightsleep.document import load
from lightsleep.errors import LightsleepError
from lightsleep.periods import histogram as counts
from lightsleep.periods.lost import TimeLost
from lightsleep.record import keeper, run
from lightsleep.record.bpf import calls, histogram
from lightsleep.replay.cli import replay_command
from lightsleep.report.cli import report


def read(folder: Path, **more: object) -> TimeLost:
    path = folder / "counts.json"
    path.write_text(json.dumps(histogram_document(**more)))
    return load(path, counts.FORMAT)


def test_sums_are_exact_and_polling_is_the_reference(tmp_path: Path) -> None:
    lost = read(tmp_path)
    assert {name: (x.periods, x.total_ns) for name, x in lost.states.items()} == {
        "POLL": (10, 634_000),
        "C6": (3, 4_500_000),
    }
    assert (lost.reference.count, lost.reference.total_ns) == (40, 220_000)
    assert (lost.all.count, lost.all.total_ns) == (100, 8_133_000)
    assert lost.groups["state"].keys() == {"C6"}
    assert lost.groups["cpu"].keys() == {"1"}
    assert lost.all.percentile_ns(0.5) == pytest.approx(67_000, rel=0.03)
    # 100 wakeups of 67 us, where a CPU that polls takes 5.5 us.
    assert lost.above_reference_ns(lost.all) == pytest.approx(6_150_000, rel=0.05)
    assert lost.share(lost.all) == pytest.approx(0.0040665)
    assert any("left 2 events out" in note for note in lost.metadata.notes)


def test_the_report_of_a_histogram(tmp_path: Path) -> None:
    read(tmp_path)
    path, page = tmp_path / "counts.json", tmp_path / "report.html"
    done = CliRunner().invoke(report, [str(path), "-o", str(page)])
    assert done.exit_code == 0, done.output
    assert "100 wakeups found their CPU in an idle state" in " ".join(done.output.split())
    assert "C6" in done.output
    html = page.read_text()
    assert "By idle state<" in html
    assert "By woken task" not in html
    done = CliRunner().invoke(report, [str(path), "--json"])
    (found,) = json.loads(done.stdout)["results"]
    assert found["by_state"][0]["total_ns"] == 8_133_000
    done = CliRunner().invoke(report, [str(path), "--parquet", str(tmp_path / "x")])
    assert done.exit_code == 2
    done = CliRunner().invoke(replay_command, [str(path)])
    assert done.exit_code == 1
    assert "no recording" in done.output


def test_wakeups_of_a_state_without_periods_are_drawn(tmp_path: Path) -> None:
    asleep = IDLE.replace(
        "cpu:          1, state:          1", "cpu:          0, state:          0"
    )
    read(tmp_path, histograms={"idle": asleep, "wake": WAKE})
    path, page = tmp_path / "counts.json", tmp_path / "report.html"
    done = CliRunner().invoke(report, [str(path), "-o", str(page)])
    assert done.exit_code == 0, done.output
    assert "C6" in page.read_text()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{ cpu: 0, state: 0, ns: ~ 5000-5999 } hitcount: 40  ns: 22", "counts do not fit"),
        ("{ cpu: 0, state: 0, ns: ~ 5000-5999 } hitcount: 0  ns: 0", "counts do not fit"),
        ("{ cpu: 0, state: 0, ns: ~ 5000-59", "no bucket"),
        ("rubbish", "no bucket: 'rubbish'"),
    ],
)
def test_damaged_counts(line: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(LightsleepError, match=r"counts\.json: histograms\.wake: line 2") as caught:
        read(tmp_path, histograms={"idle": IDLE, "wake": f"# event histogram\n{line}\n"})
    assert said in caught.value.message


def test_a_damaged_file_is_an_error_or_a_result(tmp_path: Path) -> None:
    chance, path = random.Random(3), tmp_path / "counts.json"
    whole = json.dumps(histogram_document()).encode()
    errors = list[str]()
    for _ in range(300):
        copy = bytearray(whole)
        copy[chance.randrange(len(copy))] ^= 1 << chance.randrange(8)
        path.write_bytes(copy[: chance.choice((len(copy), chance.randrange(len(copy))))])
        try:
            load(path, counts.FORMAT)
        except LightsleepError as error:
            errors.append(error.message)
    assert len(errors) > 100
    assert all("counts.json" in error for error in errors)


def test_buckets_follow_each_other_and_are_narrow() -> None:
    ranges = [histogram.bounds(number) for number in range(histogram.BUCKETS)]
    assert ranges[0][0] == 0
    assert all(high + 1 == low for (_, high), (low, _) in itertools.pairwise(ranges))
    assert all(high + 1 - low <= max(128, low / 8) for low, high in ranges)


BASE, TASKS = 0xFFFF_8880_0000_0000, {"idle": 0x10000, "a": 0x20000, "b": 0x30000}


class Cpu:
    """Runs the programs as a kernel would, at times of our choice."""

    def __init__(self) -> None:
        self.order = histogram.order([0], [0, 1])
        self.maps = {
            name: bytearray(x["bytes"] * x["entries"]) for name, x in self.order["maps"].items()
        }
        self.now_ns, self.cpu, self.task = 1 << 45, 1, "idle"

    def run(self, name: str, *arguments: int) -> None:
        program = self.order["programs"][name]
        code = bytes.fromhex(program["code"])
        where = {int(at): name for at, name in program["maps"].items()}
        regions = {1: bytearray(struct.pack("=4Q", *arguments, *[0] * (4 - len(arguments))))}
        regions[2] = bytearray(64)
        names = {name: 3 + i for i, name in enumerate(self.maps)}
        regions |= {names[name]: data for name, data in self.maps.items()}
        r = [0] * 10 + [(2 << 48) + 64]
        r[1] = 1 << 48
        at = 0
        while True:
            operation, registers, offset, number = struct.unpack_from("=BBhi", code, at * 8)
            dst, src = registers & 15, registers >> 4
            kind, wide = operation & 7, 64
            at += 1
            if operation == 0x18:
                r[dst], at = names[where[at - 1]] << 48, at + 1
            elif operation == 0x95:
                assert r[0] == 0
                return
            elif operation == 0x85:
                if number == 1:
                    (key,) = struct.unpack_from("=I", regions[r[2] >> 48], r[2] & 0xFFFF)
                    found = r[1] + 16 * key
                else:
                    pid = 0 if self.task == "idle" else TASKS[self.task]
                    found = {
                        5: self.now_ns,
                        8: self.cpu,
                        14: pid << 32 | pid,
                        35: BASE + TASKS[self.task],
                    }[number]
                r[:6] = [found, *[1 << 62] * 5]
            elif kind in (1, 2, 3):
                base = r[src if kind == 1 else dst] + offset
                data, low = regions[base >> 48], base & ((1 << 48) - 1)
                form = "=Q" if operation & 0x18 else "=I"
                if kind == 1:
                    (r[dst],) = struct.unpack_from(form, data, low)
                else:
                    what = r[src] if kind == 3 else number
                    struct.pack_into(
                        form, data, low, what & (2**64 - 1 if form == "=Q" else 2**32 - 1)
                    )
            elif kind in (4, 7):
                wide = 64 if kind == 7 else 32
                other = r[src] if operation & 8 else number
                r[dst] = {
                    0x00: lambda x, y: x + y,
                    0x10: lambda x, y: x - y,
                    0x40: lambda x, y: x | y,
                    0x50: lambda x, y: x & y,
                    0x60: lambda x, y: x << y,
                    0x70: lambda x, y: x >> y,
                    0xB0: lambda x, y: y,
                }[operation & 0xF0](r[dst], other) & ((1 << wide) - 1)
            else:
                limit = (1 << (32 if kind == 6 else 64)) - 1
                x, y = r[dst] & limit, (r[src] if operation & 8 else number) & limit
                taken = {0x00: True, 0x10: x == y, 0x20: x > y, 0x50: x != y, 0xA0: x < y}
                at += offset if taken[operation & 0xF0] else 0

    def idle(self, state: int) -> None:
        self.run("cpu_idle", state & 0xFFFFFFFF, self.cpu)

    def wakes(self, task: str, by: str = "b") -> None:
        running, self.task = self.task, by
        self.run("sched_waking", BASE + TASKS[task])
        self.task = running

    def moves(self, task: str) -> None:
        self.run("sched_migrate_task", BASE + TASKS[task], 0)

    def switch(self, old: str, new: str) -> None:
        self.run("sched_switch", 0, BASE + TASKS[old], BASE + TASKS[new])

    def counted(self) -> list[tuple[str, int, int, int]]:
        """Return what was counted: the kind, the state, the number, and the sum."""
        found = []
        for key, (number, total) in enumerate(struct.iter_unpack("=QQ", self.maps["counts"])):
            if number:
                kind, rest = divmod(key, histogram.STATES * histogram.BUCKETS)
                state, bucket = divmod(rest, histogram.BUCKETS)
                low, high = histogram.bounds(bucket)
                assert low <= total // number <= high
                found.append((histogram.KINDS[kind], state, number, total))
        return found


@pytest.mark.parametrize(
    "length_ns", [0, 127, 1023, 1024, 64_000, 1_234_567, 1 << 38, (1 << 39) - 1]
)
def test_the_programs_count_periods_and_wakeups(length_ns: int) -> None:
    cpu = Cpu()
    cpu.idle(-1)  # began before the programs did
    assert cpu.counted() == []
    cpu.idle(3)
    cpu.now_ns += length_ns
    cpu.wakes("a")
    cpu.idle(-1)
    cpu.now_ns += 5000
    cpu.switch("idle", "a")
    assert cpu.counted() == [("idle", 3, 1, length_ns), ("wake", 3, 1, 5000)]
    cpu.switch("idle", "a")  # one note is one wakeup
    assert len(cpu.counted()) == 2


def test_a_thread_that_injects_idle_time_is_not_the_idle_task() -> None:
    cpu = Cpu()
    cpu.task = "b"
    cpu.idle(1)
    cpu.idle(-1)
    cpu.task = "idle"
    cpu.switch("b", "idle")
    cpu.idle(3)
    cpu.now_ns += 2000
    cpu.wakes("a", by="b")
    cpu.idle(-1)
    cpu.now_ns += 5000
    cpu.switch("idle", "a")
    assert [x[:3] for x in cpu.counted()][-1] == ("wake", 3, 1)


def test_wakeups_that_are_not_counted_or_found_no_state() -> None:
    cpu = Cpu()
    cpu.idle(2)
    cpu.idle(-1)
    cpu.wakes("a")
    cpu.now_ns += 1000
    cpu.switch("b", "idle")
    cpu.switch("idle", "a")  # woken before the CPU became idle
    cpu.switch("a", "b")
    cpu.switch("idle", "b")  # nobody woke it
    assert [x[0] for x in cpu.counted()] == ["idle"]
    cpu.switch("b", "idle")
    cpu.wakes("b")
    cpu.now_ns += 2000
    cpu.switch("idle", "b")
    assert cpu.counted()[1:] == [("wake", histogram.AWAKE, 1, 2000)]


def test_a_waking_by_an_interrupt_of_an_idle_cpu_has_counts_of_its_own(tmp_path: Path) -> None:
    cpu = Cpu()
    cpu.idle(3)
    cpu.now_ns += 1000
    cpu.wakes("a", by="idle")
    cpu.idle(-1)
    cpu.now_ns += 5000
    cpu.switch("idle", "a")
    assert cpu.counted() == [("idle", 3, 1, 1000), ("interrupt", 3, 1, 5000)]
    wake = "{{ cpu: 1, state: {}, ns: ~ 4096-4607 }} hitcount: 50  ns: 220000\n"
    by_interrupt = wake.format(-1) + wake.format(1)
    kinds = {"idle": IDLE, "wake": wake.format(-1), "interrupt": by_interrupt}
    lost = read(tmp_path, histograms=kinds)
    assert (lost.reference.count, lost.all.count) == (50, 50)


def test_a_task_that_the_load_balancer_moves_has_not_waited_for_the_cpu() -> None:
    cpu = Cpu()
    for mover, counted in ((1, 1), (0, 0)):  # the waker moves it as it wakes it, or another CPU
        cpu.idle(2)
        cpu.wakes("a")
        cpu.cpu = mover
        cpu.moves("b")  # another task
        cpu.moves("a")
        cpu.cpu = 1
        cpu.now_ns += 1000
        cpu.idle(-1)
        before = len([x for x in cpu.counted() if x[0] == "wake"])
        cpu.switch("idle", "a")
        assert sum(x[2] for x in cpu.counted() if x[0] == "wake") - before == counted
        cpu.switch("a", "idle")


def test_a_wakeup_that_a_busy_cpu_served_is_not_counted_later() -> None:
    cpu = Cpu()
    cpu.idle(2)
    cpu.wakes("a")
    cpu.cpu, cpu.task = 0, "idle"
    cpu.idle(2)
    cpu.idle(-1)
    cpu.switch("idle", "b")
    cpu.switch("b", "a")  # runs on the CPU that is busy
    cpu.cpu = 1
    cpu.now_ns += 10**9
    cpu.idle(-1)
    cpu.switch("idle", "a")  # was moved here
    assert [x[0] for x in cpu.counted()] == ["idle", "idle"]


@pytest.mark.parametrize(("possible", "places"), [([0, 1], [0, 1]), ([0, 2, 5], [0, 1, 2])])
def test_the_counts_of_a_cpu_are_at_its_place_among_the_possible_ones(
    possible: list[int], places: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    order = histogram.order(possible, possible)

    def fill(_command: int, attributes: bytes) -> int:
        values = struct.unpack("=IxxxxQQQ", attributes)[2]
        for place in places:
            ctypes.memmove(values + 16 * place, struct.pack("=QQ", place + 1, 0), 16)
        return 0

    monkeypatch.setattr(calls, "call", fill)
    lines = keeper._counted(0, order)["idle"].splitlines()[: len(possible)]
    cpus = [int(line.split(",")[0].rpartition(" ")[2]) for line in lines]
    assert cpus == possible
    assert [int(line.split("hitcount: ")[1].split()[0]) for line in lines] == [
        place + 1 for place in places
    ]


def test_a_cpu_that_was_in_no_state_is_the_reference(tmp_path: Path) -> None:
    wake = "{ cpu: 1, state: -1, ns: ~ 4096-4607 } hitcount: 50  ns: 220000\n"
    lost = read(tmp_path, histograms={"idle": IDLE, "wake": wake})
    assert (lost.reference.count, lost.reference.total_ns) == (50, 220_000)
    assert lost.all.count == 0


def test_what_the_kernel_refuses_is_said(tmp_path: Path) -> None:
    output = tmp_path / "counts.json"
    order = histogram.order([0], [0])
    order["maps"]["cpus"]["entries"] = 0  # what no kernel accepts, whoever asks
    with (
        pytest.raises(LightsleepError, match="the kernel refuses to count: "),
        run.counting(order, histogram_document(), output),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "ELSEWHERE", ("/dev/full",))
    said = keeper._write(Path("/dev/full/x"), tmp_path / "counts.json", {})
    assert said == f"cannot write {tmp_path / 'counts.json'}: Not a directory"
    assert list(tmp_path.iterdir()) == []
