# SPDX-License-Identifier: GPL-2.0-only
"""The sentences in which a comparison is told."""

from __future__ import annotations

import pytest
from comparisons import made_up

from lightsleep.compare.analysis import analyse
from lightsleep.compare.result import Claim, MetricResult
from lightsleep.compare.words import claim, control_sentences, together


@pytest.mark.parametrize(
    ("titles", "said"),
    [
        (["Pipe ping-pong"], "Pipe ping-pong"),
        (["Pipe ping-pong", "Idle guest asleep"], "Pipe ping-pong and Idle guest asleep"),
        (
            ["randread, a slow disk", "randwrite, a slow disk", "randrw, a slow disk"],
            "randread, randwrite and randrw, a slow disk",
        ),
        (
            ["randread, a slow disk", "randread, a disk"],
            "randread (a slow disk) and randread (a disk)",
        ),
        (["Unbound, a DNS server, one client"], "Unbound (a DNS server), one client"),
        (
            ["Redis, one client", "Unbound, a DNS server, one client"],
            "Redis and Unbound (a DNS server), one client",
        ),
    ],
)
def test_metrics_are_named_together(titles: list[str], said: str) -> None:
    metrics = [MetricResult("/s", "higher", title, "", {}) for title in titles]
    assert together(metrics) == said


def test_a_bound_close_to_1_is_not_rounded_to_it() -> None:
    metric = MetricResult("us", "lower", "Period", "", {})
    said = claim(Claim("histogram", "off", ("period_us",), at_most=1.005), [metric])
    assert said == "Period: histogram / off is at most 1.005"


def test_what_a_control_could_have_missed_is_one_short_sentence() -> None:
    few, many = analyse(made_up(metrics=2)), analyse(made_up(metrics=2)) * 5
    ((_, named),) = control_sentences(few, "stock")
    assert "it could have missed less than" in named
    assert "in sched pipe" in named
    ((_, short),) = control_sentences(many, "stock")
    assert "the differences that it could have missed are in the tables" in short
