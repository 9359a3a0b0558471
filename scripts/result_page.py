# SPDX-License-Identifier: GPL-2.0-only
"""A comparison as a page of Markdown: what the documentation links to, and never copies."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lightsleep import units
from lightsleep.compare import words
from lightsleep.compare.analysis import (
    ArmAnalysis,
    ClaimAnalysis,
    MetricAnalysis,
    analyse,
    judge_claims,
    limit_of,
)
from lightsleep.compare.boots import LEAST_BOOTS
from lightsleep.compare.headline import headline
from lightsleep.compare.method import (
    Comparison,
    rounds_for_controls,
    rounds_needed,
)
from lightsleep.compare.result import CompareResult, MetricResult
from lightsleep.markdown import table, text

PICTURED = (
    "Each treatment's ratio to the baseline, with its 95 % confidence interval; bold where a "
    "difference is shown. Percentages, and metrics with a sample of 0, are in the tables only"
)

LEVELS = (
    "Each arm's median, with its confidence interval. Metrics of another unit than the first, and "
    "those with a sample of 0, are in the tables only"
)


def page(
    result: CompareResult, file: str, *, declared_later: bool = False, picture: str = ""
) -> str:
    """Return the page of a result; ``file`` is the name of its file, beside the page.

    ``declared_later`` says that the claims are not of the result, but of today's experiment.
    ``picture`` is the name of a picture of the effects, or of the medians.
    """
    metrics, limit, claims = analyse(result), limit_of(result), judge_claims(result)
    parts = [
        "<!-- SPDX-License-Identifier: GPL-2.0-only -->",
        f"<!-- Written by make results from {file}: do not edit. -->",
        f"# {text(result.title)}",
        f"Hypothesis: {text(result.hypothesis)}" if result.hypothesis else "",
        *_claims(claims, declared_later),
        text(headline(replace(result, claims=[]) if declared_later else result, metrics)),
        *_control(metrics, result.baseline),
        f"{words.COULD_BE_MISSED}." if words.has_dagger(metrics, claims) else "",
        *(_picture(result, picture) if picture else []),
        *_arms(result),
        "## Medians",
        _medians(metrics, result),
        "## Figures",
        "Medians of each arm alone with their 95 % confidence intervals. Arms are compared within "
        f"rounds, and {words.POSSIBLE}. How to read {words.DETECTABLE}.",
        f"{words.BOOT_SPREAD.capitalize()} (standard deviation). {words.ARM_ALONE.capitalize()}."
        if result.boots > 1
        else "",
        _chance(metrics, claimed=bool(result.claims) and not declared_later),
        *(_metric(metric, result, limit) for metric in metrics),
        "## How it was measured",
        f"    {command(result)}",
        _more_than_before(result),
        _unsure_source(result),
        origin(result, file),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _claims(claims: Sequence[ClaimAnalysis], declared_later: bool) -> list[str]:
    if not claims:
        return []
    rows = [
        (words.OUTCOMES[x.outcome], words.claim(x.claim, x.metrics), words.outcome(x))
        for x in claims
    ]
    later = "The claims were declared after this run." if declared_later else ""
    return ["## Claims", later, table(("", "claim", "outcome"), rows)]


def _picture(result: CompareResult, picture: str) -> list[str]:
    """Return a picture, and how to read it."""
    if "treatment" not in result.roles.values():
        return [f"![Medians]({picture})", f"{LEVELS}."]
    return [f"![Effects, as ratios to {text(result.baseline)}]({picture})", f"{PICTURED}."]


def _arms(result: CompareResult) -> list[str]:
    """Return what each arm is and boots, and which of them the others are compared with."""
    kernels = _kernel_of(result)
    rows = [
        (
            arm if (role := result.roles[arm]) == "treatment" else f"{arm} ({role})",
            said,
            *([kernels.get(arm, "")] if kernels else []),
        )
        for arm, said in words.arms(result)
    ]
    headings = ("arm", "what it is", *(["kernel"] if kernels else []))
    return ["## Arms", table(headings, rows)] if rows else []


def _control(metrics: list[MetricAnalysis], baseline: str) -> list[str]:
    said = words.control_sentences(metrics, baseline)
    return [
        f"{'' if well else '**Warning:** '}Control: {text(sentence)}." for well, sentence in said
    ]


def _chance(metrics: list[MetricAnalysis], *, claimed: bool) -> str:
    said = words.by_chance(metrics, claimed=claimed)
    return f"{said}." if said else ""


def _medians(metrics: list[MetricAnalysis], result: CompareResult) -> str:
    """Return the medians of all metrics side by side, without the controls: they only repeat."""
    arms = [arm for arm in result.arms if result.roles[arm] != "control"]
    rows = []
    for metric in metrics:
        shown = {
            arm.name: units.value(arm.summary.median, metric.metric.unit)
            for arm in metric.arms
            if arm.summary
        }
        rows.append((metric.metric.title, *(shown.get(arm, "") for arm in arms)))
    return table(("", *arms), rows)


def _metric(metric: MetricAnalysis, result: CompareResult, limit: str | None) -> str:
    headings = ["arm", "median", f"against {result.baseline}"]
    headings += ["boot to boot"] if result.boots > 1 else []
    headings += [f"against {limit}"] if limit else []
    unit = metric.metric.unit
    rows = [
        (
            arm.name,
            _median(arm, unit),
            _marked(metric, arm, arm.baseline),
            *([words.boot_spread(arm.baseline, unit)] if result.boots > 1 else []),
            *([_marked(metric, arm, arm.limit)] if limit else []),
        )
        for arm in metric.arms
    ]
    contrary = words.contrary_medians(metric, result.baseline, limit)
    parts = [
        f"### {text(metric.metric.title)}",
        text(metric.metric.description),
        table(headings, rows),
        *(f"{text(said)}." for said in contrary),
    ]
    return "\n\n".join(parts)


def _marked(metric: MetricAnalysis, arm: ArmAnalysis, comparison: Comparison | None) -> str:
    mark = words.dagger(metric, comparison) if arm.role != "control" else ""
    return f"{against(comparison, metric.metric)}{mark}"


def _median(arm: ArmAnalysis, unit: str) -> str:
    if arm.summary is None:
        return "no samples"
    ends = units.span(arm.summary.ci_low, arm.summary.ci_high, unit)
    short = f"; only {words.confidence(arm.summary)}" if words.falls_short(arm.summary) else ""
    return f"{units.value(arm.summary.median, unit)} ({ends}{short})"


def against(comparison: Comparison | None, metric: MetricResult) -> str:
    """Return what a comparison showed, with its interval."""
    if comparison is None:
        return ""
    return f"{words.MARKS[comparison.verdict]} {words.with_interval(comparison, metric)}"


LATER_METRICS = 2
"""How many metrics an experiment may have got since a result: more need more rounds."""


def command(result: CompareResult) -> str:
    """Return the command that repeats a comparison, with as many rounds and boots as it requires.

    Those are more than in a result that this version would not measure: see repeated().
    """
    rounds, boots = repeated(result)
    counts = {"--rounds": rounds, "--boots": boots, "--seed": result.protocol["seed"]}
    options = [word for name, count in counts.items() for word in (name, str(count))]
    arguments = result.protocol.get("arguments") or _arguments(result)
    return shlex.join(["lightsleep", "lab", "compare", *arguments, *options])


def repeated(result: CompareResult) -> tuple[int, int]:
    """Return the rounds and the boots of a short repetition that has no fewer of either."""
    runs, boots = result.protocol["runs"], max(result.boots, LEAST_BOOTS)
    if boots == result.boots and runs >= _least_rounds(result, 0):
        return runs, boots
    return -(-max(runs, _least_rounds(result, LATER_METRICS)) // boots) * boots, boots


def _least_rounds(result: CompareResult, more_metrics: int) -> int:
    controls = sum(role == "control" for role in result.roles.values())
    metrics = len(result.metrics) + more_metrics
    return max(rounds_needed(), rounds_for_controls(controls * metrics))


def _more_than_before(result: CompareResult) -> str:
    """Say that the command is not that of the result, and why; empty where it is."""
    runs, (rounds, boots) = result.protocol["runs"], repeated(result)
    if (runs, result.boots) == (rounds, boots):
        return ""
    return (
        f"This result has {_runs(runs, result.boots)}. The command refuses to repeat it as it was: "
        f"it requires at least {LEAST_BOOTS} boots, and more rounds for more metrics. As printed, "
        f"it measures {_runs(rounds, boots)}."
    )


def _runs(rounds: int, boots: int) -> str:
    return f"{rounds} rounds in {boots} boot{'' if boots == 1 else 's'}"


def _arguments(result: CompareResult) -> list[str]:
    """Return what an older result, which does not tell, was asked for: as far as is known."""
    arch = result.environment.get("arch", "x86_64")
    pinned = ["--pin"] if result.protocol.get("pinned") else []
    return [result.experiment, *([] if arch == "x86_64" else ["--arch", arch]), *pinned]


def _unsure_source(result: CompareResult) -> str:
    """Say that nobody can tell by which sources a result was measured; empty where one can."""
    commit = result.environment.get("source", {}).get("commit")
    if not commit:
        return "The sources that measured this were not recorded: they may differ from today's."
    if commit.endswith("-dirty"):
        return (
            f"The sources had changes that commit {commit.removesuffix('-dirty')} does not have, "
            "or were changed during the comparison. That commit alone may measure something else."
        )
    return ""


def origin(result: CompareResult, file: str) -> str:
    """Return where a result comes from: the machine, the date, the commit; and its ``file``."""
    host = result.environment.get("host", {})
    source = result.environment.get("source", {})
    facts = {
        "date": result.created[:10],
        "host": host.get("cpu_model"),
        "CPUs of the host": _cpus(host),
        "too few CPUs": _without_title(result.protocol.get("few_cpus", "")),
        "too little memory": _without_title(result.protocol.get("little_memory", "")),
        "no modprobe": _without_title(result.protocol.get("no_modprobe", "")),
        "measured again, as the first attempt failed": result.protocol.get("started_over"),
        "guests booted again": "; ".join(result.protocol.get("guests_booted_again", ())),
        "boots and their rounds done again": "; ".join(result.protocol.get("booted_again", ())),
        "other load on the host": _load(host.get("other_load_pct")),
        "disturbed": words.disturbed(result),
        "guests that found the host short of cores": words.paused(result),
        "QEMU": host.get("qemu"),
        "accelerator": result.environment.get("accelerator", {}).get("name"),
        "kernels": ", ".join(dict.fromkeys(_kernel_of(result).values())),
        "clocks": words.clocks(result),
        "earlier runs set aside, as their control differed": _aside(result),
        "commit": source.get("commit") or "not recorded",
        "raw samples": f"[{file}]({file})",
    }
    return table(("", ""), [(key, str(fact)) for key, fact in facts.items() if fact])


def _aside(result: CompareResult) -> str | None:
    runs = result.protocol.get("control_differed")
    return None if runs is None else str(runs)


def _cpus(host: Mapping[str, Any]) -> str | None:
    number, allowed = host.get("cpus"), host.get("cpus_allowed")
    if number is None or allowed in (None, number):
        return None if number is None else str(number)
    return f"{number}, of which the lab was allowed to use {allowed}"


def _without_title(sentence: str) -> str:
    return sentence.partition(": ")[2]


def _load(share: float | None) -> str | None:
    return None if share is None else f"{share:g} % {words.OF_WHAT}"


def _kernel_of(result: CompareResult) -> dict[str, str]:
    """Return the release of each arm's kernel, by arm, as far as the result tells."""
    guests = result.environment.get("guests", {})
    return {arm: str(guest["kernel"]) for arm, guest in guests.items() if "kernel" in guest}
