# SPDX-License-Identifier: GPL-2.0-only
"""Whether the cost of a halt that the driver measures is what a halt costs programs.

The driver decides by a figure for each CPU (lightsleep/halt_cost_ns). It begins with what the
machine showed when the module was loaded, and gives way to what the programs on that CPU show. What
a halt really costs shows in programs that hand work back and forth. In the same guest, in the same
minute, each program runs while idle CPUs halt at once (mode=off) and while they poll for as long
as it takes (mode=fixed). The difference for each wakeup is the loss that a poll avoids, the waker's
own loss included. A request or a turn of the pipe takes two wakeups.

Before that, each program runs in the default mode for as long as the driver needs to learn from it,
and the CPUs' figures are read: these decided how long they polled for that program.

All arms are booted alike, so none is a control: what differs between their programs is chance, and
what differs between their drivers' figures is what this experiment is about.
"""

import statistics
import time

from lightsleep.compare.result import Claim
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.loads.pipe import PIPE, PIPE_WAKES, SCHED_PIPE_S, measure_pipe
from lightsleep.lab.loads.programs.run import run_load, starter
from lightsleep.lab.loads.programs.servers import NGINX, ONE, REDIS
from lightsleep.lab.run.experiment import Arm, Experiment, Metric

ARMS = 3
"""Each is booted as often as a comparison says."""

LONG_US = 5000
"""A poll limit that no program here reaches while it waits for an answer."""

LEARN_S = 6.0
"""How long a program runs until the CPUs have learned from it: evidence is kept fresh by one halt
in 128 wakeups, 64 of them count, and it is evaluated once a second."""

PROGRAMS = (REDIS, NGINX)
LOADED = ("pipe", *(program.name for program in PROGRAMS))
MODULE = "cpuidle_lightsleep"
PARAMETERS = f"/sys/module/{MODULE}/parameters"
WAKES_PER_REQUEST = 2
NEAR = 0.25
"""How far from a program's loss the cost may be by which the CPUs decide, as a part of the loss."""


def wakeup_us(guest: Guest, name: str) -> float:
    """Run a program once and return how long half a request, so one wakeup, takes."""
    if name == "pipe":
        return 1e6 * measure_pipe(guest)[SCHED_PIPE_S.name] / PIPE_WAKES
    program = next(x for x in PROGRAMS if x.name == name)
    per_s = run_load(guest, program, ONE)[f"{name}_{ONE}_per_s"]
    return 1e6 / per_s / WAKES_PER_REQUEST


def used_us(guest: Guest) -> float:
    """Return the cost by which the CPUs decide now: the mean of their figures."""
    files = (
        f"/sys/devices/system/cpu/cpu{cpu}/lightsleep/halt_cost_ns"
        for cpu in range(guest.machine.vcpus)
    )
    return statistics.fmean(int(guest.read_text(file)) for file in files) / 1000


def learned_us(guest: Guest, name: str) -> float:
    """Run a program in the mode that is set until the driver has learned; return its figure."""
    end_s = time.monotonic() + LEARN_S
    wakeup_us(guest, name)
    while time.monotonic() < end_s:
        wakeup_us(guest, name)
    return used_us(guest)


def measure(guest: Guest) -> dict[str, float]:
    """Run the programs in the default mode, then halting at once, then polling."""
    limit_us = guest.read_text(f"{PARAMETERS}/poll_limit_us")
    learned = {name: learned_us(guest, name) for name in LOADED}
    machine_us = int(guest.read_text(f"{PARAMETERS}/halt_cost_ns")) / 1000
    guest.write_text(f"{PARAMETERS}/mode", "off")
    halting = {name: wakeup_us(guest, name) for name in LOADED}
    guest.write_text(f"{PARAMETERS}/poll_limit_us", str(LONG_US))
    guest.write_text(f"{PARAMETERS}/mode", "fixed")
    polling = {name: wakeup_us(guest, name) for name in LOADED}
    guest.write_text(f"{PARAMETERS}/mode", "adaptive")
    guest.write_text(f"{PARAMETERS}/poll_limit_us", limit_us)
    return figures(machine_us, learned, halting, polling)


def figures(
    machine_us: float,
    learned: dict[str, float],
    halting: dict[str, float],
    polling: dict[str, float],
) -> dict[str, float]:
    """Return the driver's figures, the loss of each program, and how far apart they are, in us.

    A loss is negative where a program is faster with CPUs that halt. No figure is then near it.
    """
    values = {"machine_us": machine_us}
    for name in LOADED:
        loss_us = halting[name] - polling[name]
        values |= {
            f"{name}_us": loss_us,
            f"used_in_{name}_us": learned[name],
            f"off_in_{name}_us": abs(learned[name] - loss_us) - NEAR * loss_us,
        }
    return values


def _metrics() -> tuple[Metric, ...]:
    machine = Metric(
        "machine_us", "us", "none", "Measured on the machine", f"{PARAMETERS}/halt_cost_ns"
    )
    commands = {"pipe": " ".join(PIPE)} | {
        program.name: " ".join(program.loads[ONE].argv) for program in PROGRAMS
    }
    return (
        machine,
        *(metric for name in LOADED for metric in _metrics_of(name, commands[name])),
    )


def _metrics_of(name: str, command: str) -> tuple[Metric, ...]:
    return (
        Metric(
            f"{name}_us",
            "us",
            "none",
            f"What a halt costs a wakeup in {name}",
            f"(Time with mode=off - time with mode=fixed poll_limit_us={LONG_US}) / wakeups, two "
            f"a turn or request; negative if halting was faster: {command}",
        ),
        Metric(
            f"used_in_{name}_us",
            "us",
            "none",
            f"Cost of a halt that decided in {name}",
            f"Mean of cpuN/lightsleep/halt_cost_ns after {LEARN_S:g} s of it in the default mode",
        ),
        Metric(
            f"off_in_{name}_us",
            "us",
            "lower",
            f"Error of the halt cost in {name}, beyond {100 * NEAR:g} %",
            f"Distance of this cost from the loss, less {100 * NEAR:g} % of the loss: 0 or less "
            f"if the driver is right within {100 * NEAR:g} %",
        ),
    )


EXPERIMENT = Experiment(
    title="The driver's cost of a halt against what programs lose",
    hypothesis=(
        "The cost of a halt by which cpuidle-lightsleep decides is within 25 % of what a wakeup "
        "loses in pipe, Redis and nginx (each off_in_*_us is at most 0), and within 25 % from "
        "guest to guest."
    ),
    arms=tuple(
        Arm(
            f"guest-{number}",
            "baseline" if number == 1 else "treatment",
            "the kernel with cpuidle-lightsleep, booted as all others are",
            modules=(MODULE,),
        )
        for number in range(1, ARMS + 1)
    ),
    claims=(
        *(
            Claim(f"guest-{number}", None, (f"off_in_{name}_us",), at_most=0)
            for name in LOADED
            for number in range(1, ARMS + 1)
        ),
        *(
            Claim(
                f"guest-{number}",
                "guest-1",
                (f"used_in_{name}_us",),
                at_least=1 - NEAR,
                at_most=1 + NEAR,
            )
            for name in LOADED
            for number in range(2, ARMS + 1)
        ),
    ),
    metrics=_metrics(),
    measure=measure,
    warmup=0,
    start=starter(PROGRAMS),
    root="programs",
)
