# SPDX-License-Identifier: GPL-2.0-only
"""True time: guests whose clocks are wrong by some per cent, and those that cannot be used."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fake_guests import WAIT, FakeGuest, experiment, quiet

from lightsleep.compare.result import FORMAT
from lightsleep.document import load
from lightsleep.errors import LightsleepError
from lightsleep.lab.boot.guest import EmulatorRaced, Guest
from lightsleep.lab.boot.machine import Machine
from lightsleep.lab.run import clock, pauses, protocol
from lightsleep.lab.run.experiment import Metric


class HostTime:
    """The host's clock, on which a question to a guest takes ``question_ns``."""

    now_ns = 50 * 10**9
    question_ns = 10**6

    def monotonic_ns(self) -> int:
        self.now_ns += self.question_ns
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)


class Clocked(FakeGuest):
    """A guest whose clock runs at another speed than the host's."""

    host: HostTime

    def __init__(self, name: str, speed: float) -> None:
        super().__init__(name, [], os.getpid())
        self.speed = speed

    def clock_ns(self) -> int:
        return 10**12 + int(self.speed * self.host.now_ns)

    def load(self) -> None:
        pass

    def failure(self, why: str) -> LightsleepError:
        return LightsleepError(why)


@pytest.fixture
def booting(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Clocked]]]:
    """Have guests, by arm, whose clocks have these speeds in one boot after the other.

    Returns what will have been booted.
    """
    host = HostTime()
    monkeypatch.setattr(clock, "time", host)
    Clocked.host = host
    booted: list[dict[str, Clocked]] = []
    all_speeds: dict[str, Iterator[float]] = {}

    def boot_all(machines: dict[str, Machine], *_: Any) -> dict[str, Clocked]:
        assert all(guest.world[-1:] == ["closed"] for boot in booted for guest in boot.values())
        booted.append({name: Clocked(name, next(all_speeds[name])) for name in machines})
        stack = _[1]
        assert isinstance(stack, contextlib.ExitStack)
        for guest in booted[-1].values():
            stack.callback(guest.world.append, "closed")
            _[3].append(guest)
        return booted[-1]

    accelerator = SimpleNamespace(name="tcg", reason="", real_time=True)
    hardware = SimpleNamespace(accelerator=accelerator, arch=SimpleNamespace(memory_mib=0))
    monkeypatch.setattr(protocol, "boot_all", boot_all)
    monkeypatch.setattr(protocol, "prepare", lambda *_, **__: hardware)
    facts = {"kernel": "6.12", "kernel_build": "#1"}
    monkeypatch.setattr(protocol, "guest_facts", lambda _: facts)
    monkeypatch.setattr(pauses, "read", lambda _: None)
    monkeypatch.setattr(protocol, "host_facts", lambda _: {})

    def with_speeds(**speeds: Sequence[float]) -> list[dict[str, Clocked]]:
        all_speeds.update({arm: iter(each) for arm, each in speeds.items()})
        return booted

    return with_speeds


def waits(guest: Any) -> dict[str, float]:
    """Wait for 2 s."""
    guest.host.now_ns += 2 * 10**9
    return {"wait_s": 2.0 * guest.speed, "per_s": 3.0 / guest.speed, "cpu_us": 5.0}


