# SPDX-License-Identifier: GPL-2.0-only
"""What experiments ask of their data: each part of a hypothesis can be refuted."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from lightsleep.compare.analysis import Outcome, judge_claims
from lightsleep.compare.result import CompareResult, MetricResult
from lightsleep.errors import LightsleepError
from lightsleep.lab import experiments
from lightsleep.lab.experiments import (
    halt_cost,
    idle,
    measure_store,
    overcommit,
    prediction_loop,
    promotion_cost,
    promotion_sibling,
    record_cost,
    smp_mask,
)
from lightsleep.lab.loads import interrupts, pipe, promotions
from lightsleep.lab.loads.silence import Silence
from lightsleep.lab.run.experiment import PATCHED, Experiment
from lightsleep.report.plots import short_title

ROUNDS = 9


@pytest.mark.parametrize("name", experiments.names())
def test_a_title_of_a_metric_has_a_noun_of_its_own(name: str) -> None:
    metrics = experiments.load(name).metrics
    titles = [metric.title for metric in metrics] if isinstance(metrics, tuple) else []
    assert not [title for title in titles if title.startswith("The same")]


@pytest.mark.parametrize("name", experiments.names())
def test_titles_of_an_experiment_differ_in_what_a_plot_shows_of_them(name: str) -> None:
    metrics = experiments.load(name).metrics
    titles = [metric.title for metric in metrics] if isinstance(metrics, tuple) else []
    assert len({short_title(title) for title in titles}) == len(titles)


@pytest.mark.parametrize("name", experiments.names())
def test_an_arm_does_not_say_whose_a_kernel_is_that_an_option_names(name: str) -> None:
    said = [arm.description for arm in experiments.load(name).arms if not arm.kernel]
    assert not [text for text in said if "distribution" in text]


@pytest.mark.parametrize("name", experiments.names())
def test_a_hypothesis_names_the_bounds_of_its_claims(name: str) -> None:
    """Else a page says more than was asked: "as fast as before", where 20 % slower holds."""
    experiment = experiments.load(name)
    # Where metrics depend on the machine, all that bounds are for are ratios.
    metrics = experiment.metrics if isinstance(experiment.metrics, tuple) else ()
    points = {metric.name for metric in metrics if metric.unit == "%"}
    said = experiment.hypothesis.replace("%", " %").replace("  %", " %")
    for claim in (x for x in experiment.claims if x.reference):
        for bound in {claim.at_most, claim.at_least} - {None, 1}:
            assert bound is not None
            if points & {*claim.metrics}:
                words = {f"{abs(bound):g} points"}
            else:
                # One time may be 1 / 0.94 of another: that is 94 % of its speed.
                percents = {100 * abs(bound - 1), 100 * bound, 100 / bound}
                words = {f"{percent:.4g} %" for percent in percents}
                words |= {f"{x:g} {of}" for x in (bound, 1 / bound) for of in ("times", "of", "to")}
            assert any(word in said for word in words), (claim, said)


NUMBER = re.compile(r"(?i)\b(?:\d+|one|two|three|four|five|six|seven|eight|nine|ten)\b")


def test_a_title_names_no_number_that_an_option_must_change() -> None:
    """On a host with as many CPUs, these run only with a larger --vcpus."""
    loaded = [experiments.load(name) for name in experiments.names()]
    titles = [x.title for x in loaded if x.overcommitted]
    assert titles
    assert not [title for title in titles if NUMBER.search(title)]


def outcome(
    experiment: Experiment, arm: str, metric: str, value: float, others: float = 0.0
) -> Outcome:
    """Return what comes of the claim about an arm itself where it has ``value`` in a round.

    In all other rounds, and in all other arms and metrics, it has ``others``.
    """
    assert isinstance(experiment.metrics, tuple)
    arms = [x.name for x in experiment.arms]
    result = CompareResult(
        experiment="test",
        title=experiment.title,
        hypothesis=experiment.hypothesis,
        created="",
        environment={},
        protocol={"runs": ROUNDS},
        arms=arms,
        roles={x.name: x.role for x in experiment.arms},
        metrics={
            x.name: MetricResult(
                x.unit, x.better, x.title, x.description, {name: [others] * ROUNDS for name in arms}
            )
            for x in experiment.metrics
        },
        claims=[x for x in experiment.claims if (x.arm, x.reference) == (arm, None)],
    )
    result.metrics[metric].samples[arm][2] = value
    (found,) = [x for x in judge_claims(result) if x.claim.metrics == (metric,)]
    return found.outcome


def test_one_interrupt_refutes_that_none_is_sent() -> None:
    experiment = smp_mask.EXPERIMENT
    assert outcome(experiment, "series", "ipis_sent", 0) is Outcome.HELD
    assert outcome(experiment, "series", "ipis_sent", 1) is Outcome.REFUTED


def test_what_a_call_to_nobody_takes_is_not_counted_in_the_net(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(smp_mask, "call_ns", lambda guest, targets, wait: 300 + 100 * targets)
    monkeypatch.setattr(interrupts, "received", lambda guest, row: 5)
    monkeypatch.setattr(smp_mask, "busy", lambda guest: contextlib.nullcontext())
    guest: Any = SimpleNamespace(run=lambda argv, timeout_s: SimpleNamespace(stdout="7\n"))
    found = smp_mask.measure(guest)
    assert isinstance(smp_mask.EXPERIMENT.metrics, tuple)
    assert found.keys() == {x.name for x in smp_mask.EXPERIMENT.metrics}
    assert (found["many_7_ns"], found[smp_mask.NET_NS]) == (1000, 700)


@pytest.mark.parametrize(
    ("used_us", "halting_us", "expected"),
    [
        (40.0, 100.0, Outcome.HELD),
        (49.9, 100.0, Outcome.HELD),
        (50.1, 100.0, Outcome.REFUTED),
        (30.1, 100.0, Outcome.HELD),
        (29.9, 100.0, Outcome.REFUTED),
        # Halting is no slower, or even faster.
        (40.0, 60.0, Outcome.REFUTED),
        (40.0, 55.0, Outcome.REFUTED),
        (0.0, 55.0, Outcome.REFUTED),
    ],
)
def test_a_cost_too_far_from_the_loss_is_published_and_refutes(
    used_us: float, halting_us: float, expected: Outcome
) -> None:
    """A wakeup takes 60 us with CPUs that poll."""
    used, halting, polling = (
        dict.fromkeys(halt_cost.LOADED, x) for x in (used_us, halting_us, 60.0)
    )
    values = halt_cost.figures(used_us, used, halting, polling)
    assert isinstance(halt_cost.EXPERIMENT.metrics, tuple)
    assert values.keys() == {x.name for x in halt_cost.EXPERIMENT.metrics}
    assert values["redis_us"] == halting_us - 60.0
    for name in halt_cost.LOADED:
        value = values[f"off_in_{name}_us"]
        assert outcome(halt_cost.EXPERIMENT, "guest-1", f"off_in_{name}_us", value) is expected


def test_rejected_samples_are_no_wakes_without_an_interrupt() -> None:
    row = {
        "latencies_ns": [1200] * 600,
        "path": "none",
        "invalid": {"not-polling": 150, "timeout": 50},
        "raw": {"p50_ns": 1200},
    }
    found = measure_store.figures(row, 700)
    assert found == {"wake_us": 1.2, "without_ipi_pct": 75, "tracepoint": 700, "uncounted": 0}
    assert isinstance(measure_store.EXPERIMENT.metrics, tuple)
    assert found.keys() == {x.name for x in measure_store.EXPERIMENT.metrics}
    by_ipi = row | {"path": "ipi"}
    assert measure_store.figures(by_ipi, 3)["without_ipi_pct"] == 0
    missed = measure_store.figures(row, 590)["uncounted"]
    assert missed == 10
    experiment = measure_store.EXPERIMENT
    assert outcome(experiment, "store-poll", "uncounted", missed) is Outcome.REFUTED


@pytest.mark.parametrize("arm", ["menu-promotion", "teo-promotion"])
@pytest.mark.parametrize("load", promotion_cost.LOADS)
def test_a_load_that_hardly_armed_the_timer_does_not_show_that_it_costs_nothing(
    arm: str, load: str
) -> None:
    experiment, metric = promotion_cost.EXPERIMENT, f"{load}_armed_pct"
    assert outcome(experiment, arm, metric, 95.0, others=95.0) is Outcome.HELD
    assert outcome(experiment, arm, metric, 0.06, others=95.0) is Outcome.REFUTED
    assert promotion_cost.LOADS[load] in {x.metrics[0] for x in experiment.claims if x.arm == arm}


def test_a_sibling_beside_a_cpu_that_promotes_nothing_shows_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment = promotion_sibling.EXPERIMENT
    counted = iter([promotions.Counts(30, 900), promotions.Counts(51, 980)])
    silence = Silence(0, 100, True, 900, 5, 1000, sibling_wakes=3)
    monkeypatch.setattr(promotion_sibling, "counts", lambda guest, cpu: next(counted))
    monkeypatch.setattr(promotion_sibling, "need_states", lambda guest: None)
    monkeypatch.setattr(promotion_sibling, "silences", lambda *_: [silence] * 10)
    guest: Any = SimpleNamespace(read_text=lambda path: "2-3\n")
    found = promotion_sibling.measure(guest)
    assert found == {"sibling_wakes": 3, "exit_shallow_us": 100, "promotions": 2.1}
    assert isinstance(experiment.metrics, tuple)
    assert found.keys() == {x.name for x in experiment.metrics}
    for value, expected in ((2.1, Outcome.HELD), (0.0, Outcome.REFUTED)):
        assert outcome(experiment, "lightsleep", "promotions", value, others=2.1) is expected


def test_the_arm_of_a_patched_kernel_records_as_the_baseline_does() -> None:
    commands = dict[str, list[Sequence[str]]]()

    def measured(name: str) -> dict[str, float]:
        def run(argv: Sequence[str], timeout_s: float) -> SimpleNamespace:
            commands.setdefault(name, []).append(argv)
            return SimpleNamespace(stdout="800\n")

        guest: Any = SimpleNamespace(name=name, run=run)
        return record_cost.measure(guest)

    assert measured(PATCHED) == measured(record_cost.EXPERIMENT.baseline.name)
    assert commands[PATCHED] == commands[record_cost.EXPERIMENT.baseline.name]


def test_the_arm_of_a_patched_kernel_predicts_as_the_baseline_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prediction_loop, "predicted", lambda guest, folder, end_of: end_of)
    baseline = prediction_loop.EXPERIMENT.baseline.name
    patched, other = (SimpleNamespace(name=name) for name in (PATCHED, baseline))
    measure: Any = prediction_loop.measure
    assert measure(patched) is measure(other)


@pytest.mark.parametrize("name", experiments.names())
def test_an_arm_that_never_halts_does_not_halt_on_any_architecture(name: str) -> None:
    for arm in experiments.load(name).arms:
        options = arm.append.split()
        assert arm.spins == ("idle=poll" in options) == ("nohlt" in options), arm.name


@pytest.mark.parametrize("name", experiments.names())
def test_as_many_cpus_as_an_experiment_needs_are_its_default(name: str) -> None:
    experiment = experiments.load(name)
    assert experiment.least_vcpus <= experiment.vcpus
    two_cpus = (
        "measure-",
        "poll-source-blk",
        "poll-source-file",
        "prediction",
        "promotion",
        "smp-",
    )
    assert experiment.least_vcpus > 1 or not name.startswith(two_cpus)


def test_the_idle_experiment_has_one_of_each_role_and_describes_everything() -> None:
    assert sorted(arm.role for arm in idle.EXPERIMENT.arms) == [
        "baseline",
        "control",
        "limit",
        *["treatment"] * 3,
    ]
    by_role = {arm.role: arm for arm in idle.EXPERIMENT.arms}
    assert by_role["control"].modules == by_role["baseline"].modules
    assert by_role["control"].append == by_role["baseline"].append
    assert isinstance(idle.EXPERIMENT.metrics, tuple)
    assert all(metric.description for metric in idle.EXPERIMENT.metrics)


PIPE_TEXT = """\
# Running 'sched/pipe' benchmark:
# Executed 3000 pipe operations between two processes

     Total time: 0.038 [sec]

      12.726667 usecs/op
          78575 ops/sec
