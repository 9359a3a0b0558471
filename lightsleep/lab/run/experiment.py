# SPDX-License-Identifier: GPL-2.0-only
"""What an experiment is: arms that differ in one thing, and what is measured in each.

How the arms are run is the protocol's business (``protocol.py``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal, get_args

from lightsleep import document
from lightsleep.compare.boots import LEAST_BOOTS
from lightsleep.compare.method import rounds_for_controls, rounds_needed
from lightsleep.compare.result import FORMAT, Better, Claim, CompareResult, MetricResult, Role
from lightsleep.errors import LightsleepError, WrongUsage
from lightsleep.lab.boot.accel import Wanted
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.boot.machine import Devices, ForeignKernel

TimedBy = Literal["guest", "host"]


@dataclass(frozen=True)
class Metric:
    """A figure taken once per arm and round; the description says how."""

    name: str
    unit: str
    better: Better
    title: str
    description: str
    clock: TimedBy = "guest"
    """By whose clock a time or a frequency is measured: a guest's is corrected by the host's."""
    amount: bool = False
    """As in MetricResult: a time that is spent or lost, not one in which something is done."""


IDLE_RESIDENCY = Metric(
    name="idle_residency_pct",
    unit="%",
    better="higher",
    title="Idle guest asleep",
    description=(
        "Share of the vCPUs' time in which their threads used no CPU, with the guest left alone: "
        "100 x (1 - CPU time of the vCPU threads / (wall time x their number)), from the host's "
        "schedstat. If one thread runs all vCPUs (tcg-single, tcg-icount), it sleeps only while "
        "all of them are idle."
    ),
)
"""Measured by the protocol itself, from the host: the same means for every arm."""

NEIGHBOUR_CPU = Metric(
    name="neighbour_cpu_pct",
    unit="%",
    better="higher",
    title="CPU time of the neighbour",
    description=(
        "Share of the time of the busy neighbour's vCPUs in which they ran while the arm was "
        "measured: 100 x CPU time of the vCPU threads / (wall time x their number), from the "
        "host's schedstat. They always want to run: what is missing, others took."
    ),
)
"""So is this, where the experiment has a neighbour."""

BY_PROTOCOL = frozenset({IDLE_RESIDENCY.name, NEIGHBOUR_CPU.name})
"""What the experiment does not measure."""


@dataclass(frozen=True)
class Arm:
    """One guest of an experiment: a kernel, plus what is named here."""

    name: str
    role: Role
    description: str
    append: str = ""
    modules: tuple[str, ...] = ()
    kernel: str = ""
    """Its kernel, where that is what differs, or what all arms need: where they have the same, one
    that is named on the command line takes its place."""
    foreign: ForeignKernel | None = None
    """So, where the kernel is none of the lab's."""
    spins: bool = False
    """Its idle CPUs never sleep: it would take the host's cores from the other arms at rest."""


