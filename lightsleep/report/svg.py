# SPDX-License-Identifier: GPL-2.0-only
"""From a matplotlib figure to SVG that is a part of a page.

Text stays text, and what is neither light nor dark is left to the style sheet of the page: ink
and grid are drawn in stand-in colours that become CSS variables.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, GRID = "#010203", "#040506"
VARIABLES = {INK: "var(--ink)", GRID: "var(--rule)"}

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
}


@contextmanager
def style(salt: str) -> Iterator[None]:
    """Draw in the look of the page. ``salt`` keeps ids apart from those of other plots of it."""
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": salt}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the browser has it
        yield


def blank(height: float, width: float = 6.0) -> tuple[Figure, Axes]:
    """Return a figure as wide as a column of the page, or ``width``, and ``height`` inches high."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    for background in (figure.patch, axes.patch):
        background.set_visible(False)
    return figure, axes


def to_svg(figure: Figure) -> str:
    """Return a figure as an element of a page."""
    buffer = StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=nothing)
    return _inlined(buffer.getvalue())


def _inlined(svg: str) -> str:
    """Make a stand-alone SVG document a part of a page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'^<svg [^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1">', svg)
    svg = re.sub(r"<defs>\s*<style.*?</defs>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r" font-family: [^;\"]*;", "", svg)
    used = set(re.findall(r"#([\w.-]+)", svg))
    svg = re.sub(r' id="([^"]*)"', lambda m: m[0] if m[1] in used else "", svg)
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, variable)
    return svg
