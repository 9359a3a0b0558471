# SPDX-License-Identifier: GPL-2.0-only
"""Whether the cost of a halt that the driver measures is what a halt costs programs.

The driver decides by its own figure (halt_cost_ns). What a halt really costs shows in programs that
hand work back and forth. In the same guest, in the same minute, each program runs once while idle
CPUs halt at once (mode=off) and once while they poll for as long as it takes (mode=fixed). The
difference for each wakeup is the loss that a poll avoids, the waker's own loss included. A request
or a turn of the pipe takes two wakeups.

Before that, the programs run in the default mode, and the driver's figure is read at the end of
this: a driver that measures while programs run has had programs to measure.

All arms are booted alike, so none is a control: what differs between their programs is chance, and
what differs between their drivers' figures is what this experiment is about.
"""

from lightsleep.compare.result import Claim
from lightsleep.errors import LightsleepError
from lightsleep.lab.experiment import Arm, Experiment, Metric
from lightsleep.lab.guest import Guest
from lightsleep.lab.pipe import PIPE, PIPE_WAKES, SCHED_PIPE_S, measure_pipe
from lightsleep.lab.programs.run import run_load, starter
from lightsleep.lab.programs.servers import NGINX, ONE, REDIS

BOOTS = 10
LONG_US = 5000
"""A poll limit that no program here reaches while it waits for an answer."""

PROGRAMS = (REDIS, NGINX)
LOADED = ("pipe", *(program.name for program in PROGRAMS))
MODULE = "cpuidle_lightsleep"
PARAMETERS = f"/sys/module/{MODULE}/parameters"
WAKES_PER_REQUEST = 2


def wake_us(guest: Guest) -> dict[str, float]:
    """Run each program once and return by name how long half a request, so one wakeup, takes."""
    times = {"pipe": 1e6 * measure_pipe(guest)[SCHED_PIPE_S.name] / PIPE_WAKES}
    for program in PROGRAMS:
        per_s = run_load(guest, program, ONE)[f"{program.name}_{ONE}_per_s"]
        times[program.name] = 1e6 / per_s / WAKES_PER_REQUEST
    return times


def measure(guest: Guest) -> dict[str, float]:
    """Run the programs in the default mode, then halting at once, then polling."""
    limit_us = guest.read_text(f"{PARAMETERS}/poll_limit_us")
    wake_us(guest)
    module_us = int(guest.read_text(f"{PARAMETERS}/halt_cost_ns")) / 1000
    guest.write_text(f"{PARAMETERS}/mode", "off")
    halting = wake_us(guest)
    guest.write_text(f"{PARAMETERS}/poll_limit_us", str(LONG_US))
    guest.write_text(f"{PARAMETERS}/mode", "fixed")
    polling = wake_us(guest)
    guest.write_text(f"{PARAMETERS}/mode", "adaptive")
    guest.write_text(f"{PARAMETERS}/poll_limit_us", limit_us)
    return figures(module_us, halting, polling)


def figures(
    module_us: float, halting: dict[str, float], polling: dict[str, float]
) -> dict[str, float]:
    """Return the driver's figure, the loss of each program, and the first in % of each of these.

    Raises LightsleepError where a program loses nothing by halting: there is nothing to compare.
    """
    values = {"module_us": module_us}
    for name in LOADED:
        loss_us = halting[name] - polling[name]
        if loss_us <= 0:
            raise LightsleepError(
                f"{name}: a wakeup takes {halting[name]:.1f} us where CPUs halt and "
                f"{polling[name]:.1f} us where they poll, so a halt costs nothing to compare with; "
                "is the host busy, or does its hypervisor poll?"
            )
        values |= {f"{name}_us": loss_us, f"module_of_{name}_pct": 100 * module_us / loss_us}
    return values


def _metrics() -> tuple[Metric, ...]:
    module = Metric("module_us", "us", "none", "Driver's figure", f"{PARAMETERS}/halt_cost_ns")
    commands = {"pipe": " ".join(PIPE)} | {
        program.name: " ".join(program.loads[ONE].argv) for program in PROGRAMS
    }
    losses = (
        Metric(
            f"{name}_us",
            "us",
            "none",
            f"Loss of a wakeup in {name}",
            f"(Time with mode=off - time with mode=fixed poll_limit_us={LONG_US}) / wakeups, two "
            f"a turn or request: {commands[name]}",
        )
        for name in LOADED
    )
    shares = (
        Metric(
            f"module_of_{name}_pct",
            "%",
            "none",
            f"Driver's figure, of the loss in {name}",
            "100 where the driver is right, less where it takes a halt for cheaper than it is",
        )
        for name in LOADED
    )
    return (module, *losses, *shares)


EXPERIMENT = Experiment(
    title="The driver's cost of a halt against what programs lose",
    hypothesis=(
        "The cost of a halt that cpuidle-lightsleep measures is within 25 % of what a wakeup loses "
        "in pipe, Redis and nginx (each module_of_*_pct is between 75 and 125 in each boot), and "
        "within 25 % from boot to boot."
    ),
    arms=tuple(
        Arm(
            f"boot-{number}",
            "baseline" if number == 1 else "treatment",
            "the distribution's kernel with cpuidle-lightsleep, booted as all others are",
            modules=(MODULE,),
        )
        for number in range(1, BOOTS + 1)
    ),
    claims=tuple(
        Claim(f"boot-{number}", "boot-1", ("module_us",), at_least=0.75, at_most=1.25)
        for number in range(2, BOOTS + 1)
    ),
    metrics=_metrics(),
    measure=measure,
    start=starter(PROGRAMS),
    root="programs",
)
