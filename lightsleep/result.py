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
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import jsonschema

from lightsleep.errors import LightsleepError
from lightsleep.files import write_text

SCHEMA = "lightsleep.compare"
VERSION = 1
MAX_BYTES = 256 << 20

# Terminal escapes and halves of surrogate pairs: JSON can spell them, nothing can show them.
UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")

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


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write ``document`` to ``path`` so that a reader sees the old file or the whole new one.

    Raises LightsleepError where the file cannot be written or a number is not finite.
    """
    try:
        text = json.dumps(document, indent=1, allow_nan=False)
    except ValueError as error:
        raise LightsleepError(f"cannot write {path}: {error}") from error
    write_text(path, text + "\n")


def load_result(path: Path) -> CompareResult:
    """Read and check one result file; every arm has a list of samples in every metric.

    Raises LightsleepError that says what is wrong and where in the file it is.
    """
    try:
        return _checked(_parse(_read(path)))
    except ValueError as error:
        raise LightsleepError(f"{path}: {error}") from error
    except RecursionError as error:
        raise LightsleepError(f"{path}: not a result file: nested too deeply") from error


# What follows raises ValueError; load_result() adds the name of the file.


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise LightsleepError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES >> 20} MiB: not a result file")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x} ({error.reason})"
        ) from error


def _parse(text: str) -> Any:
    body = text.rstrip()
    if not body:
        raise ValueError("the file is empty: run the comparison again")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}: {error.msg}"
        if body.startswith("{") and (not body.endswith("}") or error.pos >= len(body)):
            raise ValueError(f"the file looks cut off ({where})") from error
        raise ValueError(f"not JSON: {where}") from error


def _checked(document: Any) -> CompareResult:
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ValueError(f'not a result of a comparison: "schema" is not "{SCHEMA}"')
    version = document.get("version")
    if isinstance(version, int) and version > VERSION:
        raise ValueError(f"made by a newer lightsleep (version {version}): upgrade lightsleep")
    for problem in _unprintable(document, ""):
        raise ValueError(problem)
    _check_schema(document)
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


def _check_schema(document: dict[str, Any]) -> None:
    text = resources.files("lightsleep").joinpath("result.schema.json").read_text("utf-8")
    error = jsonschema.exceptions.best_match(
        jsonschema.Draft202012Validator(json.loads(text)).iter_errors(document)
    )
    if error:
        where = ""
        for key in error.absolute_path:
            where = _inside(where, key)
        raise ValueError(f"{where or 'top level'}: {_shortened(error.message)}")


def _check_arms(document: dict[str, Any]) -> None:
    """Check what a schema cannot say: which arms may be named, and that one is the baseline."""
    arms, roles = document["arms"], document["roles"]
    known = f"is not among the arms ({_shortened(', '.join(arms))})"
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


def _unprintable(value: Any, where: str) -> Iterator[str]:
    """Yield what JSON's grammar lets through but no table, page or formula can take."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _unprintable(key, f"a key in {where or 'the top level'}")
            yield from _unprintable(item, _inside(where, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unprintable(item, _inside(where, index))
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{where}: {value} is not a finite number"
    elif isinstance(value, str) and UNPRINTABLE.search(value):
        yield f"{where}: {_shortened(repr(value))} holds a character that cannot be printed"


def _inside(where: str, key: str | int) -> str:
    if isinstance(key, int):
        return f"{where}[{key}]"
    return f"{where}.{key}" if where else key


def _shortened(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]} ..."
