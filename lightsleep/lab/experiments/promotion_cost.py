# SPDX-License-Identifier: GPL-2.0-only
"""What promotion costs where there is nothing to promote: loads that wake their CPUs soon.

Its timer is armed and cancelled for sleeps that end before it. The clock counts instructions, so
what that takes is seen to the instruction; what it takes to program a real clock is not. A load
for which the timer is hardly armed does not show what it costs, so that is claimed, too; it is
counted in a second run, because counting takes a trace event for each timer. An arm
without promotion arms a timer as long, from a tracepoint. Where it expires, it ends the sleep, and
the governor chooses again (promote_by_timer.c).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lightsleep.compare.result import Claim, Role
from lightsleep.errors import LightsleepError
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.loads.messaging import MESSAGING_STEPS
from lightsleep.lab.loads.pipe import PIPE, SCHED_PIPE_S, TURNS, bench_s
from lightsleep.lab.loads.programs.outputs import CYCLICTEST_STEPS
from lightsleep.lab.loads.promotions import KERNEL, counts, need_states
from lightsleep.lab.run.experiment import Arm, Experiment, Metric

MESSAGING = ("perf", "bench", "-f", "simple", "sched", "messaging", "-g", "2", "-l", "100")
CYCLIC_CPU = 1
CYCLIC = (
    *("cyclictest", "--quiet", "--default-system", "-t", "1", "-a", str(CYCLIC_CPU), "-p", "80"),
    *("-i", "200", "-l", "5000"),
)
CYCLIC_US = re.compile(r"Avg:\s*(\d+) Max:\s*(\d+)")
COUNTED = re.compile(r"^(\d+),[^\n]*hrtimer_start", re.MULTILINE)
IDLE_S = 10
EXPIRES = "promote_expire"
"""What promotion's timer calls: it tells that timer from others."""
TIMER = ("promote_by_timer",)
LOADS = {"pipe": SCHED_PIPE_S.name, "messaging": "messaging_s", "cyclic": "cyclic_us"}
"""The metric of each load's speed, by how those of its timers begin."""
ARMED_PCT = 1
"""The least share of entries with a timer for which a load tells what the timer costs."""


@dataclass(frozen=True)
class Armed:
    """How often idle states of all CPUs were entered, and promotion's timer armed for that."""

    entered: int
    timers: int

    @property
    def percent(self) -> float:
        """Return for how many of 100 entries a timer was armed."""
        return 100 * self.timers / max(1, self.entered)


def armed(guest: Guest, argv: Sequence[str]) -> Armed:
    """Run a command and count."""
    symbol = guest.run(["grep", "-m1", "-w", EXPIRES, "/proc/kallsyms"]).stdout.split()
    timers = ("-e", "timer:hrtimer_start", "--filter", f"function == 0x{symbol[0]}")
    before = counts(guest)
    done = guest.run(["perf", "stat", "-a", "-x,", *timers, *argv], timeout_s=300)
    # Before perf, the command itself may have said something there.
    found = COUNTED.search(done.stderr)
    if not found:
        raise LightsleepError(f"perf stat counted no timers, but said: {done.stderr[-500:]}")
    return Armed((counts(guest) - before).entered, int(found[1]))


def cyclic_us(text: str) -> tuple[float, float]:
    """Return average and longest latency from what cyclictest printed."""
    found = CYCLIC_US.search(text)
    if not found:
        raise LightsleepError(f"cyclictest printed no latencies, but: {text[-500:]}")
    return float(found[1]), float(found[2])


def measure(guest: Guest) -> dict[str, float]:
    """Run each load once, and nothing once."""
    need_states(guest)
    pipe, messaging, cyclic = (
        guest.run(argv, timeout_s=300).stdout for argv in (PIPE, MESSAGING, CYCLIC)
    )
    average_us, longest_us = cyclic_us(cyclic)
    at_rest = armed(guest, ("sleep", str(IDLE_S)))
    return {
        SCHED_PIPE_S.name: bench_s(pipe, TURNS),
        "pipe_armed_pct": armed(guest, PIPE).percent,
        "messaging_s": float(messaging),
        "messaging_armed_pct": armed(guest, MESSAGING).percent,
        "cyclic_us": average_us,
        "cyclic_longest_us": longest_us,
        "cyclic_armed_pct": armed(guest, CYCLIC).percent,
        "idle_wakes": at_rest.entered / IDLE_S,
        "idle_armed_pct": at_rest.percent,
    }


def arms() -> tuple[Arm, ...]:
    """Return two governors, each with and without, the first with a timer alone, and again."""
    rows: tuple[tuple[str, Role, str, bool, tuple[str, ...]], ...] = (
        ("menu", "baseline", "menu, without promotion", False, ()),
        ("menu-promotion", "treatment", "menu, with promotion", True, ()),
        ("menu-timer", "treatment", "menu, and a timer that ends the sleep, no more", False, TIMER),
        ("teo", "treatment", "teo, without promotion", False, ()),
        ("teo-promotion", "treatment", "teo, with promotion", True, ()),
        ("menu-again", "control", "booted as menu is", False, ()),
    )
    return tuple(
        Arm(
            name,
            role,
            what,
            append=f"cpuidle.promote={on:d} cpuidle.governor={name.partition('-')[0]}",
            modules=modules,
            kernel=KERNEL,
        )
        for name, role, what, on, modules in rows
    )


EXPERIMENT = Experiment(
    title="What promotion costs",
    hypothesis=(
        "Loads that wake their CPUs soon take at most 5 % longer with promotion than without, "
        f"although the timer is armed for at least {ARMED_PCT} % of their entries into an idle "
        "state, and an idle machine wakes at most 10 % more often."
    ),
    arms=arms(),
    metrics=(
        SCHED_PIPE_S,
        Metric(
            "pipe_armed_pct",
            "%",
            "none",
            "Timers armed: pipe",
            "Of all entries into an idle state, on all CPUs, those for which promotion armed its "
            "timer, in another run; another module's timer is not counted",
        ),
        Metric(
            "messaging_s",
            "s",
            "lower",
            "Messages between many",
            f"{MESSAGING_STEPS}: {' '.join(MESSAGING)}",
        ),
        Metric("messaging_armed_pct", "%", "none", "Timers armed: messages", "As for the pipe"),
        Metric(
            "cyclic_us",
            "us",
            "lower",
            "Woken by a timer",
            f"Average, which {CYCLICTEST_STEPS}: {' '.join(CYCLIC)}",
        ),
        Metric("cyclic_longest_us", "us", "lower", "Longest of these", "Of the same run"),
        Metric("cyclic_armed_pct", "%", "none", "Timers armed: timer", "As for the pipe"),
        Metric(
            "idle_wakes",
            "1/s",
            "lower",
            "Wakes of an idle machine",
            f"Idle states left per second, on all CPUs, while nothing runs for {IDLE_S} s",
        ),
        Metric("idle_armed_pct", "%", "none", "Timers armed: idle", "As for the pipe"),
    ),
    measure=measure,
    claims=(
        *(
            Claim(f"{governor}-promotion", governor, (name,), at_most=1.05)
            for governor in ("menu", "teo")
            for name in LOADS.values()
        ),
        *(
            Claim(f"{governor}-promotion", None, (f"{load}_armed_pct",), at_least=ARMED_PCT)
            for governor in ("menu", "teo")
            for load in LOADS
        ),
        *(
            Claim(f"{governor}-promotion", governor, ("idle_wakes",), at_most=1.1)
            for governor in ("menu", "teo")
        ),
    ),
    least_vcpus=CYCLIC_CPU + 1,
    accel="tcg-icount",
)
