# SPDX-License-Identifier: GPL-2.0-only
"""The pages of documentation cite figures of results only where the result's own page gives them.

``make results`` writes docs/results/NAME.md from NAME.json. The rules for README.md, for the pages
beside it, and for every other page in docs/:

1. A figure is cited inside of the text of a link to its page: [4.6 times faster](results/x.md).
   Every number in such a text occurs in the linked page, with the same unit if it has one. All
   numbers of one text occur in one row, item or paragraph of that page.
2. A paragraph, a table's row or an item of a list that links into docs/results has no measured
   figure outside of such texts. Nor has a paragraph right before or after such a paragraph, or
   before or after a table or list that has such a row or item. Measured is a number with decimals
   or a thousands separator, or one that a unit follows (%, times, points, a unit of time, per
   second), also if it is in words: "ten times", "half", "twice".
3. No sentence anywhere says outside of such a text how many times, percent or points something is
   faster, slower, higher, lower, more or fewer.
4. What has a † wherever its page gives it is cited with the words "smaller than what the control
   could have missed", in the same paragraph, row or item.
5. A figure of the servers of the experiment programs is cited with the words "in the same guest":
   it says nothing about clients on other machines.
6. No cell of a table, and no item of a list, is a value with decimals and nothing else outside of
   such a text: 0.24 s, or 0.24 s (0.22 to 0.26 s). Pages that a program writes have such tables.

Numbers in code, inline or in a block, are free: versions, options, and examples of output. A link
to a JSON file of a result counts as one to its page. What words alone say, no test can check:
compare them with the linked page.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pytest
from markdown_it import MarkdownIt  # which rich brings
from markdown_it.token import Token
from paths import ROOT

from lightsleep.compare import words

RESULTS = "docs/results"
PAGES = [
    str(path.relative_to(ROOT))
    for path in (*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md")))
    if path.parent != ROOT / RESULTS
]

UNITS = {
    "times": r"times|×|x",
    "%": r"%|per ?cent",
    "points": r"(?:percentage )?points?",
    "/s": r"(?:1)?/s|per second",
    "ms/s": r"ms/s",
    "ns": r"ns|nanoseconds?",
    "us": r"us|µs|microseconds?",
    "ms": r"ms|milliseconds?",
    "s": r"s|seconds?",
    "min": r"min|minutes?",
    "h": r"h|hours?",
}
UNIT = "|".join(f"(?P<unit{i}>{spelt})" for i, spelt in enumerate(UNITS.values()))
IN_WORDS = (
    "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|forty|fifty|"
    "hundred|thousand"
)
PARTS = (
    r"half|halve[sd]?|twice|thrice|doubled?|doubles|tripled?|triples|tenfold|"
    r"(?:a|one|two|three|four) (?:third|quarter|fifth|tenth)s?"
)
# Not the 64 of x86_64, the 100 of fixed-100us, nor a part of 6.12.117.
FIGURE = re.compile(
    rf"(?<![\w.,-])(?:(?P<digits>-?\d+(?:,\d{{3}})*(?:\.\d+)?)(?!\d|[.,]\d)|(?P<words>{IN_WORDS})\b"
    rf"|(?P<parts>{PARTS})\b)(?:[\s-]*(?:{UNIT})(?!\w))?",
    re.IGNORECASE,
)
COMPARES = re.compile(
    r"\s*(?:as (?:fast|slow|high|low|many|much)|faster|slower|higher|lower|more|fewer)\b"
)
PLAIN = {"softbreak": " ", "hardbreak": " ", "code_inline": "`"}
COMPARED = {"times", "%", "points"}
PIECES = re.compile(r"\||; |\. ")
"""What stands between the cells and sentences of a result's page."""
MISSED = "smaller than what the control could have missed"
GENERATED = "<!-- Written by "


@dataclass(frozen=True)
class Figure:
    """A number of a text, or what stands for one, as it is written."""

    text: str
    number: str
    unit: str
    measured: bool
    compares: bool


@dataclass
class Block:
    """A paragraph, a heading, a table's row or an item of a list."""

    line: int
    place: int
    """Which one it is of what the page consists of; rows of a table, items of a list have one."""
    is_paragraph: bool = False
    """Whether it is no heading, and in no table or list."""
    said: str = ""
    """What is outside of the texts of links to results, without code."""
    cited: list[tuple[str, str]] = field(default_factory=list)
    """The texts of links to results, each with the path of its page."""
    about_results: bool = False
    """Whether it links to anything in docs/results."""


