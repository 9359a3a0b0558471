# SPDX-License-Identifier: GPL-2.0-only
"""The result file of a comparison: its data, and reading it.

One JSON document, ``schema`` "lightsleep.compare", ``version`` 1, described key by key in
``result.schema.json``. It holds raw samples, never only summaries, so that anybody can
recompute every figure that a table or a report shows.

    {"schema": "lightsleep.compare", "version": 1,
     "experiment": "idle", "title": ..., "hypothesis": ..., "created": "2026-11-20T08:30:00+00:00",
     "environment": {"accelerator": {...}, "host": {...}, "guests": {arm: {...}}, ...},
     "protocol": {"runs": 6, "warmup": 1, "seed": 1234, "order": [[arm, ...], ...]},
     "arms": [arm, ...], "roles": {arm: "baseline" | "treatment" | "control" | "limit"},
     "metrics": {name: {"unit": "s", "better": "lower", "title": ..., "description": ...,
                        "samples": {arm: [float, ...]}}}}
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

from lightsleep.document import Format, shortened

SCHEMA = "lightsleep.compare"
VERSION = 1

Better = Literal["lower", "higher", "none"]
Role = Literal["baseline", "treatment", "control", "limit"]


@dataclass
class MetricResult:
    """The raw samples of one metric, by arm, in the order in which they were taken."""

    unit: str
    better: Better
    title: str
    description: str
    samples: dict[str, list[float]]


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
    schema: str = field(default=SCHEMA)
    version: int = field(default=VERSION)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON document, ``schema`` and ``version`` first."""
        document = dataclasses.asdict(self)
        head = {key: document.pop(key) for key in ("schema", "version")}
        return head | document

    @property
    def baseline(self) -> str:
        """The arm to which the others are compared."""
        return next(arm for arm in self.arms if self.roles[arm] == "baseline")


def _built(document: dict[str, Any]) -> CompareResult:
    """Return the result of a file; every arm has a list of samples in every metric."""
    _check_arms(document)
    fields = {entry.name: document[entry.name] for entry in dataclasses.fields(CompareResult)}
    arms = fields["arms"]
    fields["metrics"] = {
        name: MetricResult(
            unit=metric["unit"],
            better=metric["better"],
            title=metric["title"],
            description=metric["description"],
            samples={arm: [float(x) for x in metric["samples"].get(arm, [])] for arm in arms},
        )
        for name, metric in document["metrics"].items()
    }
    return CompareResult(**fields)


def _check_arms(document: dict[str, Any]) -> None:
    """Check what a schema cannot say: which arms may be named, and that one is the baseline."""
    arms, roles = document["arms"], document["roles"]
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
        for arm in metric["samples"]:
            if arm not in arms:
                raise ValueError(f"metrics.{name}.samples: {arm} {known}")


FORMAT = Format(
    SCHEMA,
    VERSION,
    "a result of a comparison",
    resources.files("lightsleep.compare").joinpath("result.schema.json"),
    _built,
)
