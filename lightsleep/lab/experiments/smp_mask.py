# SPDX-License-Identifier: GPL-2.0-only
"""What a function call to several CPUs costs its caller, where these poll and where they are busy.

A kernel module times smp_call_function_many() on CPU 0, call by call, and leaves the others time to
be idle again in between (see test_smp_mask.c). A figure is the median of the calls.

The host has fewer cores than the guest CPUs. That is no matter to a caller that does not wait: most
of its calls take less than the host lets it run. One that waits, waits until the host has run all
the others: these figures say no more than that nothing is lost.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator

from lightsleep.compare.result import Claim
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.loads import interrupts
from lightsleep.lab.run.arms import NEVER_HALT
from lightsleep.lab.run.experiment import Arm, Experiment, Metric

VCPUS = 8
TARGETS = (1, 3, 7)
CALLS_PER_RUN = 10
NET_NS = "many_7_net_ns"
RUN = "/sys/kernel/debug/test_smp_mask/run"
RUN_S = 120.0
BUSY = "/run/busy"
"""Has a line for each CPU that is busy by now."""
FROM_CPU_0 = ("taskset", "-c", "0")

SPIN = f"""
for cpu in $(seq {VCPUS - 1}); do
    taskset -c $cpu sh -c "echo $cpu >> {BUSY}; while :; do :; done" &
done
wait
"""

MUNMAPS = 16
MUNMAP = f"""
import mmap, os, threading, time
def sleeper(cpu):
    os.sched_setaffinity(0, [cpu])
    while not done:
        time.sleep(0.001)
done = False
threads = [threading.Thread(target=sleeper, args=[cpu]) for cpu in range(1, {VCPUS})]
for thread in threads:
    thread.start()
os.sched_setaffinity(0, [0])
start = time.monotonic()
for _ in range({MUNMAPS}):
    area = mmap.mmap(-1, 4 << 20)
    area[0] = area[2 << 20] = 1
    area.close()
taken = time.monotonic() - start
done = True
print(taken / {MUNMAPS} * 1e6)
"""


def call_ns(guest: Guest, targets: int, wait: bool) -> float:
    """Return the median time of a call to ``targets`` CPUs, in ns."""
    words = f"{targets} {CALLS_PER_RUN} {int(wait)}"
    guest.run([*FROM_CPU_0, "sh", "-c", f"echo {words} > {RUN}"], timeout_s=RUN_S)
    took_ns = [int(line) for line in guest.read_text(RUN).split()]
    assert len(took_ns) == CALLS_PER_RUN
    return statistics.median(took_ns)


@contextlib.contextmanager
def busy(guest: Guest) -> Iterator[None]:
    """Keep all CPUs but the first busy, in user space."""
    spin = f"setsid sh -c '{SPIN}' < /dev/null > /dev/null 2>&1 & echo $! > /run/spin"
    all_spin = f'until [ "$(wc -l < {BUSY})" = {VCPUS - 1} ]; do sleep 0.01; done'
    guest.run(["sh", "-c", f": > {BUSY}; {spin}; {all_spin}"], timeout_s=RUN_S)
    try:
        yield
    finally:
        guest.run(["sh", "-c", "kill -- -$(cat /run/spin)"])


def measure(guest: Guest) -> dict[str, float]:
    """Call CPUs that poll, then CPUs that are busy."""
    values = {"many_0_ns": call_ns(guest, 0, wait=False)}
    before = interrupts.received(guest, interrupts.CALLS)
    for n in TARGETS:
        values[f"many_{n}_ns"] = call_ns(guest, n, wait=False)
    values[NET_NS] = values["many_7_ns"] - values["many_0_ns"]
    values["ipis_sent"] = interrupts.received(guest, interrupts.CALLS) - before
    for n in TARGETS:
        values[f"many_{n}_wait_ns"] = call_ns(guest, n, wait=True)
    values["munmap_us"] = float(guest.run(["python3", "-c", MUNMAP], timeout_s=RUN_S).stdout)
    with busy(guest):
        for n in TARGETS:
            values[f"many_busy_{n}_ns"] = call_ns(guest, n, wait=False)
    return values


MODULES = ("test_smp_mask pause_us=10000",)
"""A pause in which the host lets every CPU run: whoever is called has finished the call before.
It polls, however long the pause was: no CPU of these guests ever halts."""

EXPERIMENT = Experiment(
    title="Function calls to several CPUs that poll",
    hypothesis=(
        "With the series, a caller that does not wait spends at least 60 % less on a call to 7 "
        "polling CPUs, whether what a call to nobody takes is counted or not, and no interrupt is "
        "sent. A call to one takes at most 20 % longer, because the kernel spares that interrupt "
        "anyway. Calls to busy CPUs, and giving memory back, take at most 20 % longer."
    ),
    arms=(
        Arm(
            "stock",
            "baseline",
            "without the series",
            NEVER_HALT,
            MODULES,
            kernel="6.12-plain",
            spins=True,
        ),
        Arm(
            "series",
            "treatment",
            "with the series",
            NEVER_HALT,
            MODULES,
            kernel="6.12-series",
            spins=True,
        ),
        Arm(
            "stock-again",
            "control",
            "booted as stock is",
            NEVER_HALT,
            MODULES,
            kernel="6.12-plain",
            spins=True,
        ),
    ),
    metrics=(
        Metric(
            "many_0_ns",
            "ns",
            "lower",
            "Call to nobody",
            "Median time of smp_call_function_many() with no CPU to call: what is in all of these",
        ),
        *(
            Metric(
                f"many_{n}_ns",
                "ns",
                "lower",
                f"Call to {n} polling",
                "Median time of smp_call_function_many() that does not wait, on the calling CPU",
            )
            for n in TARGETS
        ),
        Metric(
            NET_NS,
            "ns",
            "lower",
            "Call to 7 polling, net",
            "Call to 7 polling, less the call to nobody of the same round",
        ),
        *(
            Metric(
                f"many_{n}_wait_ns",
                "ns",
                "lower",
                f"Call to {n} polling, waiting",
                "The same, until all have run the function: mostly the host's scheduling",
            )
            for n in TARGETS
        ),
        *(
            Metric(
                f"many_busy_{n}_ns",
                "ns",
                "lower",
                f"Call to {n} busy",
                "The same, not waiting, with CPUs that spin in user space",
            )
            for n in TARGETS
        ),
        Metric(
            "ipis_sent",
            "",
            "lower",
            "Interrupts of calls",
            f"Function call interrupts over {CALLS_PER_RUN} calls each to "
            f"{', '.join(map(str, TARGETS))} polling CPUs, not waiting",
        ),
        Metric(
            "munmap_us",
            "us",
            "lower",
            "munmap",
            f"Map, touch and unmap 4 MiB, mean of {MUNMAPS}, while {VCPUS - 1} threads of the "
            "process sleep 1 ms at a time on the other CPUs",
        ),
    ),
    measure=measure,
    claims=(
        Claim("series", "stock", ("many_7_ns",), at_most=0.4),
        Claim("series", "stock", (NET_NS,), at_most=0.4),
        Claim("series", "stock", ("many_1_ns",), at_most=1.2),
        Claim("series", "stock", tuple(f"many_busy_{n}_ns" for n in TARGETS), at_most=1.2),
        Claim("series", "stock", ("munmap_us",), at_most=1.2),
        Claim("series", None, ("ipis_sent",), at_most=0),
    ),
    vcpus=VCPUS,
    least_vcpus=VCPUS,
)
