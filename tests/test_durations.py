# SPDX-License-Identifier: GPL-2.0-only
"""Times on the command line: one grammar, whatever the option."""

from __future__ import annotations

import click
import pytest

from lightsleep import units
from lightsleep.lab.cli import lab
from lightsleep.options import Duration
from lightsleep.record.cli import record
from lightsleep.replay.cli import replay_command
from lightsleep.trial.cli import try_settings
from lightsleep.watch.cli import watch


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        ("0us", 0),
        ("1ns", 1),
        ("200us", 200_000),
        ("1.5ms", 1_500_000),
        ("10s", 10**10),
        ("10 s", 10**10),
        ("2m", 120 * 10**9),
        ("2min", 120 * 10**9),
        ("1.5h", 5400 * 10**9),
        ("", None),
        ("5", None),
        ("-1s", None),
        ("1 week", None),
        ("0.1ns", None),
        ("999999999h", None),
    ],
)
def test_a_time(text: str, time_ns: int | None) -> None:
    assert units.parse_ns(text) == time_ns


@pytest.mark.parametrize("time_s", [600, 0.5, 90, 0.02, 1e-9])
def test_a_time_as_the_command_line_takes_it(time_s: float) -> None:
    assert Duration().convert(Duration.spelled(time_s), None, None) == time_s


def test_a_bare_number_is_of_seconds_where_that_is_said() -> None:
    bare = Duration(0.1, 86400, bare=True)
    assert [bare.convert(x, None, None) for x in ("0.1", "10s", "10", "24h")] == [
        0.1,
        10,
        10,
        86400,
    ]
    with pytest.raises(click.BadParameter, match=r"^25h is not between 0\.1s and 86400s$"):
        bare.convert("25h", None, None)
    for text in ("nan", "1.2.3", ".", "0"):
        with pytest.raises(click.BadParameter, match="is no time such as"):
            bare.convert(text, None, None)
    with pytest.raises(click.BadParameter, match="'10' is no time such as"):
        Duration().convert("10", None, None)


@pytest.mark.parametrize(
    "command",
    [watch, record, replay_command, try_settings, lab.commands["compare"], lab.commands["shell"]],
    ids=lambda command: command.name,
)
def test_each_option_that_takes_a_time_takes_any_unit(command: click.Command) -> None:
    times = [x for x in command.params if isinstance(x, click.Option) and x.metavar == "TIME"]
    assert times
    assert [x.name for x in times if not isinstance(x.type, Duration)] == []
