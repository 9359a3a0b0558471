# SPDX-License-Identifier: GPL-2.0-only
"""The rounds of one boot: who runs when, what is measured, and how guests at rest are watched."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import SupportsFloat

from lightsleep import cpulist
from lightsleep.compare.result import LARGEST
from lightsleep.errors import LightsleepError
from lightsleep.lab.boot import hosttime
from lightsleep.lab.boot.agent import CommandTimeout
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.run.blame import own_code, telling
from lightsleep.lab.run.clock import Clock
from lightsleep.lab.run.experiment import (
    BY_PROTOCOL,
    IDLE_RESIDENCY,
    NEIGHBOUR_CPU,
    Arm,
    Experiment,
    Metric,
)
from lightsleep.lab.run.pauses import Noted
from lightsleep.lab.run.progress import Progress

SETTLE_S = 1.0
"""After guests resume, their overdue timers run: not part of being at rest."""

ASKS_A_TIMER = ("sleep", "0.01")
"""The question that wakes a guest is an interrupt: it does not tell whether timers wake it."""
ALIVE_S = 120.0
"""How long that may take: a guest that spins gets what busy others leave over."""
ONLINE = "/sys/devices/system/cpu/online"

Samples = dict[str, dict[str, list[float]]]
"""Metric -> arm -> values."""


def draw_order(arms: Sequence[str], rounds: int, seed: int) -> list[list[str]]:
    """Return the arms in a random order for each round; equal seed, equal order."""
    chance = random.Random(seed)
    return [chance.sample(arms, len(arms)) for _ in range(rounds)]


def run_rounds(
    experiment: Experiment,
    metrics: Sequence[Metric],
    guests: Mapping[str, Guest],
    order: Sequence[Sequence[str]],
    progress: Progress,
    clocks: Mapping[str, Clock] | None = None,
    label: str = "",
    loads: hosttime.Loads | None = None,
    neighbour: Guest | None = None,
    pauses: Noted | None = None,
) -> Samples:
    """Run all rounds of ``order`` in one boot; return the samples of those after the warm-up.

    Every turn is a span of the arm's clock, where there are ``clocks``. Of each turn that is
    recorded, ``loads`` get the other work on the host, and ``pauses`` which CPUs did not poll.
    ``neighbour`` runs beside all of them. Raises LightsleepError where ``measure`` does not return
    what the experiment promises, or a clock is too far off.
    """
    samples: Samples = {m.name: {a.name: [] for a in experiment.arms} for m in metrics}
    left = samples.get(NEIGHBOUR_CPU.name) if neighbour else None
    for number, arms in enumerate(order, 1 - experiment.warmup):
        what = f"round {number} of {len(order) - experiment.warmup}" if number > 0 else "warm-up"
        for name in arms:
            guest, turn = guests[name], f"{label}{what}: {name}"
            with progress.step(turn):
                with telling(turn), running(guest):
                    with contextlib.ExitStack() as noting:
                        if clocks:
                            noting.enter_context(clocks[name].span(guest))
                        if number > 0 and loads:
                            noting.enter_context(loads.turn(name))
                        if number > 0 and neighbour and left:
                            noting.enter_context(noting_cpu_time(neighbour, left[name]))
                        with own_code():
                            if number > 0:
                                values = experiment.measure(guest)
                            else:
                                (experiment.warm or experiment.measure)(guest)
                    if clocks:
                        clocks[name].check(guest)
                    if pauses:
                        pauses.turn(name, guest, recorded=number > 0)
                    guest.check()
                if number > 0:
                    _record(samples, f"{name}, {label}{what}", name, values)
    if experiment.rest_s:
        spans = len(order) - experiment.warmup
        for asleep in rest(experiment, guests, spans, progress, label):
            for name, percent in asleep.items():
                samples[IDLE_RESIDENCY.name][name].append(percent)
    return samples


def _record(samples: Samples, where: str, arm: str, values: Mapping[str, float]) -> None:
    """Add the values of a turn. Raises LightsleepError, with ``where``, for what is not right."""
    promised = samples.keys() - BY_PROTOCOL
    if not isinstance(values, Mapping):
        raise LightsleepError(
            f"{where}: measure() of the experiment returned {values!r}, and no mapping from "
            "metrics to numbers"
        )
    if values.keys() != promised:
        raise LightsleepError(f"{where}: measured {dict(values)}, but promised {sorted(promised)}")
    for metric, value in values.items():
        if not isinstance(value, SupportsFloat) or isinstance(value, bool):
            raise LightsleepError(f"{where}: the value of {metric} is {value!r}, and no number")
        if not math.isfinite(value):
            kind = "not a number" if math.isnan(value) else "infinite"
            raise LightsleepError(
                f"{where}: the value of {metric} is {kind} ({value}): correct what measure() of "
                "the experiment returns"
            )
        if abs(value) > LARGEST:
            raise LightsleepError(
                f"{where}: the value of {metric} is {value:.3g}, and a result holds no more than "
                f"{LARGEST:g}: take a larger unit"
            )
        samples[metric][arm].append(float(value))


@contextlib.contextmanager
def noting_cpu_time(guest: Guest, noted_pct: list[float]) -> Iterator[None]:
    """Append in which share of this time a guest's vCPUs ran, in %."""
    start_ns = time.monotonic_ns()
    before = guest.vcpu_time()  # which says so where the guest has ended
    threads = len(guest.vm.vcpu_threads())
    yield
    ran_ns = guest.vcpu_time().ran_ns - before.ran_ns
    noted_pct.append(100 * ran_ns / ((time.monotonic_ns() - start_ns) * threads))


