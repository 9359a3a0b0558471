# SPDX-License-Identifier: GPL-2.0-only
"""What BPF programs write, once it is a file: pages, losses, and events of every kind.

The programs are run by bpf_machine.py. test_record_bpf_boot.py has the kernel run them.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from bpf_machine import Machine, Pointer, Struct
from recordings import rows_of

from lightsleep.periods import trace_dat
from lightsleep.record import keeper, run, sidecar, trace_file, tracing
from lightsleep.record.bpf import btf, pages, trace

NUMBERS = {x.name: number for number, x in enumerate(tracing.EVENTS, trace.FIRST_TYPE)}
NUMBERS[trace.SLEEP_LENGTH] = trace.SLEEP_TYPE
TICK = 0xFFFFFFFF81000000
KALLSYMS = b"%x T tick_nohz_handler\n" % TICK
PAGES = 4

OFFSETS = {"pid": 8, "comm": 16, "prio": 40, "name": 8, "function": 24}
"""Of the members of a kernel's structures."""


class Types(btf.Types):
    """What a kernel might say of its types."""

    def __init__(self) -> None:
        """Know all of them."""

    def number(self, kind: int, name: str) -> int:
        return kind + len(name)

    def hands_pointer(self, tracepoint: str, arg: int) -> bool:
        return (tracepoint, arg) == ("btf_trace_hrtimer_expire_entry", 1)

    def offset(self, structure: str, member: str) -> int:
        assert structure
        return OFFSETS[member]


EVENTS = {x.name: x for x in tracing.EVENTS}
LAYOUT = trace.Layout(Types(), room=1, pages=PAGES, words=1, all_chosen=True)
CODE = {name: LAYOUT.program(NUMBERS[name], event) for name, event in EVENTS.items()}
CODE[trace.SLEEP_LENGTH] = cast(dict[str, Any], LAYOUT.sleep_length())


def size_of(name: str) -> int:
    """Return how much room an event takes."""
    return pages.STAMP + trace.EVENT_HEADER + trace.payload(trace.FIELDS[name][0])


def words_of(text: str) -> list[int]:
    """Return a task's name as a kernel has it."""
    return list(struct.unpack("=QQ", text.encode().ljust(trace.COMM, b"\0")))


def context_of(name: str, values: dict[str, Any]) -> Struct:
    """Return what a tracepoint hands to its program."""
    context = Struct()
    for each in trace.FIELDS[name][0]:
        value = values.get(each.name, "" if each.how in ("comm", "string") else 0)
        at = 8 * each.arg
        if each.how == "comm":
            first, second = words_of(value)
            begin = OFFSETS[each.member]
            cast(Struct, context.setdefault(at, Struct())).update({begin: first, begin + 8: second})
        elif each.how == "string":
            text = Pointer(memoryview(bytes(value.encode().ljust(each.size, b"\0"))))
            context[at] = Struct({OFFSETS[each.member]: text})
        elif each.how == "mask":
            context[at] = Struct({0: value})
        elif each.how in ("value", "time"):
            context[at] = Pointer(memoryview(struct.pack("=q", value)))
        elif each.struct:
            of = context.get(at)
            of = of if isinstance(of, Struct) else Struct()
            context[at] = of
            of[OFFSETS[each.member]] = value
        else:
            context.setdefault(at, value & (1 << 64) - 1)
    return context


OPENED = set[int]()
"""The descriptors of all CPUs of a test."""


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """A worker of pytest runs thousands of tests, and may have few descriptors."""
    yield
    while OPENED:
        os.close(OPENED.pop())


