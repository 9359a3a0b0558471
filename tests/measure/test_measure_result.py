# SPDX-License-Identifier: GPL-2.0-only
"""Reading result files of a measurement: what is wrong with one, and where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from measurements import made_up

from lightsleep import document as document_module
from lightsleep.document import load
from lightsleep.errors import LightsleepError
from lightsleep.files import write_json
from lightsleep.measure.result import FORMAT

Document = dict[str, Any]
Place = tuple[str | int, ...]


@pytest.fixture
def document() -> Document:
    """A busy row at 0, the states from 1 on; C10 at 5 was never entered."""
    loaded: Document = json.loads(json.dumps(made_up((1,), ("ipi",), samples=8).document()))
    return loaded


def refusal(path: Path, content: object) -> str:
    """Return how load() refuses a file with this content (text or JSON)."""
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(LightsleepError) as caught:
        load(path, FORMAT)
    assert str(path) in caught.value.message
    return caught.value.message


def put(document: Document, place: Place, value: Any) -> None:
    inner: Any = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value


@pytest.mark.parametrize("mode", ["module", "userspace"])
def test_what_is_written_is_read_back(tmp_path: Path, mode: Any) -> None:
    result = made_up(mode=mode)
    write_json(tmp_path / "r.json", result.document())
    assert load(tmp_path / "r.json", FORMAT) == result


def test_every_cut_is_noticed(tmp_path: Path, document: Document) -> None:
    text = json.dumps(document, indent=1)
    for length in range(1, len(text), 97):
        assert "looks cut off" in refusal(tmp_path / "cut.json", text[:length])


def test_flipped_bytes_never_end_in_a_traceback(tmp_path: Path, document: Document) -> None:
    path, data = tmp_path / "flipped.json", bytearray(json.dumps(document).encode())
    errors = 0
    for position in range(0, len(data), 31):
        damaged = data.copy()
        damaged[position] ^= 0x15
        path.write_bytes(damaged)
        try:
            load(path, FORMAT)
        except LightsleepError:  # a changed digit may be a good file, too
            errors += 1
    assert errors > 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "the file is empty"),
        ("hello", "not JSON: line 1, column 1"),
        ("[]", 'not a result of a measurement: it has no "schema"'),
        ('{"schema": "lightsleep.compare"}', 'is "lightsleep.compare", not "lightsleep.measure"'),
        ('{"schema": ["lightsleep.measure"]}', 'is ["lightsleep.measure"], not "lightsleep.mea'),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_not_a_measurement(tmp_path: Path, content: str, said: str) -> None:
    assert said in refusal(tmp_path / "result.json", content)


def test_versions(tmp_path: Path, document: Document) -> None:
    said = refusal(tmp_path / "new.json", document | {"version": 2, "rows": "changed"})
    assert "made by a newer lightsleep (version 2): upgrade" in said
    assert "version: 1 was expected" in refusal(tmp_path / "old.json", document | {"version": 0})


def test_oversize_files_are_refused(
    tmp_path: Path, document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_module, "MAX_BYTES", 1 << 20)
    document["rows"][1]["latencies_ns"] *= 100_000
    assert "more than 1 MiB" in refusal(tmp_path / "huge.json", document)


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("mode",), "guess", "mode: 'guess' is not one of"),
        (("rows",), {}, "rows: {} is not of type 'array'"),
        (("notes", 1), 7, "notes[1]: 7 is not of type 'string'"),
        (("notes", 0), "\x1b[2J", "notes[0]: '\\x1b[2J' holds a character that cannot"),
        (("settings", "samples"), 0, "settings.samples: 0 is less than"),
        (("settings",), {"cpus": [1], "sources": ["ipi"]}, "settings: 'samples' is a required"),
        (("environment", "cpus"), "4", "environment.cpus: '4' is not of type"),
        (("rows", 1, "cpu"), -1, "rows[1].cpu: -1 is less than"),
        (("rows", 1, "cpu"), True, "rows[1].cpu: True is not of type 'integer'"),
        (("rows", 1, "kind"), "idle", "rows[1].kind: 'idle' is not one of"),
        (("rows", 1, "state"), None, "rows[1].state: None is not of type 'integer'"),
        (("rows", 0, "state"), 3, "rows[0].state: 3 is not of type 'null'"),
        (("rows", 1, "path"), "magic", "rows[1].path: 'magic' is not one of"),
        (("rows", 1, "advertised_us"), -2, "rows[1].advertised_us: -2 is less than"),
        (("rows", 1, "latencies_ns", 2), 1.5, "rows[1].latencies_ns[2]: 1.5 is not of type"),
        (("rows", 1, "latencies_ns", 2), float("nan"), "latencies_ns[2]: nan is not a finite"),
        (("rows", 1, "latencies_ns", 2), 10**30, "rows[1].latencies_ns[2]: 1000"),
        (("rows", 1, "latencies_ns"), None, "rows[1].latencies_ns: None is not of type 'array'"),
        (("rows", 1, "invalid"), {"wrong-state": -1}, "rows[1].invalid.wrong-state: -1 is less"),
        (("rows", 1, "raw"), 5, "rows[1].raw: 5 is not of type 'object', 'null'"),
        (("rows", 1, "raw", "p99_ns"), "1", "rows[1].raw.p99_ns: '1' is not of type"),
        (("rows", 1, "raw", "ci_ns"), [1], "rows[1].raw.ci_ns: [1] is too short"),
        (("rows", 1, "verdict", "kind"), "fine", "rows[1].verdict.kind: 'fine' is not one of"),
        (("rows", 1, "verdict"), {}, "rows[1].verdict: "),
        (("rows", 1, "raw"), None, "rows[1].raw: null, but latencies_ns holds 8 samples"),
        (("rows", 1, "raw", "count"), 9, "rows[1].raw.count: 9, but latencies_ns holds 8"),
        (("rows", 1, "subtracted", "count"), 7, "rows[1].subtracted.count: 7, but latencies_ns"),
        (("rows", 1, "latencies_ns"), [], "rows[1].raw.count: 8, but latencies_ns holds 0"),
        (("rows", 2, "state"), 0, "rows[2]: the CPU, source and state of rows[1] again"),
    ],
)
def test_the_error_names_the_place(
    tmp_path: Path, document: Document, place: Place, value: Any, said: str
) -> None:
    put(document, place, value)
    assert said in refusal(tmp_path / "bad.json", document)


@pytest.mark.parametrize("key", list(made_up(samples=1).document()))
def test_no_key_may_be_missing(tmp_path: Path, document: Document, key: str) -> None:
    del document[key]
    assert key in refusal(tmp_path / "short.json", document)


@pytest.mark.parametrize("key", list(made_up(samples=1).document()["rows"][0]))
def test_no_key_of_a_row_may_be_missing(tmp_path: Path, document: Document, key: str) -> None:
    del document["rows"][3][key]
    said = refusal(tmp_path / "short.json", document)
    assert "rows[3]" in said
    assert key in said


def test_unknown_keys_are_tolerated(tmp_path: Path, document: Document) -> None:
    write_json(tmp_path / "before.json", document)
    places: list[Place] = [
        (),
        ("settings",),
        ("rows", 1),
        ("rows", 1, "raw"),
        ("rows", 1, "verdict"),
    ]
    for place in places:
        put(document, (*place, "added_later"), {"anything": [1, "x"]})
    write_json(tmp_path / "after.json", document)
    before, after = (load(tmp_path / f"{when}.json", FORMAT) for when in ("before", "after"))
    assert after.rows == before.rows
