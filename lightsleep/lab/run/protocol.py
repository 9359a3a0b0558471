# SPDX-License-Identifier: GPL-2.0-only
"""How arms are compared, so that a difference between them is due to what differs in them.

All guests are booted first and then stand still. A round lets each run alone once, in a random
order (the seed is recorded), so the arms interleave within seconds and whatever drifts on the
host drifts for all of them. The first rounds warm up and are dropped. After the last round all
guests run side by side and are left alone, and the host sees which of them sleep: after a time
to settle, 1 - CPU time / wall time of their vCPU threads, in as many spans as there were rounds,
one after the other. A guest that spins may then use only what the others leave over, and counts
as awake also while it waits for a core.

Then all guests end and are booted anew, several times over: what a boot fixes is drawn again, and
how the rounds of one boot hang together is not taken for an effect (``compare/boots.py``). Each
boot has as many rounds. Times are those of the host's clock (``clock.py``).

A control arm, booted as the baseline is, must show no difference: where it does, the run fails. No
sample is ever dropped: a guest that fails fails the comparison, and so does a kernel that
complains on its console. Where it was QEMU's emulation that ended a guest, not its kernel, the
whole comparison starts over once, with new guests, and keeps nothing of the first.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import math
import os
import platform
import random
import re
import shlex
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, SupportsFloat

from lightsleep import __version__
from lightsleep.compare.boots import LEAST_BOOTS
from lightsleep.compare.result import LARGEST, CompareResult, MetricResult
from lightsleep.document import shortened
from lightsleep.ending import by_signal
from lightsleep.errors import LightsleepError
from lightsleep.lab.boot import emulator, hosttime
from lightsleep.lab.boot.accel import TRANSLATED_MIB, Accelerator
from lightsleep.lab.boot.guest import EmulatorRaced, Guest, prepare
from lightsleep.lab.boot.machine import Machine
from lightsleep.lab.boot.vm import Hardware
from lightsleep.lab.kernels.config import Arch
from lightsleep.lab.run.clock import Clock, ClockOff, corrected
from lightsleep.lab.run.experiment import IDLE_RESIDENCY, Arm, Experiment, Metric
from lightsleep.lab.run.progress import Progress
from lightsleep.scan.collect import cpu_model
from lightsleep.sources import commit

SETTLE_S = 1.0
"""After guests resume, their overdue timers run: not part of being at rest."""

ROUNDS = 18
"""Rounds where nobody chose. In as many boots as BOOTS, they show a difference of 20 % in at least
9 of 10 comparisons, with the noise of this lab: tests draw from what was recorded of it."""
BOOTS = 9
"""How often each arm is booted where nobody chose."""

BOOT_TRIES = 3
"""How often all arms are booted at most where the clock of one of them is too far off."""

HALT_FACTS = {
    "halt_poll_ns": ("module/kvm/parameters/halt_poll_ns",),
    "cpuidle_driver": ("devices/system/cpu/cpuidle/current_driver",),
    "cpuidle_governor": (
        "devices/system/cpu/cpuidle/current_governor",
        # All that older kernels show, unless asked for more at boot.
        "devices/system/cpu/cpuidle/current_governor_ro",
    ),
    "scaling_governor": ("devices/system/cpu/cpu0/cpufreq/scaling_governor",),
    "smt_active": ("devices/system/cpu/smt/active",),
}
"""Files below SYS of the host, by their names in a result; of several, the first that is there."""

SYS = Path("/sys")
MEMORY = Path("/proc/meminfo")

LITTLE_MEMORY = "little memory"
"""The beginning of the warning of too little memory for all guests."""

NEIGHBOUR = "neighbour"
"""The name of the guest that is not measured, in logs."""

Samples = dict[str, dict[str, list[float]]]
"""Metric -> arm -> values."""


def draw_order(arms: Sequence[str], rounds: int, seed: int) -> list[list[str]]:
    """Return the arms in a random order for each round; equal seed, equal order."""
    chance = random.Random(seed)
    return [chance.sample(arms, len(arms)) for _ in range(rounds)]


def boots_for(rounds: int) -> int:
    """Return how often to boot for so many rounds: as many rounds each, at most BOOTS if it can be.

    Where nothing up to BOOTS divides them, every round has a boot of its own.
    """
    return next(
        (boots for boots in range(BOOTS, LEAST_BOOTS - 1, -1) if not rounds % boots), rounds
    )


def run_rounds(
    experiment: Experiment,
    metrics: Sequence[Metric],
    guests: Mapping[str, Guest],
    order: Sequence[Sequence[str]],
    progress: Progress,
    clocks: Mapping[str, Clock] | None = None,
    label: str = "",
    loads: hosttime.Loads | None = None,
) -> Samples:
    """Run all rounds of ``order`` in one boot; return the samples of those after the warm-up.

    Every turn is a span of the arm's clock, where there are ``clocks``, and ``loads`` get the other
    work on the host in each turn that is recorded. Raises LightsleepError where ``measure`` does
    not return what the experiment promises, or a clock is too far off.
    """
    samples: Samples = {m.name: {a.name: [] for a in experiment.arms} for m in metrics}
    for number, arms in enumerate(order, 1 - experiment.warmup):
        what = f"round {number} of {len(order) - experiment.warmup}" if number > 0 else "warm-up"
        for name in arms:
            guest, turn = guests[name], f"{label}{what}: {name}"
            with progress.step(turn):
                with telling(turn), running(guest):
                    with clocks[name].span(guest) if clocks else contextlib.nullcontext():
                        if number > 0:
                            load = loads.turn(name) if loads else contextlib.nullcontext()
                            with load, own_code():
                                values = experiment.measure(guest)
                        else:
                            with own_code():
                                (experiment.warm or experiment.measure)(guest)
                    if clocks:
                        clocks[name].check(guest)
                if number > 0:
                    _record(samples, f"{name}, {label}{what}", name, values)
    if experiment.rest_s:
        for asleep in rest(experiment, guests, len(order) - experiment.warmup, progress):
            for name, percent in asleep.items():
                samples[IDLE_RESIDENCY.name][name].append(percent)
    return samples


def _record(samples: Samples, where: str, arm: str, values: Mapping[str, float]) -> None:
    """Add the values of a turn. Raises LightsleepError, with ``where``, for what is not right."""
    promised = samples.keys() - {IDLE_RESIDENCY.name}
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
def telling(when: str) -> Iterator[None]:
    """Add to an error when in the comparison it happened, and to which arm."""
    try:
        yield
    except LightsleepError as error:
        error.add_note(f"this happened in: {when}")
        raise


@contextlib.contextmanager
def own_code() -> Iterator[None]:
    """Tell what an experiment's own code raises as an error, with its lines: it may be anybody's.

    Otherwise nothing would say in which boot, round and arm it was. So what calls sys.exit() is an
    error, whatever its status; but a signal ends all of it.
    """
    try:
        yield
    except LightsleepError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and by_signal(error):
            raise
        said = error.code if isinstance(error, SystemExit) else error
        failed = LightsleepError(f"code of the experiment: {type(error).__name__}: {said}")
        frames = traceback.extract_tb(error.__traceback__)
        lines = [x for x in frames if x.filename not in (__file__, contextlib.__file__)]
        failed.add_note("".join(traceback.format_list(lines)).rstrip() or "before its first line")
        raise failed from error


@contextlib.contextmanager
def running(guest: Guest) -> Iterator[None]:
    """Let one paused guest run."""
    guest.resume()
    yield
    guest.pause()


def rest(
    experiment: Experiment, guests: Mapping[str, Guest], spans: int, progress: Progress
) -> Iterator[dict[str, float]]:
    """Leave all guests alone side by side; yield by arm how much of each span it slept, in %."""
    threads = {name: guest.vm.vcpu_threads() for name, guest in guests.items()}
    spinning = [thread for arm in experiment.arms if arm.spins for thread in threads[arm.name]]

    def sample() -> dict[str, hosttime.ThreadTime]:
        return {name: guest.vcpu_time() for name, guest in guests.items()}

    hosttime.be_idle_class(spinning)  # for good: nothing more is run in them
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


def compare(
    name: str,
    experiment: Experiment,
    machine: Machine,
    rounds: int,
    boots: int,
    seed: int,
    show: Callable[[str, float | None], None],
) -> CompareResult:
    """Boot all arms ``boots`` times, run the protocol and return the result.

    ``rounds`` are the rounds of all boots. Where QEMU's emulation ended a guest, all of it starts
    over, once. Where a guest's clock was too far off, its boot is done again. The result says so.
    Raises LightsleepError for whatever else went wrong; logs of failed guests are kept.
    """
    before, start_s = commit(), time.monotonic()  # modules are built now, not at the end
    anew = functools.partial(attempt, name, experiment, machine, rounds, boots, seed, show)
    try:
        result = anew()
    except EmulatorRaced as error:
        why = error.message.splitlines()[0]
        show(f"starting over: {why}", None)
        result = anew()
        result.protocol["took_s"] = round(time.monotonic() - start_s)
        result.protocol["started_over"] = why
    result.environment["source"] = {"version": __version__, "commit": _still(before)}
    return result


def _still(before: str | None) -> str | None:
    """Return the commit of the sources as it was ``before``, -dirty where they changed since."""
    if before is None or before.endswith("-dirty"):
        return before
    now = commit()  # None where git fails, which says nothing of the sources
    return before if now in (None, before) else f"{before}-dirty"


def attempt(
    name: str,
    experiment: Experiment,
    machine: Machine,
    rounds: int,
    boots: int,
    seed: int,
    show: Callable[[str, float | None], None],
) -> CompareResult:
    """Do what ``compare`` does, but never start all of it over."""
    start_s = time.monotonic()
    machines = machines_of(experiment, machine)
    hardware = {
        name: prepare(arm, note=lambda what: show(f"preparing: {what}", None))
        for name, arm in machines.items()
    }
    accelerator = _one_accelerator(hardware)
    show(f"accelerator: {accelerator.name} ({accelerator.reason})", None)
    if short := little_memory(hardware, neighbour=bool(experiment.neighbour)):
        show(short, None)
    each = rounds // boots + experiment.warmup
    order = draw_order([arm.name for arm in experiment.arms], boots * each, seed)
    progress = Progress(
        show,
        steps=len(experiment.arms) * len(order),
        rest_s=boots * SETTLE_S + rounds * experiment.rest_s if experiment.rest_s else 0,
        boots=boots,
    )
    done, thrown_away = list[Booted](), list[str]()
    for number in range(boots):
        turns = order[number * each : (number + 1) * each]
        label = f"boot {number + 1} of {boots}, " if boots > 1 else ""
        boot = functools.partial(
            run_boot, experiment, machines, hardware, turns, progress, label, rounds
        )
        try:
            done.append(_in_true_time(boot, progress, label, thrown_away))
        except LightsleepError as error:
            if short:
                error.add_note(short)
            raise
        one_kernel_each(machines, [x.facts for x in done])
    return CompareResult(
        experiment=name,
        title=experiment.title,
        hypothesis=experiment.hypothesis,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        environment={
            "accelerator": {"name": accelerator.name, "reason": accelerator.reason},
            "host": host_facts(hardware[experiment.arms[0].name].arch)
            | {"other_load_pct": round(sum(boot.other_pct for boot in done) / boots, 1)},
            "arch": machine.arch,
            "guests": done[0].facts,
        },
        protocol={
            "runs": rounds,
            "boots": boots,
            "warmup": experiment.warmup,
            "seed": seed,
            "order": order,
            "rest_s": experiment.rest_s,
            "settle_s": SETTLE_S,
            "took_s": round(time.monotonic() - start_s),
            "vcpus": experiment.vcpus,
            "pinned": machine.pin or experiment.pin,
            **_by_boot(list(machines), done, accelerator),
            **({"booted_again": thrown_away} if thrown_away else {}),
            **({"little_memory": short} if short else {}),
            **({"neighbour": shlex.join(experiment.neighbour)} if experiment.neighbour else {}),
        },
        arms=[arm.name for arm in experiment.arms],
        roles={arm.name: arm.role for arm in experiment.arms},
        claims=list(experiment.claims),
        metrics=_metrics(experiment, done),
    )


def little_memory(hardware: Mapping[str, Hardware], neighbour: bool) -> str:
    """Say that the host may have too little memory for all guests; empty where it has enough.

    It is an estimate, and no reason to refuse: hosts swap, and guests do not use all they may.
    """
    each_mib = [
        x.arch.memory_mib + (0 if x.accelerator.name == "kvm" else TRANSLATED_MIB)
        for x in hardware.values()
    ]
    needed_mib = sum(each_mib) + (each_mib[0] if neighbour else 0)
    found = re.search(r"(?m)^MemAvailable: +(\d+) kB$", MEMORY.read_text())
    if not found or needed_mib <= (available_mib := int(found[1]) // 1024):
        return ""
    return (
        f"{LITTLE_MEMORY}: all guests together may need {needed_mib} MiB, and the host has "
        f"{available_mib} MiB available; end other programs, or name fewer arms with --arms"
    )


def one_kernel_each(
    machines: Mapping[str, Machine], boots: Sequence[Mapping[str, Mapping[str, Any]]]
) -> None:
    """Raise LightsleepError where two guests of one kernel were not: ``boots`` are their facts.

    Each boot starts the file that somebody named, who may build it anew meanwhile.
    """
    first: dict[str, tuple[str, dict[str, Any]]] = {}
    for number, facts in enumerate(boots, 1):
        for arm, machine in machines.items():
            now = {key: facts[arm][key] for key in ("kernel", "kernel_build")}
            where, then = first.setdefault(machine.kernel, (f"{arm} in boot {number}", now))
            if now != then:
                raise LightsleepError(
                    f"the kernel is not the same in all guests: {' '.join(then.values())} of "
                    f"{where}, {' '.join(now.values())} of {arm} in boot {number}; was it built "
                    "anew meanwhile? Leave it as it is until the comparison has ended"
                )


def _in_true_time(
    boot: Callable[[], Booted], progress: Progress, label: str, thrown_away: list[str]
) -> Booted:
    """Boot until the guests' clocks run as the host's; say in ``thrown_away`` what did not.

    Raises ClockOff where that takes too many boots.
    """
    for left in reversed(range(BOOT_TRIES)):
        try:
            with progress.all_or_nothing():
                return boot()
        except ClockOff as error:
            if not left:
                raise ClockOff(
                    f"{error.message}\nSo it was in {BOOT_TRIES} boots: end other work on the "
                    "host, and run it again"
                ) from error
            thrown_away.append(label + error.message.splitlines()[0])
        progress.show(f"booting all again: {thrown_away[-1]}", progress.left_s())
    raise AssertionError("there is a last try")


def _by_boot(
    arms: Sequence[str], done: Sequence[Booted], accelerator: Accelerator
) -> dict[str, Any]:
    """Return what each boot found out about its time, by arm."""
    found: dict[str, Any] = {
        "other_load_pct": {
            arm: [round(x, 1) for boot in done for x in boot.other_pct_of_turns[arm]]
            for arm in arms
        }
    }
    if accelerator.real_time:
        found["clock_rates"] = {arm: [boot.rates[arm] for boot in done] for arm in arms}
    return found


def machines_of(experiment: Experiment, machine: Machine) -> dict[str, Machine]:
    """Return the machine of each arm: what was asked for, with what the arm adds."""
    if experiment.accel and machine.accel == "auto":
        machine = replace(machine, accel=experiment.accel)
    return {
        arm.name: replace(
            machine,
            kernel=arm.kernel or machine.kernel,
            append=" ".join(x for x in (machine.append, arm.append) if x),
            modules=(*machine.modules, *arm.modules),
            devices=experiment.devices + machine.devices,  # so its names are always the same
            root=experiment.root,
            vcpus=experiment.vcpus,
            threads=experiment.threads,
            pin=machine.pin or experiment.pin,
        )
        for arm in experiment.arms
    }


def _metrics(experiment: Experiment, done: Sequence[Booted]) -> dict[str, MetricResult]:
    """Return each metric with the samples of all boots."""
    return {
        metric.name: MetricResult(
            metric.unit,
            metric.better,
            metric.title,
            metric.description,
            {
                arm.name: [x for boot in done for x in boot.samples[metric.name][arm.name]]
                for arm in experiment.arms
            },
            metric.amount,
        )
        for metric in done[0].metrics
    }


def _one_accelerator(hardware: Mapping[str, Hardware]) -> Accelerator:
    """Return what runs all arms. Raises LightsleepError where KVM runs some and not others."""
    found = {x.accelerator.name: x.accelerator for x in hardware.values()}
    if len(found) > 1:
        by_arm = ", ".join(f"{arm} by {x.accelerator.name}" for arm, x in hardware.items())
        reasons = "; ".join(x.reason for x in found.values())
        raise LightsleepError(
            f"arms would be run by different accelerators: {by_arm} ({reasons}); choose one with "
            "--accel"
        )
    return next(iter(found.values()))


@dataclass(frozen=True)
class Booted:
    """What one boot of all arms gave; ``rates`` are those of the guests' clocks, by arm."""

    metrics: tuple[Metric, ...]
    samples: Samples
    rates: dict[str, float]
    facts: dict[str, dict[str, Any]]
    other_pct: float
    """The share of the host's CPU time that other work used, from the first round to the last."""
    other_pct_of_turns: dict[str, list[float]]
    """The same of each turn, by arm."""


