# SPDX-License-Identifier: GPL-2.0-only
"""The man pages: complete, without a warning, and true of examples, exit statuses, and files."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from paths import ROOT

from lightsleep import cache
from lightsleep.cli import VERBS, main
from lightsleep.lab.cli import lab
from lightsleep.report.cli import report
from lightsleep.settings import journalled

script = runpy.run_path(str(ROOT / "scripts/man_pages.py"))
PAGES = script["PAGES"]
EXAMPLES = [example for page in PAGES.values() for example in page.examples]
DOCS = "".join(x.read_text() for x in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))))
EACH_WORDS = pytest.mark.parametrize("words", PAGES, ids=lambda words: words or "lightsleep")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of all pages."""
    folder = tmp_path_factory.mktemp("pages")
    subprocess.run([sys.executable, ROOT / "scripts/man_pages.py", folder], check=True)
    return folder


def page(pages: Path, words: str) -> Path:
    return pages / f"{f'lightsleep {words}'.strip().replace(' ', '-')}.1"


def test_each_command_has_a_page(pages: Path) -> None:
    inside = [f"lab {name}" for name in lab.commands]
    assert PAGES.keys() == {"", *VERBS, *inside}
    assert {x.name for x in pages.iterdir()} == {page(pages, words).name for words in PAGES}


@EACH_WORDS
def test_a_page_has_every_section(pages: Path, words: str) -> None:
    text = page(pages, words).read_text()
    (name,) = re.findall(r"(?ms)^\.SH NAME\n(.*?)\n\.SH ", text)
    assert re.fullmatch(r"[a-z\\-]+ \\- .*[^.]", name)  # . does not match the end of a line
    sections = re.findall(r"(?m)^\.SH (.*)$", text)
    expected = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES"]
    assert [x for x in sections if x in expected] == expected
    assert ("FILES" in sections) == bool(PAGES[words].files)


@EACH_WORDS
def test_a_page_says_where_the_documentation_is(pages: Path, words: str) -> None:
    """On a server without a clone, nothing else does."""
    see = page(pages, words).read_text().partition("\n.SH SEE ALSO\n")[2].replace("\\", "")
    assert f"in {script['DOCS']}." in see
    assert "Debian" not in see  # the package for RPM has the pages, too
    folder, name = script["DOCS"].rsplit("/", 1)
    assert folder == "/usr/share/doc/lightsleep"
    assert name in (ROOT / "debian/lightsleep.docs").read_text().split()
    assert {f"fBlightsleep-{verb}fP(1)" for verb in PAGES[words].see} <= set(re.split(r",?\s", see))


@pytest.mark.skipif(not shutil.which("lexgrog"), reason="needs the package man-db")
@EACH_WORDS
def test_man_shows_a_page_without_a_warning(pages: Path, words: str) -> None:
    file = page(pages, words)
    said = subprocess.run(["man", "--warnings", "-l", file], capture_output=True, text=True)
    assert (said.returncode, said.stderr) == (0, "")
    found = subprocess.run(["lexgrog", file], check=True, capture_output=True, text=True).stdout
    assert found.startswith(f'{file}: "{file.stem} - ')


def test_pages_are_the_same_where_only_click_and_rich_are_installed(
    pages: Path, tmp_path: Path
) -> None:
    """So are the packages built."""
    there = tmp_path / "there"
    there.mkdir()
    site = Path(click.__file__).parent.parent
    for name in ("click", "rich", "pygments", "markdown_it", "mdurl", "typing_extensions.py"):
        if (site / name).exists():
            (there / name).symlink_to(site / name)
    subprocess.run(
        [sys.executable, "-S", "-m", "scripts.man_pages", tmp_path / "pages"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(there), "PYTHONDONTWRITEBYTECODE": "1"},
        check=True,
    )
    for file in pages.iterdir():
        assert (tmp_path / "pages" / file.name).read_text() == file.read_text()


@pytest.mark.parametrize("example", dict.fromkeys(EXAMPLES))
def test_an_example_is_a_command_of_the_docs(example: str) -> None:
    assert re.search(rf"(?m){re.escape(example)}(?: *$|  |`)", DOCS)
    program, *words = shlex.split(example.removeprefix("sudo "))
    assert program == "lightsleep"
    command: click.Command = main
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found
        command = found
    command.make_context(program, words)  # raises UsageError where they cannot be parsed


@pytest.mark.parametrize("words", [x for x in PAGES if x not in ("", "lab")])
def test_examples_are_of_their_command(words: str) -> None:
    assert all(f"lightsleep {words}" in x for x in PAGES[words].examples)


def numbers(words: str) -> set[str]:
    return {x for x in script["statuses"](PAGES[words]) if x.isdigit()}


def test_exit_statuses_are_those_of_the_docs() -> None:
    table = (ROOT / "docs/enable.md").read_text().partition("## Exit status")[2]
    told = set(re.findall(r"(?m)^\| (\d+) \|", table))
    assert numbers("enable") == numbers("disable") == told
    for verb in ("scan", "measure"):
        text = (ROOT / f"docs/{verb}.md").read_text()
        (sentence,) = re.findall(r"(?s)Exit status: (.*?)\.(?:\s|$)", text)
        told = set(re.findall(r"(?:^|[,;]\s)(\d) ", sentence))
        assert numbers(verb) == told, verb


def test_files_are_those_that_commands_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with journalled.session(tmp_path, "try"):
        there = {f"/{x.relative_to(tmp_path)}" for x in tmp_path.rglob("*") if x.is_file()}
    assert set(PAGES["try"].files) == there
    assert [x.default for x in report.params if x.name == "output"] == [*PAGES["report"].files]
    for name in ("LIGHTSLEEP_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert [Path(x).expanduser() for x in PAGES["lab"].files] == [cache.folder()]
