# SPDX-License-Identifier: GPL-2.0-only
"""What a virtio disk gains when idle CPUs poll it in place of its interrupts.

Two disks of nothing: one answers at once, so the way of its answer is all there is; the other takes
20 us, as a fast one does.
"""

from lightsleep.lab import disks
from lightsleep.lab.disks import ARMS, Disk
from lightsleep.lab.experiment import Experiment

DISKS = (
    Disk("", "vdb", "a disk that answers at once", "driver=null-co,size=1G"),
    Disk("_20us", "vdc", "a disk that takes 20 us", "driver=null-co,size=1G,latency-ns=20000"),
)

EXPERIMENT = Experiment(
    title="A virtio disk, polled by idle CPUs",
    hypothesis=(
        "A CPU that polls the disk itself serves more requests than one that is interrupted, as "
        "many as if the application had asked for polled I/O, with few interrupts where the disk "
        "takes 20 us. Falsified if poll_source is below io_poll, below 1.25 times irq (1.11 "
        "times at 20 us), or has more than 0.05 of its interrupts per request at 20 us."
    ),
    arms=ARMS,
    metrics=disks.metrics(DISKS),
    measure=disks.measure(DISKS),
    drives=disks.drives(DISKS),
    objects=disks.threads(DISKS),
    devices=disks.devices(DISKS),
)