@contextlib.contextmanager
def running(guest: Guest) -> Iterator[None]:
    """Let one paused guest run."""
    guest.resume()
    yield
    guest.pause()


def rest(
    experiment: Experiment,
    guests: Mapping[str, Guest],
    spans: int,
    progress: Progress,
    label: str = "",
) -> Iterator[dict[str, float]]:
    """Leave all guests alone side by side; yield by arm how much of each span it slept, in %.

    A guest that hangs sleeps well: afterwards, timers have to wake each of its CPUs. Raises
    GuestFailed where one does not.
    """
    threads = {name: guest.vm.vcpu_threads() for name, guest in guests.items()}
    spinning = [thread for arm in experiment.arms if arm.spins for thread in threads[arm.name]]

    def sample() -> dict[str, hosttime.ThreadTime]:
        return {name: guest.vcpu_time() for name, guest in guests.items()}

    hosttime.be_idle_class(spinning)  # for good: nothing more is measured in them
    with contextlib.ExitStack() as stack:
        for guest in guests.values():
            stack.enter_context(running(guest))
        with progress.rest("all guests at rest", SETTLE_S):
            time.sleep(SETTLE_S)
        after, now_ns = sample(), time.monotonic_ns()
        for number in range(spans):
            before, start_ns = after, now_ns
            with progress.rest(f"all guests at rest, {number + 1} of {spans}", experiment.rest_s):
                time.sleep(experiment.rest_s)
            after, now_ns = sample(), time.monotonic_ns()
            wall_ns = now_ns - start_ns
            yield {
                arm.name: _asleep(arm, before, after, wall_ns * len(threads[arm.name]))
                for arm in experiment.arms
            }
        for name, guest in guests.items():
            with telling(f"{label}after the rest: {name}"):
                _check_timers(guest)
                guest.check()


def _check_timers(guest: Guest) -> None:
    """Raise GuestFailed where a timer of one of its CPUs does not wake a guest."""
    for cpu in cpulist.parse(guest.read_text(ONLINE, ALIVE_S)):
        try:
            guest.run(("taskset", "-c", str(cpu), *ASKS_A_TIMER), ALIVE_S)
        except CommandTimeout as error:
            raise guest.failure(f"a timer of CPU {cpu} does not wake it: {error.message}") from None


def _asleep(
    arm: Arm,
    before: Mapping[str, hosttime.ThreadTime],
    after: Mapping[str, hosttime.ThreadTime],
    total_ns: int,
) -> float:
    was, now = before[arm.name], after[arm.name]
    awake_ns = now.awake_since(was) if arm.spins else now.ran_ns - was.ran_ns
    return min(100.0, max(0.0, 100 * (1 - awake_ns / total_ns)))
