# SPDX-License-Identifier: GPL-2.0-only
"""The terminal table: what it says, how wide it is, and when it shouts."""

from __future__ import annotations

import io
import itertools
import re

import pytest
from comparisons import made_up
from rich.console import Console

from lightsleep.compare import headline as headlines
from lightsleep.compare.analysis import analyse
from lightsleep.compare.result import Claim, CompareResult
from lightsleep.compare.table import print_table


def printed(result: CompareResult, *, terminal: bool = False) -> str:
    output = io.StringIO()
    print_table(result, Console(file=output, width=100, force_terminal=terminal))
    return output.getvalue()


def lines_of(text: str, title: str) -> dict[str, str]:
    """Return the lines of one metric by arm."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.strip() == title) + 1
    block = itertools.takewhile(str.strip, lines[start:])
    return {line.split()[0]: line for line in block if not line.lstrip().startswith("median")}


@pytest.mark.parametrize("n", [5, 6, 30])
def test_a_line_per_arm_fits_100_columns(n: int) -> None:
    text = printed(made_up(n))
    assert all(len(line.rstrip()) <= 100 for line in text.splitlines())
    for title in (
        "sched pipe",
        "messaging",
        "Interrupts between CPUs",
        "Wakes without interrupt",
        "idle residency",
    ):
        assert list(lines_of(text, title)) == ["stock", "control", "idle=poll", "lightsleep"]


def test_figures_and_verdicts() -> None:
    lines = lines_of(printed(made_up()), "sched pipe")
    assert "2.20 s" in lines["stock"]
    assert "0.368 s" in lines["lightsleep"]
    assert "✔ 5.98 × faster" in lines["lightsleep"]
    assert "✘ 1.15 × slower" in lines["lightsleep"]
    assert "= none shown (0.96 %)" in lines["control"]


def test_boot_to_boot_is_beside_the_comparison_that_it_is_of() -> None:
    text = printed(made_up(n=12, boots=3))
    (heading,) = (line for line in text.splitlines() if "boot to boot" in line and "median" in line)
    places = [heading.index(x) for x in ("against stock", "boot to boot", "against idle=poll")]
    assert places == sorted(places)
    assert "how far the effect against the baseline differs" in " ".join(text.split())


def test_the_table_says_where_the_intervals_of_effects_are() -> None:
    text = " ".join(printed(made_up()).split())
    assert "95 % CI: of the median of one arm; the interval of an effect says which" in text
    assert "lightsleep report has it, in its page and with --json" in text


def test_no_colour_unless_on_a_terminal() -> None:
    assert "\x1b" not in printed(made_up())
    assert "\x1b" in printed(made_up(), terminal=True)


def test_confidence_that_was_not_reached_is_said() -> None:
    assert "93.75 % (n=5)" in printed(made_up(5))
    assert "confidence reached" not in printed(made_up(6))


def test_the_control_is_judged() -> None:
    assert "control: no difference shown, as it must be" in printed(made_up())


def test_a_control_that_differs_is_a_loud_warning_for_that_metric() -> None:
    result = made_up()
    samples = result.metrics["ipis"].samples
    samples["control"] = [x * 2 for x in samples["control"]]
    text = " ".join(printed(result).split())
    assert (
        "WARNING: control: Interrupts between CPUs: control has 2.00 times more than stock" in text
    )
    assert "a difference of this size says nothing in this comparison, repeat it" in text
    assert text.count("WARNING") == 1
    assert "no difference shown in sched pipe, messaging" in text


def test_a_control_of_few_samples_judges_nothing() -> None:
    assert "too few rounds to judge" in " ".join(printed(made_up(3)).split())
    assert "as it must be" not in printed(made_up(3))


def test_empty_arms_and_no_metrics_at_all() -> None:
    result = made_up()
    result.metrics["ipis"].samples["lightsleep"] = []
    assert "no samples" in lines_of(printed(result), "Interrupts between CPUs")["lightsleep"]
    result.metrics["ipis"].samples = {}
    assert "no samples" in lines_of(printed(result), "Interrupts between CPUs")["stock"]
    result.metrics, result.claims = {}, []
    assert result.title in printed(result)


def test_claims_come_first_with_what_came_of_them() -> None:
    text = " ".join(printed(made_up()).split())
    assert text.startswith(
        "Polling idle against halting idle ✔ sched pipe and seccomp notify: lightsleep is better "
        "than stock: held: 5.57 × faster"
    )
    assert (
        "sched pipe and seccomp notify: lightsleep is 5.57 times faster than stock (95 % CI 5.48 "
        "to 5.65). Of 4 claims, 1 is refuted and 1 is not decided. idle residency: lightsleep "
        "99.92 %, idle=poll 0.10 %. Emulated, 10 rounds. " in text
    )
    assert "✔ sched pipe: lightsleep / idle=poll is at most 1.25: held: 1.15" in text
    assert "✘ Interrupts between CPUs: lightsleep / stock is at most 0.001: refuted: 0.00" in text
    assert "? idle residency: lightsleep - stock is at least -0.0105 points: not decided: -" in text


def test_a_claim_without_a_reference_is_about_each_round() -> None:
    result = made_up()
    samples = result.metrics["sched_pipe_s"].samples["lightsleep"]
    fast = Claim("lightsleep", None, ("sched_pipe_s",), at_most=max(samples))
    faster = Claim("lightsleep", None, ("sched_pipe_s",), at_least=0, at_most=min(samples))
    result.claims = [fast, faster]
    text = " ".join(printed(result).split())
    assert "✔ sched pipe: lightsleep is at most " in text
    assert "in each round: held: in all of 10 rounds" in text
    assert "✘ sched pipe: lightsleep is at least 0 s and at most " in text
    assert "refuted: beyond in 9 of 10 rounds, " in text
    assert re.match(
        r"sched pipe: lightsleep is [\d.]+ to [\d.]+ s in 9 of 10 rounds; claimed: at least 0 s "
        r"and at most [\d.]+ s in each round: refuted\. Of 2 claims, 1 is refuted\. ",
        headline(result),
    )
    result.claims = [fast]
    assert re.match(
        r"sched pipe: lightsleep is [\d.]+ to [\d.]+ s in all of 10 rounds; claimed: at most "
        r"[\d.]+ s in each round: held\. Emulated",
        headline(result),
    )
    result.claims = [Claim("lightsleep", None, ("wakes_without_ipi",), at_least=0)]
    assert headline(result).startswith(
        "Wakes without interrupt: lightsleep has 39,700 in all of 10 rounds; claimed: at least 0 in"
    )
    result.claims = [fast]
    result.metrics["sched_pipe_s"].samples["lightsleep"] = []
    assert "not decided: lightsleep has no samples" in " ".join(printed(result).split())


def headline(result: CompareResult) -> str:
    return headlines.headline(result, analyse(result))


def test_the_headline_prefers_gains() -> None:
    result = made_up()
    slower = Claim("lightsleep", "idle=poll", ("sched_pipe_s",), at_most=1.25)
    same = Claim("lightsleep", "stock", ("sched_messaging_s",), at_most=1.2)
    result.claims = [same, slower, Claim("lightsleep", "stock", ("sched_pipe_s",))]
    assert headline(result).startswith("sched pipe: lightsleep is 5.98 times faster than stock")
    result.claims = [slower, same]
    assert headline(result).startswith("sched pipe: lightsleep is 1.15 times slower than idle=poll")
    result.claims = [Claim("lightsleep", "stock", ("sched_messaging_s",))]
    assert headline(result).startswith(
        "messaging: no difference shown between lightsleep and stock"
    )


def test_the_headline_of_a_comparison_without_claims_or_treatments() -> None:
    result = made_up()
    result.claims = []
    assert headline(result).startswith("sched pipe: lightsleep is 5.98 times faster than stock")
    assert ". No claim was declared beforehand. Emulated, " in headline(result)
    result.roles["lightsleep"] = "control"
    assert headline(result).count("stock ") == 2
    result.metrics = {"sched_pipe_s": result.metrics["sched_pipe_s"]}
    assert headline(result).count("stock ") == 1
    result.metrics = {}
    assert headline(result) == ""


def test_names_are_not_markup() -> None:
    result = made_up()
    result.title = "[bold]loud[/bold] [/oops]"
    result.metrics["ipis"].title = "[red]IPIs[/nothing]"
    text = printed(result)
    assert result.title in text
    assert "[red]IPIs[/nothing]" in text
