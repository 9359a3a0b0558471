# SPDX-License-Identifier: GPL-2.0-only
"""The result file of a comparison: its data, and reading it.

One JSON document, ``schema`` "lightsleep.compare", ``version`` 1, described key by key in
``result.schema.json``. It holds raw samples, never only summaries, so that anybody can
recompute every figure that a table or a report shows.

    {"schema": "lightsleep.compare", "version": 1,
     "experiment": "idle", "title": ..., "hypothesis": ..., "created": "2026-11-20T08:30:00+00:00",
     "environment": {"accelerator": {...}, "host": {...}, "guests": {arm: {...}}, ...},
     "protocol": {"runs": 12, "boots": 3, "warmup": 1, "seed": 1234, "order": [[arm, ...], ...]},
     "claims": [{"arm": arm, "reference": arm, "metrics": [name, ...], "at_most": 1.2}, ...],
     "arms": [arm, ...], "roles": {arm: "baseline" | "treatment" | "control" | "limit"},
     "outcome": {"winner": arm or null, "sentence": ...},
     "metrics": {name: {"unit": "s", "better": "lower", "title": ..., "description": ...,
                        "samples": {arm: [float, ...]}}}}
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal, Protocol

from lightsleep.document import Format, headed, shortened

SCHEMA = "lightsleep.compare"
VERSION = 1

Better = Literal["lower", "higher", "none"]
Role = Literal["baseline", "treatment", "control", "limit"]


class Measured(Protocol):
    """What judging a claim needs to know of a metric."""

    @property
    def unit(self) -> str:
        """Symbol of the unit."""

    @property
    def better(self) -> Better:
        """Which direction is an improvement, if any."""


LARGEST = 1e18
"""The largest sample that a result holds; see its schema."""
AMOUNTS = ("CPU time", "Stolen time")
"""How titles of amounts end, in results that do not say whether a metric is one."""
LONGEST_ARM = 1000
"""Characters of an arm's name; see the schema."""


@dataclass
class MetricResult:
    """The raw samples of one metric, by arm: one of each round, in their order."""

    unit: str
    better: Better
    title: str
    description: str
    samples: dict[str, list[float]]
    amount: bool = False
    """A time that is spent or lost, as CPU time is: less of it is lower, and nothing is faster."""


@dataclass(frozen=True)
class Claim:
    """What was expected of an arm, compared with a reference, before the first run.

    Several metrics are one claim together, about the geometric mean of their ratios. The bounds are
    of the ratio arm / reference, or of arm - reference in points where the unit is %. Without
    bounds, what is claimed is that the arm is shown to be better. Without a reference, the bounds
    are of the one metric itself, and each sample of the arm is to be within: one round can refute
    that.
    """

    arm: str
    reference: str | None
    metrics: tuple[str, ...]
    at_most: float | None = None
    at_least: float | None = None

    @property
    def least(self) -> float:
        """The lower bound; where there is none, minus infinity."""
        return -math.inf if self.at_least is None else self.at_least

    @property
    def most(self) -> float:
        """The upper bound; where there is none, infinity."""
        return math.inf if self.at_most is None else self.at_most

    @property
    def is_gain(self) -> bool:
        """Whether it claims that the arm is better, by however much."""
        return self.at_most is None and self.at_least is None


@dataclass(frozen=True)
class TrialOutcome:
    """Of lightsleep try: the name of the setting that won, None without one, and the sentence."""

    winner: str | None
    sentence: str


@dataclass
class CompareResult:
    """Everything one comparison produced; the in-memory form of a result file."""

    experiment: str
    title: str
    hypothesis: str
    created: str
    environment: dict[str, Any]
    protocol: dict[str, Any]
    arms: list[str]
    roles: dict[str, Role]
    metrics: dict[str, MetricResult]
    claims: list[Claim] = field(default_factory=list)
    outcome: TrialOutcome | None = None

    def document(self) -> dict[str, Any]:
        """Return the JSON document of the result."""
        fields = dataclasses.asdict(self)
        if self.outcome is None:
            del fields["outcome"]
        return headed(SCHEMA, VERSION, fields)

    @property
    def boots(self) -> int:
        """How often each arm was booted; the rounds of a boot follow each other."""
        return int(self.protocol.get("boots", 1))

    @property
    def baseline(self) -> str:
        """The arm to which the others are compared."""
        return next(arm for arm in self.arms if self.roles[arm] == "baseline")


def _built(document: dict[str, Any]) -> CompareResult:
    """Return the result of a file; every arm has a list of samples in every metric."""
    # What a schema cannot say.
    _check_rounds(document["protocol"])
    _check_arms(document)
    _check_order(document)
    names = [entry.name for entry in dataclasses.fields(CompareResult)]
    fields = {name: document[name] for name in names if name in document}
    arms = fields["arms"]
    fields["metrics"] = {
        name: MetricResult(
            unit=metric["unit"],
            better=metric["better"],
            title=metric["title"],
            description=metric["description"],
            samples={arm: [float(x) for x in metric["samples"].get(arm, [])] for arm in arms},
            amount=metric.get("amount", metric["title"].endswith(AMOUNTS)),
        )
        for name, metric in document["metrics"].items()
    }
    fields["claims"] = [
        Claim(
            claim["arm"],
            claim.get("reference"),
            tuple(claim["metrics"]),
            claim.get("at_most"),
            claim.get("at_least"),
        )
        for claim in document.get("claims", [])
    ]
    if outcome := fields.get("outcome"):
        fields["outcome"] = TrialOutcome(outcome["winner"], outcome["sentence"])
    check_claims(fields["claims"], arms, fields["metrics"])
    return CompareResult(**fields)


