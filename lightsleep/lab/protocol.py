# SPDX-License-Identifier: GPL-2.0-only
"""How arms are compared, so that a difference between them is due to what differs in them.

All guests are booted first and then stand still. A round lets each run alone once, in a random
order (the seed is recorded), so the arms interleave within seconds and whatever drifts on the
host drifts for all of them. The first rounds warm up and are dropped. After the last round all
guests run side by side and are left alone, and the host sees which of them sleep: after a time
to settle, 1 - CPU time / wall time of their vCPU threads, in as many spans as there were rounds,
one after the other. A guest that spins may then use only what the others leave over, and counts
as awake also while it waits for a core.

A control arm, booted as the baseline is, must show no difference: where it does, the run fails. No
sample is ever dropped: a guest that fails fails the comparison, and so does a kernel that
complains on its console. Where it was QEMU's emulation that ended a guest, not its kernel, the
whole comparison starts over once, with new guests, and keeps nothing of the first.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import platform
import random
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lightsleep import __version__
from lightsleep.compare.result import CompareResult, MetricResult
from lightsleep.errors import LightsleepError
from lightsleep.lab import emulator, hosttime
from lightsleep.lab.config import Arch
from lightsleep.lab.experiment import IDLE_RESIDENCY, Arm, Experiment, Metric
from lightsleep.lab.guest import EmulatorRaced, Guest, prepare
from lightsleep.lab.machine import Machine
from lightsleep.lab.vm import Hardware
from lightsleep.scan.collect import cpu_model
from lightsleep.sources import commit

SETTLE_S = 1.0
"""After guests resume, their overdue timers run: not part of being at rest."""

CLOCK_S = 1.0
CLOCK_TOLERANCE = 0.2
"""How long a guest's clock is compared with the host's, and how far it may be off."""

NEIGHBOUR = "neighbour"
"""The name of the guest that is not measured, in logs."""

QUIET_PCT = 5.0
"""Above this share of other work on the host, samples scatter visibly."""

Samples = dict[str, dict[str, list[float]]]
"""Metric -> arm -> values."""


@dataclass
class Progress:
    """What a comparison has done so far, for whoever shows it; times are measured, not guessed."""

    show: Callable[[str, float | None], None]
    """Called with what is being done, and the seconds left where they can be known."""
    steps: int = 0
    rest_s: float = 0
    taken_s: list[float] = field(default_factory=list)

    def left_s(self) -> float | None:
        """Return the seconds left: a turn takes what turns took so far, and the rest is known."""
        if not self.taken_s:
            return None
        return self.steps * sum(self.taken_s) / len(self.taken_s) + self.rest_s

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Account for one arm's turn."""
        self.show(what, self.left_s())
        start = time.monotonic()
        yield
        self.taken_s.append(time.monotonic() - start)
        self.steps -= 1

    @contextlib.contextmanager
    def rest(self, what: str, seconds: float) -> Iterator[None]:
        """Account for a part of the rest."""
        self.show(what, self.left_s())
        yield
        self.rest_s -= seconds


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
) -> Samples:
    """Run all rounds of ``order`` and return the samples of those after the warm-up.

    Raises LightsleepError where ``measure`` does not return what the experiment promises.
    """
    samples: Samples = {m.name: {a.name: [] for a in experiment.arms} for m in metrics}
    for number, arms in enumerate(order, 1 - experiment.warmup):
        label = f"round {number} of {len(order) - experiment.warmup}" if number > 0 else "warm-up"
        for name in arms:
            with progress.step(f"{label}: {name}"), running(guests[name]):
                values = experiment.measure(guests[name])
            if number > 0:
                _record(samples, name, values)
    if experiment.rest_s:
        for asleep in rest(experiment, guests, len(order) - experiment.warmup, progress):
            for name, percent in asleep.items():
                samples[IDLE_RESIDENCY.name][name].append(percent)
    return samples


def _record(samples: Samples, arm: str, values: Mapping[str, float]) -> None:
    promised = samples.keys() - {IDLE_RESIDENCY.name}
    if values.keys() != promised or not all(map(math.isfinite, values.values())):
        raise LightsleepError(f"{arm}: measured {dict(values)}, but promised {sorted(promised)}")
    for metric, value in values.items():
        samples[metric][arm].append(float(value))


@contextlib.contextmanager
def running(guest: Guest) -> Iterator[None]:
    """Let one paused guest run."""
    guest.vm.resume()
    yield
    guest.vm.pause()


