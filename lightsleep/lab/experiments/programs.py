# SPDX-License-Identifier: GPL-2.0-only
"""What polling before the halt is worth to real programs, and what it costs the host.

Servers and their load generators from the distribution, both in one guest, over the loopback
interface or a Unix socket. With one connection each side waits for the other, so that nearly every
request takes two wakeups; with many connections the CPUs are busy, and polling may only cost.

Host CPU time for each request is the price: a vCPU that polls uses a core of its host, one that
halts gives it back. Where a request is served sooner, the host also spends less on it.

The arm haltpoll has the rule of cpuidle-haltpoll, which exists for this purpose, in a driver of
the lab (haltpoll_rule.c). The kernel's driver and governor look for KVM's signature in the CPUID
leaves (kvm_para_available()) when the kernel starts. Both give up without it, whatever
``cpuidle_haltpoll.force`` says, and QEMU's emulation has a signature of its own, whatever ``-cpu``
says. The arm fixed-100us polls for as long as the first proposal for arm64.
"""

from collections.abc import Sequence

from lightsleep.compare.result import Claim
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.loads.programs.run import all_metrics, run_all, starter
from lightsleep.lab.loads.programs.servers import MANY, ONE, PROGRAMS, Program
from lightsleep.lab.run.arms import FIXED_100US, HALTPOLL, IDLE_POLL, LIGHTSLEEP, STOCK, STOCK_AGAIN
from lightsleep.lab.run.experiment import IDLE_RESIDENCY, Experiment

ARMS = (
    STOCK,
    LIGHTSLEEP,
    FIXED_100US,
    HALTPOLL,
    IDLE_POLL,
    STOCK_AGAIN,
)

NEAR_LIMIT = 0.94
"""Of the requests per second with idle=poll."""

EQUAL = 0.95
"""A ratio that is no less than 1 but for what these experiments cannot tell apart."""


def claims_of(programs: Sequence[Program]) -> tuple[Claim, ...]:
    """Return what is claimed of programs with one connection."""
    rates = [(f"{program.name}_{ONE}_per_s",) for program in programs]
    cpu = tuple(f"{program.name}_{ONE}_cpu_us" for program in programs)
    return (
        Claim("lightsleep", "stock", tuple(name for rate in rates for name in rate)),
        *(Claim("lightsleep", "idle=poll", rate, at_least=NEAR_LIMIT) for rate in rates),
        *(Claim("lightsleep", "fixed-100us", rate, at_least=EQUAL) for rate in rates),
        Claim("lightsleep", "idle=poll", cpu),
    )


def measure(guest: Guest) -> dict[str, float]:
    """Load each program once with one connection and once with many."""
    return run_all(guest, PROGRAMS)


EXPERIMENT = Experiment(
    title="Real servers under real load, client and server in one guest",
    hypothesis=(
        "With one connection, all programs together serve more requests per second with lightsleep "
        f"than with stock. Each serves at least {100 * NEAR_LIMIT:g} % of the requests per second "
        f"that it serves with idle=poll, and at least {100 * EQUAL:g} % of those with a constant "
        "limit of 100 us. The host's CPU time a request is less than with idle=poll. With many "
        f"connections, each program serves at least {100 * EQUAL:g} % of the requests that it "
        "serves with stock. The guest at rest sleeps at most 0.02 points less."
    ),
    arms=ARMS,
    metrics=(*all_metrics(PROGRAMS), IDLE_RESIDENCY),
    measure=measure,
    claims=(
        *claims_of(PROGRAMS),
        *(
            Claim("lightsleep", "stock", (f"{program.name}_{MANY}_per_s",), at_least=EQUAL)
            for program in PROGRAMS
        ),
        Claim("lightsleep", "stock", (IDLE_RESIDENCY.name,), at_least=-0.02),
    ),
    start=starter(PROGRAMS),
    root="programs",
    rest_s=4,
)
