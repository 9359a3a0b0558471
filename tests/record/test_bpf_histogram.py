# SPDX-License-Identifier: GPL-2.0-only
"""What the BPF programs of ``lightsleep record --histogram`` count, on a machine of two CPUs."""

from __future__ import annotations

import contextlib
import mmap
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from bpf_machine import Machine, Struct

from lightsleep.errors import LightsleepError
from lightsleep.periods.histogram import buckets
from lightsleep.record import keeper
from lightsleep.record.bpf import histogram

IDLE, CLIENT, SERVER = (0xFFFF888100000000 + 0x12340 * number for number in (1, 2, 3))
"""Addresses of tasks."""

TWIN = CLIENT + (1 << 22)
"""One whose notes have the place of another one's."""


class Times(NamedTuple):
    """What was counted under one bucket."""

    cpu: int
    state: int
    number: int
    total_ns: int


class Cpu:
    """CPU 0, which idles and runs tasks, while programs count. CPU 1 does what a test says."""

    def __init__(self) -> None:
        """Begin with nothing counted."""
        self.order = histogram.order([0, 1], [0, 1])
        self.memory = {name: mmap.mmap(-1, map_["bytes"]) for name, map_ in self.maps.items()}
        for name, map_ in self.maps.items():
            value = bytes.fromhex(map_.get("value", ""))
            self.memory[name][: len(value)] = value
        self.now_ns = 1_000_000_000_000
        maps = {name: memoryview(x) for name, x in self.memory.items()}
        self.machine = Machine(maps, lambda: self.now_ns)
        self.run_by(IDLE)

    @property
    def maps(self) -> dict[str, Any]:
        """What maps the keeper makes."""
        maps: dict[str, Any] = self.order["maps"]
        return maps

    def run_by(self, task: int) -> None:
        """Have this task run, without an event."""
        self.machine.task, self.machine.current = task, 0 if task == IDLE else 1

    def at(self, tracepoint: str, *words: int, after_ns: int = 0) -> None:
        """Have the program of a tracepoint run."""
        self.now_ns += after_ns
        context = Struct({8 * place: word for place, word in enumerate(words)})
        self.machine.run(self.order["programs"][tracepoint], context)

    def enter(self, state: int, after_ns: int = 0) -> None:
        """Enter an idle state."""
        self.at("cpu_idle", state, 0, after_ns=after_ns)

    def leave(self, after_ns: int = 0) -> None:
        """Leave it."""
        self.enter(0xFFFFFFFF, after_ns)

    def switch(self, task: int, after_ns: int = 0) -> None:
        """Run another task."""
        self.at("sched_switch", 0, self.machine.task, task, 0, after_ns=after_ns)
        self.run_by(task)

    def wake(self, task: int, after_ns: int = 0) -> None:
        """Have what runs wake a task."""
        self.at("sched_waking", task, after_ns=after_ns)

    def wake_from_afar(self, task: int, after_ns: int = 0) -> None:
        """Have a task of CPU 1 wake one."""
        with self.busy_one():
            self.wake(task, after_ns)

    def move(self, task: int) -> None:
        """Have what runs move a task to another CPU."""
        self.at("sched_migrate_task", task, 0)

    @contextlib.contextmanager
    def busy_one(self) -> Iterator[None]:
        """Have the events of this context happen on CPU 1, which runs tasks."""
        before = self.machine.task
        self.machine.cpu = 1
        self.run_by(SERVER)
        yield
        self.machine.cpu = 0
        self.run_by(before)

    def counted(self) -> dict[str, list[Times]]:
        """Return what the keeper finds, as a reader has it."""
        document = {"histograms": keeper._counted(self.memory["cpus"], self.order)}
        found = {kind: buckets(document, kind) for kind in self.order["kinds"]}
        return {
            kind: [Times(x.cpu, x.state, x.number, x.total_ns) for x in each]
            for kind, each in found.items()
            if each
        }


@pytest.fixture
def cpu() -> Cpu:
    return Cpu()


def test_a_period_is_counted_under_its_state(cpu: Cpu) -> None:
    for state in (1, 1, 9):
        cpu.enter(state)
        cpu.leave(after_ns=1000)
    assert cpu.counted() == {"idle": [Times(0, 1, 2, 2000), Times(0, 9, 1, 1000)]}


def test_a_clock_that_steps_back_spoils_no_counts(cpu: Cpu) -> None:
    cpu.enter(2)
    cpu.leave(after_ns=-5)
    cpu.enter(2)
    cpu.leave(after_ns=1000)
    assert cpu.counted() == {"idle": [Times(0, 2, 1, 1000)]}


def test_a_clock_that_steps_back_spoils_no_wakeup(cpu: Cpu) -> None:
    cpu.enter(1)
    cpu.wake_from_afar(SERVER, after_ns=10)
    cpu.leave()
    cpu.switch(SERVER, after_ns=-15)
    assert cpu.counted() == {"idle": [Times(0, 1, 1, 10)]}


