# SPDX-License-Identifier: GPL-2.0-only
"""Whether lightsleep pays, by what its driver counted on a machine in a folder."""

from dataclasses import replace
from pathlib import Path

import pytest
from enabled import PARAMETERS
from scan_trees import plant, unfold

from lightsleep.enable.pays import pays
from lightsleep.scan import facts
from lightsleep.scan.collect import collect
from lightsleep.scan.tree import LATENCY_LIMIT
from lightsleep.units import seconds

COST = "sys/devices/system/cpu/cpu{0-3}/lightsleep/halt_cost_ns"
LIMIT = "sys/devices/system/cpu/cpu{0-3}/lightsleep/limit_ns"
NO_POLLS = "sys/devices/system/cpu/cpu{0-3}/lightsleep/polls: 0"
FEW_POLLS = f"sys/devices/system/cpu/cpu{{0-3}}/lightsleep/polls: {facts.ENOUGH_POLLS // 4 - 1}"


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ("", "pays"),
        ("sys/devices/system/cpu/cpu{0-3}/lightsleep/wasted_ns: 4000000000", "does not pay"),
        (FEW_POLLS, "too early"),
        (f"{PARAMETERS}/mode: off", "not polling"),
        (f"{COST}: 0", "does not pay"),
        (f"{COST}: 0\n{LIMIT}: 0", "not polling"),
        (f"{COST}: 0\n{LIMIT}: 0\ndev/cpu_dma_latency: 2", "does not pay"),
        (f"{COST}: 0\n{LIMIT}: 0\ndev/cpu_dma_latency: 52", "not polling"),
        (f"{COST}: 0\n{FEW_POLLS}", "too early"),
        (f"{COST}: 1000", "does not pay"),
        (f"{COST}: 5000\n{PARAMETERS}/wait_weight: 4", "pays"),
        (f"{COST}: 52000\n{PARAMETERS}/halt_cost_ns: 0", "pays"),
        (f"{COST}: 0\n{LIMIT}: 0\n{NO_POLLS}", "not polling"),
    ],
)
def test_whether_it_pays(changes: str, verdict: str, tmp_path: Path) -> None:
    root = plant(unfold("lightsleep-guest", tmp_path), changes)
    found = pays(collect(root)[0])
    assert found.verdict == verdict
    assert found.sentence.startswith(("It ", "Whether it pays is unknown"))


FOLDER = "sys/devices/system/cpu/cpu{0-3}/lightsleep"
HITS_ALONE = f"{FOLDER}/polls: 9000\n{FOLDER}/hits: 9000\n{FOLDER}/wasted_ns: 0\n{COST}: 25000"


@pytest.mark.parametrize(
    ("weight", "polled_us", "verdict"),
    [
        (4, 9_600_000_000, "does not pay"),  # all day, for 0.9 s of waiting
        (4, 9_000 * 801, "does not pay"),
        (4, 9_000 * 799, "pays"),  # as a CPU that probes may
        (1, 9_000 * 201, "does not pay"),
    ],
)
def test_polls_far_longer_than_halts_cost_do_not_pay(
    weight: int, polled_us: int, verdict: str, tmp_path: Path
) -> None:
    """Nothing was in vain: a CPU that may not halt polls until each of its wakeups."""
    root = plant(unfold("lightsleep-guest", tmp_path), HITS_ALONE)
    plant(root, f"{FOLDER}/polled_ns: {polled_us}000\n{PARAMETERS}/wait_weight: {weight}")
    found = pays(collect(root)[0])
    assert found.verdict == verdict
    polled = seconds(polled_us * 4000)
    told = f"4 CPUs polled for {polled} in all until 36,000 wakeups came, and that spared 900 ms"
    assert found.sentence.startswith(f"It does not pay: {told}") == (verdict != "pays")


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ("", "Nothing keeps CPUs polling now: when they did, it was"),
        ("dev/cpu_dma_latency: 2", "Now, CPU 0-3 may not halt: a latency limit forbids it (sudo"),
        (f"{PARAMETERS}/mode: fixed", "The mode is fixed."),
        (
            "sys/devices/system/cpu/cpu{1,2}/cpuidle/state1/disable: 1",
            "Now, CPU 1-2 may not halt: HALT is disabled.",
        ),
    ],
)
def test_only_what_may_be_the_reason_of_long_polls_is_named(
    now: str, said: str, tmp_path: Path
) -> None:
    root = plant(unfold("lightsleep-guest", tmp_path), "dev/cpu_dma_latency: 2000000000")
    plant(root, f"{HITS_ALONE}\n{FOLDER}/polled_ns: 9600000000000\n{now}")
    assert f"spared 900 ms of waiting. {said}" in pays(collect(root)[0]).sentence


