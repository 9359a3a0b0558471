# SPDX-License-Identifier: GPL-2.0-only
"""What the experiments on virtio disks measure: requests per second, and interrupts for each.

Requests are small and come one after the other, so each waits for the one before, and the CPU is
idle meanwhile. Threads of QEMU serve the disks, and need a core of the host: of its two CPUs the
guest brings up one. (It needs the other to be given a queue that a CPU may poll.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lightsleep.errors import LightsleepError
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.boot.machine import Devices
from lightsleep.lab.loads.interrupts import TABLE, total
from lightsleep.lab.run.arms import NEVER_HALT
from lightsleep.lab.run.experiment import Arm, Metric

DRIVER = "cpuidle_lightsleep mode=fixed poll_limit_us=1000"
"""Polls as long as any disk here takes, whatever a wake costs on this host at this time."""
ONE_CPU = "maxcpus=1"
LEAST_VCPUS = 2
"""A disk has a queue that is polled only beside one for interrupts, and a CPU has one queue."""
ASKED = "virtio_blk.poll_queues=1"
"""On the command line of the guest in which fio asks for polling."""

WORKLOADS = ("randread", "randwrite", "randrw")
FIO = (
    *("fio", "--ioengine=io_uring", "--direct=1", "--bs=4k", "--iodepth=1", "--stonewall"),
    *("--time_based", "--runtime=700ms", "--ramp_time=100ms", "--output-format=json"),
)

OWN_INTERRUPTS = ("Local timer interrupts", "arch_timer", "IRQ work interrupts")
"""Of the timer on x86, of that on arm64, and of both."""
REPLACED = 1.1
"""How many times as many interrupts in all there may be where a CPU's own replace the disk's."""

ARMS = (
    Arm("irq", "baseline", "stock", append=ONE_CPU),
    Arm("poll", "treatment", "CPUs poll, not the disk", append=ONE_CPU, modules=(DRIVER,)),
    Arm(
        "poll_source",
        "treatment",
        "CPUs poll, the disk as well",
        append=ONE_CPU,
        modules=(DRIVER, "virtio_poll_source"),
    ),
    Arm("io_poll", "treatment", "stock; fio asks for polling", append=f"{ONE_CPU} {ASKED}"),
    Arm("idle=poll", "limit", "never halts", append=f"{ONE_CPU} {NEVER_HALT}", spins=True),
    Arm("irq-again", "control", "booted as irq is", append=ONE_CPU),
)


@dataclass(frozen=True)
class Disk:
    """A disk of an experiment, which it adds to all its guests."""

    ending: str
    """Of its metrics."""
    device: str
    """As the guest calls it."""
    what: str
    drive: str
    """As ``Hardware`` takes it, without its id."""


def devices(disks: Sequence[Disk]) -> Devices:
    """Return what guests have of these disks: each is served by a thread of its own."""
    return Devices(
        object=tuple(f"iothread,id=thread-{disk.device}" for disk in disks),
        drive=tuple(f"id={disk.device},{disk.drive}" for disk in disks),
        device=tuple(
            f"virtio-blk-pci,drive={disk.device},iothread=thread-{disk.device}" for disk in disks
        ),
    )


def metrics(disks: Iterable[Disk]) -> tuple[Metric, ...]:
    """Return the metrics that ``measure`` returns for these disks."""
    return tuple(metric for disk in disks for metric in _metrics(disk))


def _metrics(disk: Disk) -> tuple[Metric, ...]:
    fio = " ".join(FIO)
    return (
        *(
            Metric(
                f"{workload}{disk.ending}_iops",
                "/s",
                "higher",
                f"{workload}, {disk.what}",
                f"Requests per second: {fio} --rw={workload}",
            )
            for workload in WORKLOADS
        ),
        Metric(
            f"irqs_per_io{disk.ending}",
            "",
            "lower",
            f"Interrupts per request, {disk.what}",
            "Of the disk, in /proc/interrupts, during all workloads",
        ),
        Metric(
            f"own_irqs_per_io{disk.ending}",
            "",
            "none",
            f"CPU's own interrupts per request, {disk.what}",
            "Local timer interrupts (on arm64 arch_timer) and IRQ work interrupts in "
            "/proc/interrupts, during all workloads",
        ),
        Metric(
            f"all_irqs_per_io{disk.ending}",
            "",
            "lower",
            f"Both together, {disk.what}",
            "Interrupts of the disk and those of the CPU's own, per request",
        ),
    )


def measure(disks: Sequence[Disk]) -> Callable[[Guest], dict[str, float]]:
    """Return a function that runs each workload on each disk once, and returns the metrics."""

    def measure_all(guest: Guest) -> dict[str, float]:
        return {name: value for disk in disks for name, value in measure_one(guest, disk).items()}

    return measure_all


def measure_one(guest: Guest, disk: Disk) -> dict[str, float]:
    """Run each workload on a disk once; return its metrics."""
    asked = ASKED in guest.machine.append
    if asked:
        poll_queue(guest, disk)
    values: dict[str, float] = {}
    before = counters(guest, disk)
    command = [*FIO, f"--filename=/dev/{disk.device}", *(["--hipri"] if asked else [])]
    jobs = [word for x in WORKLOADS for word in (f"--name={x}", f"--rw={x}")]
    for job in json.loads(guest.run([*command, *jobs]).stdout)["jobs"]:
        iops = job["read"]["iops"] + job["write"]["iops"]
        values[f"{job['jobname']}{disk.ending}_iops"] = iops
    requests, irqs, own_irqs = (
        now - was for now, was in zip(counters(guest, disk), before, strict=True)
    )
    values[f"irqs_per_io{disk.ending}"] = irqs / requests
    values[f"own_irqs_per_io{disk.ending}"] = own_irqs / requests
    values[f"all_irqs_per_io{disk.ending}"] = (irqs + own_irqs) / requests
    return values


def counters(guest: Guest, disk: Disk) -> tuple[int, int, int]:
    """Return requests of a disk, its interrupts, and the CPUs' own interrupts so far."""
    table = guest.read_text(TABLE)
    name = virtio_name(guest, disk)
    queues = re.findall(rf"(?m) {name}-req\S*$", table)
    if not queues:
        raise LightsleepError(f"{guest.name}: {TABLE} has no row of a queue of {name}")
    stat = guest.read_text(f"/sys/block/{disk.device}/stat").split()
    requests = int(stat[0]) + int(stat[4])
    return requests, total(table, *queues), total(table, *OWN_INTERRUPTS)


def virtio_name(guest: Guest, disk: Disk) -> str:
    """Return what the virtio bus calls a disk."""
    target = guest.run(["readlink", "-f", f"/sys/block/{disk.device}/device"]).stdout
    return target.strip().rpartition("/")[2]


def poll_queue(guest: Guest, disk: Disk) -> None:
    """Have the driver take the disk anew, with a queue that is polled, unless it has one.

    A guest has its disks before the parameter can be set.
    """
    queue = f"/sys/block/{disk.device}/queue/io_poll"
    if guest.read_text(queue).strip() == "1":
        return
    guest.write_text("/sys/module/virtio_blk/parameters/poll_queues", ASKED.partition("=")[2])
    name = virtio_name(guest, disk)
    for verb in ("unbind", "bind"):
        guest.write_text(f"/sys/bus/virtio/drivers/virtio_blk/{verb}", name)
    if guest.read_text(queue).strip() != "1":
        raise LightsleepError(f"{guest.name}: {disk.device} has no queue that is polled")
