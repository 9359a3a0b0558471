# SPDX-License-Identifier: GPL-2.0-only
"""What a result says about guests and host, and what of it speaks against the comparison.

Guests are asked once in each boot, as they start; the host is asked as a comparison ends.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightsleep.errors import LightsleepError
from lightsleep.lab.boot import emulator
from lightsleep.lab.boot.accel import ONE_THREAD, TRANSLATED_MIB, Accelerator
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.boot.machine import Machine
from lightsleep.lab.boot.vm import Hardware
from lightsleep.lab.kernels.config import Arch
from lightsleep.lab.run.experiment import Experiment
from lightsleep.scan.collect import cpu_model

HALT_FACTS = {
    "halt_poll_ns": ("module/kvm/parameters/halt_poll_ns",),
    "cpuidle_driver": ("devices/system/cpu/cpuidle/current_driver",),
    "cpuidle_governor": (
        "devices/system/cpu/cpuidle/current_governor",
        # All that older kernels show, unless asked for more at boot.
        "devices/system/cpu/cpuidle/current_governor_ro",
    ),
    "scaling_governor": ("devices/system/cpu/cpu0/cpufreq/scaling_governor",),
    "smt_active": ("devices/system/cpu/smt/active",),
}
"""Files below SYS of the host, by their names in a result; of several, the first that is there."""

SYS = Path("/sys")
MEMORY = Path("/proc/meminfo")

LITTLE_MEMORY = "little memory"
"""The beginning of the warning of too little memory for all guests."""


FEW_CPUS = "few CPUs"
"""The beginning of the warning of a host with fewer CPUs than the guests that run at once."""


def guest_facts(guest: Guest) -> dict[str, Any]:
    """Return what a guest says about itself; a kernel may lack cpuidle, or modules."""
    cpuidle = "/sys/devices/system/cpu/cpuidle"
    governor = (f"{cpuidle}/current_governor", f"{cpuidle}/current_governor_ro")
    modules = _first(guest, "/proc/modules") or ""
    return {
        "kernel": guest.run(["uname", "-r"]).stdout.strip(),
        "kernel_build": guest.run(["uname", "-v"]).stdout.strip(),
        "cmdline": guest.read_text("/proc/cmdline").strip(),
        "cpu_model": cpu_model(guest.read_text("/proc/cpuinfo")) or "unknown",
        "cpuidle_driver": _first(guest, f"{cpuidle}/current_driver") or "none",
        "governor": _first(guest, *governor) or "none",
        "modules": sorted(x.split()[0] for x in modules.splitlines()),
    }


def _first(guest: Guest, *paths: str) -> str | None:
    """Return the text of the first of these files that a guest has."""
    for path in paths:
        if guest.run(["test", "-e", path], check=False).rc == 0:
            return guest.read_text(path).strip()
    return None


def one_kernel_each(
    machines: Mapping[str, Machine], boots: Sequence[Mapping[str, Mapping[str, Any]]]
) -> None:
    """Raise LightsleepError where two guests of one kernel were not: ``boots`` are their facts.

    Each boot starts the file that somebody named, who may build it anew meanwhile.
    """
    first: dict[Any, tuple[str, dict[str, Any]]] = {}
    for number, facts in enumerate(boots, 1):
        for arm, machine in machines.items():
            now = {key: facts[arm][key] for key in ("kernel", "kernel_build")}
            where, then = first.setdefault(
                machine.foreign or machine.kernel, (f"{arm} in boot {number}", now)
            )
            if now != then:
                raise LightsleepError(
                    f"the kernel is not the same in all guests: {' '.join(then.values())} of "
                    f"{where}, {' '.join(now.values())} of {arm} in boot {number}; was it built "
                    "anew meanwhile? Leave it as it is until the comparison has ended"
                )


def host_facts(arch: Arch) -> dict[str, Any]:
    """Return what matters about the machine that runs the guests."""
    return {
        "cpu_model": cpu_model(Path("/proc/cpuinfo").read_text()) or "unknown",
        "cpus": os.cpu_count(),
        "cpus_allowed": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "qemu": emulator.version(arch),
        **_halt_facts(),
    }


def _halt_facts() -> dict[str, str | None]:
    """Return the settings of the host that decide what a halt costs under KVM, where they are.

    None is what the kernel calls none: no driver is bound, or no governor.
    """
    found = dict[str, str | None]()
    for name, paths in HALT_FACTS.items():
        for path in reversed(paths):
            with contextlib.suppress(OSError):
                text = (SYS / path).read_text().strip()
                found[name] = None if text == "none" else text
    return found


def little_memory(hardware: Mapping[str, Hardware], neighbour: bool) -> str:
    """Say that the host may have too little memory for all guests; empty where it has enough.

    It is an estimate, and no reason to refuse: hosts swap, and guests do not use all they may.
    """
    each_mib = [
        x.arch.memory_mib + (0 if x.accelerator.name == "kvm" else TRANSLATED_MIB)
        for x in hardware.values()
    ]
    needed_mib = sum(each_mib) + (each_mib[0] if neighbour else 0)
    found = re.search(r"(?m)^MemAvailable: +(\d+) kB$", MEMORY.read_text())
    if not found or needed_mib <= (available_mib := int(found[1]) // 1024):
        return ""
    return (
        f"{LITTLE_MEMORY}: all guests together may need {needed_mib} MiB, and the host has "
        f"{available_mib} MiB available; end other programs, or name fewer arms with --arms"
    )


def few_cpus(experiment: Experiment, accelerator: Accelerator) -> str:
    """Say that vCPUs, and who answers them, have to share the host's CPUs; empty where not.

    Empty, too, where that is the point. It is no reason to refuse: one can still see how it all
    works.
    """
    needed, allowed = experiment.host_cpus, len(os.sched_getaffinity(0))
    if experiment.overcommitted or needed <= allowed or accelerator.name in ONE_THREAD:
        return ""
    served = ", with those that answer them on the host," if experiment.served_by_cpus else ""
    return (
        f"{FEW_CPUS}: the guests that run at once{served} have {needed} CPUs, and the lab may use "
        f"{allowed} of the host. CPUs that poll take the time of those that work. Use a host with "
        f"at least {needed} CPUs"
    )
