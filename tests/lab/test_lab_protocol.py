# SPDX-License-Identifier: GPL-2.0-only
"""The protocol, with guests that only pretend."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from comparisons import made_up
from fake_guests import WAIT, FakeGuest, experiment, fakes, quiet

from lightsleep.compare.result import FORMAT, LARGEST, CompareResult, Role
from lightsleep.document import load
from lightsleep.ending import orderly_end
from lightsleep.errors import LightsleepError
from lightsleep.lab.boot import emulator, hosttime
from lightsleep.lab.boot.guest import EmulatorRaced, Guest, GuestFailed
from lightsleep.lab.boot.hosttime import ThreadTime
from lightsleep.lab.boot.machine import Devices, Machine
from lightsleep.lab.experiments.idle import EXPERIMENT
from lightsleep.lab.kernels.config import Arch
from lightsleep.lab.loads.interrupts import BETWEEN_CPUS, total
from lightsleep.lab.run import protocol
from lightsleep.lab.run.experiment import IDLE_RESIDENCY, Arm, Metric
from lightsleep.lab.run.progress import Progress

MORE = dataclasses.replace(WAIT, name="more_s")


def test_equal_seed_equal_order_and_every_arm_once_per_round() -> None:
    order = protocol.draw_order("abcd", 50, 7)
    assert order == protocol.draw_order("abcd", 50, 7)
    assert order != protocol.draw_order("abcd", 50, 8)
    assert all(sorted(arms) == list("abcd") for arms in order)


def test_no_arm_prefers_a_place() -> None:
    firsts = Counter(arms[0] for arms in protocol.draw_order("abcd", 4000, 1))
    assert all(800 < firsts[arm] < 1200 for arm in "abcd")


def test_exactly_one_guest_runs_while_it_is_measured() -> None:
    guests, world = fakes("a", "b", "c")
    order = protocol.draw_order("abc", 4, 3)
    protocol.run_rounds(experiment(lambda _: {"wait_s": 1.0}), (WAIT,), guests, order, quiet())
    assert world == [f"{sign}{arm}" for arms in order for arm in arms for sign in "+-"]


def test_the_warm_up_is_dropped_and_nothing_else() -> None:
    guests, _ = fakes("a", "b", "c")
    count: Counter[str] = Counter()

    def measure(guest: Guest) -> dict[str, float]:
        count[guest.name] += 1
        return {"wait_s": count[guest.name]}

    order = protocol.draw_order("abc", 7, 3)
    samples = protocol.run_rounds(experiment(measure, warmup=2), (WAIT,), guests, order, quiet())
    assert samples == {"wait_s": {arm: [3, 4, 5, 6, 7] for arm in "abc"}}


def test_other_work_on_the_host_is_noted_turn_by_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    guests, _ = fakes("a", "b", "c")
    now_s = busy_s = 0.0

    def measure(guest: Guest) -> dict[str, float]:
        nonlocal now_s, busy_s
        now_s += 10
        busy_s += 4 if guest.name == "b" else 0.2
        return {"wait_s": 1.0}

    monkeypatch.setattr(hosttime, "own_rows", lambda: frozenset({"cpu4", "cpu6"}))
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    monkeypatch.setattr(hosttime, "busy_s", lambda _: busy_s)
    monkeypatch.setattr(hosttime, "process_s", lambda _: 0.0)
    monkeypatch.setattr(os, "times", lambda: os.times_result((0.0,) * 5))
    loads = hosttime.Loads([])
    order = protocol.draw_order("abc", 3, 3)
    protocol.run_rounds(experiment(measure), (WAIT,), guests, order, quiet(), label="", loads=loads)
    turns = {arm: [pytest.approx(pct)] * 2 for arm, pct in {"a": 1, "b": 20, "c": 1}.items()}
    assert loads.of_turns == turns


def test_less_may_be_enough_to_warm_up() -> None:
    guests, _ = fakes("a", "b", "c")
    warmed: list[str] = []
    short = experiment(lambda _: {"wait_s": 1.0}, warm=lambda guest: warmed.append(guest.name))
    order = protocol.draw_order("abc", 3, 3)
    samples = protocol.run_rounds(short, (WAIT,), guests, order, quiet())
    assert sorted(warmed) == list("abc")
    assert samples == {"wait_s": {arm: [1.0, 1.0] for arm in "abc"}}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (None, "a, round 1 of 1: measure.. of the experiment returned None, and no mapping"),
        ({"wait_s": None}, "a, round 1 of 1: the value of wait_s is None, and no number"),
        ({"wait_s": "0.5"}, "a, round 1 of 1: the value of wait_s is '0.5', and no number"),
        ({"wait_s": True}, "a, round 1 of 1: the value of wait_s is True, and no number"),
    ],
)
def test_what_is_no_measurement_is_named_with_its_place(values: Any, said: str) -> None:
    guests, _ = fakes("a", "b", "c")
    with pytest.raises(LightsleepError, match=said):
        protocol.run_rounds(
            experiment(lambda _: values, warmup=0), (WAIT,), guests, [list("abc")], quiet()
        )


@pytest.mark.parametrize("values", [{}, {"other": 1.0}, {"wait_s": 1.0, "more": 1.0}])
def test_what_is_measured_must_be_what_was_promised(values: dict[str, float]) -> None:
    guests, _ = fakes("a", "b", "c")
    with pytest.raises(LightsleepError, match="promised"):
        protocol.run_rounds(
            experiment(lambda _: values, warmup=0), (WAIT,), guests, [list("abc")], quiet()
        )


@pytest.mark.parametrize(
    ("value", "said"), [(math.nan, r"not a number \(nan\)"), (-math.inf, r"infinite \(-inf\)")]
)
def test_a_value_that_is_no_number_is_refused_with_its_place(value: float, said: str) -> None:
    guests, _ = fakes("a", "b", "c")
    turns = 0

    def measure(guest: Guest) -> dict[str, float]:
        nonlocal turns
        turns += guest.name == "b"
        return {"wait_s": value if turns == 3 else 1.0}

    order = [list("abc")] * 5
    with pytest.raises(
        LightsleepError,
        match=f"^b, boot 1 of 2, round 2 of 4: the value of wait_s is {said}: correct what measure",
    ):
        protocol.run_rounds(
            experiment(measure), (WAIT,), guests, order, quiet(), label="boot 1 of 2, "
        )


def test_a_value_that_no_result_holds_is_refused() -> None:
    guests, _ = fakes("a", "b", "c")
    huge = experiment(lambda _: {"wait_s": 1.8e18}, warmup=0)
    schema = json.loads(FORMAT.described.read_text())
    sample = schema["$defs"]["metric"]["properties"]["samples"]["additionalProperties"]["items"]
    assert (sample["minimum"], sample["maximum"]) == (-LARGEST, LARGEST)
    with pytest.raises(LightsleepError, match=r"wait_s is 1.8e\+18, .* take a larger unit"):
        protocol.run_rounds(huge, (WAIT,), guests, [list("abc")], quiet())


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


def test_a_guest_that_fails_fails_the_comparison() -> None:
    guests, _ = fakes("a", "b", "c")

    def measure(guest: Guest) -> dict[str, float]:
        if guest.name == "b":
            raise LightsleepError("b panicked")
        return {"wait_s": 1.0}

    with pytest.raises(LightsleepError, match="b panicked"):
        protocol.run_rounds(
            experiment(measure), (WAIT,), guests, protocol.draw_order("abc", 3, 1), quiet()
        )


@pytest.mark.parametrize(("fails_at", "when"), [(1, "warm-up"), (3, "round 2 of 2")])
def test_a_failure_says_in_which_turn_it_happened(fails_at: int, when: str) -> None:
    guests, _ = fakes("a", "b", "c")
    turns = 0

    def measure(guest: Guest) -> dict[str, float]:
        nonlocal turns
        turns += guest.name == "b"
        if turns == fails_at:
            raise LightsleepError("perf bench: killed after 60 s")
        return {"wait_s": 1.0}

    with pytest.raises(LightsleepError) as raised:
        protocol.run_rounds(
            experiment(measure), (WAIT,), guests, ["abc"] * 3, quiet(), label="boot 2 of 9, "
        )
    said = raised.value.format_message()
    assert said == f"perf bench: killed after 60 s\nthis happened in: boot 2 of 9, {when}: b"


@pytest.mark.parametrize("warm", [True, False])
def test_what_an_experiment_raises_says_where(warm: bool) -> None:
    guests, _ = fakes("a", "b", "c")
    turns, figures = 0, dict[str, float]()

    def measure(guest: Guest) -> dict[str, float]:
        nonlocal turns
        turns += guest.name == "b"
        if turns == (1 if warm else 3):
            return {"wait_s": figures["median"]}
        return {"wait_s": 1.0}

    with pytest.raises(LightsleepError) as raised:
        protocol.run_rounds(
            experiment(measure), (WAIT,), guests, ["abc"] * 3, quiet(), label="boot 2 of 9, "
        )
    said = raised.value.format_message()
    when = "warm-up" if warm else "round 2 of 2"
    assert said.startswith("code of the experiment: KeyError: 'median'\n  File ")
    assert said.endswith(f"this happened in: boot 2 of 9, {when}: b")
    assert 'return {"wait_s": figures["median"]}' in said
    assert protocol.__file__ not in said


def test_what_a_user_ends_is_no_failure_of_an_experiment() -> None:
    guests, _ = fakes("a", "b", "c")
    ends = experiment(Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        protocol.run_rounds(ends, (WAIT,), guests, ["abc"] * 3, quiet())


@pytest.mark.parametrize("code", [None, 0, 1, "too few of them came to an end"])
def test_an_experiment_that_ends_the_program_says_where(code: str | int | None) -> None:
    guests, _ = fakes("a", "b", "c")
    ends = experiment(lambda _: sys.exit(code))
    with pytest.raises(LightsleepError, match=f"code of the experiment: SystemExit: {code}"):
        protocol.run_rounds(ends, (WAIT,), guests, ["abc"] * 3, quiet())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_comparison_with_its_own_status(number: signal.Signals) -> None:
    guests, _ = fakes("a", "b", "c")

    def measure(_: Guest) -> dict[str, float]:
        os.kill(os.getpid(), number)
        return {"wait_s": 1.0}

    with pytest.raises(SystemExit) as raised, orderly_end():
        protocol.run_rounds(experiment(measure), (WAIT,), guests, ["abc"] * 3, quiet())
    assert raised.value.code == 128 + number


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
            else protocol.Booted((WAIT,), samples, dict.fromkeys("abc", 1.0), boot, 0.0, turns)
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


MEMINFO = "MemTotal:       16314236 kB\nMemFree:          264052 kB\nMemAvailable:   {} kB\n"


def test_too_little_memory_for_all_guests_is_told_and_noted(
    attempted: Callable[..., CompareResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "MEMORY", tmp_path / "meminfo")
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


def test_a_result_has_what_decides_on_the_host_what_a_halt_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulator, "version", lambda _: "10.0")
    said = {name: f"its {name}" for name in protocol.HALT_FACTS if name != "halt_poll_ns"}
    for name, text in said.items():
        file = tmp_path / protocol.HALT_FACTS[name][0]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    monkeypatch.setattr(protocol, "SYS", tmp_path)
    found = protocol.host_facts(cast(Arch, None))
    assert found | said == found
    assert "halt_poll_ns" not in found  # without KVM
    schema = json.loads(FORMAT.described.read_text())
    described = schema["properties"]["environment"]["properties"]["host"]["properties"]
    assert described.keys() >= protocol.HALT_FACTS.keys()


def test_a_host_without_an_idle_driver_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older kernels tell the governor in another file, and none may be there."""
    monkeypatch.setattr(protocol, "SYS", tmp_path)
    monkeypatch.setattr(emulator, "version", lambda _: "10.0")
    cpuidle = tmp_path / "devices/system/cpu/cpuidle"
    cpuidle.mkdir(parents=True)
    (cpuidle / "current_driver").write_text("none\n")
    (cpuidle / "current_governor_ro").write_text("menu\n")
    found = protocol.host_facts(cast(Arch, None))
    assert (found["cpuidle_driver"], found["cpuidle_governor"]) == (None, "menu")
    (cpuidle / "current_governor").write_text("none\n")
    result = made_up()
    result.environment["host"] = found = protocol.host_facts(cast(Arch, None))
    assert found["cpuidle_governor"] is None
    (tmp_path / "x.json").write_text(json.dumps(result.document()))
    assert load(tmp_path / "x.json", FORMAT).environment["host"] == found