def run_boot(
    experiment: Experiment,
    machines: Mapping[str, Machine],
    hardware: Mapping[str, Hardware],
    order: Sequence[Sequence[str]],
    progress: Progress,
    label: str,
    rounds: int,
) -> Booted:
    """Boot all arms, run the rounds of ``order``, and end all guests; ``rounds`` are all of them.

    Raises LightsleepError for whatever goes wrong; see also promised().
    """
    real_time = all(x.accelerator.real_time for x in hardware.values())
    facts: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        with progress.boot():
            # In the order of its first round: it is not always the same one that boots last.
            guests = boot_all(
                {name: machines[name] for name in order[0]},
                hardware,
                stack,
                lambda what: progress.show(label + what, progress.left_s()),
            )
            for name in order[0]:
                # Alone: what a module measures as it is loaded is not disturbed by other guests.
                with telling(f"{label}start: {name}"), running(guests[name]):
                    guests[name].load()
                    with own_code():
                        experiment.start(guests[name])
                    facts[name] = guest_facts(guests[name])
            metrics = promised(experiment, guests, rounds)
            ours = list(guests.values())
            if experiment.neighbour:
                progress.show(f"{label}booting {NEIGHBOUR}", progress.left_s())
                baseline = machines[experiment.baseline.name]
                ours.append(busy_neighbour(experiment, baseline, stack))
        loads = hosttime.Loads([guest.vm.process.pid for guest in ours])
        clocks = {name: Clock() for name in machines} if real_time else None
        samples = run_rounds(experiment, metrics, guests, order, progress, clocks, label, loads)
        other_pct = loads.all.percent()
        for guest in ours:
            guest.check()
    rates = {name: clock.rate for name, clock in clocks.items()} if clocks else {}
    true = corrected(metrics, samples, rates) if clocks else samples
    known = {x.name: {"description": x.description, **facts[x.name]} for x in experiment.arms}
    return Booted(metrics, true, rates, known, other_pct, loads.of_turns)


