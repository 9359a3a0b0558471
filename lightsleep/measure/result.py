# SPDX-License-Identifier: GPL-2.0-only
"""The result file of a measurement: its data.

One JSON document, ``schema`` "lightsleep.measure", ``version`` 1, described key by key in
``measure.schema.json``. Like every result it holds the raw samples, so that anybody can recompute
its figures and judge its verdicts.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from lightsleep.document import headed

SCHEMA = "lightsleep.measure"
VERSION = 1

Mode = Literal["module", "userspace"]
RowKind = Literal["state", "busy"]
RowPath = Literal["timer", "ipi", "irq", "thread", "none", "mixed"]
VerdictKind = Literal[
    "baseline",
    "agrees",
    "optimistic",
    "pessimistic",
    "not-entered",
    "too-few",
    "too-noisy",
    "nothing-advertised",
]


HalfOpen = tuple[float, float | None]


@dataclass(frozen=True)
class Figures:
    """Percentiles of ``count`` latencies.

    ``ci_ns`` encloses the true median with a probability of 95 %, ``p90_ci_ns`` and ``p99_ci_ns``
    the other percentiles. None, for all of it or for its upper end, where there are too few samples
    to say so. ``independent`` is how many independent samples these are worth for the median.
    """

    count: int
    p50_ns: float
    p90_ns: float
    p99_ns: float
    max_ns: float
    ci_ns: tuple[float, float] | None
    p90_ci_ns: HalfOpen | None
    p99_ci_ns: HalfOpen | None
    independent: int


@dataclass(frozen=True)
class Verdict:
    """What the samples say about the advertised exit latency.

    ``ratio`` is observed / advertised where the two can be compared, ``more_samples`` how many
    more samples it takes to tell.
    """

    kind: VerdictKind
    ratio: float | None
    more_samples: int | None
    text: str


@dataclass(frozen=True)
class Row:
    """Wakes of one CPU by one source from one state, or from none: the busy baseline.

    ``raw`` summarises ``latencies_ns``; ``subtracted`` is that without what the wake of a busy
    CPU costs. ``usage`` is how often the kernel counted the state as entered meanwhile,
    ``elapsed_s`` how long all batches took, those samples included that do not count.
    """

    cpu: int
    source_cpu: int | None
    source: str
    kind: RowKind
    state: int | None
    name: str
    advertised_us: float | None
    residency_us: float | None
    path: RowPath | None
    latencies_ns: list[int]
    invalid: dict[str, int]
    usage: int | None
    elapsed_s: float
    raw: Figures | None
    subtracted: Figures | None
    verdict: Verdict


@dataclass(frozen=True)
class MeasureResult:
    """Everything one measurement produced; the in-memory form of a result file."""

    created: str
    mode: Mode
    environment: dict[str, Any]
    settings: dict[str, Any]
    notes: list[str]
    rows: list[Row]

    def document(self) -> dict[str, Any]:
        """Return the JSON document of the result."""
        return headed(SCHEMA, VERSION, dataclasses.asdict(self))
