# SPDX-License-Identifier: GPL-2.0-only
"""The lightsleep driver, and everything else that polls."""

import math

from lightsleep.scan import facts
from lightsleep.scan.model import Scan
from lightsleep.scan.rule import Rule

POOR_HIT_RATE = 0.1


def _lightsleep_off(scan: Scan) -> str | None:
    if scan.lightsleep and scan.lightsleep.mode == "off":
        return "module cpuidle_lightsleep is loaded with mode off"
    return None


def _lightsleep_limit_low(scan: Scan) -> str | None:
    knobs = scan.lightsleep
    if not knobs or knobs.mode == "off" or not knobs.poll_limit_us or not knobs.halt_cost_ns:
        return None  # a limit of 0 follows from the cost
    weight = knobs.wait_weight or 1
    price_us = math.ceil(knobs.halt_cost_ns * weight / 1000)
    if knobs.poll_limit_us >= price_us:
        return None
    return (
        f"poll_limit_us {knobs.poll_limit_us} is below the {price_us:,} us that a missed wakeup "
        f"costs (halt_cost_ns {knobs.halt_cost_ns:,} x wait_weight {weight})"
    )


def _lightsleep_wasteful(scan: Scan) -> str | None:
    if not scan.lightsleep or scan.lightsleep.mode != "fixed":
        return None
    stats = [cpu.lightsleep for cpu in scan.cpus if cpu.lightsleep]
    polls = sum(s.polls or 0 for s in stats)
    hits = sum(s.hits or 0 for s in stats)
    if polls < facts.ENOUGH_POLLS or hits >= polls * POOR_HIT_RATE:
        return None
    return f"mode fixed, and {hits:,} of {polls:,} polls ({hits / polls:.1%}) saw a wakeup"


def _arm64_ipi(scan: Scan) -> str | None:
    if not facts.interrupts_polling_cpus(scan):
        return None
    if scan.lightsleep and scan.lightsleep.mode != "off":
        return "lightsleep polls on arm64"
    polling = facts.where(scan, facts.may_poll)
    return f"{polling}: polling state on arm64" if polling else None


def _poll_queues_missing(scan: Scan) -> str | None:
    disk_of = {"virtio_blk": "vd", "nvme": "nvme"}
    missing = [
        f"{driver}.poll_queues={count}, but {disk} has io_poll 0"
        for driver, count in scan.io.poll_queues.items()
        for disk, polled in scan.io.disks.items()
        if count and disk.startswith(disk_of[driver]) and not polled
        if disk not in scan.io.fabric_disks  # whose queues to poll are asked for at connect
    ]
    return "; ".join(missing) or None


RULES = (
    Rule(
        "lightsleep-off",
        "note",
        _lightsleep_off,
        "In mode off, the driver never polls. A halt still takes longer than without a driver, "
        "because the kernel asks a governor before each.",
        "Set mode to adaptive, or unload the module.",
    ),
    Rule(
        "lightsleep-limit-low",
        "note",
        _lightsleep_limit_low,
        "A poll that lasts as long as a missed wakeup costs keeps the total cost within twice the "
        "optimum. With a shorter limit, a wakeup soon after the limit costs both the poll and the "
        "halt.",
        "Write 0 to poll_limit_us, so that the limit follows from that cost, or raise it to that.",
    ),
    Rule(
        "lightsleep-wasteful",
        "warning",
        _lightsleep_wasteful,
        "In mode fixed, fewer than one poll in ten ended in a wakeup. All other polls delayed the "
        "halt and wasted power.",
        "Use mode adaptive: it stops polling where polling does not pay.",
    ),
    Rule(
        "arm64-ipi",
        "note",
        _arm64_ipi,
        "Stock arm64 kernels lack TIF_POLLING_NRFLAG: polling saves the halt, but every wakeup "
        "still sends an IPI. A kernel with the governor haltpoll has the flag, and so has one "
        "whose idle_poll.polling_flag is Y.",
        "A stock kernel cannot change this. The arm64 patches of lightsleep's kernel series add "
        "the flag.",
    ),
    Rule(
        "poll-queues-missing",
        "warning",
        _poll_queues_missing,
        "A driver makes poll queues when it is bound to a device, and only from queues that the "
        "device has left. A virtio disk with one queue gets none. Polled I/O on this disk falls "
        "back to interrupts.",
        "If poll_queues was written after boot, set it at boot instead, or unbind the driver from "
        "the unused device, and bind it again: a reset of an NVMe controller is not enough. "
        "Otherwise, give the device more queues, or remove poll_queues.",
    ),
)