def judges_the_control(experiment: Experiment, metrics: Sequence[Metric], rounds: int) -> None:
    """Raise LightsleepError for rounds that leave it open whether a control differs."""
    if rounds < (needed := experiment.rounds_for(metrics)):
        raise LightsleepError(
            f"{rounds} rounds are too few to judge the control in {len(metrics)} metrics without "
            f"false alarms: at least {needed}"
        )


def promised(
    experiment: Experiment, guests: Mapping[str, Guest], rounds: int
) -> tuple[Metric, ...]:
    """Return the metrics, asking the baseline's guest where they depend on the machine.

    Raises LightsleepError where they are none, where all ``rounds`` could not judge the control in
    so many of them, or where no result could hold them.
    """
    if isinstance(experiment.metrics, tuple):
        return experiment.metrics
    baseline = guests[experiment.baseline.name]
    with telling(f"metrics: {experiment.baseline.name}"), running(baseline), own_code():
        metrics = experiment.metrics(baseline)
    if not (isinstance(metrics, tuple) and all(isinstance(x, Metric) for x in metrics)):
        raise LightsleepError(
            "metrics() of the experiment has to return a tuple of Metric, and returned a "
            f"{type(metrics).__name__}: {shortened(repr(metrics))}"
        )
    try:
        experiment.check(metrics)
    except ValueError as error:
        raise LightsleepError(f"the experiment's metrics on this machine: {error}") from error
    judges_the_control(experiment, metrics, rounds)
    return metrics


