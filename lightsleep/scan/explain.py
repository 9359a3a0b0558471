# SPDX-License-Identifier: GPL-2.0-only
"""What the kernel does where no setting tells: idle without a driver, wakeups of idle CPUs."""

from lightsleep.scan import facts
from lightsleep.scan.model import Scan

# Architecture -> what it takes to wake an idle CPU where TIF_POLLING_NRFLAG tells that it polls.
WAKEUP = {
    "x86_64": "no IPI to a CPU that polls or waits in MWAIT; an IPI to one that halts",
    "aarch64": "no IPI to a CPU that polls; an IPI to one in WFI or deeper",
    "ppc64le": "no IPI to a CPU that polls (snooze); an IPI to one that sleeps",
}

# Architecture -> what the default idle routine does.
DEFAULT_IDLE = {
    "aarch64": "WFI",
    "ppc64le": "the platform's power_save routine (under a hypervisor: cede the CPU)",
}


def wakeup(scan: Scan) -> str | None:
    """Return what a wakeup takes on this architecture, None where that is not known."""
    if facts.interrupts_polling_cpus(scan):
        return "an IPI even to a polling CPU (stock kernels lack TIF_POLLING_NRFLAG)"
    return WAKEUP.get(scan.kernel.arch or "")


def default_idle(scan: Scan) -> str:
    """Return what the kernel does on an idle CPU without a cpuidle driver."""
    if facts.idle_override(scan) == "poll":
        return "spin (idle=poll)"
    if scan.kernel.arch == "x86_64":
        if facts.idle_override(scan) or scan.can_mwait is False:
            return "HLT"
        return "MWAIT C1, or HLT where that has a fault" if scan.can_mwait else "HLT or MWAIT C1"
    if scan.kernel.arch == "ppc64le" and scan.kernel.options.get("powersave") == "off":
        return "spin at low thread priority (powersave=off)"
    return DEFAULT_IDLE.get(scan.kernel.arch or "", "the architecture's default")


def why_no_driver(scan: Scan) -> str | None:
    """Return why no cpuidle driver is bound, as far as that can be told from outside."""
    override = facts.idle_override(scan)
    if facts.cpuidle_off(scan):
        return "cpuidle.off on the command line"
    if override in ("poll", "halt"):
        return f"idle={override} keeps the drivers away"
    if scan.kernel.options.get("powersave") == "off":
        return "powersave=off keeps the drivers away"
    if "haltpoll" in scan.cpuidle.available_governors:
        if scan.kernel.arch == "aarch64":
            return "cpuidle-haltpoll is not loaded: on arm64 it needs cpuidle_haltpoll.force=1"
        return (
            "cpuidle-haltpoll is not loaded, or the host does not hint that vCPUs have "
            "a core of their own (cpuidle_haltpoll.force=1 replaces the hint)"
        )
    if scan.hypervisor:
        return f"a plain guest (hypervisor: {scan.hypervisor}) is offered no idle states"
    return None