def metric(**changes: Any) -> dict[str, Any]:
    """Return what makes an experiment one whose metric has something wrong."""
    return {"metrics": (dataclasses.replace(WAIT, **changes),)}


def control(**changes: Any) -> dict[str, Any]:
    """Return what makes an experiment one whose control is not booted as the baseline is."""
    base, again = Arm("a", "baseline", ""), Arm("c", "control", "")
    return {"arms": (base, dataclasses.replace(again, **changes))}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"metrics": [WAIT]}, "neither a tuple of Metric nor a function"),
        ({"metrics": (WAIT, IDLE_RESIDENCY)}, "nothing measures IDLE_RESIDENCY, as rest_s is 0"),
        ({"rest_s": 1}, "IDLE_RESIDENCY is missing"),
        (
            {"arms": (Arm("a", "baseline", ""), Arm("b", cast(Role, "cure"), ""))},
            "b has the role 'cure', which is none of baseline, ",
        ),
        ({"metrics": (WAIT, MORE, WAIT)}, "metrics: two metrics are named wait_s"),
        (control(append="idle=poll"), "c is a control, but append is not that of a, the"),
        (control(modules=("x",)), "c is a control, but modules is not that of a"),
        (control(kernel="6.1"), "c is a control, but kernel is not that of a"),
        (control(spins=True), "c is a control, but spins is not that of a"),
        ({"rounds": 4}, "rounds: 4 give no 95 % confidence interval: 6 are needed at least"),
        ({"rounds": -3}, "rounds: -3 give no 95 % confidence interval"),
        ({"rounds": 0}, "rounds: 0 give no 95 % confidence interval"),
        ({"boots": 1}, "boots: 1 do not tell how boots differ: 3 are needed at least"),
        ({"rounds": 8, "boots": 3}, "rounds: 8 cannot be divided among 3 boots"),
        # What no result file could hold.
        (metric(better="less"), "metrics.wait_s.better: 'less' is not one of ['lower', "),
        (metric(clock="wall"), "metrics.wait_s.clock: 'wall' is none of guest, host"),
        (metric(unit="requests per second and CPU"), "metrics.wait_s.unit: 'requests per"),
        (metric(title="x" * 101), "metrics.wait_s.title: 'xxx"),
        (metric(title="\x1b[1m"), "metrics.wait_s.title: '\\x1b[1m' holds a character"),
        ({"arms": (Arm("a" * 1001, "baseline", ""),)}, "arms[0]: 'aaa"),
    ],
)
def test_an_experiment_that_could_not_be_run_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        experiment(lambda _: {}, **changes)


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
    with contextlib.ExitStack() as stack:
        guest = protocol.busy_neighbour(beside, Machine(vcpus=3), stack)
        assert guest.name == protocol.NEIGHBOUR
    assert world == ["3 vCPUs of 6.12", "booted", "spin fast", "closed"]