@dataclass(frozen=True)
class Experiment:
    """Arms, metrics and the function that measures; all arms have the same hardware."""

    title: str
    hypothesis: str
    """What is expected, and what would falsify it."""
    arms: tuple[Arm, ...]
    metrics: tuple[Metric, ...] | Callable[[Guest], tuple[Metric, ...]]
    """All that ``measure`` returns, and IDLE_RESIDENCY where ``rest_s`` is not 0, and NEIGHBOUR_CPU
    where that is asked for. Where they depend on the machine (its idle states), a function of the
    baseline's guest, which returns them."""
    measure: Callable[[Guest], dict[str, float]]
    """Called in each round for each arm, with its guest running and all others paused. CPU time on
    the host is the difference of two ``guest.vcpu_time()``."""
    start: Callable[[Guest], None] = lambda _: None
    """Called once for each guest, before the first round: starts what ``measure`` needs there."""
    warm: Callable[[Guest], object] | None = None
    """Called in place of ``measure`` in rounds of warm-up, where less of the same is enough."""
    root: str = "base"
    """Root file system of the guests; see ``Machine``."""
    claims: tuple[Claim, ...] = ()
    """The hypothesis as data: what the result is asked, claim by claim."""
    rest_s: float = 0
    """For how long all guests are left alone after the rounds, to see whether they sleep: for each
    round a span of this length, one after the other."""
    neighbour: tuple[str, ...] = ()
    """A command that keeps one more guest busy, on the stock kernel and with as many vCPUs: it runs
    on the host beside each arm, and at rest. The command returns, and what it started goes on."""
    vcpus: int = 2
    least_vcpus: int = 1
    """How many ``measure`` needs: fewer are refused."""
    overcommitted: bool = False
    """Its host must have fewer CPUs than the guests that run at once have vCPUs."""
    served_by_cpus: int = 0
    """How many CPUs of the host its guests need beside their own, for programs on the host that
    answer them."""
    threads: int = 1
    """Of each core; ``vcpus`` are threads."""
    warmup: int = 1
    rounds: int | None = None
    """Rounds where nobody chose, if not as many as of most experiments; so ``boots``."""
    boots: int | None = None
    pin: bool = False
    """Keep each virtual CPU on one CPU of the host, whatever the command line says."""
    accel: Wanted | None = None
    """What runs the guests where nobody chose; None: KVM where it works, else TCG."""
    devices: Devices = field(default_factory=Devices)
    """Of all arms."""

    def __post_init__(self) -> None:
        """Refuse what could not be run, and claims that nobody could judge. Raises ValueError."""
        names = [arm.name for arm in self.arms]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"arms: two arms are named {twice}")
        if [arm.role for arm in self.arms].count("baseline") != 1:
            raise ValueError("arms: exactly one arm must have the role baseline")
        for arm in self.arms:
            _check_arm(arm)
        if isinstance(self.neighbour, str):
            raise ValueError("neighbour: a str, not a tuple: write each word of the command alone")
        if not isinstance(self.devices, Devices):
            raise ValueError(f"devices: a {type(self.devices).__name__}, not Devices(...)")
        for name, number in (("vcpus", self.vcpus), ("threads", self.threads)):
            if number < 1:
                raise ValueError(f"{name}: {number} is not above 0")
        if self.vcpus % self.threads:
            raise ValueError(
                f"vcpus: {self.vcpus} CPUs cannot form cores of {self.threads} threads each"
            )
        self._check_controls()
        self._check_rounds()
        if not (callable(self.metrics) or isinstance(self.metrics, tuple)):
            raise ValueError("metrics: neither a tuple of Metric nor a function")
        if not callable(self.metrics):
            self.check(self.metrics)

    def rounds_for(self, metrics: Sequence[Metric]) -> int:
        """Return the fewest rounds that can tell whether a control differs in these metrics.

        0 where no arm is a control.
        """
        controls = sum(arm.role == "control" for arm in self.arms)
        return rounds_for_controls(controls * len(metrics))

    @property
    def baseline(self) -> Arm:
        """The arm with which the others are compared."""
        return next(arm for arm in self.arms if arm.role == "baseline")

    @property
    def running_vcpus(self) -> int:
        """How many vCPUs run at once while an arm is measured."""
        return self.vcpus * (2 if self.neighbour else 1)

    @property
    def host_cpus(self) -> int:
        """How many CPUs of the host are busy at once while an arm is measured."""
        return self.running_vcpus + self.served_by_cpus

    def _check_controls(self) -> None:
        """Raise ValueError for a control that differs in more than its name and description."""
        base = self.baseline
        for arm in self.arms:
            alike = replace(base, name=arm.name, role=arm.role, description=arm.description)
            if arm.role == "control" and arm != alike:
                found = next(
                    x for x in fields(arm) if getattr(arm, x.name) != getattr(alike, x.name)
                )
                raise ValueError(
                    f"arms: {arm.name} is a control, but {found.name} is not that of "
                    f"{base.name}, the baseline: boot both alike, or give it another role"
                )

    def _check_rounds(self) -> None:
        """Raise ValueError for rounds and boots that the command line would refuse."""
        rounds, boots, least = self.rounds, self.boots, rounds_needed()
        if rounds is not None and rounds < least:
            raise ValueError(
                f"rounds: {rounds} give no 95 % confidence interval: {least} are needed at least"
            )
        if boots is not None and boots < LEAST_BOOTS:
            raise ValueError(
                f"boots: {boots} do not tell how boots differ: {LEAST_BOOTS} are needed at least"
            )
        if rounds and boots and rounds % boots:
            raise ValueError(
                f"rounds: {rounds} cannot be divided among {boots} boots: name a multiple of them"
            )

    def check(self, metrics: Iterable[Metric]) -> None:
        """Raise ValueError for metrics, arms and claims of which no result can be written."""
        metrics = tuple(metrics)
        if self.rest_s and IDLE_RESIDENCY not in metrics:
            raise ValueError("metrics: IDLE_RESIDENCY is missing, and rest_s is not 0")
        if not self.rest_s and IDLE_RESIDENCY in metrics:
            raise ValueError("metrics: nothing measures IDLE_RESIDENCY, as rest_s is 0")
        if not self.neighbour and NEIGHBOUR_CPU in metrics:
            raise ValueError("metrics: nothing measures NEIGHBOUR_CPU, as there is no neighbour")
        named = [x.name for x in metrics]
        if twice := next((name for name in named if named.count(name) > 1), None):
            raise ValueError(f"metrics: two metrics are named {twice}")
        clocks = get_args(TimedBy)
        if wrong := next((x for x in metrics if x.clock not in clocks), None):
            raise ValueError(
                f"metrics.{wrong.name}.clock: {wrong.clock!r} is none of {', '.join(clocks)}"
            )
        empty = CompareResult(
            experiment="checked",
            title=self.title,
            hypothesis=self.hypothesis,
            created="",
            environment={},
            protocol={"runs": 0, "warmup": self.warmup, "seed": 0, "order": []},
            arms=[arm.name for arm in self.arms],
            roles={arm.name: arm.role for arm in self.arms},
            metrics={
                x.name: MetricResult(x.unit, x.better, x.title, x.description, {}, x.amount)
                for x in metrics
            },
            claims=list(self.claims),
        )
        document.check(empty.document(), FORMAT)


