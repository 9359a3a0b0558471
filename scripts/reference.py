# SPDX-License-Identifier: GPL-2.0-only
"""Writes the reference tables of pages anew, from what they describe: reference.py.

A table stands below one of these lines and a blank line:

- ``<!-- options of lightsleep VERB -->``: from the text that --help prints;
- ``<!-- files of NAME -->``: files of sysfs and debugfs, from Documentation/ABI/testing/NAME;
- ``<!-- keys of PACKAGE/NAME.schema.json -->``: keys of a JSON document, from its schema.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from lightsleep import cli
from lightsleep.markdown import table_of_markdown

ROOT = Path(__file__).parents[1]
ABI = ROOT / "kernel/Documentation/ABI/testing"
TABLE = re.compile(
    r"(?m)^(<!-- (options of lightsleep|files of|keys of) (.+) -->\n\n)(?:\|.*\n)*\n?"
)

CODE = re.compile(r"(?<!\w)--[a-z-]+|\b[0-9]+-[0-9]+(,[0-9]+)*")
"""What is code in a text: options, and lists of CPUs."""

NAMES = re.compile(r"(?<![`,] )(?<!`)\b[a-zA-Z]+(?:_\w+)+\b(?:\.\w+)?|/(?:proc|sys)/[\w/]+")
"""What is code in the description of a file: names of other files and of options of the kernel."""


def option_rows(verb: str) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a verb's options; a verb may be two words."""
    yield "option", "meaning"
    command: click.Command = cli.main
    context = click.Context(cli.main)
    for name in verb.split():
        assert isinstance(command, click.Group), verb
        found = command.get_command(context, name)
        assert found, verb
        command = found
    for option in command.params:
        if isinstance(option, click.Option) and (record := option.get_help_record(context)):
            names, meaning = record
            yield f"`{names}`", _code(meaning)


def _code(text: str) -> str:
    """Set what is code in a text as such, where it is not yet."""
    parts = " ".join(text.split()).split("`")
    parts[::2] = [CODE.sub(r"`\g<0>`", part) for part in parts[::2]]
    return "`".join(parts)


def file_rows(name: str) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a file of Documentation/ABI; a file by its last part, where that is one."""
    yield "file", "meaning"
    entries = re.split(r"\n\n(?=What:)", (ABI / name).read_text())
    paths = [re.findall(r"(?m)^What:\s+(\S*[^/\s])$", entry) for entry in entries]
    last = [path.rsplit("/", 1)[1] for entry in paths for path in entry]
    for entry, of_entry in zip(entries, paths, strict=True):
        if not of_entry:
            continue  # a folder
        names = [x.rsplit("/", 1)[1] for x in of_entry]
        if any(last.count(x) > 1 for x in names):
            names = of_entry
        text = " ".join(_plain(entry.partition("Description:")[2]).split())
        for mark, words in (("(RO)", "Read-only."), ("(WO)", "Write-only."), ("(RW) ", "")):
            text = text.replace(mark, words, 1)
        yield ", ".join(f"`{x}`" for x in names), NAMES.sub(r"`\g<0>`", text)


def _plain(description: str) -> str:
    """Return a description with the rows of its tables as a list: adaptive: as long as pays; ..."""
    text, *tables = re.split(r"(?m)^\t\t(?==+ =+$)", description)
    for part in tables:
        border, *rows = part.split("\n")
        width = border.index(" ")
        if rows and rows[0].strip():
            pairs: list[tuple[str, str]] = []
            for row in (x.removeprefix("\t\t") for x in rows):
                if row[:width].strip():
                    pairs.append((row[:width].strip(), row[width:].strip()))
                elif row.strip():
                    pairs[-1] = (pairs[-1][0], f"{pairs[-1][1]} {row.strip()}")
            said = [f"`{name}`: {meaning}" for name, meaning in pairs]
            # What is too long for one sentence is one for each row.
            text += ("; " if len(said) < 5 else ". ").join(said) + "."
        else:
            text += "\n".join(rows)
    return text


def key_rows(path: str) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a schema: each key with the path to it, its type, and what it means."""
    yield "key", "type", "meaning"
    schema = json.loads((ROOT / "lightsleep" / path).read_text())
    yield from _keys(schema, schema, "")


def _keys(schema: dict[str, Any], part: dict[str, Any], where: str) -> Iterator[tuple[str, ...]]:
    for name, given in part.get("properties", {}).items():
        value = _resolved(schema, given)
        path = f"{where}.{name}".lstrip(".")
        yield f"`{path}`", _type(schema, value), _sentence(given, value)
        yield from _inside(schema, value, path)


def _inside(schema: dict[str, Any], value: dict[str, Any], path: str) -> Iterator[tuple[str, ...]]:
    yield from _keys(schema, value, path)
    for form in (*value.get("anyOf", ()), *value.get("oneOf", ())):
        yield from _inside(schema, _resolved(schema, form), path)
    for key, mark in (("items", "[]"), ("additionalProperties", ".NAME")):
        if isinstance(value.get(key), dict):
            yield from _inside(schema, _resolved(schema, value[key]), f"{path}{mark}")


def _resolved(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Return what a part refers to."""
    reference = part.get("$ref")
    if not reference:
        return part
    found: dict[str, Any] = schema["$defs"][reference.rpartition("/")[2]]
    return found | {key: value for key, value in part.items() if key != "$ref"}


def _type(schema: dict[str, Any], value: dict[str, Any]) -> str:
    if "const" in value:
        return f"`{json.dumps(value['const'])}`"
    if "enum" in value:
        return " or ".join(f"`{json.dumps(x)}`" for x in value["enum"])
    forms = [_resolved(schema, form) for form in (*value.get("anyOf", ()), *value.get("oneOf", ()))]
    if forms:
        return " or ".join(dict.fromkeys(_type(schema, form) for form in forms))
    types = value.get("type", "any")
    return " or ".join(types) if isinstance(types, list) else str(types)


def _sentence(given: dict[str, Any], value: dict[str, Any]) -> str:
    text = given.get("description") or value.get("description") or value.get("title", "")
    text = _code(text)
    return text[:1].upper() + text[1:] + ("." if text and text[-1] not in ".?" else "")


ROWS = {"options of lightsleep": option_rows, "files of": file_rows, "keys of": key_rows}


def table(kind: str, name: str) -> str:
    """Return a table as Markdown."""
    head, *rows = ROWS[kind](name)
    escaped = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    return table_of_markdown(head, escaped) + "\n"


def renewed(page: str) -> str:
    """Return a page with its tables as they should be, each with a blank line below it.

    Without one, Markdown takes the next paragraph for a row.
    """
    new = TABLE.sub(lambda found: found[1] + table(found[2], found[3]) + "\n", page)
    return new.rstrip() + "\n"


@click.command()
def main() -> None:
    """Write the tables in docs/ anew, and name the pages that changed."""
    for file in sorted((ROOT / "docs").glob("*.md")):
        if (page := file.read_text()) != (new := renewed(page)):
            file.write_text(new)
            click.echo(f"wrote {file.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
