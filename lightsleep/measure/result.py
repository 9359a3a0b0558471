# SPDX-License-Identifier: GPL-2.0-only
"""The result file of a measurement: its data, and reading it.

One JSON document, ``schema`` "lightsleep.measure", ``version`` 1, described key by key in
``measure.schema.json``. Like every result it holds the raw samples, so that anybody can recompute
its figures and judge its verdicts.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from lightsleep.document import Format, headed

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

    ``ratio`` is observed / advertised where the two can be compared, ``more_samples`` by how much
    to raise --samples in order to tell.
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


def _built(document: dict[str, Any]) -> MeasureResult:
    _check_rows(document["rows"])
    return MeasureResult(
        created=document["created"],
        mode=document["mode"],
        environment=document["environment"],
        settings=document["settings"],
        notes=document["notes"],
        rows=[_row(row) for row in document["rows"]],
    )


def _row(row: dict[str, Any]) -> Row:
    plain = {key: row[key] for key in Row.__dataclass_fields__}
    return Row(
        **plain
        | {
            "raw": _figures(row["raw"]),
            "subtracted": _figures(row["subtracted"]),
            "verdict": Verdict(
                **{key: row["verdict"][key] for key in Verdict.__dataclass_fields__}
            ),
        }
    )


def _figures(figures: dict[str, Any] | None) -> Figures | None:
    if figures is None:
        return None
    known: dict[str, Any] = {
        key: tuple(value) if isinstance(value := figures[key], list) else value
        for key in Figures.__dataclass_fields__
    }
    return Figures(**known)


def _check_rows(rows: list[dict[str, Any]]) -> None:
    """Check what a schema cannot say: that no row is there twice and the figures fit the samples.

    Raises ValueError that names the row.
    """
    seen: dict[tuple[Any, ...], int] = {}
    for index, row in enumerate(rows):
        first = seen.setdefault((row["cpu"], row["source"], row["state"]), index)
        if first != index:
            raise ValueError(f"rows[{index}]: the CPU, source and state of rows[{first}] again")
        count = len(row["latencies_ns"])
        if count and row["raw"] is None:
            raise ValueError(f"rows[{index}].raw: null, but latencies_ns holds {count} samples")
        for key in ("raw", "subtracted"):
            if row[key] and row[key]["count"] != count:
                raise ValueError(
                    f"rows[{index}].{key}.count: {row[key]['count']}, "
                    f"but latencies_ns holds {count} samples"
                )


FORMAT = Format(
    SCHEMA,
    VERSION,
    "a result of a measurement",
    resources.files("lightsleep.measure").joinpath("measure.schema.json"),
    _built,
)