def test_every_boot_has_its_rounds_and_true_times(
    booting: Callable[..., list[dict[str, Clocked]]],
) -> None:
    """Clocks are wrong by some per cent, in every guest and boot otherwise."""
    booted = booting(a=[1.0, 1.1, 0.9], b=[0.85, 1.15, 1.0], c=[1.0, 1.0, 1.0])
    per_s = Metric("per_s", "/s", "higher", "Rate", "")
    cpu_us = Metric("cpu_us", "us", "lower", "CPU time", "", clock="host")
    asked = experiment(waits, metrics=(WAIT, per_s, cpu_us))
    result = protocol.attempt("t", asked, Machine(), 6, 3, 1, lambda *_: None)
    assert len(booted) == 3
    assert result.protocol["clock_rates"]["b"] == pytest.approx([0.85, 1.15, 1.0], rel=0.01)
    assert "guests_booted_again" not in result.protocol
    assert len(result.protocol["order"]) == 3 * (2 + asked.warmup)
    for arm in "abc":
        found = {name: metric.samples[arm] for name, metric in result.metrics.items()}
        assert found["wait_s"] == pytest.approx([2.0] * 6, rel=0.01)
        assert found["per_s"] == pytest.approx([3.0] * 6, rel=0.01)
        assert found["cpu_us"] == [5.0] * 6
    assert all(guest.world.count(f"+{guest.name}") == 4 for x in booted for guest in x.values())


