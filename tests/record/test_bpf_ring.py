# SPDX-License-Identifier: GPL-2.0-only
"""What BPF programs write to the ring of a CPU: pages, losses, and interrupts at any moment."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bpf_cpus import IPI, PAGES, ROOM, Cpu, idle, size_of, whole
from recordings import rows_of

from lightsleep.record.bpf import pages

pytest_plugins = "bpf_cpus"
pytestmark = pytest.mark.usefixtures("closed")


@pytest.mark.parametrize("begin", [0, 1, ROOM - 1, ROOM, 3 * ROOM - 1])
def test_losses_are_where_they_happened(tmp_path: Path, reader: str, begin: int) -> None:
    """A ring that is full takes no event; the next page says how many are missing."""
    program = Cpu(tmp_path)
    for number in range(begin):
        program.write(IPI, 1 + number)
        program.copy()
    room = PAGES * ROOM - begin % ROOM  # a page that is not full stays
    for number in range(room + 7):
        program.write(IPI, 1 + begin + number)
    program.copy()
    for number in range(2 * ROOM):
        program.write(IPI, 100_000 + number)
        program.copy()
    idle(program, 200_000)
    program.ring.copy_the_rest()
    assert program.ring.lost_in_all == 7
    file = whole(tmp_path, [tmp_path / "pages"])
    rows, metadata = rows_of(file)
    assert metadata.lost == {0: 7}
    assert metadata.events == begin + room + 2 * ROOM + 5
    assert len(rows) == 1
    said = subprocess.run(
        ["trace-cmd", "report", "-t", "-i", str(file)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    (place,) = (number for number, line in enumerate(said) if "EVENTS DROPPED" in line)
    assert f" 0.{begin + room:09}: " in said[place - 1]
    assert " 0.000100000: " in said[place + 1]
    assert reader


def test_a_small_event_does_not_pass_a_large_one_that_is_lost(tmp_path: Path) -> None:
    program = Cpu(tmp_path)
    end = (PAGES - 1) * pages.PAGE + pages.DATA - size_of(IPI)
    while program.word(pages.HEAD) < end:
        program.write(IPI, 1 + program.word(pages.HEAD))
    assert size_of("power:cpu_idle") <= size_of(IPI) < size_of("sched:sched_switch")
    program.write("sched:sched_switch", 100_000, next_pid=0)
    program.write("power:cpu_idle", 100_001)
    assert program.word(pages.LOST) == 2
    assert program.word(pages.HEAD) == PAGES * pages.PAGE


def test_a_clock_that_steps_back_stands_still(tmp_path: Path) -> None:
    program = Cpu(tmp_path)
    program.write(IPI, 100)
    program.write(IPI, 90)
    program.write(IPI, 101)
    program.ring.copy_the_rest()
    assert [at_ns for at_ns, _ in read_back(tmp_path / "pages")] == [100, 100, 101]


@pytest.mark.parametrize("quarter", range(2 * PAGES))
def test_each_quarter_of_a_ring_wakes_the_keeper(tmp_path: Path, quarter: int) -> None:
    program = Cpu(tmp_path)
    for number in range(quarter * ROOM):
        program.write(IPI, 1 + number)
        program.copy()
    before = program.machine.wakes
    program.write(IPI, 10_000)
    assert program.machine.wakes == before + 1


Found = tuple[int, int]
"""When an event was, and its type; or that so many are missing, and LOST."""

LOST = -1


def read_back(path: Path) -> Iterator[Found]:
    """Yield the events on pages, and where some are missing."""
    data = path.read_bytes()
    for page in range(0, len(data), pages.PAGE):
        now_ns, size = struct.unpack_from("=QQ", data, page)
        assert size >> 32 == 0
        end = page + pages.PAGE_HEADER + (size & 0xFFFF)
        if size & pages.MISSED:
            yield struct.unpack_from("=Q", data, end)[0], LOST
        at = page + pages.PAGE_HEADER
        while at < end:
            (head,) = struct.unpack_from("=I", data, at)
            kind, delta = head & 31, head >> 5
            (word,) = struct.unpack_from("=I", data, at + 4)
            at += 4
            if kind == pages.TIME_STAMP:
                now_ns = delta | word << pages.TIME_BITS
                at += 4
            elif kind == pages.PADDING:
                at += word
            else:
                yield now_ns, struct.unpack_from("=H", data, at)[0]
                at += 4 * kind
        assert at == end


class Interrupt:
    """Something that happens before one of the instructions of a program."""

    def __init__(self, step: int, happens: Callable[[], None]) -> None:
        """Let it happen before instruction number ``step`` of those that are executed."""
        self._left, self._happens = step, happens

    def __call__(self) -> None:
        """Count an instruction."""
        self._left -= 1
        if self._left == -1:
            self._happens()

    @property
    def has_been(self) -> bool:
        """Whether there were so many instructions."""
        return self._left < 0


SMALL, LARGE = "sched:sched_wake_idle_without_ipi", "sched:sched_switch"


@pytest.mark.parametrize(("name", "other"), [(IPI, SMALL), (SMALL, LARGE)])
@pytest.mark.parametrize("room", [0, size_of(IPI) - 8, size_of(IPI)])
@pytest.mark.parametrize("last", [0, PAGES - 1])
@pytest.mark.parametrize(("storm", "stride"), [(1, 1), (3, 7), (2 * ROOM, 50)])
def test_an_interrupt_at_any_instruction(
    tmp_path: Path, name: str, other: str, room: int, last: int, storm: int, stride: int
) -> None:
    """Where a page has so much room left: all events are there, in order, or counted."""
    cpu, filled = Cpu(tmp_path), 0
    while cpu.word(pages.HEAD) + size_of(SMALL) <= last * pages.PAGE + pages.DATA - room:
        filled += 1
        cpu.write(SMALL, filled)
    for step in range(0, 1000, stride):
        again = cpu.copied()
        written = filled

        def happens(cpu: Cpu = again) -> None:
            nonlocal written
            for _ in range(storm):
                written += 1
                cpu.write(other, written)

        interrupt = Interrupt(step, happens)
        again.write(name, filled + 1, before=interrupt)
        lost = again.word(pages.LOST)
        again.copy()
        for number in range(3):
            again.write(SMALL, 10_000 + number)
        again.ring.copy_the_rest()
        found = list(read_back(again.file))
        times = [at_ns for at_ns, kind in found if kind != LOST]
        assert times == sorted(times), step
        assert len(times) + lost == written + 1 + 3, step
        missing = [count for count, kind in found if kind == LOST]
        assert sum(missing) == again.word(pages.LOST) == lost, step
        if lost:
            gap = next(place for place, (_, kind) in enumerate(found) if kind == LOST)
            assert found[gap + 1][0] >= 10_000, step
        if not interrupt.has_been:
            break


def test_the_keeper_at_any_instruction(tmp_path: Path) -> None:
    """A page stays where it is until the slowest program has written to it."""
    for step in range(0, 1000, 3):
        folder = tmp_path / str(step)
        folder.mkdir()
        cpu = Cpu(folder)

        def happens(cpu: Cpu = cpu) -> None:
            for number in range(2 * ROOM):
                cpu.write(SMALL, 10 + number)
                cpu.copy()

        interrupt = Interrupt(step, happens)
        cpu.write(IPI, 1, before=interrupt)
        cpu.copy()
        cpu.ring.copy_the_rest()
        assert cpu.word(pages.LOST) == 0
        assert len(list(read_back(cpu.file))) == 1 + 2 * ROOM * interrupt.has_been, step
        if not interrupt.has_been:
            break


@pytest.mark.parametrize("before", [1, ROOM - 1, ROOM, 4 * ROOM, 5 * ROOM + 1])
def test_what_follows_room_that_was_never_filled_is_left_out(tmp_path: Path, before: int) -> None:
    """Only to the end of its page: where the next event begins is not known."""
    cpu = Cpu(tmp_path)
    for number in range(before):
        cpu.write(IPI, 1 + number)
        cpu.copy()
    cpu.line.cast("Q")[pages.HEAD // 8] = (
        cpu.word(pages.HEAD) + size_of(IPI)
        if cpu.word(pages.HEAD) % pages.PAGE <= pages.DATA - size_of(IPI)
        else (cpu.word(pages.HEAD) // pages.PAGE + 1) * pages.PAGE + size_of(IPI)
    )
    for number in range(2 * ROOM):
        cpu.write(IPI, 1000 + number)
    cpu.ring.copy_the_rest()
    on_that_page = ROOM - before % ROOM
    assert len(list(read_back(tmp_path / "pages"))) == before + 2 * ROOM + 1 - on_that_page