def test_time_left_is_what_steps_took_so_far_and_the_rest_to_come() -> None:
    said: list[float | None] = []
    progress = Progress(lambda _, left_s: said.append(left_s), 4, 25.0)
    assert progress.left_s() is None
    progress.taken_s = [1.0, 3.0]
    assert progress.left_s() == 4 * 2.0 + 25.0
    with progress.rest("", 4.0):
        pass
    assert progress.left_s() == 4 * 2.0 + 21.0
    assert said == [33.0]
    progress.boots, progress.booted_s = 2, [10.0]
    assert progress.left_s() == 4 * 2.0 + 21.0 + 2 * 10.0


def is_asleep(pid: int) -> bool:
    """Return whether a process runs sleep, and sleeps."""
    name, state = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].split(")", 1)
    return name == "sleep" and state.split()[0] == "S"


@pytest.fixture
def processes() -> Iterator[tuple[int, int]]:
    """A process that sleeps and one that spins, and both do so already."""
    spin = "print(flush=True)\nwhile True: pass"
    with (
        subprocess.Popen(["sleep", "1000"]) as sleeper,
        subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE) as spinner,
    ):
        assert spinner.stdout
        spinner.stdout.readline()
        while not is_asleep(sleeper.pid):
            time.sleep(0.01)
        yield sleeper.pid, spinner.pid
        sleeper.kill()
        spinner.kill()