def test_rounds_in_which_guests_paused_are_noted_by_arm(
    booting: Callable[..., list[dict[str, Clocked]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second boot, the CPU of b found the host short of cores before its first turn."""
    booted = booting(a=[1.0] * 3, b=[1.0] * 3, c=[1.0] * 3)

    def read(guest: Guest) -> pauses.Pauses | None:
        contended = frozenset({0} if len(booted) == 2 else ())
        paused = pauses.Pauses({0: len(contended)}, contended, {0: 7})
        return paused if guest.name == "b" else None

    monkeypatch.setattr(pauses, "read", read)
    result = protocol.attempt("t", experiment(only_waits), Machine(), 6, 3, 1, lambda *_: None)
    assert result.protocol["paused_cpus"] == {"b": [0, 0, 1, 1, 0, 0]}


def only_waits(guest: Guest) -> dict[str, float]:
    return {"wait_s": waits(guest)["wait_s"]}


def test_a_guest_that_was_booted_again_is_told(
    booting: Callable[..., list[dict[str, Clocked]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(guest: Clocked) -> None:
        if guest.name == "b" and len(booted) == 2:
            guest.spoiled.append("b: the guest went away")

    booted = booting(a=[1.0] * 3, b=[1.0] * 3, c=[1.0] * 3)
    monkeypatch.setattr(Clocked, "load", load)
    result = protocol.attempt("t", experiment(only_waits), Machine(), 6, 3, 1, lambda *_: None)
    assert result.protocol["guests_booted_again"] == ["boot 2 of 3, b: the guest went away"]


def test_a_guest_that_was_booted_again_is_told_where_its_boot_was_thrown_away(
    booting: Callable[..., list[dict[str, Clocked]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt ends in its second boot, and a clock is off in the first of the next."""

    def load(guest: Clocked) -> None:
        if guest.name == "b" and len(booted) in (1, 2, 3):
            guest.spoiled.append(f"b: ended in {len(booted)}")
        if guest.name == "b" and len(booted) == 2:
            raise EmulatorRaced("b: ended, too")

    booted = booting(a=[1.0] * 6, b=[1.0, 1.0, 5.0, 1.0, 1.0, 1.0], c=[1.0] * 6)
    monkeypatch.setattr(Clocked, "load", load)
    result = protocol.compare("t", experiment(only_waits), Machine(), 6, 3, 1, lambda *_: None)
    assert len(booted) == 6
    assert result.protocol["started_over"].startswith("b: ended, too")
    assert len(result.protocol["booted_again"]) == 1
    assert result.protocol["guests_booted_again"] == [
        "boot 1 of 3, b: ended in 1",
        "boot 2 of 3, b: ended in 2",
        "boot 1 of 3, b: ended in 3",
    ]


def test_guests_are_known_before_they_have_booted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that ended again and again, too, it is told."""

    class Ends(FakeGuest):
        def __init__(self, machine: Machine, hardware: Any, name: str) -> None:
            super().__init__(name, [])

        def wait(self) -> None:
            self.spoiled += ["it ended", "it ended again"]
            raise EmulatorRaced("for the third time")

        def close(self) -> None:
            pass

    monkeypatch.setattr(protocol, "Guest", Ends)
    hardware: Any = {"a": SimpleNamespace(accelerator=SimpleNamespace(real_time=True))}
    again, given = list[str](), (experiment(lambda _: {}), {"a": Machine()}, hardware)
    with pytest.raises(EmulatorRaced):
        protocol.run_boot(*given, ["a"], quiet(), "boot 1 of 3, ", 6, again)
    assert again == ["boot 1 of 3, it ended", "boot 1 of 3, it ended again"]


def test_a_boot_in_which_a_clock_is_far_off_is_done_again(
    booting: Callable[..., list[dict[str, Clocked]]], tmp_path: Path
) -> None:
    booted = booting(a=[1.0] * 5, b=[1.0, 5.0, 0.1, 1.0, 1.0], c=[1.0] * 5)
    left: list[float] = []
    shown: list[str] = []

    def show(what: str, left_s: float | None) -> None:
        shown.append(what)
        if left_s is not None:
            left.append(left_s)

    result = protocol.attempt("t", experiment(only_waits), Machine(), 6, 3, 1, show)
    assert len(booted) == 5
    whys = result.protocol["booted_again"]
    assert [why.startswith("boot 2 of 3, ") for why in whys] == [True, True]
    assert [f"booting all again: {why}" in shown for why in whys] == [True, True]
    for arm in "abc":
        assert result.metrics["wait_s"].samples[arm] == pytest.approx([2.0] * 6, rel=0.01)
    assert result.protocol["clock_rates"]["b"] == pytest.approx([1.0] * 3, rel=0.01)
    assert min(left) >= 0
    (tmp_path / "x.json").write_text(json.dumps(result.document()))
    assert load(tmp_path / "x.json", FORMAT) == result


def test_but_not_for_ever(booting: Callable[..., list[dict[str, Clocked]]]) -> None:
    booted = booting(a=[1.0] * 9, b=[5.0] * 9, c=[1.0] * 9)
    with pytest.raises(
        clock.ClockOff, match=r"(?s)clock is 5\.00 times as fast.*in 3 boots: end other"
    ):
        protocol.attempt("t", experiment(only_waits), Machine(), 6, 3, 1, lambda *_: None)
    assert len(booted) == protocol.BOOT_TRIES
    assert all(guest.world[-1] == "closed" for boot in booted for guest in boot.values())


def test_a_guest_whose_clock_is_far_off_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    host = HostTime()
    monkeypatch.setattr(clock, "time", host)
    Clocked.host = host
    for speed, right in ((1.19, True), (0.81, True), (6.9, False), (0.1, False)):
        guest, watched = cast(Guest, Clocked("a", speed)), clock.Clock()
        if right:
            watched.check(guest)  # no turn so far: it is watched
            assert watched.is_exact
            assert watched.rate == pytest.approx(speed, rel=clock.EXACT)
        else:
            with pytest.raises(LightsleepError, match=f"clock is {speed:.2f} times as fast"):
                watched.check(guest)


def test_a_clock_is_watched_until_its_rate_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    host, watched = HostTime(), clock.Clock()
    host.question_ns = 20 * 10**6  # of which one second would leave 2 % open
    monkeypatch.setattr(clock, "time", host)
    Clocked.host = host
    watched.check(cast(Guest, Clocked("a", 1.1)))
    assert watched.is_exact
    assert watched.rate == pytest.approx(1.1, rel=clock.EXACT)
    assert watched.host_ns < 8 * 10**9


def test_a_clock_whose_rate_stays_uncertain_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    host = HostTime()
    host.question_ns = 300 * 10**6
    monkeypatch.setattr(clock, "time", host)
    Clocked.host = host
    with pytest.raises(
        LightsleepError,
        match=r"^a: after 34 s, the rate of its clock is known only to within 4\.4 %, because .*; "
        "to correct its times, 1 % is needed: end other work on the host",
    ):
        clock.Clock().check(cast(Guest, Clocked("a", 1.0)))
