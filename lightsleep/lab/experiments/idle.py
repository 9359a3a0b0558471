# SPDX-License-Identifier: GPL-2.0-only
"""What a poll before the halt is worth, against halting at once and against never halting.

Pipe and seccomp-notify hand work back and forth between two tasks, so nearly every step wakes an
idle CPU. Messaging keeps all CPUs busy: it shows what polling costs those who do not wait.

Interrupts are counted over the very run that is timed.
"""

from __future__ import annotations

from lightsleep.compare.result import Claim
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.loads.messaging import MESSAGING, SCHED_MESSAGING_S
from lightsleep.lab.loads.pipe import (
    IPIS,
    SCHED_PIPE_S,
    TURNS,
    bench_s,
    measure_pipe,
    ping_pong,
    ping_pong_s,
)
from lightsleep.lab.run.arms import FIXED_100US, HALTPOLL, IDLE_POLL, LIGHTSLEEP, STOCK, STOCK_AGAIN
from lightsleep.lab.run.experiment import IDLE_RESIDENCY, Experiment, Metric

SECCOMP = ("perf", "bench", "sched", "seccomp-notify", "-l")
CALLS = 2500
NO_SLOWER = 1.1
"""A ratio of times that is no more than 1 but for what this experiment cannot tell apart."""
WAKE_BOUND = (SCHED_PIPE_S.name, "sched_seccomp_notify_s")


def measure(guest: Guest, turns: int = TURNS, calls: int = CALLS) -> dict[str, float]:
    """Run each benchmark once: the pipe for ``turns``, seccomp-notify for ``calls``."""
    return {
        **measure_pipe(guest, turns),
        "sched_messaging_s": float(guest.run(MESSAGING).stdout),
        "sched_seccomp_notify_s": bench_s(guest.run([*SECCOMP, str(calls)]).stdout, calls),
    }


def warm(guest: Guest) -> None:
    """Run little of each: the programs are then in memory, and their code is translated."""
    guest.run(ping_pong(200))
    guest.run([*MESSAGING[:-1], "1"])
    guest.run([*SECCOMP, "100"])


def metrics(turns: int, calls: int) -> tuple[Metric, ...]:
    """Return what is measured where the benchmarks are of these lengths."""
    return (
        ping_pong_s(turns),
        SCHED_MESSAGING_S,
        Metric(
            "sched_seccomp_notify_s",
            "s",
            "lower",
            "Seccomp notify",
            f"A supervisor answers another task's system calls: {' '.join(SECCOMP)} {calls}",
        ),
        IPIS,
        IDLE_RESIDENCY,
    )


EXPERIMENT = Experiment(
    title="Polling idle against halting idle",
    hypothesis=(
        "Polling before halting makes wake-bound benchmarks (pipe, seccomp notify) faster. They "
        "take at most 25 % longer than with idle=poll, and at most 10 % longer than by the rule of "
        "haltpoll or with a constant limit of 100 us. At most 10 % of the interrupts between CPUs "
        "are left. A busy guest (messaging) takes at most 20 % longer than before, and a guest "
        "left alone sleeps at most 0.5 points less."
    ),
    arms=(STOCK, LIGHTSLEEP, FIXED_100US, HALTPOLL, IDLE_POLL, STOCK_AGAIN),
    metrics=metrics(TURNS, CALLS),
    measure=measure,
    warm=warm,
    claims=(
        Claim("lightsleep", "stock", WAKE_BOUND),
        Claim("lightsleep", "idle=poll", WAKE_BOUND, at_most=1.25),
        *(
            Claim("lightsleep", peer, WAKE_BOUND, at_most=NO_SLOWER)
            for peer in ("haltpoll", "fixed-100us")
        ),
        Claim("lightsleep", "stock", (IPIS.name,), at_most=0.1),
        Claim("lightsleep", "stock", ("sched_messaging_s",), at_most=1.2),
        Claim("lightsleep", "stock", (IDLE_RESIDENCY.name,), at_least=-0.5),
    ),
    rest_s=1,
)
