# SPDX-License-Identifier: GPL-2.0-only
"""That a result says in which rounds guests kept from polling, as the host was short of cores."""

from __future__ import annotations

from typing import cast

import pytest
from click.testing import CliRunner
from comparisons import made_up

from lightsleep.cli import main
from lightsleep.compare import words
from lightsleep.lab.boot.agent import Completed
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.run import pauses, protocol

CPUS = "/sys/devices/system/cpu"


class Tells:
    """Says one after the other what the files of two CPUs hold: counts, and whether in a pause."""

    def __init__(self, *said: str) -> None:
        self.said = list(said)

    def run(self, argv: object, check: bool) -> Completed:
        return Completed(2, self.said.pop(0), f"{argv}: {check}", 0.0)


def guest(*said: str) -> Guest:
    return cast(Guest, Tells(*said))


def driver(first: int, second: int, contended: tuple[int, int] = (0, 0), inode: int = 7) -> str:
    """Return what the driver says, whose files have other inodes once it is loaded anew."""
    return "".join(
        f"{CPUS}/cpu{cpu}/lightsleep/contention_pauses:{count}\n"
        f"{CPUS}/cpu{cpu}/lightsleep/contended:{now}\n"
        for cpu, (count, now) in enumerate(zip((first, second), contended, strict=True))
    ) + "".join(
        f"{inode + cpu:6} {CPUS}/cpu{cpu}/lightsleep/contention_pauses\n" for cpu in range(2)
    )


def series(first: int, second: int) -> str:
    return "".join(
        f"{CPUS}/cpu{cpu}/idle_poll/contention_pauses:{count}\n"
        for cpu, count in ((10, first), (11, second))
    )


def test_only_a_guest_that_can_pause_is_noted() -> None:
    first = {"stock": pauses.read(guest("")), "lightsleep": pauses.read(guest(driver(0, 0)))}
    assert first["stock"] is None
    noted = pauses.Noted(first)
    noted.turn("stock", guest(), recorded=True)
    noted.turn("lightsleep", guest(driver(0, 0)), recorded=True)
    assert noted.of_turns == {"lightsleep": [0]}


def test_a_pause_counts_in_each_turn_that_it_reaches_into() -> None:
    """It begins in the warm-up, lasts for the first turn and ends in the second."""
    said = [
        driver(1, 0, (1, 0)),
        driver(1, 0, (1, 0)),
        driver(1, 0),
        driver(1, 0),
        driver(2, 3),
    ]
    noted = pauses.Noted({"a": pauses.read(guest(driver(0, 0)))})
    guests = guest(*said)
    for number in range(len(said)):
        noted.turn("a", guests, recorded=number > 0)
    assert noted.of_turns == {"a": [1, 1, 0, 2]}


def test_the_idle_loop_counts_pauses_too() -> None:
    noted = pauses.Noted({"idle-poll": pauses.read(guest(series(5, 0)))})
    guests = guest(series(5, 0), series(6, 0))
    for _ in range(2):
        noted.turn("idle-poll", guests, recorded=True)
    assert noted.of_turns == {"idle-poll": [0, 1]}


@pytest.mark.parametrize("after", [driver(0, 0, inode=40), ""], ids=["loaded anew", "unloaded"])
def test_a_guest_that_loads_the_driver_anew_cannot_tell(after: str) -> None:
    """Its counters begin at 0 again, whatever happened before."""
    noted = pauses.Noted(
        {"a": pauses.read(guest(driver(0, 0))), "b": pauses.read(guest(series(0, 0)))}
    )
    guests = guest(driver(1, 0), after, driver(0, 0, inode=90))
    for _ in range(3):
        noted.turn("a", guests, recorded=True)
        noted.turn("b", guest(series(0, 0)), recorded=True)
    assert noted.of_turns == {"b": [0, 0, 0]}


def test_rounds_in_which_guests_paused_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    made = made_up()
    runs = made.protocol["runs"]
    made.protocol["paused_cpus"] = {arm: [0] * runs for arm in made.arms[:2]}
    assert words.paused(made) == ""
    for number in (2, 4, 5):
        made.protocol["paused_cpus"][made.arms[1]][number - 1] = 2
    monkeypatch.setattr(protocol, "compare", lambda *_: made)
    result = CliRunner().invoke(main, ["lab", "compare", "idle"])
    assert (
        f"Guests found the host short of cores: {made.arms[1]} in 3 of {runs} rounds (2, 4-5). "
        "CPUs do not poll for a while then, except in mode fixed."
    ) in " ".join(result.stderr.split())