def boot_all(
    machines: Mapping[str, Machine],
    hardware: Mapping[str, Hardware],
    stack: contextlib.ExitStack,
    show: Callable[[str], None],
) -> dict[str, Guest]:
    """Boot a guest per machine, two at a time, and leave them paused; ``stack`` ends them."""
    guests: dict[str, Guest] = {}

    def wait_for(name: str) -> None:
        guests[name].wait()
        guests[name].pause()

    names = list(machines)
    for name, ahead in zip(names, [None, *names], strict=False):
        show(f"booting {name}")
        guests[name] = Guest(machines[name], hardware[name], name)
        stack.callback(guests[name].close)
        if ahead is not None:
            wait_for(ahead)
    wait_for(names[-1])
    return guests


def busy_neighbour(experiment: Experiment, baseline: Machine, stack: contextlib.ExitStack) -> Guest:
    """Boot one more guest like the baseline's, keep it busy and let it run; ``stack`` ends it."""
    machine = replace(baseline, modules=())
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
        **_halt_facts(),
    }


def _halt_facts() -> dict[str, str | None]:
    """Return the settings of the host that decide what a halt costs under KVM, where they are.

    None is what the kernel calls none: no driver is bound, or no governor.
    """
    found = dict[str, str | None]()
    for name, paths in HALT_FACTS.items():
        for path in reversed(paths):
            with contextlib.suppress(OSError):
                text = (SYS / path).read_text().strip()
                found[name] = None if text == "none" else text
    return found