class Cpu:
    """A CPU whose programs write events to its ring, and the keeper who empties that."""

    def __init__(self, folder: Path) -> None:
        """Begin with empty pages."""
        memory = memoryview(bytearray(PAGES * pages.PAGE))
        self.line = memoryview(bytearray(pages.LINE))
        self.line.cast("Q")[pages.FLAGS // 8] = pages.CHOSEN
        self.now_ns = 0
        self.machine = Machine({"control": self.line, "pages": memory}, lambda: self.now_ns)
        self.memory, self.file = memory, folder / "pages"
        self.descriptor = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        OPENED.add(self.descriptor)
        self.ring = pages.Ring(memory, self.line, self.descriptor)

    def copied(self) -> Cpu:
        """Return a CPU to which all the same has happened, with a file of its own."""
        OPENED.remove(self.descriptor)
        os.close(self.descriptor)
        self.file.unlink()
        other = Cpu(self.file.parent)
        self.descriptor = other.descriptor
        other.memory[:], other.line[:] = self.memory, self.line
        other.ring.done, other.ring.lost = self.ring.done, self.ring.lost
        other.now_ns = self.now_ns
        return other

    def word(self, at: int) -> int:
        """Return a word of the control map."""
        return int(self.line.cast("Q")[at // 8])

    def write(
        self,
        name: str,
        at_ns: int,
        /,
        current: int = 0,
        before: Callable[[], None] = lambda: None,
        **values: Any,
    ) -> None:
        """Have an event's program run; ``current`` is the task that it happens in."""
        self.now_ns, self.machine.current = at_ns, current
        self.machine.run(CODE[name], context_of(name, values), before)

    def copy(self) -> None:
        """Do what the keeper does when it is woken."""
        self.ring.copy()
        self.ring.free()


IPI = "ipi:ipi_send_cpu"
ROOM = pages.DATA // size_of(IPI)
"""So many of these events are on a page."""


def whole(folder: Path, files: Sequence[Path], names: dict[int, bytes] | None = None) -> Path:
    """Make a trace.dat of the pages of CPUs."""
    formats = {name: trace.described(number, name) for name, number in NUMBERS.items()}
    begin = trace_file.header(formats, KALLSYMS, names or {})
    with (folder / "trace.dat").open("wb") as file:
        trace_file.assemble(file, begin, dict(enumerate(files)), keeper.CLOCK)
    return folder / "trace.dat"


def idle(program: Cpu, at_ns: int) -> None:
    """Write a period of 500 ns, its wakeup included."""
    program.write("sched:sched_switch", at_ns, prev_pid=9, prev_comm="x", next_pid=0)
    program.write("power:cpu_idle", at_ns + 100, state=1)
    program.write("sched:sched_waking", at_ns + 500, pid=9, comm="x")
    program.write("power:cpu_idle", at_ns + 600, state=0xFFFFFFFF)
    program.write("sched:sched_switch", at_ns + 700, prev_pid=0, next_pid=9, next_comm="x")


@pytest.fixture(params=["library", "text"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to read a trace.dat."""
    if request.param == "text":
        monkeypatch.setattr(trace_dat, "program", lambda: "not here")
    elif isinstance(why := trace_dat.program(), str):
        pytest.skip(why)
    return str(request.param)


def test_every_period_is_read_back(tmp_path: Path, reader: str) -> None:
    program = Cpu(tmp_path)
    periods = 1000
    for number in range(periods):
        idle(program, 10**15 + number * 1000)
        if number % 20 == 19:
            program.copy()
    program.ring.copy_the_rest()
    rows, metadata = rows_of(whole(tmp_path, [tmp_path / "pages"]))
    assert [x["entered_ns"] for x in rows] == [10**15 + n * 1000 + 100 for n in range(periods)]
    assert {x["length_ns"] for x in rows} == {500}
    assert {x["waking_to_running_ns"] for x in rows} == {200}
    assert {(x["state"], x["wakee_comm"], x["waker_pid"]) for x in rows} == {(1, "x", 0)}
    assert metadata.lost == {}
    assert metadata.incomplete == 0
    assert reader


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


CAUSES: list[tuple[str, dict[str, Any], str]] = [
    ("ipi:ipi_send_cpu", {"cpu": 0}, "ipi"),
    ("ipi:ipi_send_cpumask", {"cpumask": 0b101}, "ipi"),
    ("ipi:ipi_send_cpumask", {"cpumask": 0b110}, "unknown"),
    ("irq_vectors:reschedule_entry", {}, "ipi"),
    ("irq_vectors:call_function_single_entry", {}, "ipi"),
    ("irq_vectors:call_function_entry", {}, "ipi"),
    ("sched:sched_wake_idle_without_ipi", {"cpu": 0}, "store"),
    ("timer:hrtimer_expire_entry", {"function": TICK}, "tick"),
    ("timer:hrtimer_expire_entry", {"function": TICK - 1}, "timer"),
    ("irq:irq_handler_entry", {"irq": 3, "name": "virtio0-req.0"}, "device"),
    ("irq:irq_handler_entry", {"irq": 3, "name": "arch_timer"}, "unknown"),
    ("power:cpu_idle_miss", {"cpu_id": 0, "state": 1, "below": 0}, "above"),
    ("power:cpu_idle_miss", {"cpu_id": 0, "state": 1, "below": 1}, "below"),
]


@pytest.mark.parametrize(("name", "values", "what"), CAUSES)
def test_every_event_is_understood(
    tmp_path: Path, reader: str, name: str, values: dict[str, Any], what: str
) -> None:
    program = Cpu(tmp_path)
    begin = 5 << 40
    program.write("sched:sched_switch", begin, prev_pid=9, prev_comm="x y", next_pid=0)
    program.write(trace.SLEEP_LENGTH, begin + 1, ret=-5, next=1 << 40)
    program.write("power:cpu_idle", begin + 2, state=2)
    program.write(name, begin + 3, **values)
    program.write("sched:sched_waking", begin + 4, pid=9, comm="x y", prio=120)
    program.write("power:cpu_idle", begin + 5, state=0xFFFFFFFF)
    program.write("sched:sched_switch", begin + 6, prev_pid=0, next_pid=9, next_comm="x y")
    program.ring.copy_the_rest()
    (row,), metadata = rows_of(whole(tmp_path, [tmp_path / "pages"]))
    assert what in (row["ended_by"], row["miss"])
    assert (row["entered_ns"], row["length_ns"], row["state"]) == (begin + 2, 3, 2)
    assert (row["sleep_length_ns"], row["next_event_ns"]) == (-5, 1 << 40)
    assert (row["wakee_comm"], row["wakee_pid"], row["waking_to_running_ns"]) == ("x y", 9, 2)
    assert metadata.events == 7
    assert reader


@pytest.mark.parametrize("pointer", [True, False])
def test_a_time_may_be_behind_a_pointer_or_not(pointer: bool, tmp_path: Path) -> None:
    class Others(Types):
        def hands_pointer(self, tracepoint: str, arg: int) -> bool:
            return pointer

    name, now_ns = "timer:hrtimer_expire_entry", 0x0123456789ABCDEF
    layout = trace.Layout(Others(), room=1, pages=PAGES, words=1, all_chosen=True)
    context = context_of(name, {"now": now_ns})
    if not pointer:
        context[8] = now_ns
    cpu = Cpu(tmp_path)
    cpu.machine.run(layout.program(NUMBERS[name], EVENTS[name]), context, lambda: None)
    assert struct.pack("=q", now_ns) in cpu.memory.tobytes()


def test_a_task_that_was_moved_has_not_waited(tmp_path: Path, reader: str) -> None:
    program = Cpu(tmp_path)
    program.write("sched:sched_switch", 10, prev_pid=8, prev_comm="x", next_pid=0)
    program.write("power:cpu_idle", 11, state=1)
    program.write("sched:sched_waking", 12, pid=9, comm="y")
    program.write("power:cpu_idle", 13, state=0xFFFFFFFF)
    program.write("sched:sched_migrate_task", 14, pid=9, comm="y", dest_cpu=0)
    program.write("sched:sched_switch", 15, prev_pid=0, next_pid=9, next_comm="y")
    program.ring.copy_the_rest()
    (row,), _ = rows_of(whole(tmp_path, [tmp_path / "pages"]))
    assert row["waking_to_running_ns"] is None
    assert reader


def test_a_waker_that_no_event_names_has_the_name_that_it_had_at_the_end(
    tmp_path: Path, reader: str
) -> None:
    folders = [tmp_path / str(cpu) for cpu in range(2)]
    for folder in folders:
        folder.mkdir()
    sleeper, waker = map(Cpu, folders)
    sleeper.write("sched:sched_switch", 10, prev_pid=9, prev_comm="y", next_pid=0)
    sleeper.write("power:cpu_idle", 11, state=1)
    waker.write("sched:sched_waking", 12, current=77, pid=9, comm="y")
    sleeper.write("power:cpu_idle", 13, state=0xFFFFFFFF)
    sleeper.write("sched:sched_switch", 14, prev_pid=0, next_pid=9, next_comm="y")
    for program in (sleeper, waker):
        program.ring.copy_the_rest()
    files = [folder / "pages" for folder in folders]
    (row,), _ = rows_of(whole(tmp_path, files, {77: b"a name"}))
    assert (row["waker_pid"], row["waker_comm"]) == (77, "a name")
    assert row["waking_to_running_ns"] == 2
    assert reader


def test_events_are_described_as_they_are_written() -> None:
    assert trace.FIELDS.keys() == {x.name for x in tracing.EVENTS} | {trace.SLEEP_LENGTH}
    for name, (fields, _) in trace.FIELDS.items():
        assert size_of(name) % 8 == 0
        assert trace.payload(fields) // 4 < pages.PADDING, name
        for each, offset in trace.placed(fields):
            assert offset % 4 == 0, (name, each)
            assert offset + each.size <= trace.payload(fields)
            assert f" {each.name};\toffset:{offset};" in trace.described(1, name).replace(
                "[16]", ""
            )


# What becomes of the files of the CPUs.


@pytest.fixture
def order(tmp_path: Path) -> dict[str, Any]:
    """What a keeper was to do that has copied 300 periods, and then was killed."""
    scratch = tmp_path / ".lightsleep-x" / "trace"
    scratch.parent.mkdir()
    files = pages.files_of({"buffers": {"0": 2, "3": 2}}, scratch)
    cpu = Cpu(tmp_path)
    for number in range(300):
        idle(cpu, 10**9 + number * 1000)
        cpu.copy()
    cpu.ring.copy_the_rest()
    cpu.file.rename(files[0])
    files[3].touch()
    formats = {name: trace.described(number, name) for name, number in NUMBERS.items()}
    order = {
        "buffers": {"0": 2, "3": 2},
        "formats": formats,
        "scratch": str(scratch),
        "output": str(tmp_path / "trace.dat"),
    }
    Path(f"{scratch}.json").write_text("{}")
    trace_file.head_of(scratch).write_bytes(trace_file.head(order, {}, Path("/proc")))
    return order


def taken_away(trace: Path) -> str:
    """Return what is in the document beside a trace, and remove it, as it describes nothing."""
    text = sidecar.beside(trace).read_text()
    sidecar.beside(trace).unlink()
    return text


@pytest.mark.parametrize("killed", ["before", "while writing", "in the middle of a page"])
def test_who_finishes_for_another_loses_nothing(
    tmp_path: Path, order: dict[str, Any], killed: str
) -> None:
    scratch, output = Path(order["scratch"]), Path(order["output"])
    if killed == "while writing":
        scratch.write_bytes(b"half of it")
    if killed == "in the middle of a page":
        with pages.file_of(scratch, 0).open("ab") as file:
            file.write(b"x" * 100)
    assert run._finish_for(order, wanted=True)["failed"] is None
    assert not list(tmp_path.glob(".lightsleep-*"))
    assert taken_away(output) == "{}"
    rows, metadata = rows_of(output)
    assert len(rows) == 300
    assert metadata.seen == {0}
    assert stat.S_IMODE(output.stat().st_mode) == 0o600


def test_who_finishes_for_another_follows_no_link(tmp_path: Path, order: dict[str, Any]) -> None:
    folder = Path(order["scratch"]).parent
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    report = run._finish_for(order, wanted=True)
    assert report["failed"] == f"cannot write {order['output']}: Not a directory"
    assert not Path(order["output"]).exists()
    assert sidecar.beside(tmp_path / "moved" / "trace").exists()


def test_what_cannot_be_finished_can_be_restored(
    tmp_path: Path, order: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch, output = Path(order["scratch"]), Path(order["output"])

    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(trace_file, "assemble", full)
    assert keeper.finish(order, {}) == f"cannot write {output}: No space left on device"
    said = run._restore(scratch, output, "-i .lightsleep-x/trace.head ")
    _, _, command = said.partition("This makes a trace of them: ")
    subprocess.run(["sh", "-c", command], capture_output=True, check=True)
    assert taken_away(output) == "{}"
    rows, _ = rows_of(output)
    assert len(rows) == 300


def test_a_disk_that_takes_no_more_ends_a_recording_and_keeps_it(tmp_path: Path) -> None:
    cpu = Cpu(tmp_path)
    rings = pages.Rings.__new__(pages.Rings)
    rings._rings, rings._flags, rings.refused = {0: cpu.ring}, {0: pages.CHOSEN}, None
    rings._control = cpu.line
    for number in range(ROOM + 1):
        cpu.write(IPI, 1 + number)
    with Path("/dev/full").open("wb", buffering=0) as full:
        cpu.ring.file = full.fileno()
        rings._for_all(pages.Ring.copy)
    assert rings.refused == "No space left on device"
    assert cpu.word(pages.FLAGS) == pages.OFF
    head = cpu.word(pages.HEAD)
    cpu.write(IPI, 10_000)
    assert cpu.word(pages.HEAD) == head
    rings.copy_the_rest()
    assert rings.lost == {}
