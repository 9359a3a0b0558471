# SPDX-License-Identifier: GPL-2.0-only
"""What an experiment is: arms that differ in one thing, and what is measured in each.

One file in ``experiments/`` is one experiment: it defines ``EXPERIMENT``, and its file name, with
hyphens, is the experiment's name. How the arms are run is the protocol's business
(``protocol.py``).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lightsleep.compare.result import Better, Claim, Role, check_claims
from lightsleep.lab import experiments
from lightsleep.lab.accel import Wanted
from lightsleep.lab.config import lookup
from lightsleep.lab.guest import Guest


@dataclass(frozen=True)
class Metric:
    """A figure taken once per arm and round; the description says how."""

    name: str
    unit: str
    better: Better
    title: str
    description: str


@dataclass(frozen=True)
class Arm:
    """One guest of an experiment: a kernel, plus what is named here."""

    name: str
    role: Role
    description: str
    append: str = ""
    modules: tuple[str, ...] = ()
    kernel: str = ""
    """Its kernel, where that is what differs; otherwise the one that was chosen for all arms."""
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
    """All that ``measure`` returns, and IDLE_RESIDENCY where ``rest_s`` is not 0. Where they depend
    on the machine (its idle states), a function of the baseline's guest, which returns them."""
    measure: Callable[[Guest], dict[str, float]]
    """Called in each round for each arm, with its guest running and all others paused. CPU time on
    the host is the difference of two ``guest.vcpu_time()``."""
    start: Callable[[Guest], None] = lambda _: None
    """Called once for each guest, before the first round: starts what ``measure`` needs there."""
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
    threads: int = 1
    """Of each core; ``vcpus`` are threads."""
    warmup: int = 1
    accel: Wanted | None = None
    """What runs the guests where nobody chose; None: KVM where it works, else TCG."""
    devices: tuple[str, ...] = ()
    """Devices of all arms; see ``Machine``, as for what follows."""
    drives: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    netdevs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse claims that nobody could judge. Raises ValueError."""
        if not callable(self.metrics):
            self.check_claims(self.metrics)

    def check_claims(self, metrics: Iterable[Metric]) -> None:
        """Raise ValueError for a claim about what is not among the arms or these metrics."""
        check_claims(self.claims, [arm.name for arm in self.arms], {m.name: m for m in metrics})


IDLE_RESIDENCY = Metric(
    name="idle_residency_pct",
    unit="%",
    better="higher",
    title="Idle guest asleep",
    description=(
        "Share of the vCPUs' time in which the host ran no guest code, with the guest left alone: "
        "100 x (1 - CPU time of the vCPU threads / (wall time x vCPUs)), from the host's schedstat."
    ),
)
"""Measured by the protocol itself, from the host: the same means for every arm."""


def names() -> list[str]:
    """Return the names of all experiments."""
    modules = pkgutil.iter_modules(experiments.__path__)
    return sorted(module.name.replace("_", "-") for module in modules)


def load(name: str) -> Experiment:
    """Return the experiment ``name``. Raises LightsleepError that lists what there is."""
    lookup("experiment", dict.fromkeys(names()), name)
    module = importlib.import_module(f"{experiments.__name__}.{name.replace('-', '_')}")
    experiment = module.EXPERIMENT
    assert isinstance(experiment, Experiment)
    return experiment
