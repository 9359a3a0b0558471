# SPDX-License-Identifier: GPL-2.0-only
"""From events to idle periods: what each was, how it ended, and who waited for it."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path
from typing import Any

import pytest
from recordings import PIPE, rows_of
from traces import SWITCH, event, idle, left, switched, waking

pytest_plugins = "traces"


def test_who_woke_whom_and_how_long_it_took(trace: Any) -> None:
    (row,) = trace(
        idle(0, 1, 2),
        waking(100, 0, 42),
        event(101, 0, "ipi_send_cpu: cpu=1 callsite=f+0x1/0x2 callback=0x0", "waker-7"),
        left(150, 1),
        switched(160, 1, "a b-c", 42),
    )
    assert row == {
        "host": "unknown",
        "cpu": 1,
        "entered_ns": 10_000_000_000,
        "length_ns": 150_000,
        "state": 2,
        "sleep_length_ns": None,
        "ended_by": "ipi",
        "waker_comm": "waker",
        "waker_pid": 7,
        "wakee_comm": "a b-c",
        "wakee_pid": 42,
        "waking_to_running_ns": 60_000,
        "miss": None,
        "next_event_ns": None,
        "waker_cpu": 0,
    }


@pytest.mark.parametrize(
    ("evidence", "cause"),
    [
        (event(50, 0, "ipi_send_cpu: cpu=1 callsite=a callback=b", "w-7"), "ipi"),
        (event(50, 0, "ipi_send_cpumask: cpumask=0-1,8 callsite=a callback=b", "w-7"), "ipi"),
        (event(50, 0, "ipi_send_cpumask: cpumask=2-3 callsite=a callback=b", "w-7"), "unknown"),
        (event(50, 0, "ipi_send_cpumask: cpumask=00000000,00000002 callsite=a", "w-7"), "ipi"),
        (event(50, 0, "ipi_send_cpumask: cpumask=00000002,00000001 callsite=a", "w-7"), "unknown"),
        (event(50, 0, "ipi_send_cpumask: cpumask=ffffffff callsite=a", "w-7"), "ipi"),
        (event(50, 0, "ipi_send_cpumask: cpumask=f0000000 callsite=a", "w-7"), "unknown"),
        (event(50, 0, "ipi_send_cpu: cpu=0 callsite=a callback=b", "w-7"), "unknown"),
        (event(50, 1, "reschedule_entry: vector=253"), "ipi"),
        (event(50, 0, "sched_wake_idle_without_ipi: cpu=1", "w-7"), "store"),
        (
            event(50, 1, "hrtimer_expire_entry: hrtimer=0xf function=tick_nohz_handler now=1"),
            "tick",
        ),
        (event(50, 1, "hrtimer_expire_entry: hrtimer=0xf function=hrtimer_wakeup now=1"), "timer"),
        (event(110, 1, "hrtimer_expire_entry: hrtimer=0xf function=hrtimer_wakeup now=1"), "timer"),
        (event(50, 1, "irq_handler_entry: irq=28 name=virtio0-req.1"), "device"),
        (event(50, 1, "irq_handler_entry: irq=12 name=arch_timer"), "unknown"),
        (event(50, 1, "irq_handler_entry: irq=5 name=riscv-timer"), "unknown"),
        (event(50, 1, "irq_handler_entry: irq=5 name=clint-timer"), "unknown"),
        (event(50, 1, "irq_handler_entry: irq=1 name=EXT"), "unknown"),
        (event(50, 1, "irq_handler_entry: irq=2 name=I/O"), "device"),
        (event(50, 1, "irq_handler_entry: irq=2 name=ext4-timer"), "device"),
        (event(50, 1, "irq_handler_entry: irq=3 name=IPI"), "ipi"),
        (event(50, 1, "irq_handler_entry: irq=3 name=IPI-12"), "ipi"),
        (event(50, 1, "irq_handler_entry: irq=3 name=IPI-x"), "device"),
        (event(50, 1, "irq_handler_entry: irq=3 name=ipi call function"), "ipi"),
        (event(110, 0, "ipi_send_cpu: cpu=1 callsite=a callback=b", "w-7"), "unknown"),
        ("", "unknown"),
    ],
)
def test_what_ended_a_period(trace: Any, evidence: str, cause: str) -> None:
    late = evidence.split(" 10.000110")[1:]
    lines = (
        [idle(0, 1, 1), left(100, 1), evidence] if late else [idle(0, 1, 1), evidence, left(100, 1)]
    )
    assert [row["ended_by"] for row in trace(*lines, switched(120, 1, "x", 9))] == [cause]


@pytest.mark.parametrize(
    ("functions", "said"),
    [
        (["tick_nohz_handler"], False),
        (["hrtimer_wakeup"], False),
        (["0xffffffff9a1b2c30"], True),  # of trace-cmd and perf
        (["ffffffff9a1b2c30"], True),
        (["c01b2c30"], True),
        (["0xffffffffc01b2c30", "tick_nohz_handler"], False),  # of a module that was removed
        (["0xffffffffc01b2c30", "hrtimer_wakeup"], False),
        ([], False),
    ],
)
def test_where_functions_have_no_names_a_tick_counts_as_a_timer(
    functions: list[str], said: bool, tmp_path: Path
) -> None:
    expiry = "hrtimer_expire_entry: hrtimer=0xf function={} now=1"
    timers = [event(us, 1, expiry.format(x)) for us, x in enumerate(functions, 1)]
    path = tmp_path / "trace.txt"
    path.write_text("".join([idle(0, 1, 1), *timers, left(100, 1)]))
    notes = [x for x in rows_of(path)[1].notes if "counts as a timer" in x]
    assert len(notes) == said
    path.write_text("".join([switched(0, 1, "x", 42), *timers, idle(99, 1, 1), left(100, 1)]))
    assert not any("counts as a timer" in x for x in rows_of(path)[1].notes)  # none was idle


def test_the_first_evidence_counts(trace: Any) -> None:
    (row,) = trace(
        idle(0, 1, 1),
        event(10, 1, "hrtimer_expire_entry: hrtimer=0xf function=tick_sched_timer now=1"),
        event(11, 0, "ipi_send_cpu: cpu=1 callsite=a callback=b", "w-7"),
        left(12, 1),
        switched(13, 1, "x", 9),
    )
    assert row["ended_by"] == "tick"


def test_a_store_ends_a_poll_that_an_interrupt_did_not_end(trace: Any) -> None:
    tick = event(3, 1, "hrtimer_expire_entry: hrtimer=0xf function=tick_nohz_handler now=1")
    store = event(40, 0, "sched_wake_idle_without_ipi: cpu=1", "w-7")
    (row,) = trace(idle(0, 1, 0), tick, store, left(41, 1), switched(42, 1, "x", 9))
    assert row["ended_by"] == "store"
    (row,) = trace(idle(0, 1, 0), tick, left(39, 1), store, switched(42, 1, "x", 9))
    assert row["ended_by"] == "tick"


@pytest.mark.parametrize(
    "ipi",
    [
        event(3, 0, "ipi_send_cpu: cpu=1 callsite=irq_work_queue_on+0x1 callback=x", "a-7"),
        event(3, 1, "call_function_single_entry: vector=251"),
    ],
)
def test_a_store_as_the_cpu_leaves_its_state_is_not_what_ends_it(trace: Any, ipi: str) -> None:
    """Until a CPU has left a state that watches memory, it needs no other IPI."""
    store = event(40, 0, "sched_wake_idle_without_ipi: cpu=1", "w-7")
    (row,) = trace(idle(0, 1, 3), ipi, store, left(41, 1), switched(42, 1, "x", 9))
    assert row["ended_by"] == "ipi"


def test_periods_without_a_wakeup_between(trace: Any) -> None:
    rows = trace(idle(0, 1, 0), left(10, 1), idle(12, 1, 1), left(99, 1), switched(100, 1, "x", 9))
    assert [(x["state"], x["length_ns"], x["wakee_pid"]) for x in rows] == [
        (0, 10_000, None),
        (1, 87_000, 9),
    ]


def test_a_task_that_waited_for_something_else_did_not_wait_for_the_cpu(trace: Any) -> None:
    (row,) = trace(waking(0, 0, 42), idle(10, 1, 1), left(20, 1), switched(21, 1, "x", 42))
    assert row["wakee_pid"] == 42
    assert row["waking_to_running_ns"] is None


def test_a_cpu_that_is_found_awake(trace: Any) -> None:
    (row,) = trace(
        event(0, 1, SWITCH.format("y", 3, "swapper/1", 0), "y-3"),
        waking(5, 0, 42),
        switched(9, 1, "x", 42),
    )
    assert (row["state"], row["length_ns"], row["waking_to_running_ns"]) == (-1, 0, 4000)


HANDLER = event(100, 1, "irq_handler_entry: irq=28 name=virtio0-input.0")


def test_a_wakeup_of_a_cpu_that_has_left_its_state_found_it_awake(trace: Any) -> None:
    """As where it runs a softirq: no poll would have avoided that."""
    woken = waking(160, 0, 42), switched(192, 1, "x", 42)
    first, second = trace(idle(0, 1, 2), HANDLER, left(150, 1), *woken)
    told = ("state", "length_ns", "ended_by", "wakee_comm", "waking_to_running_ns")
    assert [first[x] for x in told] == [2, 150_000, "device", None, None]
    assert [second[x] for x in told] == [-1, 0, "unknown", "x", 32_000]
    assert second["entered_ns"] == 10_000_160_000


@pytest.mark.parametrize(
    "woken",
    [
        [left(150, 1), waking(160, 1, 42, "<idle>-0")],
        [waking(149, 0, 42), left(150, 1)],
        [left(150, 1), waking(150, 0, 42)],
    ],
)
def test_a_wakeup_by_the_cpu_itself_or_before_it_left_is_one_out_of_the_state(
    trace: Any, woken: list[str]
) -> None:
    (row,) = trace(idle(0, 1, 2), HANDLER, *woken, switched(192, 1, "x", 42))
    assert (row["state"], row["wakee_comm"]) == (2, "x")


def test_what_the_governor_knew_and_how_it_chose(trace: Any) -> None:
    rows = trace(
        event(0, 1, "sleep_length: (ffffffff81 <- ffffffff82) ret=1234567"),
        idle(1, 1, 1),
        left(2, 1),
        event(3, 1, "cpu_idle_miss: cpu_id=1 state=1 type=above"),
        idle(4, 1, 0),
        left(5, 1),
    )
    assert [(x["sleep_length_ns"], x["miss"]) for x in rows] == [(1234567, "above"), (None, None)]


def between(us: int, cpu: int) -> str:
    return event(us, cpu, SWITCH.format("t", 9, "x", 42), "t-9")


def moved(us: int, cpu: int, task: str = "t-9") -> str:
    return event(us, cpu, "sched_migrate_task: comm=x pid=42 prio=120 orig_cpu=0 dest_cpu=1", task)


@pytest.mark.parametrize(
    ("after_waking", "waited_us"),
    [
        ([], 150),
        ([moved(11, 0)], 150),  # part of the wakeup
        ([moved(70, 0)], 150),
        ([moved(11, 2)], None),
        ([waking(11, 0, 43), moved(12, 0)], None),
        ([between(11, 0), moved(99, 0)], None),
        ([between(11, 0)], None),  # of foreign tools, which record every switch
        ([between(11, 0), waking(100, 0, 42), moved(101, 0)], 60),
    ],
)
def test_a_task_that_is_moved_here_has_not_waited_since_its_wakeup(
    trace: Any, after_waking: list[str], waited_us: int | None
) -> None:
    (row,) = trace(
        idle(0, 1, 2),
        waking(10, 0, 42),
        *after_waking,
        left(150, 1),
        switched(160, 1, "x", 42),
    )
    assert row["waking_to_running_ns"] == (None if waited_us is None else waited_us * 1000)


@pytest.mark.parametrize(("at_us", "waited_us"), [(1010, 20_020), (1011, None), (20_010, None)])
def test_a_move_long_after_a_wakeup_is_no_part_of_it(
    trace: Any, at_us: int, waited_us: int | None
) -> None:
    # Of a CPU that was not selected, nothing but wakings and moves is recorded.
    begin, end = (idle(0, 1, 2), waking(10, 0, 42)), (left(20_020, 1), switched(20_030, 1, "x", 42))
    (row,) = trace(*begin, moved(at_us, 0), *end)
    waited_ns = None if waited_us is None else waited_us * 1000
    assert (row["wakee_pid"], row["waking_to_running_ns"]) == (42, waited_ns)


def test_idle_time_that_a_thread_injects_is_idle_time(trace: Any) -> None:
    injected = event(300, 1, SWITCH.format("idle_inject/1", 90, "swapper/1", 0), "idle_inject/1-90")
    first, second = trace(idle(0, 1, 2), left(90, 1), idle(95, 1, 2), left(290, 1), injected)
    assert (first["length_ns"], second["length_ns"]) == (90_000, 195_000)
    assert second["wakee_pid"] is None


def test_a_task_that_was_woken_before_events_were_lost_was_woken_again_maybe(trace: Any) -> None:
    begin, end = idle(0, 1, 2) + waking(20, 0, 42), left(9000, 1) + switched(9010, 1, "t", 42)
    (row,) = trace(begin, end)
    assert (row["wakee_pid"], row["waking_to_running_ns"]) == (42, 8_990_000)
    (row,) = trace(begin, "CPU:0 [50000 EVENTS DROPPED]\n", end)
    assert (row["wakee_pid"], row["waker_pid"], row["waking_to_running_ns"]) == (42, None, None)


def test_a_real_recording_adds_up() -> None:
    rows, metadata = rows_of(PIPE)
    assert metadata.states == {0: {1: "default"}, 1: {1: "default"}}
    text = gzip.decompress(PIPE.read_bytes()).decode()
    entered = text.count(" cpu_idle:") - text.count("state=4294967295")
    asleep = [row for row in rows if row["state"] != -1]
    assert len(asleep) + metadata.incomplete >= entered - 2
    for cpu in (0, 1):
        mine = [row for row in asleep if row["cpu"] == cpu]
        assert all(
            a["entered_ns"] + a["length_ns"] <= b["entered_ns"] for a, b in itertools.pairwise(mine)
        )
    by_ipi = [x for x in rows if x["ended_by"] == "ipi" and x["wakee_comm"] == "sched-pipe"]
    by_ipi = [x for x in by_ipi if x["waking_to_running_ns"] is not None]
    assert len(by_ipi) > 100
    assert {x["waker_comm"] for x in by_ipi} == {"sched-pipe"}
