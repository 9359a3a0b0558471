# SPDX-License-Identifier: GPL-2.0-only
"""What the kernel does that no file in sysfs shows: idle without a driver, wakeups of idle CPUs."""

from lightsleep.scan import facts
from lightsleep.scan.model import Scan

# Architecture -> what wakes an idle CPU, on kernels with TIF_POLLING_NRFLAG.
WAKEUP = {
    "x86_64": "a CPU that polls or waits in MWAIT needs no IPI; a CPU that halts needs one",
    "aarch64": "a CPU that polls needs no IPI; a CPU in WFI or deeper needs one",
    "ppc64le": "a CPU that polls (snooze) needs no IPI; a CPU that sleeps needs one",
}

# Architecture -> what the default idle routine does.
DEFAULT_IDLE = {
    "aarch64": "WFI",
    "ppc64le": "the platform's power_save routine (under a hypervisor: H_CEDE)",
}


# Driver -> how the states of the processor that it knows are entered.
ENTRIES = {
    "intel_idle": "MWAIT, or HLT in a guest that has no MWAIT",
    "acpi_idle": "MWAIT, HLT or a read of an I/O port, as the firmware says",
    "psci_idle": "WFI, or a call of the firmware (PSCI)",
    "powernv_idle": "snooze (a loop at low thread priority), then stop",
    "pseries_idle": "snooze (a loop at low thread priority), then a hypercall (H_CEDE)",
}

# What halts -> what a hypervisor makes of it.
BENEATH = {
    "HLT": "exits to the hypervisor unless it lets guests halt (not visible in a guest)",
    "MWAIT": "no exit, as a hypervisor shows MWAIT to guests that may wait by themselves",
    "WFI": "exits to the hypervisor unless it lets guests wait (not visible in a guest)",
    "TDX": "each one exits to the hypervisor",
}


def wakeup(scan: Scan) -> str | None:
    """Return how an idle CPU is woken on this architecture, None if that is not known."""
    if facts.interrupts_polling_cpus(scan):
        return "every idle CPU needs an IPI, even one that polls (no TIF_POLLING_NRFLAG here)"
    return WAKEUP.get(scan.kernel.arch or "")


def default_idle(scan: Scan) -> str:
    """Return what the kernel does on an idle CPU without a cpuidle driver."""
    if option := facts.spins(scan):
        return f"spin ({option})"
    if scan.kernel.arch == "x86_64":
        if facts.idle_override(scan) or scan.can_mwait is False:
            # There, HLT raises an exception, and the kernel makes the same call.
            return "a hypercall (TDX)" if scan.loading.tdx_guest else "HLT"
        return "MWAIT C1, or HLT if MWAIT is unreliable" if scan.can_mwait else "HLT or MWAIT C1"
    if scan.kernel.arch == "ppc64le" and scan.kernel.options.get("powersave") == "off":
        return "spin at low thread priority (powersave=off)"
    return DEFAULT_IDLE.get(scan.kernel.arch or "", "the architecture's default")


def halt(scan: Scan) -> str:
    """Return how an idle CPU of this machine halts, and what that means under a hypervisor."""
    driver = scan.cpuidle.driver
    if not scan.cpus:
        return "unknown"
    if facts.spins(scan) == "nohlt" or driver in (None, facts.LIGHTSLEEP_DRIVER, "haltpoll"):
        how = default_idle(scan)
    elif driver == "intel_idle" and scan.can_mwait is not None:
        how = "MWAIT" if scan.can_mwait else "HLT"
    elif driver in ENTRIES and not facts.idle_override(scan):
        # On arm64, ACPI describes the same states as the device tree (_LPI).
        by_psci = driver == "acpi_idle" and scan.kernel.arch == "aarch64"
        how = ENTRIES["psci_idle" if by_psci else driver]
    else:
        return "unknown"
    if scan.kernel.arch not in DEFAULT_IDLE and scan.kernel.arch != "x86_64":
        return "unknown"
    if scan.hypervisor == "Xen":
        return f"{how}; a paravirtual Xen guest halts by a hypercall instead"
    if scan.hypervisor:
        # Where several are possible, nothing here says which one it is.
        possible = [instruction for instruction in BENEATH if instruction in how]
        if len(possible) == 1:
            return f"{how}: {BENEATH[possible[0]]}"
    return how


def _no_haltpoll_on_arm64(scan: Scan) -> str:
    """Return why haltpoll is not bound. Only x86 hosts give the hint that it asks for."""
    force = scan.haltpoll.force if scan.haltpoll else None
    if force:
        return "cpuidle-haltpoll is there with force=1, but not bound: dmesg may say why"
    if force is not None:
        return "cpuidle-haltpoll is built in and unforced: boot with cpuidle_haltpoll.force=1"
    return "cpuidle-haltpoll is not loaded: modprobe cpuidle_haltpoll force=1 (arm64 has no hint)"


def why_no_cpuidle(scan: Scan) -> str | None:
    """Return why this kernel shows no cpuidle; None where it does, or cpuidle.off is why."""
    cpuidle = scan.cpuidle
    if not scan.cpus or cpuidle.driver or cpuidle.available_governors or cpuidle.governor:
        return None
    if scan.loading.loaded or facts.cpuidle_off(scan):
        return None
    if scan.hypervisor == "Xen":
        return "the kernel switches cpuidle off in this kind of Xen guest"
    return "this kernel shows no cpuidle in /sys/devices/system/cpu/cpuidle"


def why_no_driver(scan: Scan) -> str | None:
    """Return why no cpuidle driver is bound, None if the files do not show it."""
    override = facts.idle_override(scan)
    if facts.cpuidle_off(scan):
        return "cpuidle.off is on the command line"
    if facts.spins(scan) == "nohlt":
        return "nohlt is on the command line: the idle loop asks no driver"
    if override:
        which = "intel_idle and haltpoll" if override == "nomwait" else "the drivers"
        return f"idle={override} keeps {which} away"
    if scan.kernel.options.get("powersave") == "off":
        return "powersave=off keeps the drivers away"
    if "haltpoll" in scan.cpuidle.available_governors:
        if scan.kernel.arch == "aarch64":
            return _no_haltpoll_on_arm64(scan)
        return (
            "cpuidle-haltpoll is not loaded, or the host does not hint that each vCPU has its own "
            "core (cpuidle_haltpoll.force=1 replaces the hint)"
        )
    if why := why_no_cpuidle(scan):
        return why
    if scan.hypervisor:
        return f"the hypervisor ({scan.hypervisor}) offers this guest no idle states"
    return None
