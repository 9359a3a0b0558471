# SPDX-License-Identifier: GPL-2.0-only
"""From results to the page: a section for each, whatever it is the result of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import jinja2

from lightsleep import __version__, units
from lightsleep.compare import words
from lightsleep.compare.result import CompareResult
from lightsleep.measure.result import MeasureResult
from lightsleep.periods.lost import TimeLost
from lightsleep.periods.words import line
from lightsleep.report import compare_section, measure_section, measure_words, recording_section
from lightsleep.report.compare_section import CompareSection
from lightsleep.report.measure_section import MeasureSection
from lightsleep.report.recording_section import RecordingSection

if TYPE_CHECKING:
    from lightsleep.report.replay_section import ReplaySection

Result = CompareResult | MeasureResult | TimeLost
Section: TypeAlias = "CompareSection | MeasureSection | RecordingSection | ReplaySection"

PLURAL = {
    "compare": "comparisons",
    "measure": "measurements",
    "recording": "recordings",
    "replay": "replays",
}

# What the templates name beside the sections.
NAMES: dict[str, Any] = {
    "marks": words.MARKS,
    "measure_words": measure_words,
    "recording_line": line,
    "words": words,
    "units": units,
    "version": __version__,
}


def render(results: Sequence[tuple[str, Result]]) -> str:
    """Return the page for results, each labelled (usually with the name of its file)."""
    return page([_section(f"r{number}", *labelled) for number, labelled in enumerate(results, 1)])


def page(sections: Sequence[Section]) -> str:
    """Return the page for sections."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("lightsleep.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"tied": compare_section.tied}
    return environment.get_template("page.html.j2").render(
        sections=sections, title=_title(sections), **NAMES
    )


def _section(key: str, label: str, result: Result) -> Section:
    if isinstance(result, MeasureResult):
        return measure_section.section(key, label, result)
    if isinstance(result, TimeLost):
        return recording_section.section(key, label, result)
    return compare_section.section(key, label, result)


def _title(sections: Sequence[Section]) -> str:
    if len(sections) == 1:
        return sections[0].title
    kinds = {section.kind for section in sections}
    what = PLURAL[kinds.pop()] if len(kinds) == 1 else "results"
    return f"{len(sections)} {what} side by side"
