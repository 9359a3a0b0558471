# SPDX-License-Identifier: GPL-2.0-only
"""The reference tables of the pages are what they describe, and leave nothing out."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import jsonschema
import pytest
from click import Context, Group
from paths import ROOT

from lightsleep.cli import main

reference = runpy.run_path(str(ROOT / "scripts/reference.py"))
PAGES = sorted((ROOT / "docs").glob("*.md"))
TEXT = "".join(page.read_text() for page in PAGES)
SCHEMAS = sorted((ROOT / "lightsleep").glob("*/*.schema.json"))
BY_ITSELF = {"disable", "status", "lab list", "lab build", "lab series"}
"""Verbs with hardly an option; a sentence says it."""


def verbs() -> list[str]:
    context = Context(main)
    found = []
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        inside = command.list_commands(context) if isinstance(command, Group) else [""]
        found += [f"{name} {each}".strip() for each in inside]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tables_are_up_to_date(page: Path) -> None:
    assert reference["renewed"](page.read_text()) == page.read_text(), "run make reference"


@pytest.mark.parametrize("verb", sorted(set(verbs()) - BY_ITSELF))
def test_a_page_has_the_options_of_every_verb(verb: str) -> None:
    assert f"<!-- options of lightsleep {verb} -->" in TEXT


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.name)
def test_a_page_has_every_key_of_every_schema(path: Path) -> None:
    name = str(path.relative_to(ROOT / "lightsleep"))
    assert f"<!-- keys of {name} -->" in TEXT
    jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text()))
    rows = list(reference["key_rows"](name))
    assert len(rows) > 4
    assert [key for key, _, meaning in rows if not meaning] == []


def test_each_kind_of_document_has_a_name_of_its_own_and_a_version() -> None:
    described = [json.loads(path.read_text()) for path in SCHEMAS]
    names = [x["properties"]["schema"]["const"] for x in described]
    assert len({*names}) == len(names)
    assert [x["title"] for x in described if not {"schema", "version"} <= {*x["required"]}] == []


def test_a_table_of_a_description_becomes_a_list() -> None:
    rows = dict(list(reference["file_rows"]("sysfs-module-cpuidle_lightsleep"))[1:])
    assert rows["`mode`"].startswith(
        "How long an idle CPU polls before it halts: `adaptive`: for as long as pays on this CPU "
        "(default); `fixed`: always for `poll_limit_us` or, if"
    )
    assert rows["`mode`"].endswith("; `off`: not at all, whatever latency somebody requests.")


def test_files_of_one_name_are_told_apart() -> None:
    rows = [names for names, _ in reference["file_rows"]("sysfs-devices-system-cpu-idle-poll")]
    assert "`/sys/module/idle_poll/parameters/halt_cost_ns`" in rows
    assert "`polling_flag`" in rows
