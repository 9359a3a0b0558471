# SPDX-License-Identifier: GPL-2.0-only
"""Whether lightsleep pays, by what its driver counted on a machine in a folder."""

from pathlib import Path

import pytest
from enabled import PARAMETERS
from scan_trees import plant, unfold

from lightsleep.enable.pays import pays
from lightsleep.scan import facts
from lightsleep.scan.collect import collect

COST = "sys/devices/system/cpu/cpu{0-3}/lightsleep/halt_cost_ns"


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ("", "pays"),
        ("sys/devices/system/cpu/cpu{0-3}/lightsleep/wasted_ns: 4000000000", "does not pay"),
        (
            f"sys/devices/system/cpu/cpu{{0-3}}/lightsleep/polls: {facts.ENOUGH_POLLS // 4 - 1}",
            "too early",
        ),
        (f"{PARAMETERS}/mode: off", "not polling"),
        (f"{COST}: 0", "unknown"),
        (f"{COST}: 1000", "does not pay"),
        (f"{COST}: 5000\n{PARAMETERS}/wait_weight: 4", "pays"),
        (f"{COST}: 52000\n{PARAMETERS}/halt_cost_ns: 0", "pays"),
        (f"{COST}: 0\nsys/devices/system/cpu/cpu{{0-3}}/lightsleep/polls: 0", "not polling"),
    ],
)
def test_whether_it_pays(changes: str, verdict: str, tmp_path: Path) -> None:
    root = plant(unfold("lightsleep-guest", tmp_path), changes)
    found = pays(collect(root)[0])
    assert found.verdict == verdict
    assert found.sentence.startswith(("It ", "Whether it pays is unknown"))


@pytest.mark.parametrize("measured_ns", [0, 30_000])
def test_a_cost_that_is_assumed_is_named_in_the_verdict(measured_ns: int, tmp_path: Path) -> None:
    known = f"{COST}: 25000\n{PARAMETERS}/halt_cost_ns: {measured_ns}"
    found = pays(collect(plant(unfold("lightsleep-guest", tmp_path), known))[0])
    said = "The machine is not measured yet: a halt counts as 25 us, which is assumed until then"
    assert (said in found.sentence) == (measured_ns == 0)


def test_what_pays_is_hits_times_the_cost_of_a_halt(tmp_path: Path) -> None:
    found = pays(collect(unfold("lightsleep-guest", tmp_path))[0])
    assert (found.saved_ns, found.wasted_ns) == (4 * 70_000 * 52_000, 4 * 10**9)


@pytest.mark.parametrize("polled_ns", [0, 3 * 10**9])
def test_the_sentence_says_how_much_was_polled_in_all(polled_ns: int, tmp_path: Path) -> None:
    counted = f"sys/devices/system/cpu/cpu{{0-3}}/lightsleep/polled_ns: {polled_ns}"
    found = pays(collect(plant(unfold("lightsleep-guest", tmp_path), counted))[0])
    assert ("polled in vain, of 12.0 s polled" in found.sentence) == bool(polled_ns)