def test_a_cpu_with_many_short_waits_does_not_hide_those_that_always_poll(tmp_path: Path) -> None:
    """An hour: one CPU has 5,000 wakeups a second, three have 10, and poll nearly all the time."""
    root = plant(unfold("lightsleep-guest", tmp_path), HITS_ALONE)
    hot, others = (FOLDER.replace("{0-3}", x) for x in ("0", "{1-3}"))
    plant(root, f"{hot}/hits: 18000000\n{hot}/polled_ns: 1800000000000")
    plant(root, f"{others}/hits: 36000\n{others}/polled_ns: 3564000000000")
    found = pays(collect(root)[0])
    assert found.verdict == "does not pay"
    assert found.sentence.startswith("It does not pay: 3 CPUs polled for 10,692 s in all until 108")


def test_what_was_polled_in_vain_is_named_if_it_is_more(tmp_path: Path) -> None:
    counted = f"{FOLDER}/polled_ns: 9000000000\n{FOLDER}/wasted_ns: 5000000000\n{COST}: 100"
    found = pays(collect(plant(unfold("lightsleep-guest", tmp_path), counted))[0])
    assert found.verdict == "does not pay"
    assert "against 20.0 s polled in vain" in found.sentence


@pytest.mark.parametrize("measured_ns", [0, 30_000])
def test_a_cost_that_is_assumed_is_named_in_the_verdict(measured_ns: int, tmp_path: Path) -> None:
    known = f"{COST}: 25000\n{PARAMETERS}/halt_cost_ns: {measured_ns}"
    found = pays(collect(plant(unfold("lightsleep-guest", tmp_path), known))[0])
    said = (
        "The machine has no measured cost, or it is 0 (dmesg says which): a halt counts as 25 us, "
        "which programs tell, or which is assumed."
    )
    assert (said in found.sentence) == (measured_ns == 0)


@pytest.mark.parametrize(
    ("changes", "said", "unsure"),
    [
        (
            f"{LIMIT}: 50000",
            "It does not pay: the cost of a halt is 0, because halts cost nothing",
            False,
        ),
        (f"{LIMIT}: 50000", "CPUs poll all the same: 12.0 s so far, 4.00 s of it in vain.", False),
        (f"{LIMIT}: 0", "It does not poll: the cost of a halt is 0, because halts cost", True),
        (f"{LIMIT}: 0\n{NO_POLLS}", "because it is not measured yet, or halts cost", False),
    ],
)
def test_where_the_cost_is_0_it_matters_whether_cpus_poll(
    changes: str, said: str, unsure: bool, tmp_path: Path
) -> None:
    scan = collect(plant(unfold("lightsleep-guest", tmp_path), f"{COST}: 0\n{changes}"))[0]
    assert said in pays(scan).sentence
    as_user = replace(scan, problems={LATENCY_LIMIT: "Permission denied"})
    unseen = "unless a latency limit keeps CPUs polling, which only root sees."
    assert (unseen in pays(as_user).sentence) == unsure
    assert unseen not in pays(scan).sentence


def test_what_pays_is_hits_times_the_cost_of_a_halt(tmp_path: Path) -> None:
    found = pays(collect(unfold("lightsleep-guest", tmp_path))[0])
    assert (found.saved_ns, found.wasted_ns) == (4 * 70_000 * 52_000, 4 * 10**9)


@pytest.mark.parametrize("polled_ns", [0, 3 * 10**9])
def test_the_sentence_says_how_much_was_polled_in_all(polled_ns: int, tmp_path: Path) -> None:
    counted = f"sys/devices/system/cpu/cpu{{0-3}}/lightsleep/polled_ns: {polled_ns}"
    found = pays(collect(plant(unfold("lightsleep-guest", tmp_path), counted))[0])
    assert ("polled in vain, of 12.0 s polled" in found.sentence) == bool(polled_ns)
