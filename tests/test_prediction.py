# SPDX-License-Identifier: GPL-2.0-only
"""What the experiment prediction compares: figures by hand, of a guest that is made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from lightsleep.lab.experiments import prediction
from lightsleep.lab.guest import Guest
from lightsleep.lab.machine import Machine

SPAN_NS = 4_000_000_000
REPORT: dict[str, Any] = {
    "results": [
        {
            "span_ns": SPAN_NS,
            "all": {"total_ns": 300_000_000},
            "reference": {"total_ns": 100_000_000},
        }
    ]
}
REPLAY: dict[str, Any] = {
    "policies": [
        {"policy": policy, "as_recorded": {"waited_ns": waited_ns, "polled_ns": polled_ns}}
        for policy, waited_ns, polled_ns in (
            ("stock", 200_000_000, 0),
            ("lightsleep", 40_000_000, 800_000_000),
            ("fixed:100us", 120_000_000, 400_000_000),
            ("optimum", 0, 0),
        )
    ]
}


class FakeGuest:
    """Counts what it polls; remembers how its driver was set, and what ran then."""

    def __init__(self, *modules: str) -> None:
        self.machine = Machine(modules=modules)
        self.files = {prediction.COUNTS: "1000\n2000\n201000\n402000\n"}
        self.ran: list[list[str | None]] = []

    def run(self, *_: object, **__: object) -> None:
        self.ran.append([self.files.get(f"{prediction.PARAMETERS}/{x}") for x in SET])

    def read_text(self, path: str) -> str:
        return self.files[path]

    def write_text(self, path: str, text: str) -> None:
        self.files[path] = text


SET = ("mode", "poll_limit_us")


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(verb: str, *_: object) -> dict[str, Any]:
        return REPORT if verb == "report" else REPLAY

    def recorded(guest: FakeGuest, _: Path) -> Path:
        guest.run()
        return Path("load.dat")

    monkeypatch.setattr(prediction, "said", said)
    monkeypatch.setattr(prediction, "recorded", recorded)


def test_a_policy_is_predicted_to_save_what_the_replay_says() -> None:
    # 400 ms of waiting in 4 s, of which the policies save 160 and 80 ms.
    assert prediction.measure(cast(Guest, FakeGuest())) == {
        "lightsleep_waited_ms_per_s": 60,
        "lightsleep_polled_ms_per_s": 200,
        "fixed_waited_ms_per_s": 80,
        "fixed_polled_ms_per_s": 100,
    }


def test_each_policy_is_measured_in_the_mode_that_does_the_same() -> None:
    guest = FakeGuest(prediction.MODULE)
    found = prediction.measure(cast(Guest, guest))
    assert found["lightsleep_waited_ms_per_s"] == found["fixed_waited_ms_per_s"] == 100
    assert found["fixed_polled_ms_per_s"] == pytest.approx(0.15)
    # The default mode learns first.
    assert guest.ran == [["adaptive", "0"]] * 2 + [["fixed", "100"]]


def test_all_of_it_is_promised() -> None:
    assert isinstance(prediction.EXPERIMENT.metrics, tuple)
    promised = {metric.name for metric in prediction.EXPERIMENT.metrics}
    assert prediction.measure(cast(Guest, FakeGuest())).keys() == promised