def _check_arm(arm: Arm) -> None:
    """Raise ValueError for an arm of which no guest could be made."""
    if arm.role not in get_args(Role):
        roles = ", ".join(get_args(Role))
        raise ValueError(f"arms: {arm.name} has the role {arm.role!r}, which is none of {roles}")
    if isinstance(arm.modules, str):  # its letters would be taken for modules
        raise ValueError(
            f"arms: the modules of {arm.name} are a str, not a tuple: write "
            f"{(arm.modules,) if arm.modules else ()}"
        )
    for name, kind in (("append", str), ("foreign", ForeignKernel)):
        given = getattr(arm, name)
        if given is not None and not isinstance(given, kind):
            raise ValueError(
                f"arms: {name} of {arm.name} is a {type(given).__name__}, not a {kind.__name__}"
            )


PATCHED = "patched"
"""The arm that boots the kernel of ``--patched-tree``."""

BOUND = re.compile(r"(at_most|at_least)=(-?\d+(?:\.\d+)?)")


def claim_of(given: str, reference: str) -> Claim:
    """Return what ``--claim`` says of the patched kernel: METRIC, or METRIC,at_most=BOUND.

    Raises WrongUsage for bounds that are none, or that are there twice.
    """
    metric, *rest = given.split(",")
    bounds = [BOUND.fullmatch(x) for x in rest]
    if not all(bounds):
        raise WrongUsage(
            f"--claim {given}: after the metric, name bounds as at_most=NUMBER or at_least=NUMBER, "
            f"such as {metric},at_most=1.05"
        )
    named = [x[1] for x in bounds if x]
    if twice := next((name for name in named if named.count(name) > 1), None):
        raise WrongUsage(f"--claim {given}: {twice} is there twice: name each bound once")
    return Claim(PATCHED, reference, (metric,), **{x[1]: float(x[2]) for x in bounds if x})


def with_patched(experiment: Experiment, tree: Path, claimed: Sequence[str] = ()) -> Experiment:
    """Return an experiment with one arm more: its baseline, but with the kernel of a built tree.

    What is ``claimed`` of it comes before the experiment's own claims. Nobody but who has the patch
    knows what to expect of it: where nothing is claimed of it, the hypothesis says so.

    Raises WrongUsage where it has an arm of this name, its baseline boots a tree of its own, or a
    claim is one that nobody could judge.
    """
    if PATCHED in [arm.name for arm in experiment.arms]:
        raise WrongUsage(f"--patched-tree adds an arm {PATCHED}, but this experiment has one")
    base = experiment.baseline
    if base.foreign:
        raise WrongUsage(
            f"arm {base.name}, with which {PATCHED} would be compared, boots a kernel of its own, "
            "and not the one that is named: leave out --patched-tree"
        )
    arm = replace(
        base,
        name=PATCHED,
        role="treatment",
        description=f"set up as {base.name} is, with the kernel of --patched-tree",
        kernel="",
        foreign=ForeignKernel(tree=tree),
    )
    claims = tuple(claim_of(x, base.name) for x in claimed)
    if claims:
        hypothesis = "The kernel with the patch does what is claimed of it."
    elif experiment.claims:
        hypothesis = (
            "None of the patch: the comparison looks for whatever it changes. The claims are those "
            "of the experiment, about its own arms."
        )
    else:
        hypothesis = "None: the comparison looks for whatever the patch changes."
    try:
        return replace(
            experiment,
            title="A kernel with a patch and without",
            hypothesis=hypothesis,
            arms=(*experiment.arms, arm),
            claims=(*claims, *experiment.claims),
        )
    except ValueError as error:
        there = (
            "" if callable(experiment.metrics) else ", ".join(x.name for x in experiment.metrics)
        )
        raise WrongUsage(f"--claim: {error}{there and f'; metrics: {there}'}") from error