def test_each_time_has_the_bucket_that_holds_it(cpu: Cpu) -> None:
    rng = random.Random(1)
    edges = [low + step for low, _ in map(histogram.bounds, range(240)) for step in (-1, 0, 1)]
    times = [*edges[1:], *(int(2 ** rng.uniform(0, 39)) for _ in range(1000))]
    for number, time_ns in enumerate(times):
        cpu.enter(0)
        cpu.leave(after_ns=time_ns)
        if number % 100 == 0 or number == len(times) - 1:
            counted = cpu.counted()["idle"]
            assert sum(x.number for x in counted) == number + 1
            assert sum(x.total_ns for x in counted) == sum(times[: number + 1])
    counters = cpu.memory["cpus"]
    begin = cpu.order["kinds"]["idle"] + cpu.order["states"][0]
    for bucket in range(240):
        low, high = histogram.bounds(bucket)
        at = begin + 16 * bucket
        number, total_ns = (
            int.from_bytes(counters[x : x + 8], "little") for x in (at, at + histogram.TOTAL)
        )
        inside = [x for x in times if low <= x <= high]
        assert (number, total_ns) == (len(inside), sum(inside)), bucket


@pytest.mark.parametrize("time_ns", [1 << 39, 1 << 45, (1 << 59) - 1])
def test_the_last_bucket_takes_all_that_is_longer(cpu: Cpu, time_ns: int) -> None:
    cpu.enter(2)
    cpu.leave(after_ns=time_ns)
    assert cpu.counted() == {"idle": [Times(0, 2, 1, time_ns)]}


def test_who_is_woken_by_another_cpu_waits_for_this_one(cpu: Cpu) -> None:
    cpu.enter(2)
    cpu.wake_from_afar(CLIENT, after_ns=5000)
    cpu.leave(after_ns=100)
    cpu.switch(CLIENT, after_ns=200)
    assert cpu.counted() == {"idle": [Times(0, 2, 1, 5100)], "wake": [Times(0, 2, 1, 300)]}


def test_who_is_woken_by_an_interrupt_of_an_idle_cpu_is_told_apart(cpu: Cpu) -> None:
    cpu.enter(2)
    cpu.leave(after_ns=5000)
    cpu.wake(CLIENT, after_ns=50)
    cpu.switch(CLIENT, after_ns=200)
    assert cpu.counted()["interrupt"] == [Times(0, 2, 1, 200)]
    # The CPU is idle again, in no state yet.
    cpu.switch(IDLE, after_ns=1000)
    cpu.wake(CLIENT, after_ns=10)
    cpu.switch(CLIENT, after_ns=30)
    assert cpu.counted()["interrupt"] == [Times(0, 2, 1, 200), Times(0, -1, 1, 30)]
    assert "wake" not in cpu.counted()


def test_who_finds_the_cpu_in_no_state_is_told_apart(cpu: Cpu) -> None:
    cpu.enter(2)
    cpu.leave(after_ns=5000)
    cpu.switch(CLIENT)
    cpu.switch(IDLE, after_ns=1000)
    cpu.wake_from_afar(CLIENT)
    cpu.switch(CLIENT, after_ns=40)
    assert cpu.counted()["wake"] == [Times(0, -1, 1, 40)]


def test_no_cpu_had_to_wake_for_who_waits_for_a_busy_one(cpu: Cpu) -> None:
    cpu.enter(2)
    cpu.leave(after_ns=5000)
    cpu.switch(CLIENT)
    cpu.wake(SERVER, after_ns=10)
    cpu.switch(SERVER, after_ns=500)
    assert cpu.counted().keys() == {"idle"}
    # Its note is gone: it is not counted later, either.
    cpu.switch(IDLE, after_ns=10)
    cpu.enter(2)
    cpu.leave(after_ns=5000)
    cpu.switch(SERVER, after_ns=500)
    assert cpu.counted().keys() == {"idle"}


def test_whom_a_task_of_the_cpu_itself_wakes_is_not_told_of_by_an_interrupt(cpu: Cpu) -> None:
    cpu.enter(2)
    cpu.leave(after_ns=5000)
    cpu.switch(CLIENT)
    cpu.wake(SERVER, after_ns=10)
    # The kernel may queue it elsewhere first. Since the last state, it is woken while the CPU is
    # awake, and counted as such.
    cpu.switch(IDLE, after_ns=20)
    cpu.switch(SERVER, after_ns=30)
    assert cpu.counted().keys() == {"idle", "wake"}
    assert cpu.counted()["wake"] == [Times(0, -1, 1, 50)]


def test_who_was_woken_before_the_cpu_was_idle_has_waited_for_something_else(cpu: Cpu) -> None:
    cpu.wake_from_afar(CLIENT)
    cpu.enter(2, after_ns=1)
    cpu.leave(after_ns=5000)
    cpu.switch(CLIENT, after_ns=200)
    assert cpu.counted().keys() == {"idle"}


