# SPDX-License-Identifier: GPL-2.0-only
"""What an experiment says of itself: what could not be run is refused at once."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from fake_guests import MORE, WAIT, experiment

from lightsleep.compare.result import Claim, Role
from lightsleep.errors import WrongUsage
from lightsleep.lab.boot.machine import Devices, ForeignKernel, Machine
from lightsleep.lab.run.experiment import IDLE_RESIDENCY, NEIGHBOUR_CPU, Arm, adapted
from lightsleep.lab.run.protocol import machines_of


def metric(**changes: Any) -> dict[str, Any]:
    """Return what makes an experiment one whose metric has something wrong."""
    return {"metrics": (dataclasses.replace(WAIT, **changes),)}


def control(**changes: Any) -> dict[str, Any]:
    """Return what makes an experiment one whose control is not booted as the baseline is."""
    base, again = Arm("a", "baseline", ""), Arm("c", "control", "")
    return {"arms": (base, dataclasses.replace(again, **changes))}


def treated(**changes: Any) -> dict[str, Any]:
    """Return what makes an experiment one whose arm b has something wrong."""
    return {"arms": (Arm("a", "baseline", ""), Arm("b", "treatment", "", **changes))}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"metrics": [WAIT]}, "neither a tuple of Metric nor a function"),
        ({"metrics": (WAIT, IDLE_RESIDENCY)}, "nothing measures IDLE_RESIDENCY, as rest_s is 0"),
        ({"rest_s": 1}, "IDLE_RESIDENCY is missing"),
        ({"metrics": (WAIT, NEIGHBOUR_CPU)}, "nothing measures NEIGHBOUR_CPU, as there is no"),
        (
            {"arms": (Arm("a", "baseline", ""), Arm("b", cast(Role, "cure"), ""))},
            "b has the role 'cure', which is none of baseline, ",
        ),
        ({"metrics": (WAIT, MORE, WAIT)}, "metrics: two metrics are named wait_s"),
        (control(append="idle=poll"), "c is a control, but append is not that of a, the"),
        (control(modules=("x",)), "c is a control, but modules is not that of a"),
        (control(kernel="6.1"), "c is a control, but kernel is not that of a"),
        (control(spins=True), "c is a control, but spins is not that of a"),
        (treated(modules="x"), "arms: the modules of b are a str, not a tuple: write ('x',)"),
        (treated(append=["nohz=off"]), "arms: append of b is a list, not a str"),
        (treated(foreign=Path("x")), "arms: foreign of b is a PosixPath, not a ForeignKernel"),
        ({"devices": ("edu",)}, "devices: a tuple, not Devices(...)"),
        ({"vcpus": 3, "threads": 2}, "vcpus: 3 CPUs cannot form cores of 2 threads each"),
        ({"vcpus": 0}, "vcpus: 0 is not above 0"),
        ({"vcpus": 2, "threads": 0}, "threads: 0 is not above 0"),
        ({"neighbour": "spin fast"}, "neighbour: a str, not a tuple: write each word"),
        ({"rounds": 4}, "rounds: 4 give no 95 % confidence interval: 6 are needed at least"),
        ({"rounds": -3}, "rounds: -3 give no 95 % confidence interval"),
        ({"rounds": 0}, "rounds: 0 give no 95 % confidence interval"),
        ({"boots": 1}, "boots: 1 do not tell how boots differ: 3 are needed at least"),
        ({"rounds": 8, "boots": 3}, "rounds: 8 cannot be divided among 3 boots"),
        # What no result file could hold.
        (metric(better="less"), "metrics.wait_s.better: 'less' is not one of ['lower', "),
        (metric(clock="wall"), "metrics.wait_s.clock: 'wall' is none of guest, host"),
        (metric(unit="requests per second and CPU"), "metrics.wait_s.unit: 'requests per"),
        (metric(title="x" * 101), "metrics.wait_s.title: 'xxx"),
        (metric(title="\x1b[1m"), "metrics.wait_s.title: '\\x1b[1m' holds a character"),
        ({"arms": (Arm("a" * 1001, "baseline", ""),)}, "arms[0]: 'aaa"),
    ],
)
def test_an_experiment_that_could_not_be_run_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        experiment(lambda _: {}, **changes)


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (Devices, {"device": "edu"}, "Devices: device is a str, not a tuple: write ('edu',)"),
        (Devices, {"netdev": ["user"]}, "Devices: netdev is a list, not a tuple: write ('user',)"),
        (ForeignKernel, {"tree": "../x"}, "ForeignKernel: tree is no Path: write Path('../x')"),
        (ForeignKernel, {}, "ForeignKernel: name a tree, or an image and its modules"),
        (ForeignKernel, {"modules": Path("m")}, "ForeignKernel: name a tree, or an image and"),
        (ForeignKernel, {"tree": Path("x"), "image": Path("y")}, "ForeignKernel: name a tree, or"),
    ],
)
def test_what_a_guest_could_not_be_made_of_is_refused(
    kind: Callable[..., object], given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        kind(**given)


PLAIN, PATCHED = ForeignKernel(tree=Path("plain")), ForeignKernel(tree=Path("patched"))
ARMS = (
    Arm("a", "baseline", "", append="x=1", modules=("m",)),
    Arm("b", "treatment", "", append="x=2"),
    Arm("c", "control", "", append="x=1", modules=("m",)),
)


@pytest.mark.parametrize(
    ("named", "arms", "claims"), [((), "a c patched", 0), (("a", "b"), "a b patched", 1)]
)
def test_a_patched_kernel_is_set_up_as_the_baseline(
    named: tuple[str, ...], arms: str, claims: int
) -> None:
    given = experiment(lambda _: {}, arms=ARMS, claims=(Claim("b", "a", (WAIT.name,)),))
    chosen = adapted(given, arms=named, kernel_named=True, patched=PATCHED.tree)
    machines = machines_of(chosen, Machine(foreign=PLAIN))
    assert " ".join(machines) == arms
    assert len(chosen.claims) == claims
    assert machines["patched"] == dataclasses.replace(machines["a"], foreign=PATCHED)
    assert {x.foreign for name, x in machines.items() if name != "patched"} == {PLAIN}
    with pytest.raises(WrongUsage, match="adds an arm patched, but this experiment has one"):
        adapted(chosen, kernel_named=True, patched=PATCHED.tree)


def test_what_is_claimed_of_a_patched_kernel_is_data() -> None:
    given = experiment(lambda _: {}, arms=ARMS, claims=(Claim("b", "a", (WAIT.name,)),))
    said = ("wait_s", "wait_s,at_least=0.5,at_most=1.05")
    chosen = adapted(given, kernel_named=True, patched=PATCHED.tree, claimed=said)
    assert chosen.claims == (
        Claim("patched", "a", ("wait_s",)),
        Claim("patched", "a", ("wait_s",), at_most=1.05, at_least=0.5),
    )


@pytest.mark.parametrize(
    ("named", "claimed", "claims", "hypothesis"),
    [
        ((), (), 0, "None: "),
        ((), ("wait_s",), 1, "The kernel with the patch does what is claimed"),
        (("a",), (), 1, "None of the patch: "),
        (("a", "b"), ("wait_s",), 3, "The kernel with the patch does what is claimed"),
    ],
)
def test_claims_of_the_experiment_stay_only_with_arms_that_are_named(
    named: tuple[str, ...], claimed: tuple[str, ...], claims: int, hypothesis: str
) -> None:
    own = (Claim("a", None, (WAIT.name,), at_most=1), Claim("b", "a", (WAIT.name,)))
    given = experiment(lambda _: {}, arms=ARMS, claims=own)
    chosen = adapted(given, arms=named, kernel_named=True, patched=PATCHED.tree, claimed=claimed)
    assert len(chosen.claims) == claims
    assert chosen.hypothesis.startswith(hypothesis)


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        ("nap", "--claim: claims[0]: nap is not among the metrics; metrics: wait_s"),
        ("wait_s,most=2", "--claim wait_s,most=2: after the metric, name bounds as at_most=NUMBER"),
        ("wait_s,at_most=2,at_most=3", "at_most=3: at_most is there twice: name each bound once"),
        ("wait_s,at_most=nan", "after the metric, name bounds"),
        ("wait_s,at_most=0", "--claim: claims[0].at_most: 0 bounds the ratio patched / a"),
        ("", "claims[0]"),
    ],
)
def test_a_claim_of_a_patched_kernel_that_nobody_could_judge_is_refused(
    claim: str, said: str
) -> None:
    given = experiment(lambda _: {}, arms=ARMS)
    with pytest.raises(WrongUsage, match=re.escape(said)):
        adapted(given, kernel_named=True, patched=PATCHED.tree, claimed=(claim,))


def test_an_arm_with_a_kernel_of_the_lab_does_not_boot_that_of_the_command_line() -> None:
    arms = (Arm("a", "baseline", "", kernel="6.1"), Arm("b", "treatment", "", foreign=PATCHED))
    machines = machines_of(experiment(lambda _: {}, arms=arms), Machine(foreign=PLAIN))
    assert (machines["a"].kernel, machines["a"].foreign) == ("6.1", None)
    assert machines["b"].foreign == PATCHED


def test_a_kernel_that_no_arm_would_boot_is_refused() -> None:
    base, treated, control = (dataclasses.replace(arm, foreign=PLAIN) for arm in ARMS)
    treated = dataclasses.replace(treated, foreign=PATCHED)
    given = experiment(lambda _: {}, arms=(base, treated, control))
    assert adapted(given) == given
    with pytest.raises(WrongUsage, match=r"each arm .* boots a kernel of its own: leave out"):
        adapted(given, kernel_named=True)
    with pytest.raises(WrongUsage, match=r"arm a, with which patched would be compared, boots a"):
        adapted(given, kernel_named=True, patched=Path("other"))
    some = experiment(lambda _: {}, arms=(base, dataclasses.replace(treated, foreign=None)))
    machines = machines_of(adapted(some, kernel_named=True), Machine(kernel="6.1"))
    assert (machines["a"].foreign, machines["b"].kernel) == (PLAIN, "6.1")


SERIES = tuple(dataclasses.replace(arm, kernel="6.12-series") for arm in ARMS)


@pytest.mark.parametrize("patched", [None, PATCHED.tree])
def test_a_kernel_that_is_named_replaces_the_one_that_all_arms_have(patched: Path | None) -> None:
    given = experiment(lambda _: {}, arms=SERIES)
    chosen = adapted(given, kernel_named=True, patched=patched)
    named = machines_of(chosen, Machine(kernel="7.3-series"))
    assert {x.kernel for name, x in named.items() if name != "patched"} == {"7.3-series"}
    own = machines_of(chosen, Machine(foreign=PLAIN))
    assert {x.foreign for name, x in own.items() if name != "patched"} == {PLAIN}
    assert ("patched" in own) is (patched is not None)
    unnamed = machines_of(adapted(given), Machine())
    assert {x.kernel for x in unnamed.values()} == {"6.12-series"}


@pytest.mark.parametrize("kernel", ["", "6.12-plain"])
def test_a_kernel_that_is_named_does_not_replace_what_is_compared(kernel: str) -> None:
    base, treated, control = SERIES
    differs = dataclasses.replace(treated, kernel=kernel)
    given = experiment(lambda _: {}, arms=(base, differs, control))
    with pytest.raises(WrongUsage, match=r"arm a .* boots kernel 6.12-series, because the kernel"):
        adapted(given, kernel_named=True)
    assert adapted(given, kernel_named=True, arms=("a", "c")).baseline.kernel == ""
