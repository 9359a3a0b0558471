# SPDX-License-Identifier: GPL-2.0-only
"""The short form of ``programs``: pipe, Redis and nginx, one connection, in two minutes.

For those who change the polling policy and want to know at once what programs make of it. It says
nothing of saturated programs, nor of a guest at rest.
"""

from lightsleep.compare.result import Claim
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.experiments.programs import ARMS, EQUAL, NEAR_LIMIT, claims_of
from lightsleep.lab.loads.pipe import IPIS, SCHED_PIPE_S, measure_pipe
from lightsleep.lab.loads.programs.run import all_metrics, run_all, starter
from lightsleep.lab.loads.programs.servers import NGINX, ONE, REDIS
from lightsleep.lab.run.experiment import Experiment

PROGRAMS = (REDIS, NGINX)


def measure(guest: Guest) -> dict[str, float]:
    """Run the pipe and each program once."""
    return measure_pipe(guest) | run_all(guest, PROGRAMS, (ONE,))


EXPERIMENT = Experiment(
    title="Pipe, Redis and nginx with one connection: the short form of programs",
    hypothesis=(
        "With lightsleep, pipe, Redis and nginx reach at least "
        f"{100 * NEAR_LIMIT:g} % of their rates with idle=poll. Redis and nginx serve more "
        f"requests per second than with stock, and at least {100 * EQUAL:g} % of those with a "
        "constant limit of 100 us, for less host CPU time a request than with idle=poll."
    ),
    arms=ARMS,
    metrics=(SCHED_PIPE_S, IPIS, *all_metrics(PROGRAMS, (ONE,))),
    measure=measure,
    claims=(
        Claim("lightsleep", "idle=poll", (SCHED_PIPE_S.name,), at_most=1 / NEAR_LIMIT),
        *claims_of(PROGRAMS),
    ),
    start=starter(PROGRAMS),
    root="programs",
)
