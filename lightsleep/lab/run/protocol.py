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
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lightsleep import __version__
from lightsleep.compare.boots import LEAST_BOOTS
from lightsleep.compare.result import CompareResult, MetricResult
from lightsleep.document import shortened
from lightsleep.errors import LightsleepError
from lightsleep.lab.boot import hosttime
from lightsleep.lab.boot.accel import Accelerator
from lightsleep.lab.boot.guest import EmulatorRaced, Guest, check_kernels, lacks_modprobe, prepare
from lightsleep.lab.boot.machine import Machine
from lightsleep.lab.boot.vm import Hardware
from lightsleep.lab.run import pauses
from lightsleep.lab.run.blame import own_code, telling
from lightsleep.lab.run.clock import Clock, ClockOff, corrected
from lightsleep.lab.run.experiment import Experiment, Metric
from lightsleep.lab.run.facts import (
    few_cpus,
    guest_facts,
    host_facts,
    little_memory,
    one_kernel_each,
)
from lightsleep.lab.run.progress import Progress
from lightsleep.lab.run.rounds import SETTLE_S, Samples, draw_order, run_rounds, running
from lightsleep.sources import commit

ROUNDS = 18
"""Rounds where nobody chose. In how many of this lab's recorded metrics they show a difference of
20 %, in as many boots as BOOTS, docs/lab.md says: tests draw from what was recorded."""
BOOTS = 9
"""How often each arm is booted where nobody chose."""

BOOT_TRIES = 3
"""How often all arms are booted at most where the clock of one of them is too far off."""


NEIGHBOUR = "neighbour"
"""The name of the guest that is not measured, in logs."""


