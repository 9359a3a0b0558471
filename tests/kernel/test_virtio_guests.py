# SPDX-License-Identifier: GPL-2.0-only
"""How often a guest is asked whether looks at its devices find something."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import virtio_guests
from ktap import Result

TEST = "polls_every_queue"


class Asked:
    """A guest whose network is set up, and the selftest, which passes at the ``passes``-th try."""

    def __init__(self, passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passes, self.tries, self.pauses = passes, 0, "0\n"
        monkeypatch.setattr(virtio_guests, "run_selftest", self.run_selftest)
        monkeypatch.setattr(time, "sleep", lambda _: None)

    def run(self, argv: list[str]) -> SimpleNamespace:
        assert "ip" not in argv, "RTNETLINK answers: File exists"
        return SimpleNamespace(stdout=self.pauses)

    def run_selftest(self, _guest: object, *asked: str, **_: object) -> Result:
        assert asked == (virtio_guests.DISKS, TEST)
        self.tries += 1
        passed = self.tries == self.passes
        return Result([TEST] if passed else [], [] if passed else [TEST], {})


@pytest.mark.parametrize("passes", [1, 5])
def test_a_guest_is_asked_until_a_look_found_something(
    passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest: Any = Asked(passes, monkeypatch)
    virtio_guests.check_polled(guest, virtio_guests.DISKS, TEST, [], "0\n")
    assert guest.tries == passes


def test_what_has_passed_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    guest: Any = Asked(1, monkeypatch)
    virtio_guests.check_polled(guest, virtio_guests.DISKS, TEST, [TEST], "0\n")
    assert guest.tries == 0


@pytest.mark.parametrize(
    ("pauses", "outcome"), [("0\n", pytest.fail.Exception), ("1\n", pytest.skip.Exception)]
)
def test_only_a_host_that_needs_its_cores_excuses_a_guest(
    pauses: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    guest: Any = Asked(6, monkeypatch)
    guest.pauses = pauses
    with pytest.raises(outcome):
        virtio_guests.check_polled(guest, virtio_guests.DISKS, TEST, [], "0\n")
    assert guest.tries == 5
