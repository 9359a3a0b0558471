# SPDX-License-Identifier: GPL-2.0-only
"""The compiled reader of trace.dat gives the rows that the text of trace-cmd report gives."""

from __future__ import annotations

import gzip
import json
import struct
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import RECORDINGS

from lightsleep.compiled import compile_to
from lightsleep.errors import LightsleepError
from lightsleep.periods import formats, programs, source, trace_dat
from lightsleep.periods.build import EXIT, MAX_NAMES, MAX_WAKINGS, Builder
from lightsleep.periods.columns import COLUMNS
from lightsleep.periods.lines import feed
from lightsleep.periods.model import CAUSES, Metadata

US = 1000
ALIVE = b"\xff" * 8
COMMS = ("redis-server", "a", "exactly16charsxx")


def sorted_rows(batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch]) -> list[dict[str, Any]]:
    rows = pa.Table.from_batches(list(batches), COLUMNS).to_pylist()
    return sorted(rows, key=lambda row: (row["cpu"], row["entered_ns"], row["state"]))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("driver") / "drive-builder"
    here = Path(__file__).parent / "drive_builder.c"
    warnings = ("-Wall", "-Wextra", "-Werror", "-fsanitize=undefined", "-fno-sanitize-recover")
    files = (here, trace_dat.HERE / "builder.c")
    compile_to(target, here.name, ["-std=gnu11", *warnings, f"-I{trace_dat.HERE}", *files])
    return target


def step(name: str, *numbers: st.SearchStrategy[int]) -> st.SearchStrategy[tuple[Any, ...]]:
    value, more = (*numbers, st.just(0), st.just(0))[:2]
    later_us = st.one_of(st.integers(0, 9), st.sampled_from([1000, 2000]))
    return st.tuples(
        st.just(name), st.integers(0, 2), later_us, value, more, st.sampled_from(COMMS)
    )


pids = st.integers(1, 4)
steps = st.lists(
    st.one_of(
        step("idle", st.sampled_from([0, 1, EXIT])),
        step("idle", st.sampled_from([1, EXIT])),
        step("sleep", st.integers(-5, 10**6), st.integers(-1, 10**6)),
        step("miss", st.integers(0, 3), st.integers(0, 1)),
        step("sent", st.integers(0, 3), st.integers(0, 1)),
        step("happened", st.integers(0, 4)),
        step("timer", st.integers(0, 1)),
        step("waking", pids, pids),
        step("named", st.one_of(pids, st.sampled_from([0, 2 + MAX_NAMES]))),
        step("migrated", pids),
        step("from-idle", pids),
        step("between", pids),
        step("to-idle"),
        step("lost", st.integers(0, 9)),
    ),
    max_size=60,
)


def by_python(events: list[tuple[Any, ...]]) -> tuple[list[dict[str, Any]], Metadata]:
    metadata = Metadata("host", "x")
    builder = Builder(metadata)
    for name, cpu, now_ns, value, more, comm in events:
        if name == "lost":
            builder.lost(cpu, value)
            continue
        builder.at(cpu, now_ns)
        match name:
            case "idle":
                builder.cpu_idle(cpu, now_ns, value)
            case "sleep":
                builder.sleep_length(cpu, value, None if more < 0 else more)
            case "miss":
                builder.miss(value, "below" if more else "above")
            case "sent":
                builder.sent(value, "store" if more else "ipi")
            case "happened":
                builder.happened(cpu, CAUSES[value])
            case "timer":
                builder.timer(cpu, bool(value))
            case "waking":
                known = builder.name(more)
                builder.waking(cpu, now_ns, value, comm if known is None else known, more)
            case "named":
                builder.named(value, comm)
            case "migrated":
                builder.migrated(cpu, now_ns, value)
            case "between":
                builder.switch_between_tasks(value)
            case "from-idle":
                builder.switch_from_idle(cpu, now_ns, comm, value)
            case "to-idle":
                builder.switch_to_idle(cpu, now_ns)
    builder.finish()
    return sorted_rows([source.as_batch("host", builder.rows)]), metadata


def drained(read: Generator[pa.RecordBatch, None, bool]) -> tuple[list[pa.RecordBatch], bool]:
    """Return the batches, and whether they came to their end."""
    ends: list[bool] = []

    def run() -> Iterator[pa.RecordBatch]:
        ends.append((yield from read))

    return list(run()), ends[0]


