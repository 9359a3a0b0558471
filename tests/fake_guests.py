# SPDX-License-Identifier: GPL-2.0-only
"""Guests that only pretend, for tests of the protocol."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

from lightsleep.lab.boot import hosttime
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.boot.hosttime import ThreadTime
from lightsleep.lab.run.experiment import Arm, Experiment, Metric
from lightsleep.lab.run.progress import Progress

WAIT = Metric("wait_s", "s", "lower", "Wait", "nothing is really measured")
MORE = dataclasses.replace(WAIT, name="more_s")


class FakeGuest:
    """A guest that notes which guests run; its vCPU is the main thread of a process."""

    def __init__(self, name: str, world: list[str], pid: int = 0) -> None:
        self.name, self.world, self.pid = name, world, pid
        self.vm = self
        self.process = self
        self.checked = 0
        self.spoiled: list[str] = []

    def resume(self) -> None:
        self.world.append(f"+{self.name}")

    def pause(self) -> None:
        self.world.append(f"-{self.name}")

    def vcpu_threads(self) -> list[int]:
        return [self.pid]

    def vcpu_time(self) -> ThreadTime:
        return hosttime.thread_time(self.pid, [self.pid])

    def check(self) -> None:
        self.checked += 1


def fakes(*names: str) -> tuple[dict[str, Guest], list[str]]:
    world: list[str] = []
    return {name: cast(Guest, FakeGuest(name, world)) for name in names}, world


def experiment(measure: Callable[[Guest], dict[str, float]], **changes: Any) -> Experiment:
    arms = (Arm("a", "baseline", ""), Arm("b", "treatment", ""), Arm("c", "control", ""))
    base = Experiment("t", "h", arms, (WAIT,), measure, vcpus=1)
    return dataclasses.replace(base, **changes)


def quiet() -> Progress:
    return Progress(lambda *_: None)


@contextlib.contextmanager
def spinner() -> Iterator[int]:
    """Have a process that spins, and does so already; yields its PID."""
    spin = "print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()
