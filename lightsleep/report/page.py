# SPDX-License-Identifier: GPL-2.0-only
"""From results to the page: a section for each, whatever it is the result of."""

from __future__ import annotations

from collections.abc import Sequence

import jinja2

from lightsleep import __version__, wording
from lightsleep.report import compare_section, plots
from lightsleep.result import CompareResult


def render(results: Sequence[tuple[str, CompareResult]]) -> str:
    """Return the page for results, each labelled (usually with the name of its file)."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("lightsleep.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"cell": compare_section.cell}
    return environment.get_template("page.html.j2").render(
        sections=[
            compare_section.section(f"r{number}", *labelled)
            for number, labelled in enumerate(results, 1)
        ],
        metric_titles=compare_section.metric_titles,
        colours=plots.COLOURS,
        marks=wording.MARKS,
        wording=wording,
        version=__version__,
    )
