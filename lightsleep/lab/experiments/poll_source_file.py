# SPDX-License-Identifier: GPL-2.0-only
"""What a virtio disk with storage gains when idle CPUs poll it in place of its interrupts.

As poll-source-blk, but the disk is a file of the host, past its page cache: an answer takes as
long as the host's own disk does, and as the threads of QEMU that ask it.
"""

from lightsleep.compare.result import Claim
from lightsleep.lab.loads import disks
from lightsleep.lab.loads.disks import ARMS, Disk
from lightsleep.lab.run.experiment import Experiment

DISKS = (Disk("", "vdb", "a file of the host", "scratch=64M,format=raw,cache=none,aio=threads"),)

EXPERIMENT = Experiment(
    title="A virtio disk that is a file of the host, polled by idle CPUs",
    hypothesis=(
        "A CPU that polls the disk itself serves more requests than one that is interrupted, also "
        "where the disk takes the time that a real one takes. At most 0.05 of the disk's "
        "interrupts are left. The CPU's own replace them: in all, there are at most "
        f"{disks.REPLACED} times as many as with irq."
    ),
    arms=ARMS,
    metrics=disks.metrics(DISKS),
    measure=disks.measure(DISKS),
    claims=(
        Claim("poll_source", "irq", tuple(f"{workload}_iops" for workload in disks.WORKLOADS)),
        Claim("poll_source", "irq", ("irqs_per_io",), at_most=0.05),
        Claim("poll_source", "irq", ("all_irqs_per_io",), at_most=disks.REPLACED),
    ),
    devices=disks.devices(DISKS),
    least_vcpus=disks.LEAST_VCPUS,
)
