# SPDX-License-Identifier: GPL-2.0-only
"""What poll sources cost those who have none, or silent ones.

The driver alone is the same driver, built without poll sources. The guests' clock counts
instructions, so differences that a host's noise would hide are seen, and waiting takes no time.
"""

from lightsleep.compare.result import Claim
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.loads.pipe import SCHED_PIPE_S, measure_pipe
from lightsleep.lab.run.experiment import Arm, Experiment, Metric

DRIVER = "cpuidle_lightsleep"
ALONE = "lightsleep_alone"

SETTLE_S = 5
REST_S = 120
ASLEEP = Metric(
    "asleep_pct",
    "%",
    "higher",
    "Idle guest asleep",
    f"Share of the CPUs' time that was idle (/proc/stat) and not polled, in {REST_S} s alone",
)
STATISTICS = "/sys/kernel/debug/poll_source"
SOURCES = Metric(
    "sources",
    "",
    "none",
    "Poll sources",
    f"Queues of devices that CPUs may poll: on in {STATISTICS}, after the time alone",
)

SLEPT = r"""
cat /proc/uptime
grep '^cpu ' /proc/stat
cat /sys/devices/system/cpu/cpu*/lightsleep/polled_ns 2> /dev/null || true
"""


def measure(guest: Guest) -> dict[str, float]:
    """Run the pipe, then leave the guest alone."""
    pipe_s = measure_pipe(guest)[SCHED_PIPE_S.name]
    script = f"sleep {SETTLE_S}; slept() {{ {SLEPT} }}; slept; echo; sleep {REST_S}; slept"
    timeout_s = 60 + SETTLE_S + REST_S
    before, after = guest.run(["sh", "-c", script], timeout_s=timeout_s).stdout.split("\n\n")
    was_s, was_asleep_s = asleep_s(before)
    now_s, now_asleep_s = asleep_s(after)
    share = (now_asleep_s - was_asleep_s) / (now_s - was_s) / guest.machine.vcpus
    there = guest.run(["sh", "-c", f"cat {STATISTICS} 2> /dev/null || true"]).stdout
    return {SCHED_PIPE_S.name: pipe_s, ASLEEP.name: 100 * share, SOURCES.name: sources(there)}


def sources(statistics: str) -> int:
    """Return how many sources are on; a driver without any has no statistics."""
    rows = [line.split() for line in statistics.splitlines()]
    return sum(dict(zip(rows[0], row, strict=True))["state"] == "on" for row in rows[1:])


def asleep_s(text: str) -> tuple[float, float]:
    """Return uptime, and how long all CPUs slept: idle, but for what they polled."""
    uptime, stat, *polled_ns = text.splitlines()
    idle, iowait = stat.split()[4:6]
    slept_s = (int(idle) + int(iowait)) / 100 - sum(map(int, polled_ns)) / 1e9
    return float(uptime.split()[0]), slept_s


EXPERIMENT = Experiment(
    title="Poll sources where there is nothing to poll",
    hypothesis=(
        "Where no source is registered, a pipe takes at most 5 % longer with the driver than with "
        "one that is built without poll sources; a guest whose disks are polled and silent sleeps "
        "at most 0.02 points less than a stock one."
    ),
    arms=(
        Arm("alone", "baseline", "the driver, built without poll sources", modules=(ALONE,)),
        Arm("with", "treatment", "the driver, no source registered", modules=(DRIVER,)),
        Arm(
            "silent",
            "treatment",
            "the driver, disks as sources",
            modules=(DRIVER, "virtio_poll_source"),
        ),
        Arm("stock", "treatment", "the kernel as it is"),
        Arm("alone-again", "control", "booted as alone is", modules=(ALONE,)),
    ),
    metrics=(SCHED_PIPE_S, ASLEEP, SOURCES),
    measure=measure,
    claims=(
        Claim("with", "alone", (SCHED_PIPE_S.name,), at_most=1.05),
        Claim("silent", "stock", (ASLEEP.name,), at_least=-0.02),
        # Else neither of these says anything.
        Claim("with", None, (SOURCES.name,), at_most=0),
        Claim("silent", None, (SOURCES.name,), at_least=1),
    ),
    accel="tcg-icount",
)
