# SPDX-License-Identifier: GPL-2.0-only
"""The result file of a comparison: its data, reading it, writing it.

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
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lightsleep.errors import LightsleepError

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


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write ``document`` to ``path`` so that a reader sees the old file or the whole new one.

    Raises LightsleepError where the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8"
        ) as file:
            scratch = Path(file.name)
            json.dump(document, file, indent=1)
            file.write("\n")
        scratch.chmod(0o644)
        os.replace(scratch, path)
    except OSError as error:
        raise LightsleepError(f"cannot write {path}: {error.strerror}") from error