"""
SECCOMP_TEXT = """\
# Running 'sched/seccomp-notify' benchmark:
# Executed 2500 system calls

     Total time: 0.007 [sec]

       2.959200 usecs/op
         337929 ops/sec
"""
"""What perf 6.12 prints. That of 6.1, and of 7.3 by its source, has the same form."""


def test_what_perf_times_is_not_cut_to_milliseconds() -> None:
    printed = {"pipe": PIPE_TEXT, "seccomp-notify": SECCOMP_TEXT}

    def run(argv: Sequence[str]) -> SimpleNamespace:
        """Print as perf does: with ``-f simple``, no more than the total time."""
        text = next((text for name, text in printed.items() if name in argv), "0.050\n")
        simple = "simple" in argv and text in printed.values()
        return SimpleNamespace(stdout="0.007\n" if simple else text)

    guest: Any = SimpleNamespace(run=run, read_text=lambda _: "")
    found = idle.measure(guest, 3000, 2500)
    assert found["sched_pipe_s"] == pytest.approx(0.03818, abs=1e-8)
    assert found["sched_seccomp_notify_s"] == pytest.approx(0.007398, abs=1e-8)
    assert found["sched_messaging_s"] == 0.05


@pytest.mark.parametrize("text", ["0.014\n", "", "  nan usecs/op\n", 2 * " 5.1 usecs/op\n"])
def test_perf_that_prints_something_else_is_quoted(text: str) -> None:
    with pytest.raises(LightsleepError, match="usecs/op") as raised:
        pipe.bench_s(text, 3000)
    assert (text.strip() or "(no output)") in raised.value.message


def test_the_steps_of_what_is_printed_in_steps_are_told() -> None:
    described = {
        metric.name: metric.description
        for experiment in (idle.EXPERIMENT, overcommit.EXPERIMENT, promotion_cost.EXPERIMENT)
        if not callable(experiment.metrics)
        for metric in experiment.metrics
    }
    for name in ("sched_messaging_s", "messaging_s", "cyclic_us", "cyclictest_us"):
        assert "in steps of 1 " in described[name], name
    for name in ("sched_pipe_s", "sched_seccomp_notify_s"):
        assert " simple " not in described[name], name
