# SPDX-License-Identifier: GPL-2.0-only
"""What BPF programs write of events, once it is a file: all of it is read back and understood.

test_record_bpf_boot.py has the kernel run them.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from bpf_cpus import EVENTS, NUMBERS, PAGES, TICK, Cpu, Types, context_of, idle, size_of, whole
from recordings import rows_of

from lightsleep.record import tracing
from lightsleep.record.bpf import pages, trace

pytest_plugins = "bpf_cpus"
pytestmark = pytest.mark.usefixtures("closed")


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
