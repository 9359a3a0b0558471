# SPDX-License-Identifier: GPL-2.0-only
"""The table of many CPUs: what those that share a line say together."""

import io
from dataclasses import replace

import pytest
from measurements import STATES, made_up
from rich.console import Console

from lightsleep.measure.render import render
from lightsleep.measure.result import Verdict, VerdictKind
from lightsleep.measure.verdict import FASTER, SPARED

STOLEN = "12.0 to 33.0 us: the host stole {}% of the time"


def folded(*verdicts: Verdict) -> list[str]:
    """Return the lines of a state of as many CPUs as there are verdicts on it."""
    result = made_up(range(len(verdicts)), ("ipi",), STATES[1:2], samples=20)
    rows = [x if x.kind == "busy" else replace(x, verdict=verdicts[x.cpu]) for x in result.rows]
    shown = io.StringIO()
    render(Console(width=300, file=shown), replace(result, rows=rows), verbose=False)
    lines = shown.getvalue().splitlines()
    return [" ".join(line.split()) for line in lines if line.startswith(STATES[1].name)]


def more(samples: int) -> Verdict:
    return Verdict("too-few", None, samples, f"cannot tell, {samples} more samples needed")


@pytest.mark.parametrize(
    ("kind", "texts", "said"),
    [
        ("agrees", ["agrees"], "agrees"),
        ("too-noisy", [SPARED], SPARED),
        ("too-noisy", [STOLEN.format(7)], STOLEN.format(7)),
        ("too-noisy", [STOLEN.format(7), "only 3 of 60 wakes count"], "too noisy: -v shows why"),
        (
            "not-entered",
            ["never entered (50 x not-idle)", "never entered: the CPU was in C1 instead"],
            "not entered: -v shows why",
        ),
    ],
)
def test_cpus_that_share_a_line_say_what_they_all_say(
    kind: VerdictKind, texts: list[str], said: str
) -> None:
    (line,) = folded(*(Verdict(kind, None, None, texts[cpu % len(texts)]) for cpu in range(6)))
    assert line.endswith(f" {said} 0-5")


def test_cpus_that_need_more_samples_name_the_largest_number() -> None:
    (line,) = folded(*map(more, (28, 9600, 400, 28, 1)))
    assert line.endswith(" cannot tell, up to 9600 more samples needed 0-4")


def test_what_asks_for_something_else_has_a_line_of_its_own() -> None:
    noisy = [Verdict("too-noisy", None, None, x) for x in (SPARED, FASTER, STOLEN.format(2))]
    few = [
        Verdict("too-few", None, None, "no sample was taken"),
        Verdict("too-few", None, None, "cannot tell: ended early"),
        more(28),
    ]
    lines = folded(*noisy, *few, *noisy[:2])
    ends = [" 0,6", " 1,7", " 2", " 3", " 4", " 5"]
    for verdict, line, end in zip([*noisy, *few], lines, ends, strict=True):
        assert line.endswith(f" {verdict.text}{end}")