def test_at_rest_sleepers_are_told_from_spinners(
    processes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "SETTLE_S", 0.3)
    really, asked = os.sched_setscheduler, set()

    def set_scheduler(tid: int, policy: int, param: os.sched_param) -> None:
        asked.add(policy)
        really(tid, policy, param)

    monkeypatch.setattr(os, "sched_setscheduler", set_scheduler)
    pids = dict(zip(("still", "spins"), processes, strict=True))
    arms = (Arm("still", "baseline", ""), Arm("spins", "limit", "", spins=True))
    metrics = (WAIT, IDLE_RESIDENCY)
    # A spinner that gets no core for a whole span is not seen to wait: try again, for longer.
    for rest_s in (0.5, 0.5, 1.0, 2.0, 4.0, 8.0):
        with_rest = experiment(
            lambda _: {"wait_s": 1.0}, arms=arms, metrics=metrics, rest_s=rest_s, warmup=0
        )
        world: list[str] = []
        fake = {name: FakeGuest(name, world, pid) for name, pid in pids.items()}
        guests = cast(dict[str, Guest], fake)
        samples = protocol.run_rounds(with_rest, metrics, guests, [["still", "spins"]] * 2, quiet())
        asleep = samples[IDLE_RESIDENCY.name]
        if max(asleep["spins"]) < 50:
            break
    assert len(asleep["still"]) == len(asleep["spins"]) == 2
    assert min(asleep["still"]) > 99
    assert max(asleep["spins"]) < 50  # also where others keep it from running
    assert asked == {os.SCHED_IDLE}  # who has no privileges may not go back
    assert world[-4:] == ["+still", "+spins", "-spins", "-still"]
    assert all(guest.checked == 1 for guest in fake.values())


