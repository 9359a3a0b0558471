# SPDX-License-Identifier: GPL-2.0-only
"""What polling costs where one guest has more vCPUs than its host has cores.

A vCPU that polls may hold the core that the very vCPU needs for which it waits. Two loads are
saturated (Redis with many connections, messaging), two wait for a wakeup all the time (Redis with
one connection, cyclictest). cyclictest asks for a wakeup latency of 0 us by PM QoS
(/dev/cpu_dma_latency) while it runs, as the low-latency profiles of tuned do for good: a driver
that heeds the request must poll, and takes the core that the host could give to another vCPU.

A guest is told that its host ran something else (stolen time) by a paravirtual clock of KVM or of
another hypervisor. TCG has no such clock, so the kernel counts 0 there. Under TCG this experiment
therefore shows what a policy does that nobody tells: it can only look for gaps in the time that it
polls. What the host took shows from outside, in the time that vCPU threads waited in its run
queues.
"""

from __future__ import annotations

from lightsleep.compare.result import Claim
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.experiments.programs import EQUAL
from lightsleep.lab.loads.messaging import MESSAGING, SCHED_MESSAGING_S
from lightsleep.lab.loads.programs.outputs import CYCLICTEST_STEPS, cyclictest_mean_us
from lightsleep.lab.loads.programs.run import metrics_of, run_load, starter
from lightsleep.lab.loads.programs.servers import MANY, ONE, REDIS
from lightsleep.lab.run.arms import LIGHTSLEEP, STOCK, STOCK_AGAIN
from lightsleep.lab.run.experiment import Arm, Experiment, Metric

CYCLICTEST = ("cyclictest", "-q", "-t1", "-p80", "-i1000", "-l500")
ARMS = (
    STOCK,
    LIGHTSLEEP,
    Arm(
        "fixed-1000us",
        "treatment",
        "the same driver with a constant limit: idle CPUs poll up to 1000 us, then halt",
        modules=("cpuidle_lightsleep mode=fixed poll_limit_us=1000",),
    ),
    STOCK_AGAIN,
)

METRICS = (
    *metrics_of(REDIS, ONE),
    *metrics_of(REDIS, MANY),
    SCHED_MESSAGING_S,
    Metric(
        "cyclictest_us",
        "us",
        "lower",
        "Wakeup with a QoS request for 0 us",
        f"Average latency, which {CYCLICTEST_STEPS}: {' '.join(CYCLICTEST)}",
    ),
    Metric(
        "waited_pct",
        "%",
        "none",
        "vCPUs kept waiting by the host",
        "Time in which vCPU threads were ready to run and the host ran something else, of the time "
        "in which they did not sleep, over all loads",
    ),
    Metric(
        "steal_s",
        "s",
        "none",
        "Stolen time that the guest sees",
        "Steal in /proc/stat, all CPUs, over all loads; 0 under TCG, which has no such clock",
    ),
)

NO_SLOWER = 1.05
"""A ratio of times that is no more than 1 but for what this experiment cannot tell apart."""

CLAIMS = (
    *(
        Claim("lightsleep", "stock", (f"redis_{number}_per_s",), at_least=EQUAL)
        for number in (ONE, MANY)
    ),
    *(
        Claim("lightsleep", "stock", (name,), at_most=NO_SLOWER)
        for name in ("sched_messaging_s", "cyclictest_us")
    ),
    Claim("fixed-1000us", "stock", (f"redis_{MANY}_per_s",), at_most=EQUAL),
    *(
        Claim("fixed-1000us", "stock", (name,), at_least=NO_SLOWER)
        for name in ("sched_messaging_s", "cyclictest_us")
    ),
)

start = starter((REDIS,))


def measure(guest: Guest) -> dict[str, float]:
    """Run each load once."""
    before, stolen_s = guest.vcpu_time(), steal_s(guest)
    figures = run_load(guest, REDIS, ONE) | run_load(guest, REDIS, MANY)
    figures["sched_messaging_s"] = float(guest.run(MESSAGING, timeout_s=120).stdout)
    cyclic = guest.run(CYCLICTEST, timeout_s=120)
    figures["cyclictest_us"] = cyclictest_mean_us(cyclic.stdout, cyclic.stderr)
    after = guest.vcpu_time()
    waited_ns = after.waited_ns - before.waited_ns
    figures["waited_pct"] = 100 * waited_ns / after.awake_since(before)
    figures["steal_s"] = steal_s(guest) - stolen_s
    return figures


def steal_s(guest: Guest) -> float:
    """Return the stolen time that the guest has counted so far."""
    # cpu user nice system idle iowait irq softirq steal, in 1/100 s for user space
    return int(guest.read_text("/proc/stat").split()[8]) / 100


EXPERIMENT = Experiment(
    title="More vCPUs than the host has cores, saturated and waiting",
    hypothesis=(
        "On a host with fewer cores than vCPUs, lightsleep makes neither saturated programs "
        "(redis_50, messaging), nor requests (redis_1), nor wakeups under a QoS request for 0 us "
        "more than 5 % slower than stock. A limit of 1000 us makes the programs and these wakeups "
        "more than 5 % slower."
    ),
    arms=ARMS,
    metrics=METRICS,
    measure=measure,
    claims=CLAIMS,
    start=start,
    root="programs",
    vcpus=8,
    overcommitted=True,
)