def figures(text: str) -> Iterator[Figure]:
    """Yield the numbers of a text; a number in words is one only if a unit follows."""
    for found in FIGURE.finditer(" ".join(text.split())):
        units = [name for i, name in enumerate(UNITS) if found[f"unit{i}"]]
        if found["words"] and not units:
            continue
        unit = units[0] if units else ""
        yield Figure(
            text=found[0],
            number=(found["digits"] or found["words"] or found["parts"]).lower(),
            unit=unit,
            measured=bool(unit or not found["digits"] or re.search("[.,]", found["digits"])),
            compares=bool(COMPARES.match(found.string, found.end()))
            and (unit in COMPARED or not found["digits"]),
        )


def blocks(page: str, markdown: str, results: Iterable[str]) -> list[Block]:
    """Return the blocks of a page."""
    found: list[Block] = []
    place, in_row, outermost = 0, False, ""
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        if token.level == 0 and token.nesting >= 0:
            place, outermost = place + 1, token.type
        if token.type in ("tr_open", "tr_close"):
            in_row = token.type == "tr_open"
        if token.type == "tr_open" or (token.type == "inline" and not in_row):
            line = token.map[0] + 1 if token.map else 0
            found.append(Block(line, place, outermost == "paragraph_open"))
        if token.type == "inline":
            read(token, found[-1], page, results)
    return found


def read(inline: Token, block: Block, page: str, results: Iterable[str]) -> None:
    """Add a text to a block of a page; a ` stands where code or a link to a result was."""
    cites = ""
    for token in inline.children or ():
        if token.type in ("link_open", "image"):
            path = target(page, str(token.attrs.get("href") or token.attrs.get("src")))
            block.about_results |= path == RESULTS or path.startswith(f"{RESULTS}/")
            if token.type == "link_open" and path in results:
                cites = path
                block.cited.append((path, ""))
                block.said += "`"
        elif token.type == "link_close":
            cites = ""
        text = PLAIN.get(token.type, token.content)
        if cites:
            block.cited[-1] = (cites, block.cited[-1][1] + text)
        else:
            block.said += text
    block.said += " | "


def target(page: str, href: str) -> str:
    """Return the path that a link of a page leads to; that of a page if it leads to a result."""
    path = posixpath.join(posixpath.dirname(page), href.split("#")[0])
    return re.sub(rf"^({RESULTS}/.+)\.json$", r"\1.md", posixpath.normpath(path))


def could_be_missed(text: str, result: str) -> bool:
    """Return whether what a text cites has a † wherever the result's page gives it."""
    cited = list(figures(text))
    if not cited or words.DAGGER not in result:
        return False
    pieces = [x for x in PIECES.split(" ".join(result.split())) if gives(x, cited)]
    return bool(pieces) and all(x.rstrip().endswith(words.DAGGER) for x in pieces)


def gives(piece: str, cited: Iterable[Figure]) -> bool:
    """Return whether a piece of a page has these figures, and their units if they have some."""
    given = {(x.number, x.unit) for x in figures(piece)}
    numbers = {number for number, _ in given}
    return all((x.number, x.unit) in given if x.unit else x.number in numbers for x in cited)


def is_value(cell: str) -> bool:
    """Return whether a cell is nothing but a value with decimals and a unit, and its interval."""
    cell = cell.strip()
    first = next(figures(cell), None)
    return bool(
        first
        and first.unit
        and re.search("[.,]", first.number)
        and re.fullmatch(rf"{re.escape(first.text)}(?: \([^)]*\))?", cell)
    )


def apart(text: str, result: str) -> bool:
    """Return whether what a text cites is nowhere together in the result's page."""
    cited = list(figures(text))
    return bool(cited) and not any(gives(line, cited) for line in result.splitlines())


