# SPDX-License-Identifier: GPL-2.0-only
"""What all JSON documents share: how they begin, and how a result file is read.

A result is one JSON document. Its key ``schema`` says what kind it is, ``version`` which readers
understand it, and a JSON Schema beside the reader describes all other keys. Whatever is wrong with
a file, an error says what and where.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Generic, TypeVar

from lightsleep.errors import LightsleepError

MAX_BYTES = 256 << 20

# Terminal escapes and halves of surrogate pairs: JSON can spell them, nothing can show them.
UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    """Return a text that a document may hold: what nothing can show, spelled as Python would."""
    return UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


def headed(schema: str, version: int, rest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document: what kind it is and which version, then the ``rest``."""
    return {"schema": schema, "version": version, **rest}


def text_of(document: Mapping[str, Any]) -> str:
    """Return a document as it is printed and saved. Raises ValueError for what is no number."""
    return json.dumps(document, indent=1, allow_nan=False)


T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Format(Generic[T_co]):
    """One kind of document, and how its JSON becomes data.

    ``what`` is what such a document is called in an error. ``described`` holds the JSON Schema.
    ``build`` gets a document that follows it, checks what a schema cannot say, and raises
    ValueError.
    """

    schema: str
    version: int
    what: str
    described: Traversable
    build: Callable[[dict[str, Any]], T_co]


def load(path: Path, *formats: Format[T_co]) -> T_co:
    """Read and check one file in any of these formats.

    Raises LightsleepError that says what is wrong and where in the file it is.
    """
    try:
        return _checked(_parse(_read(path)), formats)
    except ValueError as error:
        raise LightsleepError(f"{path}: {error}") from error
    except RecursionError as error:
        raise LightsleepError(f"{path}: not a result file: nested too deeply") from error


def check(document: dict[str, Any], form: Format[T_co]) -> T_co:
    """Return what a document holds that is no file yet. Raises ValueError for what is wrong."""
    return _checked(_parse(json.dumps(document)), (form,))


def shortened(text: str) -> str:
    """Return text as it fits into an error."""
    return text if len(text) <= 200 else f"{text[:200]} ..."


class NotJsonError(ValueError):
    """A file is no JSON document, and none that is cut off: it may be something else."""


# What follows raises ValueError; load() adds the name of the file.


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
        raise NotJsonError(
            f"not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x} ({error.reason})"
        ) from error


def _parse(text: str) -> Any:
    body = text.rstrip()
    if not body:
        raise ValueError("the file is empty: run again what made it")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}: {error.msg}"
        more = error.msg == "Extra data"  # behind a document that is whole
        if not more and body.startswith("{") and (not body.endswith("}") or error.pos >= len(body)):
            raise ValueError(f"the file looks cut off ({where})") from error
        raise NotJsonError(f"not JSON: {where}") from error


def _checked(document: Any, formats: tuple[Format[T_co], ...]) -> T_co:
    schema = document.get("schema") if isinstance(document, dict) else None
    found = next((each for each in formats if each.schema == schema), None)
    if found is None:
        what = " or ".join(each.what for each in formats)
        schemas = " or ".join(f'"{each.schema}"' for each in formats)
        if schema is None:
            raise ValueError(f'not {what}: it has no "schema", which would be {schemas}')
        named = shortened(json.dumps(schema))
        raise ValueError(f'not {what}: "schema" is {named}, not {schemas}')
    version = document.get("version")
    if isinstance(version, int) and version > found.version:
        raise ValueError(f"made by a newer lightsleep (version {version}): upgrade lightsleep")
    for problem in _unprintable(document, ""):
        raise ValueError(problem)
    _check_schema(document, found.described)
    return found.build(document)


def _check_schema(document: dict[str, Any], described: Traversable) -> None:
    import jsonschema  # what makes a result runs where it is not installed

    error = jsonschema.exceptions.best_match(
        jsonschema.Draft202012Validator(json.loads(described.read_text("utf-8"))).iter_errors(
            document
        )
    )
    if error:
        where = ""
        for key in error.absolute_path:
            where = _inside(where, key)
        raise ValueError(f"{where or 'top level'}: {shortened(error.message)}")


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
        yield f"{where}: {shortened(repr(value))} holds a character that cannot be printed"


def _inside(where: str, key: str | int) -> str:
    if isinstance(key, int):
        return f"{where}[{key}]"
    return f"{where}.{key}" if where else key
