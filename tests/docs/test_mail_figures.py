# SPDX-License-Identifier: GPL-2.0-only
"""Mails of the series give a figure with its interval only as a page of results gives it.

Mails hold no links. So a figure with an interval, ``1.84 times less often (95 % CI 1.82 to 1.89)``,
has to be on some page in docs/results, rounded to the digits that the mail gives. Where a mail says
by how much less something is, the page may say by how much more, with the opposite sign. What the
page gives in ns, the mail may give in us.

A mail has the caveats of the page, too: sources that are not known (so that the mail must call them
an earlier version), a control that cannot be judged, claims that were made after the run. Whether
the sources have changed since a commit that is known, only git could tell, and there may be none.

A figure that has a † wherever a page gives it is smaller than what the control could have missed.
The mail says so in the same sentence, or has a * right behind the interval, and says so of that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from paths import ROOT

from lightsleep.compare.words import DAGGER

NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
CITED = re.compile(
    rf"(?<![\d.])({NUMBER})([^()|\d]{{0,30}})\((?:95 % CI )?({NUMBER}) to ({NUMBER})"
)
MAILS = sorted(
    x
    for x in (ROOT / "kernel/patches").glob("*/*/*")
    if x.suffix == ".patch" or x.name == "cover.txt"
)


@dataclass(frozen=True)
class Caveat:
    """Where a page has ``shown``, a mail that speaks of ``about`` has to have ``words``."""

    shown: re.Pattern[str]
    words: str
    about: str = ""


CAVEATS = (
    Caveat(re.compile(r"\| commit \| (not recorded|\w+-dirty) \|"), "earlier version"),
    Caveat(re.compile(r"\*\*Warning:\*\* Control"), "control"),
    Caveat(re.compile("claims were declared after this run"), "after the runs", about="claim"),
)
MISSED = "smaller than what the control could have missed"
SENTENCE = 300
"""Characters, in which a sentence has ended."""


def cited(text: str) -> set[tuple[str, str, str]]:
    """Return each figure with the ends of its interval."""
    return {figures for figures, _ in cited_before(text)}


def cited_before(text: str) -> Iterator[tuple[tuple[str, str, str], str]]:
    """Yield each figure with the ends of its interval, and the text behind that."""
    plain = " ".join(text.split())
    for found in CITED.finditer(plain):
        behind = plain[found.end() : found.end() + SENTENCE]
        yield (found[1], found[3], found[4]), behind.partition(")")[2]


def agrees(mail: tuple[str, ...], page: tuple[str, ...]) -> bool:
    """Return whether a mail's figures are those of a page: rounded, negated, or in us for ns."""
    value, low, high = (float(x.replace(",", "")) for x in page)
    return any(
        all(
            abs(float(text.replace(",", "")) - given) <= 0.501 * 10 ** -len(text.partition(".")[2])
            for text, given in zip(mail, turned, strict=True)
        )
        for turned in (
            [value, low, high],
            [-value, -high, -low],
            [value / 1000, low / 1000, high / 1000],
        )
    )


def lacks(mail: str, pages: Iterable[str]) -> set[str]:
    """Return the words that a mail lacks: those that all pages with one of its figures call for."""
    plain = " ".join(mail.split())
    figures_of = {page: cited(page) for page in pages}
    found = set()
    for figures in cited(mail):
        having = [x for x, given in figures_of.items() if any(agrees(figures, y) for y in given)]
        found |= {
            caveat.words
            for caveat in CAVEATS
            if having and all(caveat.shown.search(x) for x in having)
            if caveat.about in plain and caveat.words not in plain
        }
    return found


def untold(mail: str, pages: Iterable[str]) -> set[tuple[str, str, str]]:
    """Return the figures of a mail that have a † wherever a page gives them, and no word of it."""
    given = [x for page in pages for x in cited_before(page)]
    explained = MISSED in " ".join(mail.split())
    found = set()
    for figures, behind in cited_before(mail):
        marks = [x.lstrip().startswith(DAGGER) for y, x in given if agrees(figures, y)]
        told = MISSED in behind.partition(". ")[0] or (explained and behind.startswith("*"))
        if marks and all(marks) and not told:
            found.add(figures)
    return found


@pytest.fixture(scope="module")
def pages() -> list[str]:
    return [x.read_text() for x in (ROOT / "docs/results").glob("*.md") if x.name != "README.md"]


@pytest.fixture(scope="module")
def given() -> set[tuple[str, str, str]]:
    pages = (x.read_text() for x in (ROOT / "docs/results").glob("*.md"))
    return {figures for page in pages for figures in cited(page)}


