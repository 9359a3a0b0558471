# SPDX-License-Identifier: GPL-2.0-only
"""What a virtio disk gains when idle CPUs poll it in place of its interrupts.

Two disks of nothing. One answers at once, so the way of its answer is all there is. The other is
told to wait 20 us, which a fast one takes; QEMU answers later than that. How much later is seen in
the requests per second with io_poll, where nobody is woken.
"""

from lightsleep.compare.result import Claim
from lightsleep.lab.loads import disks
from lightsleep.lab.loads.disks import ARMS, Disk
from lightsleep.lab.run.experiment import Experiment

AT_ONCE = tuple(f"{workload}_iops" for workload in disks.WORKLOADS)
AFTER_20_US = tuple(f"{workload}_20us_iops" for workload in disks.WORKLOADS)
DISKS = (
    Disk("", "vdb", "a disk that answers at once", "driver=null-co,size=1G"),
    Disk("_20us", "vdc", "a disk told to wait 20 us", "driver=null-co,size=1G,latency-ns=20000"),
)

EXPERIMENT = Experiment(
    title="A virtio disk, polled by idle CPUs",
    hypothesis=(
        "A CPU that polls the disk itself serves more requests than one that is interrupted, and "
        "as many as if the application had asked for polled I/O: as many as io_poll, and 1.25 "
        "times irq (1.11 times where the disk is told to wait 20 us). There, at most 0.05 of the "
        "disk's interrupts are left. The CPU's own replace them: in all, there are at most "
        f"{disks.REPLACED} times as many as with irq."
    ),
    arms=ARMS,
    metrics=disks.metrics(DISKS),
    measure=disks.measure(DISKS),
    claims=(
        Claim("poll_source", "irq", AT_ONCE, at_least=1.25),
        Claim("poll_source", "irq", AFTER_20_US, at_least=1.11),
        Claim("poll_source", "io_poll", AT_ONCE, at_least=1),
        Claim("poll_source", "io_poll", AFTER_20_US, at_least=1),
        Claim("poll_source", "irq", ("irqs_per_io_20us",), at_most=0.05),
        Claim("poll_source", "irq", ("all_irqs_per_io_20us",), at_most=disks.REPLACED),
        Claim("poll_source", "poll", AT_ONCE),
        Claim("poll_source", "poll", AFTER_20_US),
    ),
    devices=disks.devices(DISKS),
    least_vcpus=disks.LEAST_VCPUS,
)
