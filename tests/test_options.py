# SPDX-License-Identifier: GPL-2.0-only
"""Options that several verbs have mean the same in each: times, seeds, JSON."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner
from recordings import PIPE

from lightsleep import units
from lightsleep.document import text_of
from lightsleep.enable.cli import disable, status
from lightsleep.lab.cli import lab
from lightsleep.measure.cli import measure
from lightsleep.options import Duration
from lightsleep.record.cli import record
from lightsleep.replay.cli import replay_command
from lightsleep.report.cli import report
from lightsleep.scan.cli import scan
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


@pytest.mark.parametrize("command", [measure, try_settings, lab.commands["compare"]])
def test_no_seed_is_negative(command: click.Command) -> None:
    done = CliRunner().invoke(command, ["--seed", "-1", "idle"])
    assert done.exit_code == 2
    assert "-1 is not in the range x>=0" in done.output


@pytest.mark.parametrize("words", [[scan], [status], [report, str(PIPE)], [disable]])
def test_a_document_is_printed_as_it_is_saved(
    words: list[click.Command | str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)  # disable fails, and says so in a document
    command, *more = words
    assert isinstance(command, click.Command)
    shown = CliRunner().invoke(command, [*map(str, more), "--json"]).stdout
    assert shown == f"{text_of(json.loads(shown))}\n"
    assert shown.startswith('{\n "schema": "lightsleep.')
