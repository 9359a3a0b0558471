# SPDX-License-Identifier: GPL-2.0-only
"""What is measured, in which portions, and who wakes whom."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measure_fakes import ALL, FakeBackend, cpu, machine, state
from scan_trees import plant, unfold

from lightsleep.errors import Skipped, WrongUsage
from lightsleep.measure import plan
from lightsleep.measure.plan import Cell, Wish
from lightsleep.measure.run import measure
from lightsleep.scan import machine as machines

WISH = Wish((), (), ("timer", "ipi", "store"), 50, None)
POLL, C1, C2 = state(0, 0, 0, polls=True), state(1, 2, 10), state(2, 200, 600)


class NoKnobs:
    def set(self, knob: Path, value: str) -> None:
        raise AssertionError(f"{knob} does not exist")


def advertised() -> st.SearchStrategy[int | None]:
    return st.one_of(st.none(), st.integers(0, 2**31))


# Distances and portions.


@given(latency=advertised(), residency=advertised(), samples=st.integers(1, 10_000))
def test_a_batch_keeps_to_the_limits_of_the_module(
    latency: int | None, residency: int | None, samples: int
) -> None:
    cell = Cell("ipi", 0, 1, state(3, latency, residency))
    size = plan.next_batch(cell, samples, tried=1, valid=0, batches=1, taken_ns=0)
    batch = cell.batch(size)
    assert 1000 <= batch.min_ns < batch.max_ns <= 10**9
    assert 0 <= batch.min_residency_ns <= batch.min_ns
    assert batch.samples * batch.max_ns <= 60 * 10**9
    assert 1 <= batch.samples <= samples
    # The shortest sleep is one the state is meant for, where the module's limits allow that.
    wished_ns = 1000 * ((latency or 0) + (residency or 0))
    assert batch.min_ns > wished_ns or batch.max_ns * 1.01 > 10**9
    # It is no multiple of anything: it spreads over a third of its length.
    assert batch.max_ns - batch.min_ns >= batch.max_ns // 3 - 1


@given(latency=st.integers(0, 50), residency=st.integers(0, 100))
def test_states_up_to_50_us_take_1000_samples_per_second(latency: int, residency: int) -> None:
    cell = Cell("timer", 1, 1, state(1, latency, residency))
    assert cell.cost_ns() + 1000 * latency < 10**6 / 2


@given(
    wanted=st.integers(1, 10_000),
    chance=st.sampled_from([0, 0.01, 0.3, 0.9, 1]),
    latency=advertised(),
    seed=st.integers(0, 2**32),
)
def test_portions_end_with_enough_or_with_a_reason(
    wanted: int, chance: float, latency: int | None, seed: int
) -> None:
    rng = random.Random(seed)
    cell = Cell("ipi", 0, 1, state(3, latency))
    tried = valid = batches = taken_ns = 0
    while size := plan.next_batch(cell, wanted, tried, valid, batches, taken_ns):
        tried, batches, taken_ns = tried + size, batches + 1, taken_ns + size * cell.cost_ns()
        valid += sum(rng.random() < chance for _ in range(size))
        assert size == 1 or size * cell.distances()[1] < 10**9
    assert valid <= wanted
    assert tried <= wanted * plan.TRIES
    assert valid == wanted or tried == wanted * plan.TRIES or valid * plan.YIELD < tried
    if not chance:
        assert batches <= max(2, -(-plan.HOPELESS // plan.BATCH))


def test_a_short_burst_of_other_work_closes_no_cell() -> None:
    cell, ms = Cell("ipi", 0, 1, state(1, 2, 10)), 10**6
    for tried in (10, 20, 49):
        batches = -(-tried // plan.BATCH)
        assert plan.next_batch(cell, 500, tried, 0, batches, taken_ns=tried * ms) > 0
    assert plan.next_batch(cell, 500, tried=50, valid=0, batches=5, taken_ns=50 * ms) == 0
    # After the burst it goes on as if there had been none.
    assert plan.next_batch(cell, 500, tried=50, valid=1, batches=5, taken_ns=50 * ms) == plan.BATCH


def test_where_each_sample_takes_long_a_second_batch_closes_the_cell() -> None:
    dead, seconds = Cell("ipi", 0, 1, state(1, 2, 10)), 10**9
    assert plan.next_batch(dead, 500, tried=10, valid=0, batches=1, taken_ns=10 * seconds) > 0
    assert plan.next_batch(dead, 500, tried=20, valid=0, batches=2, taken_ns=20 * seconds) == 0


def test_every_round_holds_every_cell_in_random_order() -> None:
    here = machine(cpu(0, POLL, C1, C2), cpu(1, POLL, C1, C2))
    cells, _ = plan.cells(here, WISH, ALL)
    backend = FakeBackend({0: 0, 1: 2000, 2: 200_000})
    measure(here, cells, 50, backend, NoKnobs(), random.Random(5), Path("/"), lambda *_: None)
    orders = []
    for dest in (0, 1):
        keys = [(x.source, x.requested) for x in backend.batches if x.dest == dest]
        here_cells = len([x for x in cells if x.dest == dest])
        for start in range(0, 3 * here_cells, here_cells):
            assert len(set(keys[start : start + here_cells])) == here_cells
            orders.append(tuple(keys[start : start + here_cells]))
    assert len(set(orders)) == len(orders)
    # One CPU after the other: the others keep their states meanwhile.
    assert (
        sum(a.dest != b.dest for a, b in zip(backend.batches, backend.batches[1:], strict=False))
        == 1
    )


def test_a_seed_repeats_the_order() -> None:
    here = machine(cpu(0, POLL, C1, C2), cpu(1, POLL, C1, C2))
    cells, _ = plan.cells(here, WISH, ALL)

    def order(seed: int) -> list[object]:
        backend = FakeBackend({0: 0, 1: 2000, 2: 200_000})
        rng = random.Random(seed)
        measure(here, cells, 50, backend, NoKnobs(), rng, Path("/"), lambda *_: None)
        return [*backend.batches]

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_progress_never_runs_backwards_and_ends_at_its_end() -> None:
    here = machine(cpu(0, C1, C2), cpu(1, C1, C2))
    cells, _ = plan.cells(here, WISH, ALL)
    seen: list[tuple[int, int]] = []
    rng = random.Random(1)
    backend = FakeBackend({1: 2000, 2: 200_000})
    measure(here, cells, 50, backend, NoKnobs(), rng, Path("/"), lambda _, *now: seen.append(now))
    done = [done for done, _ in seen]
    assert done == sorted(done)
    assert done[0] == 0
    assert seen[-1][0] == seen[-1][1] > 0
    assert all(done <= total for done, total in seen)


# Cells.


def test_a_baseline_beside_every_source_of_every_cpu() -> None:
    cells, notes = plan.cells(machine(cpu(0, POLL, C1, C2), cpu(1, POLL, C1, C2)), WISH, ALL)
    kinds = Counter((x.dest, x.source, x.requested) for x in cells)
    assert set(kinds.values()) == {1}
    for dest in (0, 1):
        for source, states in {"timer": "012", "ipi": "012", "store": "0"}.items():
            there = {key[2] for key in kinds if key[:2] == (dest, source)}
            assert there == {"busy", *states}
    assert notes == []


def test_store_is_left_out_where_nothing_polls() -> None:
    cells, _ = plan.cells(machine(cpu(0, C1), cpu(1, C1)), WISH, ALL)
    assert {x.source for x in cells} == {"timer", "ipi"}


def test_a_source_that_cannot_be_used_is_noted() -> None:
    wish = Wish((), (), ("timer", "device"), 50, None)
    cells, notes = plan.cells(machine(cpu(0, C1), cpu(1, C1)), wish, ALL)
    assert {x.source for x in cells} == {"timer"}
    assert notes == ["device: no device"]


def test_the_same_note_for_many_cpus_is_one() -> None:
    cpus = [cpu(x, C1, replace(C2, disabled=True)) for x in range(64)]
    _, notes = plan.cells(machine(*cpus), WISH, ALL)
    assert notes == ["CPU 0-63: C2 is disabled: name it with --state to measure it"]


def test_a_single_cpu_wakes_itself() -> None:
    cells, notes = plan.cells(machine(cpu(0, C1)), WISH, ALL)
    assert {x.source for x in cells} == {"timer"}
    assert "no other CPU can wake it" in notes[0]


def test_a_cpu_that_isolated_ones_could_wake_says_how() -> None:
    here = machine(cpu(0, C1), cpu(1, C1, reserved="isolated"))
    cells, notes = plan.cells(here, Wish((), (), ("timer", "ipi"), 50, None), ALL)
    assert {x.source for x in cells} == {"timer"}
    assert notes[1] == (
        "CPU 0: not woken by ipi: all other CPUs are isolated or in nohz_full=; name one with "
        "--source-cpu to have it wake others"
    )
    cells, _ = plan.cells(here, Wish((), (), ("ipi",), 50, 1), ALL)
    assert {(x.dest, x.src) for x in cells} == {(0, 1)}


def test_nothing_to_measure_is_skipped_with_the_reason() -> None:
    wish = Wish((), (), ("ipi",), 50, None)
    with pytest.raises(Skipped, match="no other CPU"):
        plan.cells(machine(cpu(0, C1)), wish, ALL)


def test_a_store_that_would_wake_no_state_says_so() -> None:
    said = (
        "a store wakes only states that poll or use MWAIT, and no state to measure does: "
        "use --source ipi"
    )
    only = Wish((), (), ("store",), 50, None)
    with pytest.raises(Skipped, match=f"^nothing to measure: {said}$"):
        plan.cells(machine(cpu(0, C1, C2), cpu(1, C1, C2)), only, ALL)
    named = replace(only, states=("C1",))
    with pytest.raises(Skipped, match=f"^nothing to measure: {said}$"):
        plan.cells(machine(cpu(0, POLL, C1), cpu(1, POLL, C1)), named, ALL)
    off = replace(C1, disabled=True)
    with pytest.raises(Skipped) as caught:
        plan.cells(machine(cpu(0, off), cpu(1, off)), only, ALL)
    assert "C1 is disabled" in caught.value.message
    assert "MWAIT" not in caught.value.message


def test_states_of_the_wish() -> None:
    here = machine(cpu(0, POLL, C1, C2), cpu(1, POLL, C1, C2))
    for name in ("C2", "2"):
        cells, _ = plan.cells(here, Wish((), (name,), ("timer",), 50, None), ALL)
        assert {x.requested for x in cells} == {"busy", "2"}


def test_disabled_states_are_measured_only_by_name(tmp_path: Path) -> None:
    unfold("kvm-haltpoll", tmp_path)
    plant(tmp_path, "sys/devices/system/cpu/cpu0/cpuidle/state1/disable: 1")
    here = machines.read(tmp_path)
    cells, notes = plan.cells(here, WISH, ALL)
    assert {x.requested for x in cells if x.dest == 0} == {"busy", "0"}
    assert {x.requested for x in cells if x.dest == 1} == {"busy", "0", "1"}
    assert notes == ["CPU 0: haltpoll idle is disabled: name it with --state to measure it"]
    named, _ = plan.cells(here, Wish((0,), ("1",), ("timer",), 50, None), ALL)
    assert {x.requested for x in named} == {"busy", "1"}


# Who wakes whom.


@given(data=st.data(), count=st.integers(2, 12))
def test_the_source_cpu(data: st.DataObject, count: int) -> None:
    numbers = data.draw(st.permutations(range(16)))[:count]
    cpus = []
    for number in numbers:
        core = [x for x in numbers if x // 2 == number // 2]
        reserved = data.draw(st.sampled_from([None, None, "isolated", "nohz_full"]))
        facts = {"node": number // 8, "package": number // 8, "reserved": reserved}
        cpus.append(cpu(number, C1, siblings=tuple({*core} - {number}), **facts))
    here = machine(*cpus)
    for dest in cpus:
        src = plan.source_cpu(here, dest, None)
        free = [x for x in cpus if x != dest and not x.reserved]
        if src is None:
            assert not free
            continue
        chosen = here.cpus[src]
        assert chosen in free
        if any(x.number not in dest.siblings for x in free):
            assert src not in dest.siblings
            if any(x.node == dest.node and x.number not in dest.siblings for x in free):
                assert chosen.node == dest.node


def test_a_source_cpu_that_was_asked_for() -> None:
    here = machine(cpu(0, C1), cpu(1, C1, reserved="isolated"), cpu(2, C1))
    wish = Wish((0, 1, 2), (), ("ipi",), 50, 1)
    cells, notes = plan.cells(here, wish, ALL)
    assert {(x.src, x.dest) for x in cells} == {(1, 0), (1, 2)}
    assert notes == ["CPU 1: --source-cpu names it, and no CPU can wake itself by ipi"]


def test_cpus_set_apart_are_measured_only_on_request() -> None:
    here = machine(cpu(0, C1), cpu(1, C1, reserved="isolated"), cpu(2, C1, reserved="nohz_full"))
    cells, notes = plan.cells(here, WISH, ALL)
    assert {x.dest for x in cells} == {0}
    assert "CPU 1-2 is isolated or in nohz_full=" in notes[0]
    cells, _ = plan.cells(here, Wish((1,), (), ("timer", "ipi"), 50, None), ALL)
    assert {x.dest for x in cells} == {1}


def test_a_sibling_as_the_only_waker_is_noted() -> None:
    here = machine(cpu(0, C1, siblings=(1,)), cpu(1, C1, siblings=(0,)))
    _, notes = plan.cells(here, Wish((0,), (), ("ipi",), 50, None), ALL)
    assert notes == ["CPU 0: the CPU that wakes it shares its core, so the core never sleeps"]


def of_four(number: int) -> frozenset[int]:
    """Return the other CPUs of its cluster, where four share one."""
    first = number // 4 * 4
    return frozenset(range(first, first + 4)) - {number}


def test_the_waker_is_of_another_cluster_where_there_is_one_as_near() -> None:
    here = machine(*(cpu(x, C1, cluster=of_four(x)) for x in range(8)))
    assert [plan.source_cpu(here, x, None) for x in here.cpus.values()] == [4, 4, 4, 4, 3, 3, 3, 3]
    wish = Wish((5,), (), ("timer", "ipi"), 50, None)
    assert plan.cells(here, wish, ALL)[1] == []
    # Not across nodes: that would measure the interconnect.
    far = machine(*(cpu(x, C1, cluster=of_four(x), node=x // 4) for x in range(8)))
    assert plan.source_cpu(far, far.cpus[5], None) == 4


def test_a_waker_of_the_same_cluster_is_noted() -> None:
    here = machine(*(cpu(x, C1, cluster=of_four(x)) for x in range(4)))
    said = (
        "CPU 0-3: the CPU that wakes it shares its cluster: only its timer measures what a state "
        "of the whole cluster adds"
    )
    assert plan.cells(here, Wish((), (), ("ipi",), 50, None), ALL)[1] == [said]
    assert plan.cells(here, Wish((), (), ("timer",), 50, None), ALL)[1] == []


def test_a_cluster_that_is_a_core_changes_nothing() -> None:
    """As where a cluster is what shares an L2 cache, and that is of one core."""
    cores = [frozenset({x ^ 1}) for x in range(4)]
    here = machine(*(cpu(x, C1, siblings=(x ^ 1,), cluster=cores[x]) for x in range(4)))
    assert [plan.source_cpu(here, x, None) for x in here.cpus.values()] == [2, 2, 1, 1]
    alone = machine(*(here.cpus[x] for x in (0, 1)))
    _, notes = plan.cells(alone, Wish((0,), (), ("ipi",), 50, None), ALL)
    assert notes == ["CPU 0: the CPU that wakes it shares its core, so the core never sleeps"]


@pytest.mark.parametrize(
    "wish", [Wish((7,), (), ("timer",), 1, None), Wish((), (), ("ipi",), 1, 7)]
)
def test_a_cpu_that_is_not_online(wish: Wish) -> None:
    with pytest.raises(WrongUsage, match="CPU 7 is not online; online are 0-1"):
        plan.check(machine(cpu(0, C1), cpu(1, C1)), wish)


def test_a_cpu_that_would_have_to_wake_itself() -> None:
    here = machine(cpu(0, C1), cpu(1, C1), cpu(2, C1, reserved="isolated"))
    said = "CPU 1 cannot wake itself by ipi, store, and no other CPU is to be measured"
    with pytest.raises(WrongUsage, match=said):
        plan.check(here, Wish((1,), (), ("timer", "ipi", "store"), 50, 1))
    plan.check(here, Wish((0, 1), (), ("timer", "ipi", "store"), 50, 1))
    plan.check(here, Wish((), (), ("ipi",), 50, 1))
    only = machine(cpu(1, C1), cpu(2, C1, reserved="isolated"))
    with pytest.raises(WrongUsage, match="CPU 1 cannot wake itself by ipi"):
        plan.check(only, Wish((), (), ("ipi",), 50, 1))


# The machine, from sysfs.


def test_states_and_topology_are_read(tmp_path: Path) -> None:
    unfold("powernv-power9", tmp_path)
    plant(
        tmp_path,
        """
        sys/devices/system/cpu/cpu{0-3}/topology/physical_package_id: 0
        sys/devices/system/cpu/cpu{4-7}/topology/physical_package_id: 8
        sys/devices/system/cpu/cpu{4-7}/node8/distance: 10
        sys/devices/system/cpu/cpu5/topology/cluster_cpus_list: 4-6
        sys/devices/system/cpu/isolated: 6
        sys/fs/cgroup/cpuset.cpus.isolated: 4
        sys/devices/system/cpu/nohz_full: 7
        """,
    )
    here = machines.read(tmp_path)
    five = here.cpus[5]
    assert [(x.name, x.polls) for x in five.states][:2] == [("snooze", True), ("stop0_lite", False)]
    assert (five.package, five.node, sorted(five.siblings)) == (8, 8, [4, 6, 7])
    assert [sorted(here.cpus[x].cluster) for x in (3, 5)] == [[], [4, 6]]
    assert [here.cpus[x].reserved for x in (4, 5)] == ["isolated", None]
    assert [here.cpus[x].reserved for x in (6, 7)] == ["isolated", "nohz_full"]
    assert plan.source_cpu(here, five, None) == 3


@pytest.mark.parametrize(
    ("cmdline", "index", "polls"), [("quiet", 1, False), ("quiet idle=poll", 0, True)]
)
def test_a_machine_without_a_driver_has_one_state(
    cmdline: str, index: int, polls: bool, tmp_path: Path
) -> None:
    unfold("no-cpuidle", tmp_path)
    plant(tmp_path, f"proc/cmdline: {cmdline}")
    states = machines.read(tmp_path).cpus[0].states
    assert [(x.index, x.polls, x.latency_us, x.knob) for x in states] == [
        (index, polls, None, None)
    ]


@pytest.mark.parametrize(("flag", "by_store"), [(None, set()), ("N", set()), ("Y", {"busy", "0"})])
def test_on_arm64_a_store_wakes_only_where_the_kernel_spares_the_interrupt(
    flag: str | None, by_store: set[str], tmp_path: Path
) -> None:
    unfold("lightsleep-guest", tmp_path)
    plant(tmp_path, "proc/sys/kernel/arch: aarch64")
    if flag:
        plant(tmp_path, f"sys/module/idle_poll/parameters/polling_flag: {flag}")
    here = machines.read(tmp_path)
    cells, _ = plan.cells(here, WISH, ALL)
    assert {x.requested for x in cells if x.source == "store"} == by_store
    assert {x.requested for x in cells if x.source == "ipi"} == {"busy", "0", "1"}
    if not by_store:
        with pytest.raises(Skipped, match="this kernel interrupts a CPU that polls, too"):
            plan.cells(here, replace(WISH, sources=("store",)), ALL)


def test_mwait_states_see_a_store(tmp_path: Path) -> None:
    unfold("intel-laptop", tmp_path)
    states = machines.read(tmp_path).cpus[0].states
    assert all(state.sees_stores for state in states)
    # Only in one of them does a CPU run on: in all others it has halted, and takes time to wake.
    assert [state.name for state in states if state.polls] == ["POLL"]