def boots_for(rounds: int) -> int:
    """Return how often to boot for so many rounds: as many rounds each, at most BOOTS if it can be.

    Where nothing up to BOOTS divides them, every round has a boot of its own.
    """
    return next(
        (boots for boots in range(BOOTS, LEAST_BOOTS - 1, -1) if not rounds % boots), rounds
    )


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
    again = list[str]()
    anew = functools.partial(attempt, name, experiment, machine, rounds, boots, seed, show, again)
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
    again: list[str] | None = None,
) -> CompareResult:
    """Do what ``compare`` does, but never start all of it over.

    ``again`` has what ended guests that were booted anew in an earlier attempt, and gets the rest.
    """
    start_s = time.monotonic()
    again = [] if again is None else again
    machines = machines_of(experiment, machine)
    check_kernels(machines)  # of all, before what takes minutes is done for the first
    if without := lacks_modprobe(machines):
        show(without, None)
    hardware = {
        name: prepare(arm, note=lambda what: show(f"preparing: {what}", None), modprobe=not without)
        for name, arm in machines.items()
    }
    accelerator = _one_accelerator(hardware)
    show(f"accelerator: {accelerator.name} ({accelerator.reason})", None)
    if crowded := few_cpus(experiment, accelerator):
        show(crowded, None)
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
            run_boot, experiment, machines, hardware, turns, progress, label, rounds, again
        )
        try:
            done.append(_in_true_time(boot, progress, label, thrown_away))
        except LightsleepError as error:
            if short:
                error.add_note(short)
            raise
        one_kernel_each(machines, [x.facts for x in done])
        _same_metrics(label, done[0].metrics, done[-1].metrics)
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
            **({"guests_booted_again": again} if again else {}),
            **({"few_cpus": crowded} if crowded else {}),
            **({"little_memory": short} if short else {}),
            **({"no_modprobe": without} if without else {}),
            **({"neighbour": shlex.join(experiment.neighbour)} if experiment.neighbour else {}),
        },
        arms=[arm.name for arm in experiment.arms],
        roles={arm.name: arm.role for arm in experiment.arms},
        claims=list(experiment.claims),
        metrics=_metrics(experiment, done),
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
    """Return what each boot found out about its time and its host, by arm."""
    found: dict[str, Any] = {
        "other_load_pct": {
            arm: [round(x, 1) for boot in done for x in boot.other_pct_of_turns[arm]]
            for arm in arms
        }
    }
    found["paused_cpus"] = {
        arm: [cpus for boot in done for cpus in boot.paused_cpus_of_turns[arm]]
        for arm in arms
        if all(arm in boot.paused_cpus_of_turns for boot in done)
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
            foreign=arm.foreign or (None if arm.kernel else machine.foreign),
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


def _same_metrics(label: str, first: Sequence[Metric], now: Sequence[Metric]) -> None:
    """Raise LightsleepError where a boot has other metrics than the first: a result has one set."""
    names, before = ({x.name for x in metrics} for metrics in (now, first))
    if names != before:
        differs = {"adds": sorted(names - before), "lacks": sorted(before - names)}
        how = " and ".join(f"{verb} {', '.join(x)}" for verb, x in differs.items() if x)
        raise LightsleepError(
            f"{label}metrics() of the experiment must return the same in each boot: it {how}"
        )


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
    paused_cpus_of_turns: dict[str, list[int]]
    """In each turn, how many CPUs kept from polling, by arm: of those that can tell."""


def run_boot(
    experiment: Experiment,
    machines: Mapping[str, Machine],
    hardware: Mapping[str, Hardware],
    order: Sequence[Sequence[str]],
    progress: Progress,
    label: str,
    rounds: int,
    again: list[str],
) -> Booted:
    """Boot all arms, run the rounds of ``order``, and end all guests; ``rounds`` are all of them.

    ``again`` gets what ended guests that were booted anew before their first turn, however it ends.

    Raises LightsleepError for whatever goes wrong; see also promised().
    """
    real_time = all(x.accelerator.real_time for x in hardware.values())
    facts: dict[str, dict[str, Any]] = {}
    paused: dict[str, pauses.Pauses | None] = {}
    ours: list[Guest] = []
    with contextlib.ExitStack() as stack:
        stack.callback(
            lambda: again.extend(label + line for guest in ours for line in guest.spoiled)
        )
        with progress.boot():
            # In the order of its first round: it is not always the same one that boots last.
            with telling(f"{label}booting"):
                guests = boot_all(
                    {name: machines[name] for name in order[0]},
                    hardware,
                    stack,
                    lambda what: progress.show(label + what, progress.left_s()),
                    ours,
                )
            for name in order[0]:
                # Alone: what a module measures as it is loaded is not disturbed by other guests.
                with telling(f"{label}start: {name}"), running(guests[name]):
                    guests[name].load()
                    with own_code():
                        experiment.start(guests[name])
                    facts[name] = guest_facts(guests[name])
                    paused[name] = pauses.read(guests[name])
                    guests[name].check()
            metrics = promised(experiment, guests, rounds)
            neighbour = None
            if experiment.neighbour:
                progress.show(f"{label}booting {NEIGHBOUR}", progress.left_s())
                baseline = machines[experiment.baseline.name]
                with telling(f"{label}{NEIGHBOUR}"):
                    neighbour = busy_neighbour(experiment, baseline, stack, ours)
        # One CPU more than vCPUs run at once: QEMU has threads for devices, too.
        pids = [guest.vm.process.pid for guest in ours]
        loads = hosttime.Loads(pids, experiment.host_cpus + 1)
        clocks = {name: Clock() for name in machines} if real_time else None
        noted = pauses.Noted(paused)
        samples = run_rounds(
            experiment, metrics, guests, order, progress, clocks, label, loads, neighbour, noted
        )
        other_pct = loads.all.percent()
        for guest in ours:
            with telling(f"{label}the end: {guest.name}"):
                guest.check()
    rates = {name: clock.rate for name, clock in clocks.items()} if clocks else {}
    true = corrected(metrics, samples, rates) if clocks else samples
    known = {x.name: {"description": x.description, **facts[x.name]} for x in experiment.arms}
    return Booted(metrics, true, rates, known, other_pct, loads.of_turns, noted.of_turns)


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
        there = shortened(", ".join(x.name for x in metrics))
        raise LightsleepError(
            f"the experiment's metrics on this machine: {error}; metrics: {there}"
        ) from error
    judges_the_control(experiment, metrics, rounds)
    return metrics


def boot_all(
    machines: Mapping[str, Machine],
    hardware: Mapping[str, Hardware],
    stack: contextlib.ExitStack,
    show: Callable[[str], None],
    started: list[Guest],
) -> dict[str, Guest]:
    """Boot a guest per machine, two at a time, and leave them paused; ``stack`` ends them.

    They are in ``started`` before they have booted.
    """
    guests: dict[str, Guest] = {}

    def wait_for(name: str) -> None:
        guests[name].wait()
        guests[name].pause()

    names = list(machines)
    for name, ahead in zip(names, [None, *names], strict=False):
        show(f"booting {name}")
        guests[name] = Guest(machines[name], hardware[name], name)
        started.append(guests[name])
        stack.callback(guests[name].close)
        if ahead is not None:
            wait_for(ahead)
    wait_for(names[-1])
    return guests


def busy_neighbour(
    experiment: Experiment,
    baseline: Machine,
    stack: contextlib.ExitStack,
    started: list[Guest],
) -> Guest:
    """Boot one more guest like the baseline's, keep it busy and let it run; ``stack`` ends it.

    It is in ``started`` before it has booted.
    """
    machine = replace(baseline, modules=())
    guest = Guest(machine, prepare(machine), NEIGHBOUR)
    started.append(guest)
    stack.callback(guest.close)
    guest.wait()
    guest.run(experiment.neighbour)
    return guest
