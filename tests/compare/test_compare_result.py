# SPDX-License-Identifier: GPL-2.0-only
"""Reading result files: whatever is wrong with one, an error says what and where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from comparisons import ROLES, made_up

from lightsleep import document as document_module
from lightsleep.compare.result import FORMAT
from lightsleep.document import load
from lightsleep.errors import LightsleepError
from lightsleep.files import write_json

Document = dict[str, Any]


@pytest.fixture
def document() -> Document:
    return made_up().document()


def refusal(path: Path, content: object) -> str:
    """Return how load() refuses a file with this content (text, bytes or JSON)."""
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(LightsleepError) as caught:
        load(path, FORMAT)
    assert str(path) in caught.value.message
    return caught.value.message


def test_what_is_written_is_read_back(tmp_path: Path, document: Document) -> None:
    write_json(tmp_path / "deep" / "result.json", document)
    assert load(tmp_path / "deep" / "result.json", FORMAT) == made_up()


def test_every_cut_is_noticed(tmp_path: Path, document: Document) -> None:
    path, text = tmp_path / "cut.json", json.dumps(document, indent=1)
    for length in [*range(0, len(text) - 1, 7), len(text) - 1]:
        said = refusal(path, text[:length])
        assert "empty" in said if length == 0 else "looks cut off" in said


def test_a_cut_inside_a_character_is_noticed(tmp_path: Path, document: Document) -> None:
    document["title"] = "µ" * 50
    data = json.dumps(document, ensure_ascii=False).encode()
    assert "not UTF-8 text: byte" in refusal(tmp_path / "x", data[: data.index(b"\xc2\xb5") + 1])


def test_flipped_bytes_never_end_in_a_traceback(tmp_path: Path, document: Document) -> None:
    path, data = tmp_path / "flipped.json", bytearray(json.dumps(document).encode())
    errors = 0
    for position in range(0, len(data), 11):
        damaged = data.copy()
        damaged[position] ^= 0x15
        path.write_bytes(damaged)
        try:
            load(path, FORMAT)
        except LightsleepError:  # a changed digit is a good file, too
            errors += 1
    assert errors > 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file is empty"),
        (b"\xff\xfe\x00", "not UTF-8 text: byte 0 is 0xff"),
        ("hello", "not JSON: line 1, column 1"),
        ('{"schema":\n oops}', "not JSON: line 2, column 2"),
        ('{"schema": "fio"}\n{}', "not JSON: line 2, column 1: Extra data"),
        ('{"schema": "fio"} trailing', "not JSON: line 1, column 19: Extra data"),
        ("[]", 'it has no "schema", which would be "lightsleep.compare"'),
        ("null", 'it has no "schema", which would be "lightsleep.compare"'),
        ('{"schema": "fio"}', '"schema" is "fio", not "lightsleep.compare"'),
        ('{"schema": ["\\u001b"]}', '"schema" is ["\\u001b"], not "lightsleep.compare"'),
        ("[" * 100_000, "nested too deeply"),
        ('{"schema": "lightsleep.compare", "version": ' + "9" * 5000 + "}", "digits"),
    ],
)
def test_what_is_not_a_result(tmp_path: Path, content: str | bytes, said: str) -> None:
    assert said in refusal(tmp_path / "result.json", content)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(LightsleepError, match=r"cannot read .*gone.json: No such file"):
        load(tmp_path / "gone.json", FORMAT)
    with pytest.raises(LightsleepError, match=r"cannot read .*: Is a directory"):
        load(tmp_path, FORMAT)


def test_oversize_files_are_refused_before_they_are_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_module, "MAX_BYTES", 1 << 20)
    assert "more than 1 MiB" in refusal(tmp_path / "huge", b" " * ((1 << 20) + 1))


def test_a_newer_version_asks_for_an_upgrade(tmp_path: Path, document: Document) -> None:
    said = refusal(tmp_path / "new.json", document | {"version": 2, "arms": "changed"})
    assert "made by a newer lightsleep (version 2): upgrade" in said


def put(document: Document, path: tuple[str | int, ...], value: Any) -> None:
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value


PIPE = ("metrics", "sched_pipe_s")


def claimed(**bounds: int) -> Document:
    return {"arm": "lightsleep", "reference": "stock", "metrics": ["sched_pipe_s"], **bounds}


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ((*PIPE, "samples", "stock", 3), "fast", "metrics.sched_pipe_s.samples.stock[3]: 'fast'"),
        ((*PIPE, "samples", "stock", 3), None, "metrics.sched_pipe_s.samples.stock[3]: None"),
        ((*PIPE, "samples", "stock", 3), True, "metrics.sched_pipe_s.samples.stock[3]: True"),
        ((*PIPE, "samples", "stock", 3), float("nan"), "samples.stock[3]: nan is not a finite"),
        ((*PIPE, "samples", "stock", 3), float("inf"), "samples.stock[3]: inf is not a finite"),
        ((*PIPE, "samples", "stock", 3), 10**400, "metrics.sched_pipe_s.samples.stock[3]: 1000"),
        ((*PIPE, "samples", "stock"), 1.0, "metrics.sched_pipe_s.samples.stock: 1.0"),
        ((*PIPE, "samples", "strange"), [1.0], "metrics.sched_pipe_s.samples: strange is not"),
        ((*PIPE, "better"), "faster", "metrics.sched_pipe_s.better: 'faster' is not one of"),
        (("metrics",), [], "metrics: [] is not of type 'object'"),
        (("arms",), [], "arms: "),
        (("arms",), ["stock", "stock"], "arms: "),
        (("roles", "control"), "boss", "roles.control: 'boss' is not one of"),
        (("roles", "control"), "baseline", "exactly one arm must be the baseline"),
        (("roles", "stock"), "control", "exactly one arm must be the baseline"),
        (("roles", "ghost"), "control", "roles: ghost is not among the arms"),
        (("roles",), {"stock": "baseline"}, "roles: control has no role"),
        (("protocol", "runs"), "six", "protocol.runs: 'six'"),
        (("protocol", "order"), [["stock"]], "protocol.order: 1 rounds are named, but there were"),
        (("protocol", "order", 3), [*ROLES][:3], "protocol.order[3]: lightsleep is missing, and"),
        (("protocol", "order", 3), [*ROLES, "stock"], "protocol.order[3]: 5 arms are named, but"),
        (("claims",), [claimed(at_least=10**400)], "claims[0].at_least: 1000"),
        (("claims",), [claimed(at_most=10**400)], "claims[0].at_most: 1000"),
        (("version",), 0, "version: 1 was expected"),
        (("title",), "\x1b[31mred", "title: '\\x1b[31mred' holds a character that cannot"),
        (("title",), "half \ud800", "title: 'half \\ud800' holds a character that cannot"),
        (("environment", "\x07"), 1, "a key in environment: '\\x07' holds"),
    ],
)
def test_the_error_names_the_place(
    tmp_path: Path, document: Document, path: tuple[str | int, ...], value: Any, said: str
) -> None:
    put(document, path, value)
    assert said in refusal(tmp_path / "bad.json", document)


@pytest.mark.parametrize("key", sorted(made_up().document().keys() - {"claims"}))
def test_no_key_may_be_missing(tmp_path: Path, document: Document, key: str) -> None:
    del document[key]
    assert key in refusal(tmp_path / "short.json", document)


def test_results_of_an_older_lightsleep_have_no_claims(tmp_path: Path, document: Document) -> None:
    del document["claims"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(document))
    assert load(path, FORMAT).claims == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"arm": "nobody"}, "claims[0]: nobody is not among the arms"),
        ({"reference": "nobody"}, "claims[0]: nobody is not among the arms"),
        ({"metrics": ["naps"]}, "claims[0]: naps is not among the metrics"),
        ({"metrics": []}, "claims[0].metrics"),
        ({"metrics": ["ipis", "idle_residency_pct"]}, "better in both directions"),
        ({"metrics": ["wakes_without_ipi"]}, "no direction that is better"),
        ({"at_most": "much"}, "claims[0].at_most"),
        ({"reference": "lightsleep"}, "claims[0]: lightsleep is compared with itself"),
        ({"reference": None}, "without a reference, it needs bounds of one metric"),
        (
            {"reference": None, "at_most": 1, "metrics": ["sched_pipe_s", "ipis"]},
            "without a reference, it needs bounds of one metric",
        ),
        ({"at_least": 2, "at_most": 0.5}, "claims[0]: at_least is above at_most"),
        ({"at_most": 0}, "claims[0].at_most: 0 bounds the ratio lightsleep / stock, and a ratio"),
        ({"at_least": -0.05}, "claims[0].at_least: -0.05 bounds the ratio lightsleep / stock"),
    ],
)
def test_a_claim_that_nobody_could_judge_is_refused(
    tmp_path: Path, document: Document, changes: Document, said: str
) -> None:
    document["claims"][0] |= changes
    assert said in refusal(tmp_path / "x.json", document)


def test_a_round_in_which_an_arm_is_missing_is_named(tmp_path: Path, document: Document) -> None:
    del document["metrics"]["ipis"]["samples"]["lightsleep"][3]
    said = refusal(tmp_path / "x.json", document)
    assert "metrics.ipis.samples: lightsleep has 9, but there were 10 rounds" in said


def test_an_overflowing_number_is_not_finite(tmp_path: Path, document: Document) -> None:
    document["metrics"]["ipis"]["samples"]["stock"][0] = 12345678
    text = json.dumps(document).replace("12345678", "1e999")
    assert "metrics.ipis.samples.stock[0]: inf" in refusal(tmp_path / "x.json", text)


def test_long_messages_are_shortened(tmp_path: Path, document: Document) -> None:
    document["metrics"] = [0.5] * 100_000
    assert len(refusal(tmp_path / "long.json", document)) < 1000


def test_an_arm_without_samples_is_empty(tmp_path: Path, document: Document) -> None:
    del document["metrics"]["ipis"]["samples"]["control"]
    write_json(tmp_path / "r.json", document)
    assert load(tmp_path / "r.json", FORMAT).metrics["ipis"].samples["control"] == []


def test_unknown_keys_are_tolerated(tmp_path: Path, document: Document) -> None:
    for place in ((), ("environment",), ("protocol",), PIPE):
        put(document, (*place, "added_later"), {"anything": [1, "x"]})
    write_json(tmp_path / "r.json", document)
    assert load(tmp_path / "r.json", FORMAT).arms == made_up().arms


def test_writing_refuses_what_json_cannot_say_and_keeps_the_old_file(
    tmp_path: Path, document: Document
) -> None:
    path = tmp_path / "r.json"
    write_json(path, document)
    document["metrics"]["ipis"]["samples"]["stock"][0] = float("nan")
    with pytest.raises(LightsleepError, match="cannot write"):
        write_json(path, document)
    assert load(path, FORMAT) == made_up()
    assert list(tmp_path.iterdir()) == [path]


def test_an_older_result_does_not_say_which_times_are_amounts(
    tmp_path: Path, document: Document
) -> None:
    name, metric = next(iter(document["metrics"].items()))
    metric.pop("amount", None)
    for title, amount in (("Redis: host CPU time", True), ("Wall time", False)):
        metric["title"] = title
        write_json(tmp_path / "old.json", document)
        assert load(tmp_path / "old.json", FORMAT).metrics[name].amount == amount
    metric |= {"title": "CPU time", "amount": False}
    write_json(tmp_path / "new.json", document)
    assert load(tmp_path / "new.json", FORMAT).metrics[name].amount is False
