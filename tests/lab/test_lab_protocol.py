# SPDX-License-Identifier: GPL-2.0-only
"""The protocol, with guests that only pretend."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from comparisons import made_up
from fake_guests import MORE, WAIT, FakeGuest, experiment, fakes, quiet

from lightsleep.compare.result import FORMAT, Claim, CompareResult
from lightsleep.document import load
from lightsleep.errors import LightsleepError
from lightsleep.lab.boot.accel import Accelerator
from lightsleep.lab.boot.guest import EmulatorRaced, Guest, GuestFailed
from lightsleep.lab.boot.machine import Devices, ForeignKernel, Machine
from lightsleep.lab.experiments.idle import EXPERIMENT
from lightsleep.lab.run import facts, pauses, protocol
from lightsleep.lab.run.experiment import IDLE_RESIDENCY, Arm, Metric


def test_metrics_of_the_machine_that_no_result_could_hold_are_refused() -> None:
    guests, _ = fakes("a", "b", "c")
    wrong = (dataclasses.replace(WAIT, title=""),)
    with pytest.raises(LightsleepError, match=r"metrics\.wait_s\.title: ''"):
        protocol.promised(experiment(lambda _: {}, metrics=lambda _: wrong), guests, 6)


@pytest.mark.parametrize("metrics", [None, [WAIT], ("wait_s",), (x for x in (WAIT,))])
def test_metrics_of_the_machine_that_are_none_are_named(metrics: Any) -> None:
    guests, _ = fakes("a", "b", "c")
    said = "metrics() of the experiment has to return a tuple of Metric, and returned a "
    said += f"{type(metrics).__name__}: "
    with pytest.raises(LightsleepError, match=re.escape(said)):
        protocol.promised(experiment(lambda _: {}, metrics=lambda _: metrics), guests, 6)


def test_metrics_that_depend_on_the_machine_are_asked_of_the_baseline() -> None:
    guests, world = fakes("a", "b", "c")
    asked: list[str] = []

    def metrics(guest: Guest) -> tuple[Metric, ...]:
        asked.append(guest.name)
        return (WAIT,)

    assert protocol.promised(experiment(lambda _: {}, metrics=metrics), guests, 6) == (WAIT,)
    assert asked == ["a"]
    assert world == ["+a", "-a"]


@pytest.mark.parametrize(
    ("metrics", "rest_s", "rounds", "said"),
    [
        ((WAIT,), 1, 18, "on this machine: metrics: IDLE_RESIDENCY is missing, and rest_s is not"),
        ((WAIT, IDLE_RESIDENCY), 0, 18, "nothing measures IDLE_RESIDENCY, as rest_s is 0"),
        ((WAIT, MORE), 0, 6, "6 rounds are too few to judge the control in 2 metrics .* least 7"),
    ],
)
def test_metrics_that_depend_on_the_machine_are_checked_before_the_first_round(
    metrics: tuple[Metric, ...], rest_s: float, rounds: int, said: str
) -> None:
    guests, _ = fakes("a", "b", "c")
    asks = experiment(lambda _: {}, metrics=lambda _: metrics, rest_s=rest_s)
    with pytest.raises(LightsleepError, match=said):
        protocol.promised(asks, guests, rounds)


def test_a_claim_about_no_metric_of_the_machine_is_told_with_those_that_are_there() -> None:
    guests, _ = fakes("a", "b", "c")
    claims = (Claim("b", "a", ("nap",)),)
    asks = experiment(lambda _: {}, metrics=lambda _: (WAIT, MORE), claims=claims)
    said = f"claims[0]: nap is not among the metrics; metrics: {WAIT.name}, {MORE.name}"
    with pytest.raises(LightsleepError, match=re.escape(said)):
        protocol.promised(asks, guests, 18)


def test_metrics_that_raise_are_told() -> None:
    guests, _ = fakes("a", "b", "c")
    wrong = experiment(lambda _: {}, metrics=Mock(side_effect=IndexError("no idle state")))
    with pytest.raises(LightsleepError, match="code of the experiment: IndexError: no idle state"):
        protocol.promised(wrong, guests, 6)


def test_all_arms_have_one_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(["kvm", "tcg", "kvm"])

    def prepare(*_: object, **__: object) -> SimpleNamespace:
        name = next(names)
        return SimpleNamespace(accelerator=SimpleNamespace(name=name, reason=f"why {name}"))

    monkeypatch.setattr(protocol, "prepare", prepare)
    with pytest.raises(LightsleepError) as raised:
        protocol.attempt("t", experiment(lambda _: {}), Machine(), 6, 3, 1, lambda *_: None)
    for said in ("a by kvm, b by tcg, c by kvm", "why tcg", "--accel"):
        assert said in raised.value.message


def test_the_devices_of_an_experiment_keep_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    class Seen(Exception):
        pass

    def prepare(machine: Machine, **_: object) -> None:
        assert machine.devices.drive == ("theirs", "mine")
        raise Seen

    monkeypatch.setattr(protocol, "prepare", prepare)
    theirs = experiment(lambda _: {}, devices=Devices(drive=("theirs",)))
    mine = Machine(devices=Devices(drive=("mine",)))
    with pytest.raises(Seen):
        protocol.attempt("t", theirs, mine, 6, 3, 1, lambda *_: None)


Facts = dict[str, dict[str, Any]]
HOURS_AGO, NOW = "#1 SMP Mon Jul  6 10:00:00 UTC 2026", "#2 SMP Mon Jul  6 12:00:00 UTC 2026"


def facts_of(build: str, **other: str) -> Facts:
    """Return what the guests say; ``other`` arms have another build."""
    rates = iter(range(9))  # what a guest measures differs, and says nothing of its kernel
    return {
        arm: {"kernel": "7.3.0", "kernel_build": other.get(arm, build), "measured": next(rates)}
        for arm in "abc"
    }


@pytest.fixture
def attempted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., CompareResult]:
    """A comparison of boots whose guests say what is given."""

    def attempt(
        *boots: Facts | Exception, machine: Machine | None = None, **changes: Any
    ) -> CompareResult:
        samples = {"wait_s": {arm: [1.0, 1.0] for arm in "abc"}}
        turns = {arm: [0.0, 0.0] for arm in "abc"}
        done = [
            boot
            if isinstance(boot, Exception)
            else protocol.Booted((WAIT,), samples, dict.fromkeys("abc", 1.0), boot, 0.0, turns, {})
            for boot in boots
        ]
        hardware = SimpleNamespace(
            accelerator=SimpleNamespace(name="tcg", reason="a test", real_time=True),
            arch=SimpleNamespace(memory_mib=512),
        )
        monkeypatch.setattr(protocol, "prepare", lambda *_, **__: hardware)
        monkeypatch.setattr(protocol, "run_boot", Mock(side_effect=done))
        monkeypatch.setattr(protocol, "host_facts", lambda _: {})
        compared = experiment(lambda _: {}, **changes)
        machine = machine or Machine()
        return protocol.compare("t", compared, machine, 6, 3, 1, lambda *_: None)

    return attempt


@pytest.mark.parametrize(
    "boots",
    [
        (facts_of(HOURS_AGO), facts_of(NOW), facts_of(NOW)),
        (facts_of(HOURS_AGO, b=NOW), facts_of(NOW), facts_of(NOW)),
    ],
)
def test_a_kernel_that_is_built_anew_meanwhile_is_noticed(
    attempted: Callable[..., CompareResult], boots: tuple[Facts, ...]
) -> None:
    with pytest.raises(LightsleepError, match=r"not the same in all guests: .*#1 .*a in boot 1"):
        attempted(*boots)


def test_kernels_may_differ_where_they_are_what_is_compared(
    attempted: Callable[..., CompareResult],
) -> None:
    arms = (
        Arm("a", "baseline", "", kernel="6.12"),
        Arm("b", "treatment", "", kernel="6.1"),
        Arm("c", "control", "", kernel="6.12"),
    )
    result = attempted(*[facts_of(HOURS_AGO, b=NOW)] * 3, arms=arms)
    assert result.environment["guests"]["b"]["kernel_build"] == NOW


def test_two_trees_may_differ_but_each_stays_as_it_is(
    attempted: Callable[..., CompareResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "check_kernels", lambda _: None)
    monkeypatch.setattr(protocol, "lacks_modprobe", lambda _: "")
    arms = (
        Arm("a", "baseline", ""),
        Arm("b", "treatment", "", foreign=ForeignKernel(tree=Path("patched"))),
        Arm("c", "control", ""),
    )
    given = {"arms": arms, "machine": Machine(foreign=ForeignKernel(tree=Path("plain")))}
    attempted(*[facts_of(HOURS_AGO, b=NOW)] * 3, **given)
    with pytest.raises(LightsleepError, match="not the same in all guests"):
        attempted(facts_of(HOURS_AGO), facts_of(HOURS_AGO, b=NOW), facts_of(HOURS_AGO), **given)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("0123abc", "0123abc", "0123abc"),
        ("0123abc", "4567def", "0123abc-dirty"),
        ("0123abc", "0123abc-dirty", "0123abc-dirty"),
        ("0123abc-dirty", "4567def", "0123abc-dirty"),
        (None, "4567def", None),
        ("0123abc", None, "0123abc"),  # git fails
    ],
)
def test_the_commit_of_a_result_is_that_of_its_beginning(
    attempted: Callable[..., CompareResult],
    before: str | None,
    after: str | None,
    said: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = iter([before])
    monkeypatch.setattr(protocol, "commit", lambda: next(now, after))
    result = attempted(*[facts_of(NOW)] * 3)
    assert result.environment["source"]["commit"] == said


def test_metrics_that_differ_between_boots_end_the_comparison_at_once(
    monkeypatch: pytest.MonkeyPatch, attempted: Callable[..., CompareResult]
) -> None:
    booted = protocol.Booted
    names = iter([WAIT, dataclasses.replace(WAIT, name="c6_us")])

    def other_metrics(_: tuple[Metric, ...], *rest: Any) -> protocol.Booted:
        return booted((next(names, WAIT),), *rest)

    monkeypatch.setattr(protocol, "Booted", other_metrics)
    said = r"boot 2 of 3, metrics\(\) of the experiment must .*: it adds c6_us and lacks wait_s"
    with pytest.raises(LightsleepError, match=said):
        attempted(*[facts_of(NOW)] * 3)


MEMINFO = "MemTotal:       16314236 kB\nMemFree:          264052 kB\nMemAvailable:   {} kB\n"


def test_too_little_memory_for_all_guests_is_told_and_noted(
    attempted: Callable[..., CompareResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "MEMORY", tmp_path / "meminfo")
    needed_kib = 3 * (512 + 256) * 1024  # of three emulated guests
    boots = [facts_of(NOW)] * 3
    (tmp_path / "meminfo").write_text(MEMINFO.format(needed_kib))
    assert "little_memory" not in attempted(*boots).protocol
    beside = attempted(*boots, neighbour=("spin",))
    assert "may need 3072 MiB, and the host has 2304 MiB" in beside.protocol["little_memory"]
    (tmp_path / "meminfo").write_text(MEMINFO.format(needed_kib - 1))
    assert "may need 2304 MiB" in attempted(*boots).protocol["little_memory"]
    with pytest.raises(LightsleepError) as raised:
        attempted(GuestFailed("b: the guest has ended"))
    assert "little memory: " in raised.value.format_message()
    (tmp_path / "meminfo").write_text("MemTotal: 16314236 kB\n")  # a kernel of long ago
    assert "little_memory" not in attempted(*boots).protocol


def test_guests_without_modules_of_their_kernel_are_told_and_noted(
    attempted: Callable[..., CompareResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    boots = [facts_of(NOW)] * 3
    assert "no_modprobe" not in attempted(*boots).protocol
    monkeypatch.setattr(protocol, "lacks_modprobe", lambda _: "no modprobe: too large")
    assert attempted(*boots).protocol["no_modprobe"] == "no modprobe: too large"


def test_fewer_cpus_than_a_guest_has_are_told_and_noted(
    attempted: Callable[..., CompareResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    boots = [facts_of(NOW)] * 3
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert "few_cpus" not in attempted(*boots, vcpus=1).protocol
    assert attempted(*boots, vcpus=2).protocol["few_cpus"] == (
        "few CPUs: the guests that run at once have 2 CPUs, and the lab may use 1 of the host. "
        "CPUs that poll take the time of those that work. Use a host with at least 2 CPUs"
    )
    beside = attempted(*boots, vcpus=1, neighbour=("spin",))
    assert "have 2 CPUs, and the lab may use 1" in beside.protocol["few_cpus"]
    served = attempted(*boots, vcpus=1, served_by_cpus=1).protocol["few_cpus"]
    assert "at once, with those that answer them on the host, have 2 CPUs, and" in served
    # It is what this experiment is about.
    assert "few_cpus" not in attempted(*boots, vcpus=2, overcommitted=True).protocol
    # One thread of the host runs all CPUs of a guest.
    for name in ("tcg-icount", "tcg-single"):
        alone = Accelerator(name, "a test")
        assert facts.few_cpus(experiment(lambda _: {}, vcpus=2), alone) == ""


RACED = EmulatorRaced("b: the guest went away; that was QEMU's emulation\n  | its console")


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[CompareResult, list[str]]]:
    """A comparison whose attempts end as given; returns its result, and what it showed."""

    def compare(*ends: CompareResult | Exception) -> tuple[CompareResult, list[str]]:
        shown: list[str] = []
        monkeypatch.setattr(protocol, "attempt", Mock(side_effect=ends))
        result = protocol.compare(
            "idle", EXPERIMENT, Machine(), 4, 2, 1, lambda what, _: shown.append(what)
        )
        return result, shown

    return compare


def test_what_the_emulator_ended_starts_over_and_says_so(
    compared: Callable[..., tuple[CompareResult, list[str]]], tmp_path: Path
) -> None:
    result, shown = compared(RACED, made_up())
    assert shown == ["starting over: b: the guest went away; that was QEMU's emulation"]
    assert result.protocol["started_over"] in shown[0]
    (tmp_path / "x.json").write_text(json.dumps(result.document()))
    assert load(tmp_path / "x.json", FORMAT) == result
    assert "started_over" not in compared(made_up())[0].protocol


def test_the_time_of_an_attempt_that_was_thrown_away_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 1000.0

    def attempt(*_: object) -> CompareResult:
        nonlocal now_s
        now_s += 300
        if now_s < 1500:
            raise RACED
        made = made_up()
        made.protocol["took_s"] = 300
        return made

    monkeypatch.setattr(protocol, "attempt", attempt)
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    result = protocol.compare("idle", EXPERIMENT, Machine(), 4, 2, 1, lambda *_: None)
    assert result.protocol["took_s"] == 600


@pytest.mark.parametrize("ends", [(RACED, RACED), (GuestFailed("b: panic"),)])
def test_but_once_and_for_nothing_else(
    compared: Callable[..., object], ends: tuple[GuestFailed, ...]
) -> None:
    with pytest.raises(GuestFailed) as raised:
        compared(*ends, made_up())
    assert raised.value is ends[-1]


def test_rounds_are_divided_among_boots() -> None:
    assert [protocol.boots_for(runs) for runs in (6, 7, 8, 9, 12, 18, 22)] == [6, 7, 8, 9, 6, 9, 22]


def test_a_neighbour_is_booted_alike_kept_busy_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    world: list[str] = []

    class Neighbour(FakeGuest):
        def __init__(self, machine: Machine, hardware: str, name: str) -> None:
            super().__init__(name, world)
            world.append(f"{machine.vcpus} vCPUs of {hardware}")

        def wait(self) -> None:
            world.append("booted")

        def run(self, argv: tuple[str, ...]) -> None:
            world.append(" ".join(argv))

        def close(self) -> None:
            world.append("closed")

    monkeypatch.setattr(protocol, "Guest", Neighbour)
    monkeypatch.setattr(protocol, "prepare", lambda machine: machine.kernel)
    beside = experiment(lambda _: {}, neighbour=("spin", "fast"))
    started = list[Guest]()
    with contextlib.ExitStack() as stack:
        guest = protocol.busy_neighbour(beside, Machine(vcpus=3), stack, started)
        assert started == [guest]
        assert guest.name == protocol.NEIGHBOUR
    assert world == ["3 vCPUs of 6.12", "booted", "spin fast", "closed"]


def test_a_complaint_as_a_guest_starts_is_told_with_its_arm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Warns(FakeGuest):
        def load(self) -> None:
            pass

        def check(self) -> None:
            raise GuestFailed(f"{self.name}: its kernel complained")

    monkeypatch.setattr(
        protocol, "boot_all", lambda machines, *_: {name: Warns(name, []) for name in machines}
    )
    monkeypatch.setattr(protocol, "guest_facts", lambda _: {})
    monkeypatch.setattr(pauses, "read", lambda _: None)
    machines = {name: Machine() for name in "abc"}
    hardware: Any = dict.fromkeys("abc", SimpleNamespace(accelerator=Accelerator("tcg", "a test")))
    with pytest.raises(GuestFailed) as raised:
        protocol.run_boot(
            experiment(lambda _: {}), machines, hardware, ["bca"], quiet(), "boot 1 of 3, ", 6, []
        )
    said = raised.value.format_message()
    assert said == "b: its kernel complained\nthis happened in: boot 1 of 3, start: b"


@pytest.mark.parametrize("who", ["b", protocol.NEIGHBOUR])
def test_a_guest_that_does_not_boot_is_told_with_its_boot(
    monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    def fails(*_: object) -> Guest:
        raise GuestFailed(f"{who}: not booted within 120 s")

    guests, _ = fakes("a", "b", "c")
    for guest in guests.values():
        monkeypatch.setattr(guest, "load", lambda: None, raising=False)
    monkeypatch.setattr(protocol, "boot_all", fails if who == "b" else lambda *_: guests)
    monkeypatch.setattr(protocol, "busy_neighbour", fails)
    monkeypatch.setattr(protocol, "guest_facts", lambda _: {})
    monkeypatch.setattr(pauses, "read", lambda _: None)
    hardware: Any = dict.fromkeys("abc", SimpleNamespace(accelerator=Accelerator("tcg", "a test")))
    machines = {name: Machine() for name in "abc"}
    beside = experiment(lambda _: {}, neighbour=("spin",))
    with pytest.raises(GuestFailed) as raised:
        protocol.run_boot(beside, machines, hardware, ["bca"], quiet(), "boot 5 of 9, ", 6, [])
    said = raised.value.format_message()
    where = "booting" if who == "b" else who
    assert said == f"{who}: not booted within 120 s\nthis happened in: boot 5 of 9, {where}"
