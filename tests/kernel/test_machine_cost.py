# SPDX-License-Identifier: GPL-2.0-only
"""machine_cost.c, the kernel's own file: what do several measurements of a machine say together?"""

import errno
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_library import load

US = 1000
ASSUMED_NS = 25 * US
SLEEPS, TYPICAL, SAMPLES = 3, 1, 64

FFI, LIB = load(
    "machine_cost",
    """
    void evaluate_round_trips(struct halt_cost *measured, u32 *halted_ns, u32 *polled_ns)
    {
        for (int i = 0; i < 2 * HALT_COST_SLEEPS; i++) {
            struct wake_cost_estimate *sum = &measured[i % HALT_COST_SLEEPS].estimate, one;

            wake_cost_compare(&one, halted_ns + i * WAKE_COST_SAMPLES,
                              polled_ns + i * WAKE_COST_SAMPLES);
            sum->cost_ns += one.cost_ns / 4;
            sum->lower_ns += one.lower_ns / 4;
            sum->upper_ns += one.upper_ns / 4;
        }
    }
    """,
    others=("wake_cost", "halt_cost"),
    needs=("wake_cost",),
)


def measurement(*costs_us: tuple[float, float]) -> Any:
    """Return a measurement: a cost and how far it may be off, of one length of sleep or of each."""
    found = FFI.new("struct halt_cost[]", SLEEPS)
    for one, (cost_us, margin_us) in zip(found, costs_us * (SLEEPS // len(costs_us)), strict=True):
        one.estimate.cost_ns = int(cost_us * US)
        one.estimate.lower_ns = int((cost_us - margin_us) * US)
        one.estimate.upper_ns = int((cost_us + margin_us) * US)
        one.worst_ns = max(0, int(2 * cost_us * US))
    return found


class Machine:
    """What is known of one machine."""

    def __init__(self) -> None:
        self.known = FFI.new("struct machine_cost *")

    def finds(self, *costs_us: tuple[float, float]) -> int:
        return int(LIB.machine_cost_add(self.known, measurement(*costs_us)))

    def fails(self) -> None:
        LIB.machine_cost_assume(self.known)

    @property
    def figures_us(self) -> tuple[float, float]:
        """The cost, and what a halt takes at worst."""
        return self.known.cost_ns / US, self.known.worst_ns / US


@pytest.fixture
def machine() -> Machine:
    return Machine()


# What is assumed before the first result.


def test_where_nothing_was_measured_a_cost_is_assumed(machine: Machine) -> None:
    assert machine.figures_us == (0, 0)
    for _ in range(3):
        machine.fails()
        assert machine.figures_us == (25, 25)


@pytest.mark.parametrize("busy_at_first", [False, True])
def test_where_polls_do_harm_nothing_is_assumed_before_there_is_a_figure(
    busy_at_first: bool, machine: Machine
) -> None:
    if busy_at_first:
        machine.fails()
    assert machine.finds((-20, 1)) == -errno.EBUSY
    assert machine.figures_us == (0, 0)
    machine.fails()
    assert machine.figures_us == (0, 0)
    assert machine.finds((50, 1)) == 0
    assert machine.figures_us == (50, 100)


def test_three_bounds_in_a_row_refute_that_polls_do_harm(machine: Machine) -> None:
    machine.finds((-20, 1))
    figures = []
    for _ in range(3):
        machine.fails()  # which says nothing, for or against
        assert machine.finds((10, 30)) == -errno.ENODATA
        figures.append(machine.figures_us)
    assert figures == [(0, 0), (0, 0), (25, 25)]
    machine.finds((-20, 1))
    assert machine.figures_us == (0, 0)


def test_bounds_between_measurements_that_find_harm_refute_nothing(machine: Machine) -> None:
    for _ in range(5):
        machine.finds((-20, 1))
        machine.finds((10, 30))
        machine.finds((1, 2))
        assert machine.figures_us == (0, 0)


def test_once_there_is_a_figure_a_failure_changes_nothing(machine: Machine) -> None:
    machine.finds((50, 1))
    assert machine.finds((-20, 1)) == -errno.EBUSY
    machine.fails()
    assert machine.figures_us == (50, 100)


def test_the_median_of_the_latest_five_counts(machine: Machine) -> None:
    figures = []
    for cost_us in (10, 90, 20, 80, 30, 70, 60):
        machine.finds((cost_us, 1))
        figures.append(machine.figures_us)
    assert figures == [(x, 2 * x) for x in (10, 10, 20, 20, 30, 70, 60)]


# Where noise hides the cost, its bound counts.


@pytest.mark.parametrize(("cost_us", "margin_us", "assumed_us"), [(1, 2, 3), (10, 30, 25)])
def test_no_more_than_the_bound_is_assumed(
    cost_us: int, margin_us: int, assumed_us: int, machine: Machine
) -> None:
    assert machine.finds((cost_us, margin_us)) == -errno.ENODATA
    assert machine.figures_us == (assumed_us, 25), "of the worst case, a bound says nothing"
    assert (machine.known.results, machine.known.bound_ns) == (0, (cost_us + margin_us) * US)


def test_a_bound_ends_no_polling(machine: Machine) -> None:
    assert machine.finds((-2, 1)) == -errno.ENODATA
    assert machine.figures_us == (2, 25)


def test_a_measurement_that_did_not_end_bounds_nothing(machine: Machine) -> None:
    machine.finds((1, 2))
    machine.fails()
    assert machine.figures_us == (3, 25)


def test_the_first_result_counts_alone_whatever_bounds_there_were(machine: Machine) -> None:
    for _ in range(7):
        machine.finds((5, 15))
    machine.finds((3, 1))
    assert machine.figures_us == (3, 6)
    assert machine.known.results == 1


@pytest.mark.parametrize("results", [1, 5])
def test_bounds_that_do_not_follow_each_other_refute_nothing(
    results: int, machine: Machine
) -> None:
    for _ in range(results):
        machine.finds((50, 1))
    for _ in range(3):
        machine.finds((1, 2))
        machine.finds((1, 2))
        assert machine.figures_us == (50, 100)
        machine.finds((30, 60))


@pytest.mark.parametrize("sleep", [0, 2])
def test_what_other_sleeps_cost_counts_up_to_the_bound(sleep: int, machine: Machine) -> None:
    found = [(1, 2)] * SLEEPS
    found[sleep] = (40, 5)
    assert machine.finds(*found) == 0
    assert machine.figures_us == (3, 80)

    found[TYPICAL] = (30, 60)
    machine = Machine()
    assert machine.finds(*found) == 0
    assert machine.figures_us == (40, 80)


def test_a_figure_that_measurements_refute_again_and_again_goes(machine: Machine) -> None:
    for _ in range(5):
        machine.finds((50, 1))
    figures = []
    for _ in range(4):
        assert machine.finds((1, 2)) == -errno.ENODATA
        figures.append(machine.figures_us)
    assert figures == [(50, 100), (50, 100), (3, 100), (3, 100)]
    machine.finds((2, 1))
    assert machine.figures_us == (2, 4)


def test_harm_long_after_a_figure_does_not_count_once_that_is_refuted(machine: Machine) -> None:
    machine.finds((50, 1))
    assert machine.finds((-50, 1)) == -errno.EBUSY
    for _ in range(3):
        machine.finds((1, 2))
    assert machine.figures_us == (3, 100)


ESTIMATES = st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1e6))