def check_claims(
    claims: Iterable[Claim], arms: Collection[str], metrics: Mapping[str, Measured]
) -> None:
    """Raise ValueError for a claim that no comparison of these arms and metrics could judge."""
    for number, claim in enumerate(claims):
        where = f"claims[{number}]"
        for arm in (claim.arm, claim.reference):
            if arm is not None and arm not in arms:
                raise ValueError(f"{where}: {arm} is not among the arms")
        if claim.arm == claim.reference:
            raise ValueError(f"{where}: {claim.arm} is compared with itself")
        if claim.reference is None and (claim.is_gain or len(claim.metrics) != 1):
            raise ValueError(f"{where}: without a reference, it needs bounds of one metric")
        if claim.least > claim.most:
            raise ValueError(f"{where}: at_least is above at_most")
        if unknown := [name for name in claim.metrics if name not in metrics]:
            raise ValueError(f"{where}: {unknown[0]} is not among the metrics")
        claimed = [metrics[name] for name in claim.metrics]
        directions = {metric.better for metric in claimed}
        if len(directions) != 1:
            raise ValueError(f"{where}: one claim about metrics that are better in both directions")
        if claim.is_gain and "none" in directions:
            raise ValueError(f"{where}: {claim.metrics[0]} has no direction that is better")
        if len(claimed) > 1 and any(metric.unit == "%" for metric in claimed):
            raise ValueError(f"{where}: percentages have no ratio, so none together with others")
        if claim.reference is not None and claimed[0].unit != "%":
            _check_bounds_of_ratio(claim, where)


def _check_bounds_of_ratio(claim: Claim, where: str) -> None:
    """Raise ValueError for bounds that each ratio is above."""
    for name, bound in (("at_least", claim.at_least), ("at_most", claim.at_most)):
        if bound is not None and bound <= 0:
            raise ValueError(
                f"{where}.{name}: {bound:g} bounds the ratio {claim.arm} / {claim.reference}, and "
                "a ratio is above 0: name a bound above 0, or, for a bound of the metric itself, "
                "no reference"
            )


def _check_rounds(protocol: dict[str, Any]) -> None:
    """Raise ValueError where the counts of rounds and boots do not fit together."""
    runs, boots = protocol["runs"], protocol.get("boots", 1)
    if runs % boots:
        raise ValueError(f"protocol: {runs} rounds (runs) are not those of {boots} boots")
    order, warmup = protocol.get("order", []), protocol.get("warmup", 0)
    if len(order) not in (0, runs, runs + boots * warmup):
        raise ValueError(
            f"protocol.order: {len(order)} rounds are named, but there were {runs} in {boots} "
            f"boots, with {warmup} of warm-up each"
        )


def _check_arms(document: dict[str, Any]) -> None:
    """Raise ValueError for an arm that is not there, and where not one of them is the baseline."""
    arms, roles, runs = document["arms"], document["roles"], document["protocol"]["runs"]
    known = f"is not among the arms ({shortened(', '.join(arms))})"
    for arm in roles:
        if arm not in arms:
            raise ValueError(f"roles: {arm} {known}")
    for arm in arms:
        if arm not in roles:
            raise ValueError(f"roles: {arm} has no role")
    if list(roles.values()).count("baseline") != 1:
        raise ValueError("roles: exactly one arm must be the baseline")
    for name, metric in document["metrics"].items():
        for arm, samples in metric["samples"].items():
            if arm not in arms:
                raise ValueError(f"metrics.{name}.samples: {arm} {known}")
            if len(samples) not in (0, runs):
                raise ValueError(
                    f"metrics.{name}.samples: {arm} has {len(samples)}, but there were {runs} "
                    "rounds (protocol.runs): samples of a round cannot be told"
                )


def _check_order(document: dict[str, Any]) -> None:
    """Raise ValueError for a round that does not name each arm once."""
    arms = document["arms"]
    for number, names in enumerate(document["protocol"].get("order", [])):
        where = f"protocol.order[{number}]"
        if missing := [arm for arm in arms if arm not in names]:
            raise ValueError(f"{where}: {missing[0]} is missing, and each arm runs in each round")
        if len(names) != len(arms):
            raise ValueError(f"{where}: {len(names)} arms are named, but there are {len(arms)}")


FORMAT = Format(
    SCHEMA,
    VERSION,
    "a result of a comparison",
    resources.files("lightsleep.compare").joinpath("result.schema.json"),
    _built,
)