def rest(
    experiment: Experiment, guests: Mapping[str, Guest], spans: int, progress: Progress
) -> Iterator[dict[str, float]]:
    """Leave all guests alone side by side; yield by arm how much of each span it slept, in %."""
    spinning = [
        thread
        for arm in experiment.arms
        if arm.spins
        for thread in guests[arm.name].vm.vcpu_threads()
    ]

    def sample() -> dict[str, hosttime.ThreadTime]:
        return {name: guest.vcpu_time() for name, guest in guests.items()}

    hosttime.be_idle_class(spinning, True)
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
            all_ns = (now_ns - start_ns) * experiment.vcpus
            yield {arm.name: _asleep(arm, before, after, all_ns) for arm in experiment.arms}
    hosttime.be_idle_class(spinning, False)
    for guest in guests.values():
        guest.check()


def _asleep(
    arm: Arm,
    before: Mapping[str, hosttime.ThreadTime],
    after: Mapping[str, hosttime.ThreadTime],
    total_ns: int,
) -> float:
    was, now = before[arm.name], after[arm.name]
    awake_ns = now.awake_since(was) if arm.spins else now.ran_ns - was.ran_ns
    return min(100.0, max(0.0, 100 * (1 - awake_ns / total_ns)))


@dataclass
class Load:
    """How busy the host is with other work than the guests: it costs samples their meaning."""

    pids: Sequence[int]
    start_s: float = field(default_factory=time.monotonic)
    other_s: float = field(init=False)

    def __post_init__(self) -> None:
        """Start counting."""
        self.other_s = self._other_s()

    def _other_s(self) -> float:
        return hosttime.busy_s() - hosttime.process_s([*self.pids, os.getpid()])

    def percent(self) -> float:
        """Return the share of all the host's CPU time since the start, in %."""
        wall_s = (time.monotonic() - self.start_s) * (os.cpu_count() or 1)
        return max(0.0, 100 * (self._other_s() - self.other_s) / wall_s)


def compare(
    name: str,
    experiment: Experiment,
    machine: Machine,
    runs: int,
    seed: int,
    show: Callable[[str, float | None], None],
) -> CompareResult:
    """Boot all arms, run the protocol and return the result.

    Where QEMU's emulation ended a guest, all of it starts over, once; the result says so.
    Raises LightsleepError for whatever else went wrong; logs of failed guests are kept.
    """
    try:
        return attempt(name, experiment, machine, runs, seed, show)
    except EmulatorRaced as error:
        why = error.message.splitlines()[0]
    show(f"starting over: {why}", None)
    result = attempt(name, experiment, machine, runs, seed, show)
    result.protocol["started_over"] = why
    return result


def attempt(
    name: str,
    experiment: Experiment,
    machine: Machine,
    runs: int,
    seed: int,
    show: Callable[[str, float | None], None],
) -> CompareResult:
    """Do what ``compare`` does, but never start over."""
    if experiment.accel and machine.accel == "auto":
        machine = replace(machine, accel=experiment.accel)
    machine = replace(
        machine,
        devices=machine.devices + experiment.devices,
        root=experiment.root,
    )
    machines = {
        arm.name: replace(
            machine,
            kernel=arm.kernel or machine.kernel,
            append=" ".join(x for x in (machine.append, arm.append) if x),
            modules=(*machine.modules, *arm.modules),
            vcpus=experiment.vcpus,
            threads=experiment.threads,
        )
        for arm in experiment.arms
    }
    hardware = {
        name: prepare(arm, note=lambda what: show(f"preparing: {what}", None))
        for name, arm in machines.items()
    }
    accelerator = hardware[experiment.arms[0].name].accelerator
    show(f"accelerator: {accelerator.name} ({accelerator.reason})", None)
    order = draw_order([arm.name for arm in experiment.arms], runs + experiment.warmup, seed)
    progress = Progress(
        show,
        steps=len(experiment.arms) * len(order),
        rest_s=SETTLE_S + runs * experiment.rest_s if experiment.rest_s else 0,
    )
    facts: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        guests = boot_all(machines, hardware, stack, show)
        for arm in experiment.arms:
            # Alone: what a module measures as it is loaded is not disturbed by the other guests.
            with running(guests[arm.name]):
                guests[arm.name].load()
                experiment.start(guests[arm.name])
                if accelerator.real_time:
                    check_clock(guests[arm.name])
                facts[arm.name] = {"description": arm.description, **guest_facts(guests[arm.name])}
        metrics = promised(experiment, guests)
        ours = list(guests.values())
        if experiment.neighbour:
            ours.append(busy_neighbour(experiment, machine, stack, show))
        load = Load([guest.vm.process.pid for guest in ours])
        samples = run_rounds(experiment, metrics, guests, order, progress)
        other_pct = load.percent()
        for guest in ours:
            guest.check()
    return CompareResult(
        experiment=name,
        title=experiment.title,
        hypothesis=experiment.hypothesis,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        environment={
            "accelerator": {"name": accelerator.name, "reason": accelerator.reason},
            "host": host_facts(hardware[experiment.arms[0].name].arch)
            | {"other_load_pct": round(other_pct, 1)},
            "arch": machine.arch,
            "source": {"version": __version__, "commit": commit()},
            "guests": facts,
        },
        protocol={
            "runs": runs,
            "warmup": experiment.warmup,
            "seed": seed,
            "order": order,
            "rest_s": experiment.rest_s,
            "settle_s": SETTLE_S,
            "vcpus": experiment.vcpus,
            "pinned": machine.pin,
            **({"neighbour": shlex.join(experiment.neighbour)} if experiment.neighbour else {}),
        },
        arms=[arm.name for arm in experiment.arms],
        roles={arm.name: arm.role for arm in experiment.arms},
        claims=list(experiment.claims),
        metrics={
            m.name: MetricResult(m.unit, m.better, m.title, m.description, samples[m.name])
            for m in metrics
        },
    )