@given(st.lists(st.tuples(*[ESTIMATES] * SLEEPS) | st.none(), min_size=1))
def test_whatever_is_measured_the_cost_is_one_that_was_measured_or_assumed(
    measurements: list[tuple[tuple[float, float], ...] | None],
) -> None:
    machine = Machine()
    possible = {0, ASSUMED_NS}
    for found in measurements:
        if found is None:
            machine.fails()
        else:
            cost_ns, is_bound = FFI.new("u64 *"), FFI.new("bool *")
            says = LIB.machine_cost_says(measurement(*found), cost_ns, is_bound)
            assert machine.finds(*found) == says
            possible.add(cost_ns[0])
        assert machine.known.cost_ns in possible
        assert machine.known.results or machine.known.cost_ns <= ASSUMED_NS


# Where there is noise: it is that of a round trip, of which one in 20 is late by much more.
NOISE_US = [1, 2, 4, 6, 8, 12, 20, 40]


def round_trips(rng: np.random.Generator, halts_cost_us: Sequence[float], noise_us: float) -> Any:
    """Return what two pairs of CPUs measure, in ns, by pair, length of sleep and number."""
    size = (2, SLEEPS, SAMPLES)
    late_us = rng.normal(0, noise_us, size) + (rng.random(size) < 0.05) * rng.exponential(50, size)
    slept_us = 2 * np.array([30, 100, 400]) + 8 + 2 * np.array(halts_cost_us)
    return np.maximum((slept_us[:, None] + late_us) * US, 1).astype(np.uint32)


def in_use_us(halts_cost_us: Sequence[float], noise_us: float, runs: int) -> Any:
    """Return the cost in use after one measurement, and after five, of ``runs`` machines."""
    rng = np.random.default_rng(1)
    figures = []
    for _ in range(runs):
        machine, after = Machine(), []
        for _ in range(5):
            kinds = [round_trips(rng, x, noise_us) for x in (halts_cost_us, (0, 0, 0))]
            measured = FFI.new("struct halt_cost[]", SLEEPS)
            LIB.evaluate_round_trips(measured, *(FFI.cast("u32 *", x.ctypes.data) for x in kinds))
            LIB.machine_cost_add(machine.known, measured)
            after.append(machine.figures_us[0])
        figures.append((after[0], after[-1]))
    return np.array(figures)


@pytest.mark.parametrize(
    "costs_us",
    [(0.3, 0.3, 0.3), (1, 1, 1), (1, 1, 40), (2, 2, 40), (3, 3, 40)],
    ids=lambda x: "/".join(str(y) for y in x),
)
def test_halts_that_cost_next_to_nothing_count_as_little_as_their_bound(
    costs_us: tuple[float, ...],
) -> None:
    for noise_us in NOISE_US:
        first, fifth = in_use_us(costs_us, noise_us, 40).T
        print(f"{noise_us:4} us of noise: {row(first)}; after five {row(fifth)}")
        assert np.median(first) <= costs_us[1] + 2 + noise_us / 2


@pytest.mark.parametrize(
    "costs_us",
    [(40, 40, 40), (5, 30, 50), (100, 100, 100)],
    ids=lambda x: "/".join(str(y) for y in x),
)
def test_halts_that_cost_much_keep_their_cost_whatever_the_noise(
    costs_us: tuple[float, ...],
) -> None:
    for noise_us in NOISE_US:
        first, fifth = in_use_us(costs_us, noise_us, 40).T
        print(f"{noise_us:4} us of noise: {row(first)}; after five {row(fifth)}")
        assert (fifth >= costs_us[1] / 2).all()
        assert (first >= 20).mean() >= 0.95


def row(figures: Any) -> str:
    return (
        f"median {np.median(figures):5.1f} us, {np.min(figures):5.1f} to {np.max(figures):5.1f}, "
        f"20 us and more in {100 * np.mean(figures >= 20):3.0f} %"
    )
