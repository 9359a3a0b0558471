# SPDX-License-Identifier: GPL-2.0-only
"""Whether a halt takes as long to leave after a poll as without one.

The driver compares a poll with the halt that it spares, and ``lightsleep replay`` says what a poll
would have saved in a recording of CPUs that halted at once. Both assume that a halt costs the same
whether the CPU polled before or not.

The load is that of prediction.py: a client sends datagrams at random times, whatever the server
does, so how long a CPU has been idle tells nothing about when the next one comes. What counts are
the wakeups of the server from the state that halts: in an arm with a poll limit, those that came
after the poll. A trace names the state that the governor chose, so an interrupt has to tell that a
CPU had halted. On arm64, a stock kernel sends one to a CPU that polls, too: x86_64 only.
"""

from __future__ import annotations

import statistics

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lightsleep.compare.result import Claim
from lightsleep.errors import LightsleepError
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.experiments.prediction import NEAR, RECORDED, SERVER_CPU, VCPUS, load, start
from lightsleep.lab.loads.recorded import MODULE, WAITED, from_others, recorded, scratch
from lightsleep.lab.run.experiment import Arm, Experiment, Metric

LIMITS_US = (20, 100, 300)
HALT = 1
"""The index of the driver's state that halts."""

LEAST = 100
"""Wakeups without which a median says little; a round has more than a thousand."""


def waited_us(table: pa.Table) -> float:
    """Return the median time from waking to running, in us, of the server's wakeups from the halt.

    Raises LightsleepError where these are few.
    """
    from_halt = pc.and_(
        pc.and_(pc.equal(table["cpu"], SERVER_CPU), pc.equal(table["state"], HALT)),
        pc.equal(table["ended_by"].cast(pa.string()), "ipi"),
    )
    waited_ns = table.filter(from_halt)[WAITED].drop_null().to_pylist()
    if len(waited_ns) < LEAST:
        raise LightsleepError(f"{len(waited_ns)} wakeups of the server from the halt were recorded")
    return float(statistics.median(waited_ns)) / 1000


def begin(guest: Guest) -> None:
    """Start the load's server. Raises LightsleepError where polled wakeups would count as halts."""
    if guest.machine.arch != "x86_64":
        raise LightsleepError(
            f"on {guest.machine.arch}, a wakeup of a CPU that polls may take an interrupt, and "
            "then looks like one from the halt: leave out --arch"
        )
    start(guest)


def measure(guest: Guest) -> dict[str, float]:
    """Record the load; return how long the server waited for its CPU to leave the halt."""
    with scratch() as folder:
        there = from_others(recorded(guest, folder, load(RECORDED, 1)))
        return {FROM_HALT.name: waited_us(pq.read_table(there.table))}


FROM_HALT = Metric(
    "from_halt_us",
    "us",
    "none",
    "Waking from the halt",
    "Median time from waking to running, of the server's wakeups by another CPU out of the halt",
)

EXPERIMENT = Experiment(
    title="What a halt costs after a poll",
    hypothesis=(
        "A wakeup from the halt takes as long after a poll as without one, within 15 %, however "
        "long the poll."
    ),
    arms=(
        Arm("off", "baseline", "CPUs halt at once", modules=(f"{MODULE} mode=off",)),
        *(
            Arm(
                f"fixed-{limit_us}us",
                "treatment",
                f"CPUs poll up to {limit_us} us, then halt",
                modules=(f"{MODULE} mode=fixed poll_limit_us={limit_us}",),
            )
            for limit_us in LIMITS_US
        ),
        Arm("off-again", "control", "booted as off is", modules=(f"{MODULE} mode=off",)),
    ),
    metrics=(FROM_HALT,),
    measure=measure,
    start=begin,
    claims=tuple(
        Claim(f"fixed-{limit_us}us", "off", (FROM_HALT.name,), at_least=NEAR[0], at_most=NEAR[1])
        for limit_us in LIMITS_US
    ),
    vcpus=VCPUS,
    least_vcpus=VCPUS,
    pin=True,
)