@pytest.mark.parametrize(("threads", "asleep_pct"), [(1, 0), (4, 75)])
def test_a_guest_whose_vcpus_share_a_thread_is_awake_while_that_runs(
    threads: int, asleep_pct: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four vCPUs, and one thread that always runs: all of them are in it, or one is."""
    monkeypatch.setattr(protocol, "SETTLE_S", 0.0)

    class Runs(FakeGuest):
        def vcpu_threads(self) -> list[int]:
            return list(range(threads))

        def vcpu_time(self) -> ThreadTime:
            return ThreadTime(ran_ns=time.monotonic_ns(), waited_ns=0)

    guests = {name: cast(Guest, Runs(name, [])) for name in "abc"}
    four = experiment(lambda _: {}, metrics=(WAIT, IDLE_RESIDENCY), rest_s=0.2, vcpus=4)
    (asleep,) = protocol.rest(four, guests, 1, quiet())
    assert asleep == {name: pytest.approx(asleep_pct, abs=5) for name in "abc"}


def test_waiting_for_a_core_counts_as_awake() -> None:
    before, after = ThreadTime(100, 50), ThreadTime(400, 650)
    assert after.awake_since(before) == 900


def test_what_the_lab_runs_on_the_host_is_no_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as context:
        context.setattr(hosttime, "busy_s", lambda _: 100.0)  # nobody else did anything
        load = hosttime.Load([])
        spin = "import time\nwhile time.process_time() < 0.5: pass"
        subprocess.run([sys.executable, "-c", spin], check=True)
        context.setattr(hosttime, "busy_s", lambda _: 100.4)  # times are in whole ticks
        assert load.percent() == 0


BEFORE_S = 1000
"""For how long each CPU of a made up host has been busy since its boot."""


@pytest.fixture
def five_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., float]:
    """The load of 5 s in which some of the CPUs that /proc/stat shows were busy, in %."""
    stat = tmp_path / "stat"
    now_s = 0.0

    def write(shown: range, busy_s: Mapping[int, int]) -> None:
        ticks = {x: (BEFORE_S + busy_s.get(x, 0)) * os.sysconf("SC_CLK_TCK") for x in shown}
        rows = [f"cpu{x} {busy} 0 0 9 9 0 0 0 0 0" for x, busy in ticks.items()]
        whole = f"cpu  {sum(ticks.values())} 0 0 9 9 0 0 0 0 0"
        stat.write_text("\n".join([whole, *rows, "ctxt 12", "btime 1"]) + "\n")

    def load_pct(shown: range, busy: int, ours: set[int], ours_later: set[int]) -> float:
        nonlocal now_s
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: ours)
        write(shown, {})
        load = hosttime.Load([])
        now_s += 5
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: ours_later)
        write(shown, {busy: 5})
        return load.percent()

    monkeypatch.setattr(hosttime, "Path", lambda _: stat)
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    monkeypatch.setattr(os, "times", lambda: os.times_result((0.0,) * 5))
    return load_pct


def test_other_work_counts_where_the_lab_may_run(five_seconds: Callable[..., float]) -> None:
    """Of 64 CPUs, other work has half of the two that are left to the lab."""
    assert five_seconds(range(64), 6, {4, 6}, {4, 6}) == 50
    assert five_seconds(range(64), 7, {4, 6}, {4, 6}) == 0


def test_in_a_container_its_cpus_have_other_numbers(five_seconds: Callable[..., float]) -> None:
    """Of lxcfs: CPUs 4 and 6 of the host are the first two, and the only ones."""
    assert five_seconds(range(2), 1, {4, 6}, {4, 6}) == 50


@pytest.mark.parametrize("later", [{4}, {4, 5, 6, 7}])
def test_cpus_that_come_or_go_meanwhile_are_no_other_work(
    later: set[int], five_seconds: Callable[..., float]
) -> None:
    assert five_seconds(range(64), 6, {4, 6}, later) == 50


def test_other_work_on_the_host_is_seen(processes: tuple[int, int]) -> None:

    ours, all_others = hosttime.Load([processes[1]]), hosttime.Load([])
    time.sleep(1)
    assert all_others.percent() > ours.percent()


X86_INTERRUPTS = """\
            CPU0       CPU1
  24:         10         20  PCI-MSI 4096-edge      virtio0-config
 LOC:       3824       4226   Local timer interrupts
 RES:         16         30   Rescheduling interrupts
 CAL:       2806       2645   Function call interrupts
 TLB:          1          2   TLB shootdowns
 ERR:          0
"""
ARM64_INTERRUPTS = """\
           CPU0       CPU1
 11:       1410       1501     GICv3  27 Level     arch_timer
IPI0:       316        330       Rescheduling interrupts
IPI1:      1806       1645       Function call interrupts
IPI5:         1          2       IRQ work interrupts
Err:          0
"""


def test_interrupts_are_summed_over_cpus_and_rows() -> None:
    assert total(X86_INTERRUPTS, *BETWEEN_CPUS) == 16 + 30 + 2806 + 2645
    assert total(ARM64_INTERRUPTS, *BETWEEN_CPUS) == 316 + 330 + 1806 + 1645
    assert total(X86_INTERRUPTS, "virtio0-config") == 30


def test_the_idle_experiment_has_one_of_each_role_and_describes_everything() -> None:
    assert sorted(arm.role for arm in EXPERIMENT.arms) == [
        "baseline",
        "control",
        "limit",
        *["treatment"] * 3,
    ]
    by_role = {arm.role: arm for arm in EXPERIMENT.arms}
    assert by_role["control"].modules == by_role["baseline"].modules
    assert by_role["control"].append == by_role["baseline"].append
    assert isinstance(EXPERIMENT.metrics, tuple)
    assert all(metric.description for metric in EXPERIMENT.metrics)