@pytest.mark.parametrize("moved", [CLIENT, SERVER, TWIN])
def test_who_is_moved_has_waited_for_another_cpu(cpu: Cpu, moved: int) -> None:
    cpu.enter(2)
    cpu.wake_from_afar(CLIENT, after_ns=100)
    cpu.move(moved)
    cpu.leave(after_ns=100)
    cpu.switch(CLIENT, after_ns=200)
    assert ("wake" in cpu.counted()) == (moved != CLIENT)


def test_a_wakeup_may_move_its_task(cpu: Cpu) -> None:
    cpu.enter(2)
    with cpu.busy_one():
        cpu.wake(CLIENT)
        cpu.move(CLIENT)
    cpu.leave(after_ns=100)
    cpu.switch(CLIENT, after_ns=200)
    assert cpu.counted()["wake"] == [Times(0, 2, 1, 300)]


def test_what_an_idle_cpu_pulls_later_is_not_its_wakeup(cpu: Cpu) -> None:
    """It was the last whom this CPU woke, and somebody else woke it since."""
    cpu.wake(CLIENT)
    cpu.enter(2)
    cpu.wake_from_afar(CLIENT, after_ns=100)
    cpu.leave(after_ns=10**6)
    cpu.move(CLIENT)
    cpu.switch(CLIENT, after_ns=200)
    assert cpu.counted().keys() == {"idle"}


def test_who_a_busy_cpu_served_is_not_counted_later(cpu: Cpu) -> None:
    cpu.enter(2)
    with cpu.busy_one():
        cpu.wake(CLIENT)
        cpu.switch(CLIENT, after_ns=100)
    cpu.leave(after_ns=10**9)
    cpu.switch(CLIENT)  # was moved here
    assert cpu.counted().keys() == {"idle"}


def test_a_task_whose_note_is_overwritten_is_not_counted(cpu: Cpu) -> None:
    cpu.enter(2)
    cpu.wake_from_afar(CLIENT, after_ns=100)
    cpu.wake_from_afar(TWIN, after_ns=100)
    cpu.leave(after_ns=100)
    cpu.switch(CLIENT, after_ns=200)
    assert "wake" not in cpu.counted()
    cpu.switch(IDLE)
    cpu.switch(TWIN, after_ns=100)
    assert cpu.counted()["wake"] == [Times(0, -1, 1, 400)]


def test_what_had_begun_before_is_not_counted(cpu: Cpu) -> None:
    cpu.leave(after_ns=100)
    cpu.wake(CLIENT)
    cpu.switch(CLIENT, after_ns=100)
    assert cpu.counted() == {}


def test_a_thread_that_injects_idle_time_is_no_idle_task(cpu: Cpu) -> None:
    cpu.run_by(SERVER)
    cpu.enter(2)
    cpu.wake(CLIENT, after_ns=100)
    cpu.leave(after_ns=100)
    cpu.switch(CLIENT, after_ns=100)
    assert cpu.counted() == {"idle": [Times(0, 2, 1, 200)]}
    cpu.switch(IDLE)
    cpu.enter(2)
    cpu.wake_from_afar(CLIENT, after_ns=100)
    cpu.leave(after_ns=100)
    cpu.switch(CLIENT, after_ns=100)
    assert cpu.counted()["wake"] == [Times(0, 2, 1, 200)]


def test_each_cpu_has_counters_of_its_own(cpu: Cpu) -> None:
    cpu.enter(1)
    with cpu.busy_one():
        cpu.enter(1)
        cpu.leave(after_ns=3000)
    cpu.leave(after_ns=1000)
    assert cpu.counted() == {"idle": [Times(0, 1, 1, 4000), Times(1, 1, 1, 3000)]}


def test_cpus_that_are_not_wanted_are_left_out(cpu: Cpu) -> None:
    with cpu.busy_one():
        cpu.enter(1)
        cpu.leave(after_ns=3000)
    cpu.order = histogram.order([0], [0, 1])
    assert cpu.counted() == {}


def test_a_number_that_is_no_state_is_not_counted(cpu: Cpu) -> None:
    for state in (15, 16, 255, 0x7FFFFFFF, 0xFFFFFFFE):
        cpu.enter(state)
        cpu.leave(after_ns=1000)
    assert cpu.counted() == {}


@pytest.mark.parametrize("most", [2047, 2048, 5000])
def test_more_cpus_than_a_program_can_reach(most: int) -> None:
    if most < histogram.MOST_CPUS:
        assert histogram.order([0], list(range(most + 1)))["maps"]["cpus"]["bytes"] == 1 << 29
        return
    with pytest.raises(LightsleepError, match=f"may have a CPU {most}: record events"):
        histogram.order([0], list(range(most + 1)))