@pytest.mark.parametrize("mail", MAILS, ids=lambda x: "/".join(x.parts[-3:]))
def test_mails_cite_figures_as_results_give_them(
    mail: Path, given: set[tuple[str, str, str]]
) -> None:
    message = mail.read_text().partition("\n---\n")[0]
    wrong = {x for x in cited(message) if not any(agrees(x, y) for y in given)}
    assert not wrong


@pytest.mark.parametrize("mail", MAILS, ids=lambda x: "/".join(x.parts[-3:]))
def test_mails_have_the_caveats_of_the_results_that_they_cite(mail: Path, pages: list[str]) -> None:
    assert not lacks(mail.read_text().partition("\n---\n")[0], pages)


@pytest.mark.parametrize("mail", MAILS, ids=lambda x: "/".join(x.parts[-3:]))
def test_mails_say_what_the_control_could_have_missed(mail: Path, pages: list[str]) -> None:
    assert not untold(mail.read_text().partition("\n---\n")[0], pages)


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        (
            "A 5.18 (4.97 to 5.69)   3.02 (2.80 to 3.13)",
            {("5.18", "4.97", "5.69"), ("3.02", "2.80", "3.13")},
        ),
        ("1.84 times less often (95 % CI 1.82\nto 1.89),", {("1.84", "1.82", "1.89")}),
        ("| 0.281 s (0.281 to 0.282 s) |", {("0.281", "0.281", "0.282")}),
        ("late by 0.2 to 0.4 us", set()),
    ],
)
def test_figures_with_intervals_are_found(text: str, figures: set[tuple[str, str, str]]) -> None:
    assert cited(text) == figures


def test_a_figure_is_rounded_and_no_other() -> None:
    page = ("-0.0133", "-0.047", "0.021")
    assert agrees(("0.01", "-0.02", "0.05"), page)
    assert agrees(("-0.013", "-0.05", "0.02"), page)
    assert not agrees(("0.02", "-0.02", "0.05"), page)
    assert not agrees(("0.01", "-0.02", "0.06"), page)


OLD = "2.38 × (95 % CI 1.40 to 4.03 ×), 1.10 (1.07 to 1.12)\n| commit | not recorded |\n"
JUDGED = "1.10 (1.07 to 1.12)\n| commit | fb12aac |\n"
LATE = "0.5 (0.4 to 0.6)\nThe claims were declared after this run.\n\n**Warning:** Control: too few"


@pytest.mark.parametrize(
    ("mail", "lacking"),
    [
        ("2.38 times (1.40 to 4.03)", {"earlier version"}),
        ("2.38 times (1.40 to 4.03), of an earlier\nversion", set()),
        ("1.10 times (1.07 to 1.12)", set()),
        ("2.39 times (1.40 to 4.03)", set()),
        ("0.5 times (0.4 to 0.6)", {"control"}),
        ("0.5 times (0.4 to 0.6), as was claimed", {"control", "after the runs"}),
        ("The control is bad. 0.5 (0.4 to 0.6), claimed after the runs", set()),
    ],
)
def test_a_caveat_that_a_mail_lacks_is_found(mail: str, lacking: set[str]) -> None:
    assert lacks(mail, [OLD, JUDGED, LATE]) == lacking


MARKED = """\
| 0.883 × (95 % CI 0.811 to 0.946 ×) † | 2.5 s (2.4 to 2.6 s) |
held: 1.13 points higher (95 % CI 0.38 to 1.84 points) †; 2.5 × (95 % CI 2.4 to 2.6 ×) †
"""
FASTER = {("0.88", "0.81", "0.95")}


@pytest.mark.parametrize(
    ("mail", "found"),
    [
        ("0.88 (0.81 to 0.95)", FASTER),
        ("0.88 (0.81 to 0.95)*", FASTER),
        ("0.88 (0.81 to 0.95)*\n* smaller than what the\ncontrol could have missed", set()),
        ("0.88 (0.81 to 0.95), smaller than what the\ncontrol could have missed", set()),
        ("0.88 (0.81 to 0.95). 9 is smaller than what the control could have missed", FASTER),
        ("1.13 points (95 % CI 0.38 to 1.84)", {("1.13", "0.38", "1.84")}),
        ("2.5 times (2.4 to 2.6), and 0.79 (0.71 to 0.95)", set()),
    ],
)
def test_a_difference_that_the_control_could_have_missed_is_found(
    mail: str, found: set[tuple[str, str, str]]
) -> None:
    assert untold(mail, [MARKED, JUDGED]) == found
