# SPDX-License-Identifier: GPL-2.0-only
"""Whether a closed loop stays within the range that a replay gives for it.

redis-benchmark with one connection sends its next request when it has the answer to the last one (a
*closed loop*): a server that is woken earlier also answers earlier. A recording cannot show that,
so `lightsleep replay` gives a range for each figure. One end takes the periods as they were
recorded, the other shortens each by what the peer's wakeup costs.

The arms *low* and *high* are guests with the driver in mode off, which are recorded and replayed:
they have the smaller and the larger end of each range. The arm *measured* runs the same requests
under each policy, recorded likewise. All figures are for a request, because the number of requests
is what all arms have in common. What tasks are said to wait is what was recorded, less what the
replay says that the policy saves; see loads/recorded.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from lightsleep.compare.result import Claim
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.loads.programs.run import starter
from lightsleep.lab.loads.programs.servers import PROGRAMS, REDIS_PORT
from lightsleep.lab.loads.recorded import (
    MODULE,
    POLICIES,
    Per,
    from_others,
    recorded,
    replayed,
    scratch,
)
from lightsleep.lab.run.experiment import Arm, Experiment

OFF = f"{MODULE} mode=off"
REDIS = tuple(program for program in PROGRAMS if program.name == "redis")
REQUESTS, LEARN = 2000, 5000
"""Requests that are recorded, and that the driver learns from before that."""

End = Callable[[Iterable[float]], float]
ENDS: dict[str, End] = {"low": min, "high": max}
"""The arms that predict, and the end of the range that each has: for any other name, as for low."""

PER = Per("for a request", REQUESTS)
METRICS = PER.metrics()


def load(requests: int) -> str:
    """Return the command that sends so many requests, each after the answer to the last one."""
    return f"redis-benchmark -t get -c 1 -n {requests} -p {REDIS_PORT} > /dev/null"


def predicted(guest: Guest, folder: Path, end_of: End) -> dict[str, float]:
    """Record a guest whose CPUs halt at once; return one end of what the replay says."""
    there = from_others(recorded(guest, folder, load(REQUESTS)))
    outcomes = replayed(there.table)
    found: dict[str, float] = {}
    for policy in POLICIES:
        ends = []
        for end in ("as_recorded", "peers_for_free"):
            would = outcomes[policy][end]
            saved_ns = outcomes["stock"][end]["waited_ns"] - would["waited_ns"]
            ends.append(PER.figures(policy, there.waited_ns - saved_ns, would["polled_ns"]))
        found |= {name: end_of(end[name] for end in ends) for name in ends[0]}
    return found


def measure(guest: Guest) -> dict[str, float]:
    """Predict, or measure, what the guest is named for."""
    with scratch() as folder:
        if guest.name == "measured":
            return PER.measured(guest, folder, load(REQUESTS), load(LEARN))
        return predicted(guest, folder, ENDS.get(guest.name, min))


EXPERIMENT = Experiment(
    title="The range that a replay gives for a closed loop, and what then happens",
    hypothesis=(
        "For redis with one connection, how long tasks wait for CPUs under a policy, and how long "
        "CPUs poll, is within the range that lightsleep replay gives."
    ),
    arms=(
        Arm(
            "low", "baseline", "a recording, replayed: the lower end of each range", modules=(OFF,)
        ),
        Arm("high", "treatment", "another one: the upper end of each range", modules=(OFF,)),
        Arm(
            "measured",
            "treatment",
            "the same requests with cpuidle-lightsleep in the modes that were predicted",
            modules=(MODULE,),
        ),
        Arm("low-again", "control", "another guest booted exactly as low", modules=(OFF,)),
    ),
    metrics=tuple(metric for policy in POLICIES for metric in METRICS[policy]),
    measure=measure,
    start=starter(REDIS),
    root="programs",
    warmup=0,
    claims=tuple(
        claim
        for policy in POLICIES
        for metric in METRICS[policy]
        for claim in (
            Claim("measured", "low", (metric.name,), at_least=1.0),
            Claim("measured", "high", (metric.name,), at_most=1.0),
        )
    ),
    least_vcpus=2,  # only wakeups from other CPUs count
    rounds=12,  # each records and runs every policy
    boots=4,
    pin=True,
)
