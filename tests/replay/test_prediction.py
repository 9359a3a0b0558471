# SPDX-License-Identifier: GPL-2.0-only
"""What the experiment prediction compares: figures by hand, of a guest that is made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.boot.machine import Machine
from lightsleep.lab.experiments import prediction, prediction_loop
from lightsleep.lab.loads import recorded as loads
from lightsleep.lab.loads.recorded import POLICIES
from lightsleep.periods.build import Row
from lightsleep.periods.model import Metadata
from lightsleep.periods.source import as_batch, open_recording
from lightsleep.periods.table import Recording, write_parquet

SPAN_NS = 4_000_000_000
REPLAY: dict[str, Any] = {
    policy: {"waited_ns": waited_ns, "polled_ns": polled_ns}
    for policy, waited_ns, polled_ns in (
        ("stock", 200_000_000, 0),
        ("lightsleep", 40_000_000, 800_000_000),
        ("fixed:100us", 120_000_000, 400_000_000),
        ("haltpoll", 160_000_000, 40_000_000),
        ("optimum", 0, 0),
    )
}


def row(at_ns: int, cause: str, waited_ns: int | None, waker_cpu: int = 1) -> Row:
    """Return a period in HALT that ends in that way, after which a task had waited for so long."""
    who = (None, None, None, None) if waited_ns is None else ("a", 7, "b", 8)
    on = None if waited_ns is None else waker_cpu
    return (0, at_ns, 1000, 1, None, cause, *who, waited_ns, None, None, on)


# Wakeups from other CPUs waited for 400 ms.
ROWS = [
    row(0, "ipi", 300_000_000),
    row(2000, "timer", 7_000_000, waker_cpu=0),
    row(4000, "store", 100_000_000),
    row(6000, "tick", None),
    row(8000, "device", 9_000_000, waker_cpu=0),
    row(10_000, "ipi", 5_000_000, waker_cpu=0),  # behind the interrupt, a softirq did
]


class FakeGuest:
    """Counts what it polls; remembers how its driver was set, and what ran then."""

    def __init__(self, *modules: str) -> None:
        self.machine = Machine(modules=modules)
        self.files = {loads.COUNTS: "1000\n2000\n201000\n402000\n"}
        self.ran: list[list[str | None]] = []
        self.loaded = [x.split()[0] for x in modules]
        self.drivers: list[str] = []

    def run(self, command: list[str] | None = None, **_: object) -> None:
        if command and command[0] == "rmmod":
            self.loaded.remove(command[1])
            return
        self.ran.append([self.files.get(f"{loads.PARAMETERS}/{x}") for x in SET])

    def insmod(self, module: str) -> None:
        self.loaded.append(module)

    def read_text(self, path: str) -> str:
        return self.files[path]

    def write_text(self, path: str, text: str) -> None:
        self.files[path] = text


SET = ("mode", "poll_limit_us")


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def recorded(guest: FakeGuest, folder: Path, load: str, driver: str = loads.MODULE) -> Path:
        assert load
        guest.run()
        guest.drivers += guest.loaded
        path = folder / "load.dat"
        metadata = Metadata("guest", "made up", events=len(ROWS), first_ns=0, last_ns=SPAN_NS)
        list(write_parquet(Recording(metadata, iter([as_batch("guest", ROWS)])), path))
        return path

    def replayed(table: Path) -> dict[str, Any]:
        (batch,) = open_recording(table).batches
        waited = batch["waking_to_running_ns"].to_pylist()
        assert waited == [300_000_000, None, 100_000_000, None, None, None]
        return {policy: {"as_recorded": figures} for policy, figures in REPLAY.items()}

    monkeypatch.setattr(prediction, "replayed", replayed)
    for module in (prediction, loads):
        monkeypatch.setattr(module, "recorded", recorded)


def test_a_policy_is_predicted_to_save_what_the_replay_says() -> None:
    # 400 ms of waiting for 4,000 datagrams, of which the policies save 160 and 80 ms.
    assert prediction.measure(cast(Guest, FakeGuest())) == {
        "lightsleep_waited_us": 60,
        "lightsleep_polled_us": 200,
        "fixed_waited_us": 80,
        "fixed_polled_us": 100,
        "haltpoll_waited_us": 90,
        "haltpoll_polled_us": 10,
    }


def test_a_driver_that_never_polls_is_a_recording_to_predict_from() -> None:
    off = FakeGuest(f"{loads.MODULE} mode=off")
    assert prediction.measure(cast(Guest, off)) == prediction.measure(cast(Guest, FakeGuest()))
    assert off.ran == [[None, None]]


def test_each_policy_is_measured_in_the_mode_that_does_the_same() -> None:
    guest = FakeGuest(loads.MODULE)
    found = prediction.measure(cast(Guest, guest))
    assert found["lightsleep_waited_us"] == found["fixed_waited_us"] == 100
    assert found["fixed_polled_us"] == pytest.approx(0.15)
    # Its driver counts in microseconds.
    assert found["haltpoll_polled_us"] == pytest.approx(150)
    # The default mode learns first.
    assert guest.ran[:3] == [["adaptive", "0"]] * 2 + [["fixed", "100"]]
    ours = loads.MODULE
    assert guest.drivers == [ours, ours, loads.HALTPOLL]
    assert guest.loaded == [ours], "as it was, for the next sample"


def test_all_of_it_is_promised() -> None:
    assert isinstance(prediction.EXPERIMENT.metrics, tuple)
    promised = {metric.name for metric in prediction.EXPERIMENT.metrics}
    assert prediction.measure(cast(Guest, FakeGuest())).keys() == promised


LOOP = {
    policy: {
        "as_recorded": figures,
        "peers_for_free": {name: value // 2 for name, value in figures.items()},
    }
    for policy, figures in REPLAY.items()
}


class OfArm(FakeGuest):
    """A guest of an arm."""

    def __init__(self, name: str, *modules: str) -> None:
        super().__init__(*modules)
        self.name = name


def looped(name: str, *modules: str) -> dict[str, float]:
    return prediction_loop.measure(cast(Guest, OfArm(name, *modules)))


@pytest.fixture
def both_ends(monkeypatch: pytest.MonkeyPatch, answers: None) -> None:
    for name in ("recorded", "replayed"):
        monkeypatch.setattr(prediction_loop, name, getattr(prediction, name))
    monkeypatch.setattr(prediction_loop, "replayed", lambda _table: LOOP)


@pytest.mark.usefixtures("both_ends")
def test_a_closed_loop_has_a_range() -> None:
    low, high = looped("low"), looped("high")
    # 400 ms of waiting for 2,000 requests, of which haltpoll saves 40 ms, or 20 where peers answer
    # earlier; it polls 40 ms, or 20.
    assert high["haltpoll_waited_us"] == 190
    assert low["haltpoll_waited_us"] == 180
    assert (low["haltpoll_polled_us"], high["haltpoll_polled_us"]) == (10, 20)
    assert looped("low-again") == low
    promised = {metric.name for policy in POLICIES for metric in prediction_loop.METRICS[policy]}
    assert low.keys() == high.keys() == promised


@pytest.mark.usefixtures("both_ends")
def test_a_closed_loop_is_measured_for_each_request() -> None:
    found = looped("measured", loads.MODULE)
    assert found["fixed_waited_us"] == 200
    # The counters of both CPUs went from 3 us to 603 us.
    assert found["fixed_polled_us"] == pytest.approx(0.3)