def check(page: str, markdown: str, results: Mapping[str, str]) -> list[str]:
    """Return what is wrong with a page; ``results`` are the pages of results, by path."""
    wrong = []
    found = blocks(page, markdown, results)
    about = {block.place for block in found if block.about_results}
    for block in found:
        beside = block.is_paragraph and not about.isdisjoint({block.place - 1, block.place + 1})
        for path, text in block.cited:
            given = {(x.number, x.unit) for x in figures(results[path])}
            numbers = {number for number, _ in given}
            missing = [
                f"{page}:{block.line}: {x.text!r} is not in {path}: cite what that page gives"
                for x in figures(text)
                if ((x.number, x.unit) not in given if x.unit else x.number not in numbers)
            ]
            if not missing and apart(text, results[path]):
                missing = [
                    f"{page}:{block.line}: {text!r} is in {path}, but not in one row or paragraph: "
                    "cite each in a link of its own"
                ]
            wrong += missing
        wrong += [
            f"{page}:{block.line}: {cell.strip()!r} must be in the text of a link to its result"
            for cell in block.said.split("|")
            if GENERATED not in markdown and is_value(cell)
        ]
        wrong += [
            f"{page}:{block.line}: {text!r} has a {words.DAGGER} in {path}: say that it is {MISSED}"
            for path, text in block.cited
            if MISSED not in " ".join(block.said.split()) and could_be_missed(text, results[path])
        ]
        wrong += [
            f"{page}:{block.line}: {x.text!r} must be in the text of a link to its result, or go"
            for x in figures(block.said)
            if x.compares or (x.measured and (block.about_results or beside))
        ]
    return wrong


def pages_of_results() -> dict[str, str]:
    """Return the pages of results by path, without the example of how to read them."""
    written = {
        str(x.relative_to(ROOT)): x.read_text().replace(words.DETECTABLE, "")
        for x in ROOT.glob(f"{RESULTS}/*.md")
    }
    del written[f"{RESULTS}/README.md"]
    return written


@pytest.mark.parametrize("page", PAGES)
def test_pages_cite_figures_as_results_give_them(page: str) -> None:
    assert not check(page, (ROOT / page).read_text(), pages_of_results())


@pytest.mark.parametrize("page", PAGES)
def test_figures_of_servers_say_where_their_clients_were(page: str) -> None:
    results = pages_of_results()
    for block in blocks(page, (ROOT / page).read_text(), results):
        cited = [text for path, text in block.cited if path.startswith(f"{RESULTS}/programs-")]
        if any(figure.measured for text in cited for figure in figures(text)):
            assert "in the same guest" in block.said, f"{page}:{block.line}"


MADE_UP = {
    "docs/results/a.md": "| a | 0.402 s (0.39 to 0.41 s) | 3.60 × faster | 29,546 us | 41.5 % |\n"
    "Emulated, 12 rounds in 6 boots. -0.5 points. fixed-100us on x86_64 6.12.117, 2026-11-25",
    "docs/results/b.md": "7.25 times slower",
    "docs/results/c.md": "| 0.45 s | ✘ 1.05 × slower (95 % CI 1.01 to 1.09 ×) † | 0.45 s |\n"
    "| held: 1.06 (95 % CI 1.02 to 1.10) † | 1.06 s |",
}


