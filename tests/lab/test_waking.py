# SPDX-License-Identifier: GPL-2.0-only
"""What the experiments about wake latency make of a measurement, without a guest."""

from __future__ import annotations

from typing import Any

import pytest
from measurements import State, made_up

from lightsleep.errors import LightsleepError
from lightsleep.lab import experiments
from lightsleep.lab.experiments import measure_table, measure_truth
from lightsleep.lab.loads import waking

NAMES = [name for name in experiments.names() if name.startswith("measure-")]


def honest() -> dict[str, Any]:
    """Return what measure prints where every state takes what it advertises."""
    states = [State(f"T{us}", us, us, us, "agrees") for us in measure_truth.TRUTHS_US]
    states.append(State(measure_truth.NEVER, 5000, 5000, None, "not-entered"))
    return made_up(cpus=[waking.DEST_CPU], states=states).document()


@pytest.mark.parametrize("name", NAMES)
def test_names_have_hyphens(name: str) -> None:
    assert "_" not in name
    assert experiments.load(name).title


def test_the_truth_is_recognised() -> None:
    figures = measure_truth.figures(honest())
    promised = measure_truth.EXPERIMENT.metrics
    assert isinstance(promised, tuple)
    assert figures.keys() == {metric.name for metric in promised}
    assert figures["ipi_200us"] == pytest.approx(200, abs=5)
    assert (figures["beyond_tolerance"], figures["wrong_verdicts"]) == (0, 0)


def test_a_median_beyond_tolerance_counts() -> None:
    document = honest()
    waking.row_of(document, "ipi", "T200")["subtracted"]["p50_ns"] = 211_000
    waking.row_of(document, "timer", "T2")["subtracted"]["p50_ns"] = 3_900
    assert measure_truth.figures(document)["beyond_tolerance"] == 1


@pytest.mark.parametrize(("name", "kind"), [("T20", "optimistic"), ("never", "too-noisy")])
def test_a_wrong_verdict_counts(name: str, kind: str) -> None:
    document = honest()
    waking.row_of(document, "ipi", name)["verdict"]["kind"] = kind
    assert measure_truth.figures(document)["wrong_verdicts"] == 1


@pytest.mark.parametrize("kind", measure_truth.CANNOT_TELL)
def test_no_verdict_is_no_wrong_one(kind: str) -> None:
    document = honest()
    waking.row_of(document, "ipi", "T20")["verdict"]["kind"] = kind
    figures = measure_truth.figures(document)
    assert (figures["wrong_verdicts"], figures["open_verdicts"]) == (0, 1)


@pytest.mark.parametrize("arm", ["honest", "liar"])
def test_a_tool_that_never_decides_does_not_tell_the_truth(arm: str) -> None:
    document = honest()
    for row in document["rows"]:
        if row["verdict"]["kind"] == "agrees":
            row["verdict"]["kind"] = "too-noisy"
    found = measure_truth.figures(document)
    assert (found["wrong_verdicts"], found["open_verdicts"]) == (0, 8)
    (claim,) = (
        x
        for x in measure_truth.EXPERIMENT.claims
        if (x.arm, x.reference, x.metrics) == (arm, None, ("open_verdicts",))
    )
    assert claim.most < found["open_verdicts"]


def test_samples_of_a_state_that_is_never_entered_count_as_wrong() -> None:
    document = honest()
    waking.row_of(document, "timer", "never")["latencies_ns"] = [5]
    assert measure_truth.figures(document)["wrong_verdicts"] == 1


def test_a_lie_must_be_found_where_it_can_be_told() -> None:
    assert measure_truth.expected(1, 2) == ("agrees",)
    assert measure_truth.expected(10, 20) == ("optimistic",)
    assert measure_truth.expected(20, 20) == ("agrees",)


def test_rows_are_found_and_ordered() -> None:
    document = honest()
    assert [row["name"] for row in waking.rows_of(document, "timer")] == [
        *("T2", "T20", "T200", "T2000", "never")
    ]


@pytest.mark.parametrize("which", ["raw", "subtracted"])
def test_a_state_without_a_valid_sample_ends_the_experiment_with_its_reasons(which: str) -> None:
    document = honest()
    row = waking.row_of(document, "ipi", "T20")
    row |= {"raw": None, "subtracted": None, "invalid": {"timeout": 7, "wrong-cpu": 1}}
    with pytest.raises(LightsleepError) as raised:
        waking.median_us(row, which)
    said = "T20, woken by ipi: no valid sample (7 timeout, 1 wrong-cpu): run it again on a quiet"
    assert said in raised.value.message


def test_a_state_without_a_baseline_ends_the_experiment() -> None:
    row = waking.row_of(honest(), "timer", "T20") | {"subtracted": None}
    assert waking.median_us(row) > 0
    with pytest.raises(LightsleepError, match="T20, woken by timer: no baseline to subtract"):
        waking.median_us(row, "subtracted")


def test_names_of_metrics_are_plain() -> None:
    assert measure_table.name_of({"source": "ipi", "name": "C6-A (deep)"}) == "ipi_c6_a_deep_us"


def test_a_state_that_is_faster_than_a_busy_cpu_counts_beyond_the_intervals() -> None:
    rows = [row for row in honest()["rows"] if row["name"] != measure_truth.NEVER]
    found = measure_table.figures(rows)
    assert found["faster_than_busy"] == 0
    assert {"ipi_busy_us", "ipi_t20_us", "timer_t2000_us"} < found.keys()
    for source in measure_table.SOURCES:
        busy = next(x for x in rows if x["source"] == source and x["kind"] == "busy")["raw"]
        state = next(x for x in rows if x["source"] == source and x["name"] == "T20")["raw"]
        state["p50_ns"], state["ci_ns"] = busy["ci_ns"][0], [1, busy["ci_ns"][0]]
        assert measure_table.figures(rows)["faster_than_busy"] == 0
        state["ci_ns"] = [1, busy["ci_ns"][0] - 1]
        by_both = source == measure_table.SOURCES[-1]
        assert measure_table.figures(rows)["faster_than_busy"] == by_both
    state["ci_ns"] = None
    assert measure_table.figures(rows)["faster_than_busy"] == 0
    (claim,) = measure_table.EXPERIMENT.claims
    assert (claim.arm, claim.metrics, claim.most) == ("stock", ("faster_than_busy",), 0)
