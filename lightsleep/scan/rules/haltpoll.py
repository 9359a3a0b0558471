# SPDX-License-Identifier: GPL-2.0-only
"""The haltpoll driver and governor."""

from dataclasses import asdict

from lightsleep.scan import facts
from lightsleep.scan.model import Cpu, Scan
from lightsleep.scan.rule import Rule


def _decides(scan: Scan) -> bool:
    """Return whether the governor haltpoll does: lightsleep's driver does as it sees fit."""
    return facts.governor_is_haltpoll(scan) and scan.cpuidle.driver != facts.LIGHTSLEEP_DRIVER


def _haltpoll_grow_start(scan: Scan) -> str | None:
    knobs = scan.haltpoll
    if not _decides(scan) or not knobs:
        return None
    if not knobs.guest_halt_poll_ns or knobs.grow_start_ns is None:
        return None
    if knobs.allow_shrink is False:  # the limit rises to its cap and stays there
        return None
    if knobs.grow_start_ns <= knobs.guest_halt_poll_ns:
        return None
    return (
        f"guest_halt_poll_grow_start {knobs.grow_start_ns:,} ns is above "
        f"guest_halt_poll_ns {knobs.guest_halt_poll_ns:,} ns"
    )


def _haltpoll_zero(scan: Scan) -> str | None:
    if _decides(scan) and scan.haltpoll and scan.haltpoll.guest_halt_poll_ns == 0:
        return "governor haltpoll with guest_halt_poll_ns 0"
    return None


def _haltpoll_unused(scan: Scan) -> str | None:
    if facts.governor_is_haltpoll(scan) or not scan.haltpoll or not scan.cpus:
        return None
    if scan.cpuidle.driver == facts.LIGHTSLEEP_DRIVER:  # decides by itself how long to poll
        return None
    changed = [
        f"{name} {value}"
        for name, default in asdict(facts.HaltpollParameters()).items()
        if (value := getattr(scan.haltpoll, name)) not in (None, default)
    ]
    if scan.cpuidle.driver == "haltpoll":
        changed.insert(0, "driver haltpoll")
    if not changed:
        return None
    absent = "haltpoll" not in scan.cpuidle.available_governors
    return f"{', '.join(changed)}, but the governor is {scan.cpuidle.governor or 'none'}" + (
        ", and this kernel offers no haltpoll" if absent else ""
    )


def _haltpoll_not_bound(scan: Scan) -> str | None:
    if not scan.haltpoll or not scan.haltpoll.force or not scan.cpus:
        return None
    if scan.cpuidle.driver == "haltpoll":
        return None
    return f"cpuidle_haltpoll.force is set, but the driver is {scan.cpuidle.driver or 'none'}"


def _haltpoll_shallow(scan: Scan) -> str | None:
    if not facts.governor_is_haltpoll(scan):
        return None
    unreachable = {state.name for cpu in scan.cpus for state in cpu.states[2:]}
    return f"governor haltpoll never uses {', '.join(sorted(unreachable))}" if unreachable else None


def _uses_disabled(scan: Scan, cpu: Cpu) -> bool:
    if _decides(scan):
        return any(state.disabled for state in cpu.states[:2])
    return facts.haltpoll_may_poll(scan, cpu)


def _haltpoll_ignores_disable(scan: Scan) -> str | None:
    if not facts.governor_is_haltpoll(scan):
        return None
    where = facts.where(scan, lambda cpu: _uses_disabled(scan, cpu))
    return f"{where}: state disabled, but the governor is haltpoll" if where else None


RULES = (
    Rule(
        "haltpoll-grow-start",
        "warning",
        _haltpoll_grow_start,
        "The poll limit grows from 0 to grow_start, capped at guest_halt_poll_ns. The first "
        "reduction brings it below grow_start, which the governor turns into 0. The limit "
        "alternates between 0 and the cap and does not adapt. Published settings for SAP HANA "
        "contain both 24,000,000 and 2,400,000.",
        "Set guest_halt_poll_grow_start to guest_halt_poll_ns or less.",
    ),
    Rule(
        "haltpoll-zero",
        "warning",
        _haltpoll_zero,
        "The poll limit never grows from 0, so the guest never polls. A bound haltpoll driver also "
        "asks the host not to poll for this guest.",
        "Set guest_halt_poll_ns (default 200000), or keep cpuidle-haltpoll from loading, so that "
        "the host polls again.",
    ),
    Rule(
        "haltpoll-unused",
        "warning",
        _haltpoll_unused,
        "Only the haltpoll governor reads guest_halt_poll_*. Under any other governor, these "
        "settings have no effect.",
        "Write haltpoll to current_governor, where the kernel offers it, or remove the settings.",
    ),
    Rule(
        "haltpoll-not-bound",
        "warning",
        _haltpoll_not_bound,
        "force replaces only the host's hint KVM_HINTS_REALTIME. The driver still needs a KVM "
        "guest, no idle= option, and no other cpuidle driver.",
        "Remove what keeps the driver away, or remove the option.",
    ),
    Rule(
        "haltpoll-shallow",
        "warning",
        _haltpoll_shallow,
        "The haltpoll governor chooses only between the first two states.",
        "Write menu or teo to current_governor.",
    ),
    Rule(
        "haltpoll-ignores-disable",
        "warning",
        _haltpoll_ignores_disable,
        "The haltpoll governor does not read a state's disable file, so CPUs still use the state.",
        "Write menu or teo to current_governor, or enable the state again.",
    ),
)
