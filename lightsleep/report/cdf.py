# SPDX-License-Identifier: GPL-2.0-only
"""How latencies are distributed: the share of wakes that took up to so long, a curve per state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from lightsleep.order import percentile
from lightsleep.report.plots import log_axis, share_axis, share_curve, short
from lightsleep.report.svg import INK, blank, style, to_svg

Limits = tuple[float, float]
Dashes = str | tuple[int, tuple[float, ...]]  # as matplotlib has them

TAIL = 1  # percent of a curve at either end that may lie outside of a plot
MARGIN = 1.6


@dataclass(frozen=True)
class Curve:
    """One state, or the busy baseline: latencies in us, a list per CPU that has any.

    ``expected_us`` is where the median would be if the advertised latency were true.
    """

    label: str
    colour: str
    dashes: Dashes
    latencies_us: list[list[float]]
    expected_us: float | None

    @property
    def pooled_us(self) -> list[float]:
        """The latencies of all CPUs together."""
        return [latency for each in self.latencies_us for latency in each]


def limits_of(curves: Iterable[Curve]) -> Limits | None:
    """Return a logarithmic axis in us on which all of these can be read; None where none can."""
    ends: list[float] = []
    for curve in curves:
        positive = sorted(latency for latency in curve.pooled_us if latency > 0)
        if positive:
            ends += [percentile(positive, percent) for percent in (TAIL, 100 - TAIL)]
            ends += [curve.expected_us] if curve.expected_us and curve.expected_us > 0 else []
    return (min(ends) / MARGIN, max(ends) * MARGIN) if ends else None


def cdf_plot(curves: Sequence[Curve], limits: Limits, salt: str) -> str:
    """Return an SVG with a curve per state (at least one) and a tick at the latency it should have.

    Where there are several CPUs, each has a faint curve, and all samples together a strong one.
    ``salt`` keeps its ids apart from those of other plots of the page.
    """
    with style(salt):
        figure, axes = blank(2.9)
        _latency_axis(axes, limits)
        for curve in curves:
            _draw(axes, curve)
        share_axis(axes)
        return to_svg(figure)


def _draw(axes: Axes, curve: Curve) -> None:
    pooled, colour = curve.pooled_us, curve.colour
    cpus = len(curve.latencies_us)
    if cpus > 1:
        for latencies in curve.latencies_us:
            share_curve(axes, latencies, color=colour, linewidth=0.7, alpha=min(0.35, 8 / cpus))
    share_curve(
        axes, pooled, color=colour, linewidth=2, linestyle=curve.dashes, label=short(curve.label)
    )
    if curve.expected_us is not None:
        tick = (curve.expected_us, 0.4, 0.6)
        axes.vlines(*tick, color=INK, linewidth=5)
        axes.vlines(*tick, color=colour, linewidth=3.6)


def _latency_axis(axes: Axes, limits: Limits) -> None:
    axes.set_xlim(*limits)
    log_axis(axes)
    axes.set_xlabel("wakeup latency, µs (logarithmic axis)")
