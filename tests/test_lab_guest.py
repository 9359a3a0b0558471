# SPDX-License-Identifier: GPL-2.0-only
"""A boot that the emulator spoiled is tried once more; one that the kernel spoiled is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightsleep.lab import guest
from lightsleep.lab.accel import Accelerator
from lightsleep.lab.agent import AgentGone
from lightsleep.lab.config import ARCHES
from lightsleep.lab.guest import Guest, GuestFailed, Machine
from lightsleep.lab.vm import Hardware

RACED = "[    1.669117] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\nKernel panic - not syncing"
BROKEN = "[    1.669117] BUG: unable to handle page fault\nKernel panic - not syncing"
HARDWARE = Hardware(
    ARCHES["x86_64"], Accelerator("tcg", "a test"), Path("image"), Path("initramfs"), Path("root")
)


def boots(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *logs: str) -> list[str]:
    """Let the next boots leave these consoles; an empty one is a boot that went well."""
    left, closed = list(logs), []

    class FakeVM:
        def __init__(self, _: Hardware) -> None:
            self.log = left.pop(0)
            self.agent = self.log

        def console(self) -> str:
            return self.log

        def close(self) -> None:
            closed.append(self.log)

    class FakeAgent:
        def __init__(self, log: str) -> None:
            self.log = log

        def hello(self, _: float) -> None:
            if self.log:
                raise AgentGone("the guest went away")

    monkeypatch.setattr(guest, "VM", FakeVM)
    monkeypatch.setattr(guest, "Agent", FakeAgent)
    monkeypatch.setattr(guest, "LOGS", tmp_path)
    return closed


def test_what_the_emulator_spoiled_is_tried_once_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    closed = boots(monkeypatch, tmp_path, RACED, "")
    Guest(Machine(), HARDWARE).wait()
    assert closed == [RACED]
    assert [x.read_text() for x in tmp_path.iterdir()] == [RACED]


def test_but_not_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    boots(monkeypatch, tmp_path, RACED, RACED)
    with pytest.raises(GuestFailed, match="went away"):
        Guest(Machine(), HARDWARE).wait()


def test_what_the_kernel_spoiled_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    boots(monkeypatch, tmp_path, BROKEN, "")
    with pytest.raises(GuestFailed, match="went away"):
        Guest(Machine(), HARDWARE).wait()