@pytest.mark.parametrize(
    "text",
    [
        "It is [3.60 times faster](results/a.md).",
        "It is [3.60 × faster\nthan before](results/a.md), emulated.",
        "It took [0.402 s (0.39 to 0.41 s)](results/a.md), and [29,546 us](results/a.json).",
        "It took [12 rounds](results/a.md#how-it-was-measured), and [7.25 times](results/b.md).",
        "It changed by [-0.5 points](results/a.md).",
        "See [six servers on x86_64](results/a.md), of 3 clients, on two CPUs.",
        "See [the result](results/a.md). It ran on `6.12` with `--for 10s` in `5 rounds`.",
        "See [the result](results/a.md).\n\n    it is 9.99 times faster\n\n```\n5 %\n```",
        "See [the result](results/a.md).\n\n# How\n\nIt polls for 20 us, at most half of the time.",
        "See [the result](results/a.md).\n\nSo.\n\nIt polls for 20 us, at most half of the time.",
        "- See [the result](results/a.md).\n- It polls for 20 us.",
        "| [the result](results/a.md) |\n| --- |\n| 20 us |",
        "It takes at most 5 % of a CPU, and more with 10 CPUs.",
        "<!-- 9.99 times faster -->",
        "![An example](results/a.svg)",
        "[1.05 times slower](results/c.md), smaller than what the control\ncould have missed",
        "It took [0.45 s](results/c.md), or [1.06 s](results/c.md), and once [1.06](results/c.md).",
        "| a | [0.402 s (0.39 to 0.41 s)](results/a.md) |\n| --- | --- |\n| b | `0.24 s` |",
        "| a | 30 s | 1.5 | 0.24 s at most |\n| --- | --- | --- | --- |",
        "<!-- Written by x -->\n\n| a | 0.24 s |\n| --- | --- |",
    ],
)
def test_what_is_cited_well_passes(text: str) -> None:
    assert check("docs/page.md", text, MADE_UP) == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("It is [3.61 times faster](results/a.md).", "3.61 times"),
        ("It is [7.25 times slower](results/a.md).", "7.25 times"),
        ("It is [3.60 % faster](results/a.md).", "3.60 %"),
        ("It is [3.6x faster](results/a.json).", "3.6x"),
        ("It took [100 us](results/a.md).", "100 us"),
        ("It ran [25 times](results/a.md).", "25 times"),
        ("It ran in [86 rounds](results/a.md).", "86"),
        ("It is [ten times faster](results/a.md).", "ten times"),
        ("[Half of them](results/a.md) were late.", "Half"),
        ("It is [**4** times faster](results/a.md).", "4 times"),
        ("It is [9.99 times faster][1].\n\n[1]: results/a.md", "9.99 times"),
        ("It is 3.60 times faster: see [the result](results/a.md).", "3.60 times"),
        ("It has\n29,546 wakes: see [the result](results/a.md).", "29,546"),
        ("See [the result](results/a.md): 41 % were late.", "41 %"),
        ("See [the result](results/a.md): five percent were late.", "five percent"),
        ("See [the result](results/a.md): a third was late.", "a third"),
        ("See [all](results/): 41 ms.", "41 ms"),
        ("See [all 41.5 %](results/README.md).", "41.5 %"),
        ("![It is 3.60 times faster](results/a.svg)", "3.60 times"),
        ("- It is 5 ms late: [the result](results/a.md).", "5 ms"),
        ("| [the result](results/a.md) | 5 us |\n| --- | --- |\n", "5 us"),
        ("Of 7 ms.\n\nSee [the result](results/a.md).", "7 ms"),
        ("- See [the result](results/a.md).\n- Or not.\n\nIn half of them.", "half"),
        ("| | |\n| --- | --- |\n| 5-ms sleeps | [the result](results/a.md) |", "5-ms"),
        ("It is 3.60 times faster.", "3.60 times"),
        ("It is 5 %\nslower, and nobody says where.", "5 %"),
        ("# Three times as fast", "Three times"),
        ("It is twice as fast.", "twice"),
        ("[1.05 times slower](results/c.md)", "1.05 times slower"),
        ("| a | 0.24 s |\n| --- | --- |", "0.24 s"),
        ("| a |\n| --- |\n| 0.24 s (0.2 to 0.3 s) |", "0.24 s (0.2 to 0.3 s)"),
        ("- 1,240 us\n", "1,240 us"),
        ("[3.60 times in 12 rounds](results/a.md)", "3.60 times in 12 rounds"),
        ("[1.06 (95 % CI 1.02 to\n1.10)](results/c.md)", "1.06 (95 % CI 1.02 to 1.10)"),
    ],
)
def test_what_is_copied_or_wrong_is_named_with_its_line(text: str, named: str) -> None:
    (found,) = check("docs/page.md", text, MADE_UP)
    place, said = found.split(": ", 1)
    assert said.startswith(f"'{named}' ")
    number = int(place.removeprefix("docs/page.md:"))
    assert named.split()[0] in "\n".join(text.splitlines()[number - 1 :][:2])


def test_a_page_in_a_folder_cites_by_its_own_path() -> None:
    text = "[7.25 times](../results/b.md), [7.24 times](../results/b.md)"
    (found,) = check("docs/how-to/page.md", text, MADE_UP)
    assert "'7.24 times' is not in docs/results/b.md" in found
    assert check("README.md", "[7.25 times](docs/results/b.md)", MADE_UP) == []


def test_the_example_of_how_to_read_a_page_is_no_figure_of_it() -> None:
    assert not [x for x in pages_of_results().values() if "is shown in 9 of" in x]
    assert len(pages_of_results()) > 20
