# SPDX-License-Identifier: GPL-2.0-only
"""The rounds of one boot, with guests that only pretend."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
from fake_guests import WAIT, FakeGuest, experiment, fakes, quiet, spinner

from lightsleep.compare.result import FORMAT, LARGEST
from lightsleep.ending import orderly_end
from lightsleep.errors import LightsleepError
from lightsleep.lab.boot import hosttime
from lightsleep.lab.boot.agent import CommandTimeout
from lightsleep.lab.boot.guest import Guest, GuestFailed
from lightsleep.lab.boot.hosttime import ThreadTime
from lightsleep.lab.run import rounds
from lightsleep.lab.run.experiment import IDLE_RESIDENCY, NEIGHBOUR_CPU, Arm


def test_equal_seed_equal_order_and_every_arm_once_per_round() -> None:
    order = rounds.draw_order("abcd", 50, 7)
    assert order == rounds.draw_order("abcd", 50, 7)
    assert order != rounds.draw_order("abcd", 50, 8)
    assert all(sorted(arms) == list("abcd") for arms in order)


def test_no_arm_prefers_a_place() -> None:
    firsts = Counter(arms[0] for arms in rounds.draw_order("abcd", 4000, 1))
    assert all(800 < firsts[arm] < 1200 for arm in "abcd")


def test_exactly_one_guest_runs_while_it_is_measured() -> None:
    guests, world = fakes("a", "b", "c")
    order = rounds.draw_order("abc", 4, 3)
    rounds.run_rounds(experiment(lambda _: {"wait_s": 1.0}), (WAIT,), guests, order, quiet())
    assert world == [f"{sign}{arm}" for arms in order for arm in arms for sign in "+-"]


def test_the_warm_up_is_dropped_and_nothing_else() -> None:
    guests, _ = fakes("a", "b", "c")
    count: Counter[str] = Counter()

    def measure(guest: Guest) -> dict[str, float]:
        count[guest.name] += 1
        return {"wait_s": count[guest.name]}

    order = rounds.draw_order("abc", 7, 3)
    samples = rounds.run_rounds(experiment(measure, warmup=2), (WAIT,), guests, order, quiet())
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
    order = rounds.draw_order("abc", 3, 3)
    rounds.run_rounds(experiment(measure), (WAIT,), guests, order, quiet(), label="", loads=loads)
    turns = {arm: [pytest.approx(pct)] * 2 for arm, pct in {"a": 1, "b": 20, "c": 1}.items()}
    assert loads.of_turns == turns


def test_what_is_left_to_the_neighbour_is_noted_turn_by_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its two vCPUs have two cores beside a guest that sleeps, and none beside one that spins."""
    guests, _ = fakes("a", "b", "c")
    now_ns = ran_ns = 0

    class Beside(FakeGuest):
        def vcpu_threads(self) -> list[int]:
            return [1, 2]

        def vcpu_time(self) -> ThreadTime:
            return ThreadTime(ran_ns, waited_ns=0)

    def measure(guest: Guest) -> dict[str, float]:
        nonlocal now_ns, ran_ns
        now_ns += 1000
        ran_ns += {"a": 2000, "b": 0, "c": 1500}[guest.name]
        return {"wait_s": 1.0}

    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    beside = experiment(measure, neighbour=("spin",), metrics=(WAIT, NEIGHBOUR_CPU))
    order = rounds.draw_order("abc", 3, 3)
    neighbour = cast(Guest, Beside("neighbour", []))
    samples = rounds.run_rounds(
        beside, (WAIT, NEIGHBOUR_CPU), guests, order, quiet(), neighbour=neighbour
    )
    assert samples[NEIGHBOUR_CPU.name] == {"a": [100, 100], "b": [0, 0], "c": [75, 75]}


def test_less_may_be_enough_to_warm_up() -> None:
    guests, _ = fakes("a", "b", "c")
    warmed: list[str] = []
    short = experiment(lambda _: {"wait_s": 1.0}, warm=lambda guest: warmed.append(guest.name))
    order = rounds.draw_order("abc", 3, 3)
    samples = rounds.run_rounds(short, (WAIT,), guests, order, quiet())
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
        rounds.run_rounds(
            experiment(lambda _: values, warmup=0), (WAIT,), guests, [list("abc")], quiet()
        )