def with_times(drawn: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Let the time of all CPUs rise by what was drawn for each event."""
    now_ns, events = 0, []
    for name, cpu, more_us, *others in drawn:
        now_ns += more_us * US
        events.append((name, cpu, now_ns, *others))
    return events


@given(steps)
@settings(max_examples=200, deadline=None)
def test_compiled_and_python_build_the_same_rows(driver: Path, drawn: list[Any]) -> None:
    events = with_times(drawn)
    lines = "".join(f"{' '.join(map(str, event))}\n" for event in events)
    done = subprocess.run([driver], input=lines.encode(), capture_output=True, check=True)
    metadata = Metadata("host", "x")
    pieces = [done.stdout[:100], done.stdout[100:]]
    found, whole = drained(trace_dat.batches(pieces, metadata))
    assert whole
    rows, expected = by_python(events)
    assert sorted_rows(found) == rows
    counted = ("events", "incomplete", "first_ns", "last_ns", "seen", "met")
    assert [getattr(metadata, x) for x in counted] == [getattr(expected, x) for x in counted]


@pytest.mark.parametrize(
    ("events", "rows", "incomplete"),
    [
        ([("idle", EXIT)], 0, 1),  # it was asleep when the recording began
        ([("idle", EXIT), ("idle", EXIT), ("from-idle", 7)], 0, 1),
        ([("idle", EXIT), ("idle", 1), ("idle", EXIT)], 1, 1),
        ([("to-idle", 0), ("idle", EXIT), ("waking", 7), ("from-idle", 7)], 0, 1),
        ([("idle", 1), ("lost", 5), ("idle", EXIT)], 0, 1),
        ([("idle", 1), ("lost", 5), ("lost", 5), ("idle", EXIT)], 0, 1),
        ([("from-idle", 7), ("lost", 5), ("idle", EXIT)], 0, 1),
        ([("idle", 1), ("lost", 5), ("from-idle", 7), ("idle", EXIT)], 0, 2),
    ],
)
def test_a_period_without_its_begin_is_counted_once(
    driver: Path, events: list[tuple[str, int]], rows: int, incomplete: int
) -> None:
    steps = [(name, 1, at * US, value, 3, "x") for at, (name, value) in enumerate(events)]
    lines = "".join(f"{' '.join(map(str, step))}\n" for step in steps)
    done = subprocess.run([driver], input=lines.encode(), capture_output=True, check=True)
    compiled = Metadata("host", "x")
    found = sorted_rows(list(trace_dat.batches([done.stdout], compiled)))
    by_hand, metadata = by_python(steps)
    assert (len(by_hand), metadata.incomplete) == (rows, incomplete)
    assert (len(found), compiled.incomplete) == (rows, incomplete)


def test_time_that_runs_backwards_is_an_error(driver: Path) -> None:
    lines = b"to-idle 1 2000 0 0 x\nto-idle 1 1000 0 0 x\n"
    done = subprocess.run([driver], input=lines, capture_output=True)
    assert done.returncode == 1
    assert done.stderr == b"time runs backwards on CPU 1, from 2000 ns to 1000 ns\n"


def test_more_wakings_than_it_remembers(driver: Path) -> None:
    # All are forgotten at once, as in build.py: only the last one is known after that.
    most = MAX_WAKINGS
    wakings = "".join(f"waking 0 5000 {pid} 7 x\n" for pid in range(1, most + 2))
    lines = f"to-idle 0 1000 0 0 x\n{wakings}from-idle 0 9000 1 0 a\nto-idle 0 9500 0 0 x\n"
    lines += f"waking 0 9600 3 7 x\nfrom-idle 0 9900 {most + 1} 0 a\n"
    done = subprocess.run([driver], input=lines.encode(), capture_output=True, check=True)
    metadata = Metadata("host", "x")
    rows = sorted_rows(list(trace_dat.batches([done.stdout], metadata)))
    assert rows == []  # the one is forgotten, the other was woken before its CPU had nothing to do
    assert metadata.events == most + 6


def test_wakings_before_a_loss_take_no_room(driver: Path) -> None:
    """Those that the compiled builder forgets at a loss are still in its table."""
    stale, fresh = MAX_WAKINGS - 30_000, 40_000
    again = 100  # woken before the loss, and behind it
    cpus, pids = range(1, 101), range(stale - again, stale - again + fresh)
    steps: list[tuple[Any, ...]] = [("waking", 0, 1 * US, pid, 7, "x") for pid in range(1, stale)]
    steps.append(("lost", 0, 0, 5, 0, "x"))
    steps += [("to-idle", cpu, 2 * US, 0, 0, "x") for cpu in cpus]
    steps += [("waking", 0, 3 * US, pid, 7, "x") for pid in pids]
    # A row of each, and none of a task that was woken before the loss only.
    wakees = [*pids[:: fresh // 98][:98], 1, stale - again - 1]
    steps += [("from-idle", *x, 0, "a") for x in zip(cpus, [9 * US] * 100, wakees, strict=True)]
    lines = "".join(f"{' '.join(map(str, step))}\n" for step in steps)
    done = subprocess.run([driver], input=lines.encode(), capture_output=True, check=True)
    found = sorted_rows(list(trace_dat.batches([done.stdout], Metadata("host", "x"))))
    assert len(found) == 98
    assert found == by_python(steps)[0]


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "trace.dat"
    path.write_bytes(gzip.decompress((RECORDINGS / "trace-v6.dat.gz").read_bytes()))
    return path


def needs_the_program() -> None:
    found = trace_dat.program()
    if isinstance(found, str):
        # That our own program does not compile is no reason.
        assert "pkg-config" in found or "there is no" in found, found
        pytest.skip(found)


def read_whole(path: Path) -> tuple[list[dict[str, Any]], Metadata]:
    recording = source.open_recording(path)
    return sorted_rows(recording.batches), recording.metadata


def test_compiled_and_text_read_the_same(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_the_program()
    rows, metadata = read_whole(recorded)
    assert len(rows) > 50
    monkeypatch.setattr(trace_dat, "program", lambda: "there is no compiler")
    expected, by_text = read_whole(recorded)
    assert rows == expected
    assert metadata.to_json() == by_text.to_json()


WAKING, SWITCH, CPU_IDLE = 313, 310, 538
"""The events of the recording in tests/fixtures."""

MISSED = 1 << 31
"""In the head of a page: events before it are lost."""


def page(events: list[tuple[int, int, bytes]], missed: bool = False) -> bytes:
    """Return a page of the kernel's buffer. An event is its time in us, its kind and its fields."""
    last_us, data = events[0][0], b""
    for at_us, kind, fields in events:
        task = 0 if kind == CPU_IDLE else 7
        event = struct.pack("<HBBi", kind, 0, 0, task) + fields
        data += struct.pack("<I", len(event) // 4 | (at_us - last_us) * US << 5) + event
        last_us = at_us
    head = struct.pack("<QQ", events[0][0] * US, len(data) | (MISSED if missed else 0))
    return (head + data).ljust(4096, b"\0")


def with_pages(recording: bytes, *cpus: list[bytes]) -> bytes:
    """Return a recording of two CPUs with other pages in its buffer lightsleep_701."""
    whole = bytearray(recording)
    at = whole.rindex(b"flyrecord\0") + len(b"flyrecord\0")
    for number, pages in enumerate(cpus):
        begin, size = struct.unpack_from("<QQ", whole, at + 16 * number)
        data = b"".join(pages)
        assert len(data) <= size
        whole[begin : begin + len(data)] = data
        struct.pack_into("<Q", whole, at + 16 * number + 8, len(data))
    return bytes(whole)


def test_what_a_cpu_loses_counts_from_the_event_before(recorded: Path) -> None:
    needs_the_program()
    waking = struct.pack("<16siii", b"t", 42, 120, 0)
    entered, left = (struct.pack("<II", state, 1) for state in (1, EXIT))
    switched = struct.pack("<16siiq16sii", b"swapper/1", 0, 120, 0, b"t", 42, 120)
    period = [(10, CPU_IDLE, entered), (5090, CPU_IDLE, left), (5100, SWITCH, switched)]
    later, whole = (9000, WAKING, waking), recorded.read_bytes()
    kept = [page([(20, WAKING, waking), later])]
    recorded.write_bytes(with_pages(whole, kept, [page(period)]))
    (row,), metadata = read_whole(recorded)
    assert (row["wakee_pid"], row["waking_to_running_ns"]) == (42, 5_080_000)
    # Among what was lost is perhaps that the task ran, slept, and was woken again.
    lost = [page([(20, WAKING, waking)]), page([later], missed=True)]
    recorded.write_bytes(with_pages(whole, lost, [page(period)]))
    (row,), metadata = read_whole(recorded)
    assert metadata.lost == {0: 1}
    assert (row["wakee_pid"], row["waking_to_running_ns"]) == (42, None)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_trace_without_an_event_that_is_needed(
    compiled: bool, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_the_program()
    if not compiled:
        monkeypatch.setattr(trace_dat, "program", lambda: "there is no compiler")
    assert read_whole(recorded)[1].lacking is None
    waking = struct.pack("<16siii", b"t", 42, 120, 0)
    switched = struct.pack("<16siiq16sii", b"swapper/1", 0, 120, 0, b"t", 42, 120)
    pages = [page([(20, WAKING, waking)])], [page([(5100, SWITCH, switched)])]
    recorded.write_bytes(with_pages(recorded.read_bytes(), *pages))
    note = read_whole(recorded)[1].lacking
    assert note
    assert note.startswith("the recording has no event cpu_idle, so")


def with_pages_of_the_first_buffer(recording: bytes, *cpus: list[bytes]) -> bytes:
    """Return a recording with pages in the kernel's own buffer, which has none."""
    whole = bytearray(recording)
    at = whole.index(b"flyrecord\0") + len(b"flyrecord\0")
    for number, pages in enumerate(cpus):
        assert struct.unpack_from("<QQ", whole, at + 16 * number) == (0, 0)
        whole += b"\0" * (-len(whole) % 4096)
        struct.pack_into("<QQ", whole, at + 16 * number, len(whole), 4096 * len(pages))
        whole += b"".join(pages)
    return bytes(whole)


@pytest.mark.parametrize("first", [False, True])
def test_what_a_cpu_loses_in_one_of_two_buffers(first: bool, recorded: Path) -> None:
    needs_the_program()
    waking = struct.pack("<16siii", b"t", 42, 120, 0)
    entered, left = (struct.pack("<II", state, 1) for state in (1, EXIT))
    switched = struct.pack("<16siiq16sii", b"swapper/1", 0, 120, 0, b"t", 42, 120)
    period = [(10, CPU_IDLE, entered), (5090, CPU_IDLE, left), (5100, SWITCH, switched)]
    later, whole = [(9000, WAKING, waking)], recorded.read_bytes()
    in_one, in_other = with_pages, with_pages_of_the_first_buffer
    if first:
        in_one, in_other = in_other, in_one
    for missed in (False, True):
        wakings = [page([(20, WAKING, waking)]), page(later, missed)]
        recorded.write_bytes(in_other(in_one(whole, wakings, []), [], [page(period)]))
        (row,), metadata = read_whole(recorded)
        assert metadata.lost == ({0: 1} if missed else {})
        waited_ns = None if missed else 5_080_000
        assert (row["wakee_pid"], row["waking_to_running_ns"]) == (42, waited_ns)


def test_a_trace_names_its_architecture(recorded: Path, tmp_path: Path) -> None:
    assert formats.of(recorded).architecture(recorded) == "x86_64"
    cut = tmp_path / "cut.dat"
    cut.write_bytes(recorded.read_bytes()[:1000])
    assert formats.of(cut).architecture(cut) is None


def test_a_clock_that_counts_no_nanoseconds(recorded: Path) -> None:
    needs_the_program()
    whole = recorded.read_bytes()
    assert whole.count(b"[mono]") == 3  # of the machine, and of each buffer
    # Of as many bytes as before: x86-tsc would move what follows.
    recorded.write_bytes(whole.replace(b"[mono]", b"[xtsc]"))
    with pytest.raises(LightsleepError, match="its clock xtsc does not count nanoseconds"):
        read_whole(recorded)


def test_names_come_from_events_where_the_table_lacks_them(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_the_program()
    whole = recorded.read_bytes()
    table = b" sched-pipe\n"
    assert table in whole
    # The table names other tasks: as many bytes as before.
    recorded.write_bytes(whole.replace(table, b" somebody's\n"))
    rows, _ = read_whole(recorded)
    wakers = [row["waker_comm"] for row in rows]
    assert wakers.count("sched-pipe") > wakers.count("somebody's")  # before the first event
    monkeypatch.setattr(trace_dat, "program", lambda: "there is no compiler")
    assert read_whole(recorded)[0] == rows


@pytest.mark.parametrize("compiled", [False, True])
def test_a_trace_without_the_names_of_functions(
    compiled: bool, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_the_program()
    if not compiled:
        monkeypatch.setattr(trace_dat, "program", lambda: "there is no compiler")
    first = b"blk]\nffffffffc032c1d0 t __pfx_virtblk_remove\t[virtio_blk]\n"
    whole = recorded.read_bytes()
    assert whole.count(first) == 1
    # The first function that has a name is before all of timers, or behind them.
    for address, said in ((b"ffffffff80000000", False), (b"ffffffffc032c1d0", True)):
        named = (address + b" t tick_").ljust(len(first) - 1, b"x") + b"\n"
        recorded.write_bytes(whole.replace(first, named))
        rows, metadata = read_whole(recorded)
        ended = {row["ended_by"] for row in rows}
        assert ("tick" in ended, "timer" in ended) == (not said, said)
        assert ["counts as a timer" in note for note in metadata.notes].count(True) == said


def test_compiled_and_text_know_the_same_handlers(tmp_path: Path) -> None:
    needs_the_program()
    names = ["riscv-timer", "clint-timer", "arch_timer", "timer", "EXT", "I/O", "virtio0-req.1"]
    names += ["IPI", "IPI-7", "IPI-12", "IPI-", "IPI-x", "IPI-1x", "xIPI", "ipi call function"]
    names += ["ipi", "timers", "", "nmi ipi"]
    here, target = Path(__file__).parent / "drive_names.c", tmp_path / "drive-names"
    found = subprocess.run(
        ["pkg-config", "--cflags", "--libs", trace_dat.LIBRARY],
        capture_output=True,
        text=True,
        check=True,
    )
    files = (here, trace_dat.HERE / "builder.c")
    flags = ("-std=gnu11", f"-I{trace_dat.HERE}")
    compile_to(target, here.name, [*flags, *files, *found.stdout.split()])
    done = subprocess.run([target, *names], capture_output=True, text=True, check=True)
    by_python = []
    for name in names:
        builder = Builder(Metadata("host", "x"))
        idle = "x-0 [001] 1.000000001: cpu_idle: state=1 cpu_id=1\nx-0 [001] 1.000000002: "
        text = f"{idle}irq_handler_entry: irq=1 name={name}"
        list(feed(builder, text.split("\n"), "x"))
        builder.cpu_idle(1, 3, EXIT)
        builder.finish()
        by_python.append(builder.rows[0][5])
    assert dict(zip(names, done.stdout.split("\n"), strict=False)) == dict(
        zip(names, by_python, strict=True)
    )


def test_a_file_that_is_cut_is_an_error_that_names_it(recorded: Path) -> None:
    needs_the_program()
    whole = recorded.read_bytes()
    recorded.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LightsleepError, match=r"trace\.dat"):
        read_whole(recorded)


def test_a_stream_without_its_end_is_noticed() -> None:
    assert drained(trace_dat.batches([b"\0" * 3], Metadata("host", "x"))) == ([], False)


def test_without_the_library_the_text_is_read(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(trace_dat, "program", trace_dat.program.__wrapped__)
    monkeypatch.setenv("PKG_CONFIG_LIBDIR", str(tmp_path))
    assert trace_dat.program() in ("pkg-config knows no libtracecmd", "there is no pkg-config")
    monkeypatch.setattr(trace_dat, "MANY_EVENTS", 10)
    rows, metadata = read_whole(recorded)
    assert rows
    assert any("libtracecmd-dev" in note for note in metadata.notes)
    json.dumps(metadata.to_json())


def test_a_program_that_finds_few_periods_gives_signs_of_life(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_the_program()
    expected = read_whole(recorded)[0]
    monkeypatch.setattr(trace_dat, "program", trace_dat.program.__wrapped__)
    monkeypatch.setattr(trace_dat, "FLAGS", (*trace_dat.FLAGS, "-DALIVE_EVERY=100"))
    done = subprocess.run([trace_dat.program(), recorded], capture_output=True, check=True)
    assert done.stdout.startswith(ALIVE * 3)  # the rows are fewer than a block
    assert read_whole(recorded)[0] == expected


def test_signs_of_life_are_no_silence(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program"
    end = {"events": 9, "incomplete": 0, "first_ns": 1, "last_ns": 2, "seen": [0], "lost": {}}
    octal = "".join(f"\\{byte:03o}" for byte in ALIVE)
    program.write_text(
        "#!/bin/sh\nfor _ in $SIGNS; do sleep 0.5; printf '" + octal + "'; done\n"
        '[ -n "$SIGNS" ] || exec sleep 60\n'
        "head -c 8 /dev/zero\nprintf %s '" + json.dumps(end | {"met": 7}) + "'\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(trace_dat, "program", lambda: program)
    monkeypatch.setattr(programs, "SILENT_S", 2.0)
    monkeypatch.setenv("SIGNS", "1 2 3 4 5 6")
    assert read_whole(recorded)[1].events == 9
    monkeypatch.setenv("SIGNS", "")
    with pytest.raises(LightsleepError, match="has printed nothing for"):
        read_whole(recorded)
