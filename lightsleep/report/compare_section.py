# SPDX-License-Identifier: GPL-2.0-only
"""From a comparison to a section of the page, in the order in which people ask.

What was claimed and whether it held; what came out, in a sentence; whether the control agrees; how
each metric looks; then on what and how it was measured, and every raw sample.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from markupsafe import Markup

from lightsleep.compare import words
from lightsleep.compare.analysis import (
    ArmAnalysis,
    ClaimAnalysis,
    MetricAnalysis,
    Outcome,
    analyse,
    judge_claims,
    limit_of,
)
from lightsleep.compare.headline import headline
from lightsleep.compare.method import Verdict
from lightsleep.compare.result import CompareResult
from lightsleep.report import plots
from lightsleep.report.rows import Rows, flat, text_of


@dataclass(frozen=True)
class MetricSection:
    """One metric with its plots (SVG)."""

    analysis: MetricAnalysis
    strip: Markup
    ecdf: Markup | None
    scale: str
    sentences: list[str]
    tones: dict[str, str]
    """By arm, the class of its cell or tile: what its verdict means to the reader."""


@dataclass(frozen=True)
class Claimed:
    """A claim in words, of ``arm``; ``key`` is its id, ``tone`` a class of the style sheet."""

    key: str
    arm: str
    mark: str
    tone: str
    claim: str
    outcome: str


@dataclass(frozen=True)
class CompareSection:
    """One result file: ``key`` makes ids unique in the page, ``label`` names the file."""

    kind: ClassVar = "compare"

    key: str
    label: str
    result: CompareResult
    limit: str | None
    metrics: list[MetricSection]
    headline: str
    claims: list[Claimed]
    has_dagger: bool
    colours: dict[str, str]
    treatments: list[str]
    control: list[tuple[bool, str]]
    chance: str
    environment: Rows
    protocol: Rows
    clocks: str
    disturbed: str
    paused: str
    guests: list[tuple[str, list[str]]]

    @property
    def title(self) -> str:
        """What was compared."""
        return self.result.title


def section(key: str, label: str, result: CompareResult) -> CompareSection:
    """Return the section of one result; ``key`` and ``label`` as in CompareSection."""
    limit, metrics, claims = limit_of(result), analyse(result), judge_claims(result)
    return CompareSection(
        key=key,
        label=label,
        result=result,
        limit=limit,
        metrics=[
            _metric(f"{key}m{index}", metric, result, limit, claims)
            for index, metric in enumerate(metrics)
        ],
        headline=headline(result, metrics),
        claims=[_claimed(f"{key}c{index}", claim) for index, claim in enumerate(claims)],
        has_dagger=words.has_dagger(metrics, claims),
        colours=plots.colours_of({arm: result.roles[arm] for arm in result.arms}),
        treatments=[arm for arm in result.arms if result.roles[arm] == "treatment"],
        control=words.control_sentences(metrics, result.baseline),
        chance=words.by_chance(metrics, claimed=bool(result.claims)),
        environment=flat(result.environment, said_elsewhere={"guests"}),
        protocol=flat(result.protocol, said_elsewhere=SAID),
        clocks=words.clocks(result),
        disturbed=words.disturbed(result),
        paused=words.paused(result),
        guests=_guests(result),
    )


SAID = {
    "runs",
    "boots",
    "warmup",
    "seed",
    "order",
    "clock_rates",
    "other_load_pct",
    "paused_cpus",
}
"""Of the protocol, what the text says."""
WORST_FIRST = (Outcome.REFUTED, Outcome.OPEN, Outcome.HELD)
TONES = {Outcome.HELD: "good", Outcome.REFUTED: "bad", Outcome.OPEN: "plain"}


def _claimed(key: str, found: ClaimAnalysis) -> Claimed:
    return Claimed(
        key,
        found.claim.arm,
        words.OUTCOMES[found.outcome],
        TONES[found.outcome],
        words.claim(found.claim, found.metrics),
        words.outcome(found),
    )


def _metric(
    key: str,
    metric: MetricAnalysis,
    result: CompareResult,
    limit: str | None,
    claims: Sequence[ClaimAnalysis],
) -> MetricSection:
    ecdf = plots.ecdf_plot(metric, f"{key}e")
    return MetricSection(
        analysis=metric,
        strip=Markup(plots.strip_plot(metric, f"{key}s")),
        ecdf=Markup(ecdf) if ecdf else None,
        scale=plots.scale_of(metric),
        sentences=words.sentences(metric, result.baseline, limit),
        tones={arm.name: _tone(arm, metric.name, result.baseline, claims) for arm in metric.arms},
    )


def _guests(result: CompareResult) -> list[tuple[str, list[str]]]:
    """Return what is known of the guests: a row per key, a cell per arm; see words.arms(), too."""
    guests: dict[str, dict[str, Any]] = result.environment.get("guests", {})
    keys = dict.fromkeys(key for arm in result.arms for key in guests.get(arm, {}))
    keys.pop("description", None)
    return [
        (key.replace("_", " "), [text_of(guests.get(arm, {}).get(key, "")) for arm in result.arms])
        for key in keys
    ]


def _tone(arm: ArmAnalysis, metric: str, baseline: str, claims: Sequence[ClaimAnalysis]) -> str:
    """Return how good a verdict is; where the metric has no direction, a claim may have one.

    Of several claims, the one counts that fared worst.
    """
    verdict = arm.baseline.verdict if arm.baseline else None
    if verdict is None:
        return ""
    if arm.role == "control":
        return "bad" if verdict.differs else "plain"
    asked = (arm.name, baseline, (metric,))
    outcomes = {
        x.outcome for x in claims if (x.claim.arm, x.claim.reference, x.claim.metrics) == asked
    }
    if verdict in (Verdict.HIGHER, Verdict.LOWER) and outcomes:
        return TONES[min(outcomes, key=WORST_FIRST.index)]
    return {Verdict.BETTER: "good", Verdict.WORSE: "bad"}.get(verdict, "plain")


def tied(text: str) -> str:
    """Tie each number to what follows it, so that no unit begins a line."""
    return re.sub(r"(?<=\d) (?=[^\d\s(])", "\N{NO-BREAK SPACE}", text)