@pytest.mark.parametrize("values", [{}, {"other": 1.0}, {"wait_s": 1.0, "more": 1.0}])
def test_what_is_measured_must_be_what_was_promised(values: dict[str, float]) -> None:
    guests, _ = fakes("a", "b", "c")
    with pytest.raises(LightsleepError, match=r"^a, round 1 of 1: measured .*, but promised "):
        rounds.run_rounds(
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
        rounds.run_rounds(
            experiment(measure), (WAIT,), guests, order, quiet(), label="boot 1 of 2, "
        )


def test_a_value_that_no_result_holds_is_refused() -> None:
    guests, _ = fakes("a", "b", "c")
    huge = experiment(lambda _: {"wait_s": 1.8e18}, warmup=0)
    schema = json.loads(FORMAT.described.read_text())
    sample = schema["$defs"]["metric"]["properties"]["samples"]["additionalProperties"]["items"]
    assert (sample["minimum"], sample["maximum"]) == (-LARGEST, LARGEST)
    with pytest.raises(LightsleepError, match=r"wait_s is 1.8e\+18, .* take a larger unit"):
        rounds.run_rounds(huge, (WAIT,), guests, [list("abc")], quiet())


def test_a_guest_that_fails_fails_the_comparison() -> None:
    guests, _ = fakes("a", "b", "c")

    def measure(guest: Guest) -> dict[str, float]:
        if guest.name == "b":
            raise LightsleepError("b panicked")
        return {"wait_s": 1.0}

    with pytest.raises(LightsleepError, match="b panicked"):
        rounds.run_rounds(
            experiment(measure), (WAIT,), guests, rounds.draw_order("abc", 3, 1), quiet()
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
        rounds.run_rounds(
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
        rounds.run_rounds(
            experiment(measure), (WAIT,), guests, ["abc"] * 3, quiet(), label="boot 2 of 9, "
        )
    said = raised.value.format_message()
    when = "warm-up" if warm else "round 2 of 2"
    assert said.startswith("code of the experiment: KeyError: 'median'\n  File ")
    assert said.endswith(f"this happened in: boot 2 of 9, {when}: b")
    assert 'return {"wait_s": figures["median"]}' in said
    assert rounds.__file__ not in said


def test_what_a_user_ends_is_no_failure_of_an_experiment() -> None:
    guests, _ = fakes("a", "b", "c")
    ends = experiment(Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        rounds.run_rounds(ends, (WAIT,), guests, ["abc"] * 3, quiet())


@pytest.mark.parametrize("code", [None, 0, 1, "too few of them came to an end"])
def test_an_experiment_that_ends_the_program_says_where(code: str | int | None) -> None:
    guests, _ = fakes("a", "b", "c")
    ends = experiment(lambda _: sys.exit(code))
    with pytest.raises(LightsleepError, match=f"code of the experiment: SystemExit: {code}"):
        rounds.run_rounds(ends, (WAIT,), guests, ["abc"] * 3, quiet())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_comparison_with_its_own_status(number: signal.Signals) -> None:
    guests, _ = fakes("a", "b", "c")

    def measure(_: Guest) -> dict[str, float]:
        os.kill(os.getpid(), number)
        return {"wait_s": 1.0}

    with pytest.raises(SystemExit) as raised, orderly_end():
        rounds.run_rounds(experiment(measure), (WAIT,), guests, ["abc"] * 3, quiet())
    assert raised.value.code == 128 + number


class Answers(FakeGuest):
    """A guest of two CPUs that can be asked."""

    def __init__(self, name: str, world: list[str], pid: int = 0) -> None:
        super().__init__(name, world, pid)
        self.asked: list[tuple[Sequence[str], float]] = []

    def run(self, argv: Sequence[str], timeout_s: float = 60) -> None:
        self.asked.append((argv, timeout_s))

    def read_text(self, path: str, timeout_s: float = 20) -> str:
        assert path == "/sys/devices/system/cpu/online"
        assert timeout_s >= 60  # a guest of the idle class may wait for long
        return "0-1\n"


def is_asleep(pid: int) -> bool:
    """Return whether a process runs sleep, and sleeps."""
    name, state = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].split(")", 1)
    return name == "sleep" and state.split()[0] == "S"


@pytest.fixture
def processes() -> Iterator[tuple[int, int]]:
    """A process that sleeps and one that spins, and both do so already."""
    with subprocess.Popen(["sleep", "1000"]) as sleeper, spinner() as spinning:
        while not is_asleep(sleeper.pid):
            time.sleep(0.01)
        yield sleeper.pid, spinning
        sleeper.kill()


def test_at_rest_sleepers_are_told_from_spinners(
    processes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "SETTLE_S", 0.3)
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
        fake = {name: Answers(name, world, pid) for name, pid in pids.items()}
        guests = cast(dict[str, Guest], fake)
        samples = rounds.run_rounds(with_rest, metrics, guests, [["still", "spins"]] * 2, quiet())
        asleep = samples[IDLE_RESIDENCY.name]
        if max(asleep["spins"]) < 50:
            break
    assert len(asleep["still"]) == len(asleep["spins"]) == 2
    assert min(asleep["still"]) > 99
    assert max(asleep["spins"]) < 50  # also where others keep it from running
    assert asked == {os.SCHED_IDLE}  # who has no privileges may not go back
    assert world[-4:] == ["+still", "+spins", "-spins", "-still"]
    assert all(guest.checked == 3 for guest in fake.values())  # two turns, and the rest


@pytest.mark.parametrize(("threads", "asleep_pct"), [(1, 0), (4, 75)])
def test_a_guest_whose_vcpus_share_a_thread_is_awake_while_that_runs(
    threads: int, asleep_pct: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four vCPUs, and one thread that always runs: all of them are in it, or one is."""
    monkeypatch.setattr(rounds, "SETTLE_S", 0.0)

    class Runs(Answers):
        def vcpu_threads(self) -> list[int]:
            return list(range(threads))

        def vcpu_time(self) -> ThreadTime:
            return ThreadTime(ran_ns=time.monotonic_ns(), waited_ns=0)

    guests = {name: cast(Guest, Runs(name, [])) for name in "abc"}
    four = experiment(lambda _: {}, metrics=(WAIT, IDLE_RESIDENCY), rest_s=0.2, vcpus=4)
    (asleep,) = rounds.rest(four, guests, 1, quiet())
    assert asleep == {name: pytest.approx(asleep_pct, abs=5) for name in "abc"}


class Hangs(Answers):
    """A guest whose CPU 1 no timer wakes any more: it sleeps well."""

    def vcpu_time(self) -> ThreadTime:
        return ThreadTime(ran_ns=0, waited_ns=0)

    def run(self, argv: Sequence[str], timeout_s: float = 60) -> None:
        super().run(argv, timeout_s)
        if "1" in argv:
            raise CommandTimeout(f"{' '.join(argv)}: killed after {timeout_s:g} s")

    def failure(self, why: str) -> GuestFailed:
        return GuestFailed(f"{self.name}: {why}\nsee it happen: lightsleep lab shell")


def test_a_guest_that_hangs_at_rest_fails_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "SETTLE_S", 0.0)
    metrics = (WAIT, IDLE_RESIDENCY)
    rests = experiment(lambda _: {"wait_s": 1.0}, metrics=metrics, rest_s=0.01, warmup=0)
    hangs = Hangs("a", [])
    guests = {name: cast(Guest, hangs) for name in "abc"}
    with pytest.raises(GuestFailed) as raised:
        rounds.run_rounds(rests, metrics, guests, ["abc"] * 2, quiet(), label="boot 2 of 9, ")
    said = raised.value.format_message()
    assert said == (
        "a: a timer of CPU 1 does not wake it: taskset -c 1 sleep 0.01: killed after 120 s\n"
        "see it happen: lightsleep lab shell\n"
        "this happened in: boot 2 of 9, after the rest: a"
    )
    # What only answers does not need a timer, and each CPU has its own.
    assert [argv for argv, _ in hangs.asked] == [
        ("taskset", "-c", cpu, "sleep", "0.01") for cpu in ("0", "1")
    ]
    assert min(timeout_s for _, timeout_s in hangs.asked) >= 60


def test_a_complaint_of_a_kernel_is_told_with_its_turn() -> None:
    turns = list[str]()

    class Warns(FakeGuest):
        def check(self) -> None:
            super().check()
            if (self.name, self.checked) == ("b", 2):
                raise GuestFailed("b: its kernel complained")

    def measure(guest: Guest) -> dict[str, float]:
        turns.append(guest.name)
        return {"wait_s": 1.0}

    guests = {name: cast(Guest, Warns(name, [])) for name in "abc"}
    with pytest.raises(GuestFailed) as raised:
        rounds.run_rounds(
            experiment(measure), (WAIT,), guests, ["abc"] * 3, quiet(), label="boot 2 of 9, "
        )
    said = raised.value.format_message()
    assert said == ("b: its kernel complained\nthis happened in: boot 2 of 9, round 1 of 2: b")
    assert "".join(turns) == "abcab"