def adapted(
    experiment: Experiment,
    *,
    arms: Sequence[str] = (),
    vcpus: int | None = None,
    kernel_named: bool = False,
    accel_named: bool = False,
    patched: Path | None = None,
    claimed: Sequence[str] = (),
) -> Experiment:
    """Return an experiment as the command line wants it: some of its arms, other numbers of CPUs.

    With the tree of a ``patched`` kernel, only that and the arms that are set up alike are left
    where no ``arms`` are named: the baseline and its controls. What is ``claimed`` is about it. Of
    the experiment's claims, those stay that are about arms that were named.

    Where an accelerator was named, the experiment has none of its own: auto is a choice, too.

    A kernel that was named takes the place of the one that all arms have.

    Raises WrongUsage where it cannot be so, or where its arms differ in the kernel, or each has its
    own, although one was named, and LightsleepError where the host has too many CPUs for it.
    """
    if patched:
        alike = [arm.name for arm in experiment.arms if arm.role in ("baseline", "control")]
        asked = replace(experiment, claims=_about(experiment.claims, arms))
        experiment = with_patched(asked, patched, claimed)
        arms = (*(arms or alike), PATCHED)
    there = {arm.name: arm for arm in experiment.arms}
    if unknown := next((name for name in arms if name not in there), None):
        raise WrongUsage(f"--arms: no arm {unknown!r}; there are: {', '.join(there)}")
    kept = tuple(arm for arm in experiment.arms if not arms or arm.name in arms)
    if not any(arm.role == "baseline" for arm in kept):
        baseline = experiment.baseline.name
        raise WrongUsage(f"--arms: {baseline}, with which the others are compared, is missing")
    if len(kept) < 2:
        raise WrongUsage(f"--arms: {kept[0].name} alone cannot be compared: name another arm")
    # An arm with a tree of its own boots that, whatever kernel is named.
    kernels = {arm.kernel for arm in kept if not arm.foreign}
    if kernel_named and not kernels:
        raise WrongUsage(
            "each arm of this experiment boots a kernel of its own: leave out --kernel, --image, "
            "and --kernel-tree"
        )
    if kernel_named and len(kernels) > 1:
        own = next(arm for arm in kept if arm.kernel)
        raise WrongUsage(
            f"arm {own.name} of this experiment boots kernel {own.kernel}, because the kernel is "
            "what differs: leave out --kernel, --image, --kernel-tree, and --patched-tree"
        )
    if kernel_named:
        kept = tuple(replace(arm, kernel="") for arm in kept)
    if vcpus and vcpus % experiment.threads:
        raise WrongUsage(f"--vcpus: {vcpus} CPUs cannot form cores of {experiment.threads} threads")
    number = vcpus or experiment.vcpus
    if number < experiment.least_vcpus:
        raise WrongUsage(f"--vcpus: this experiment needs at least {experiment.least_vcpus} CPUs")
    running, cpus = number * (2 if experiment.neighbour else 1), len(os.sched_getaffinity(0))
    if experiment.overcommitted and running <= cpus:
        raise LightsleepError(
            f"this experiment needs more vCPUs than this host has CPUs: there are {running} and "
            f"{cpus}: give a larger --vcpus, or run it under taskset"
        )
    return replace(
        experiment,
        arms=kept,
        claims=_about(experiment.claims, [arm.name for arm in kept]),
        vcpus=number,
        accel=None if accel_named else experiment.accel,
    )


def _about(claims: Iterable[Claim], arms: Collection[str]) -> tuple[Claim, ...]:
    """Return the claims that are about these arms alone."""
    return tuple(x for x in claims if {x.arm, x.reference or x.arm} <= {*arms})
