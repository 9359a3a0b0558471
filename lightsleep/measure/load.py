# SPDX-License-Identifier: GPL-2.0-only
"""Reading the result file of a measurement. Unlike measuring, it needs the package jsonschema."""

from __future__ import annotations

from importlib import resources
from typing import Any

from lightsleep.document import Format
from lightsleep.measure.result import SCHEMA, VERSION, Figures, MeasureResult, Row, Verdict


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