def promised(experiment: Experiment, guests: Mapping[str, Guest]) -> tuple[Metric, ...]:
    """Return the metrics, asking the baseline's guest where they depend on the machine."""
    if isinstance(experiment.metrics, tuple):
        return experiment.metrics
    baseline = next(arm.name for arm in experiment.arms if arm.role == "baseline")
    with running(guests[baseline]):
        metrics = experiment.metrics(guests[baseline])
    experiment.check_claims(metrics)
    return metrics


def check_clock(guest: Guest) -> None:
    """Raise GuestFailed where a running guest's clock is not as fast as the host's.

    A kernel that is held up while it calibrates its time stamp counter at boot gets it wrong, and
    every time it measures afterwards.
    """

    def read() -> tuple[float, float]:
        return float(guest.read_text("/proc/uptime").split()[0]), time.monotonic()

    guest_s, host_s = read()
    time.sleep(CLOCK_S)
    guest_later_s, host_later_s = read()
    rate = (guest_later_s - guest_s) / (host_later_s - host_s)
    if abs(rate - 1) > CLOCK_TOLERANCE:
        raise guest.failure(
            f"its clock is {rate:.2f} times as fast as the host's, because the host was busy while "
            "its kernel booted: run it again"
        )


def boot_all(
    machines: Mapping[str, Machine],
    hardware: Mapping[str, Hardware],
    stack: contextlib.ExitStack,
    show: Callable[[str, float | None], None],
) -> dict[str, Guest]:
    """Boot a guest per machine, two at a time, and leave them paused; ``stack`` ends them."""
    guests: dict[str, Guest] = {}

    def wait_for(name: str) -> None:
        guests[name].wait()
        guests[name].vm.pause()

    names = list(machines)
    for name, ahead in zip(names, [None, *names], strict=False):
        show(f"booting {name}", None)
        guests[name] = Guest(machines[name], hardware[name], name)
        stack.callback(guests[name].close)
        if ahead is not None:
            wait_for(ahead)
    wait_for(names[-1])
    return guests


def busy_neighbour(
    experiment: Experiment,
    machine: Machine,
    stack: contextlib.ExitStack,
    show: Callable[[str, float | None], None],
) -> Guest:
    """Boot one more guest, keep it busy and let it run; ``stack`` ends it."""
    show(f"booting {NEIGHBOUR}", None)
    machine = replace(machine, vcpus=experiment.vcpus, threads=experiment.threads)
    guest = Guest(machine, prepare(machine), NEIGHBOUR)
    stack.callback(guest.close)
    guest.wait()
    guest.run(experiment.neighbour)
    return guest


def guest_facts(guest: Guest) -> dict[str, Any]:
    """Return what a guest says about itself."""
    cpuidle = "/sys/devices/system/cpu/cpuidle"
    return {
        "kernel": guest.run(["uname", "-r"]).stdout.strip(),
        "kernel_build": guest.run(["uname", "-v"]).stdout.strip(),
        "cmdline": guest.read_text("/proc/cmdline").strip(),
        "cpu_model": cpu_model(guest.read_text("/proc/cpuinfo")) or "unknown",
        "cpuidle_driver": guest.read_text(f"{cpuidle}/current_driver").strip(),
        "governor": guest.read_text(f"{cpuidle}/current_governor").strip(),
        "modules": sorted(x.split()[0] for x in guest.read_text("/proc/modules").splitlines()),
    }


def host_facts(arch: Arch) -> dict[str, Any]:
    """Return what matters about the machine that runs the guests."""
    return {
        "cpu_model": cpu_model(Path("/proc/cpuinfo").read_text()) or "unknown",
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "qemu": emulator.version(arch),
    }
