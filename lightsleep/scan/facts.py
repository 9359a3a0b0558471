# SPDX-License-Identifier: GPL-2.0-only
"""What several rules, the page and measure ask of a scan."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from lightsleep import cpulist
from lightsleep.scan.model import Cpu, Scan, State

LIGHTSLEEP_DRIVER = "lightsleep"

ENOUGH_POLLS = 1000
"""Fewer polls say nothing about how many of them pay."""


@dataclass
class HaltpollParameters:
    """The haltpoll governor's, with the defaults of governors/haltpoll.c in Linux 6.12."""

    guest_halt_poll_ns: int = 200_000
    grow: int = 2
    grow_start_ns: int = 50_000
    shrink: int = 2
    allow_shrink: bool = True


def words(scan: Scan, *prefixes: str) -> list[str]:
    """Return the command line options of these names or name prefixes, as they were written."""
    return [
        name if value is None else f"{name}={value}"
        for name, value in scan.kernel.options.items()
        if name.startswith(prefixes)
    ]


def idle_override(scan: Scan) -> str | None:
    """Return poll, halt or nomwait where the command line overrides how x86 idles."""
    value = scan.kernel.options.get("idle")
    known = scan.kernel.arch in (None, "x86_64", "i686")
    return value if known and value in ("poll", "halt", "nomwait") else None


def spins(scan: Scan) -> str | None:
    """Return the option of the command line by which idle CPUs spin, and ask no driver.

    nohlt is one where the kernel selects GENERIC_IDLE_POLL_SETUP; a later hlt takes it back.
    """
    names = list(scan.kernel.options)
    if idle_override(scan) == "poll":
        return "idle=poll"
    if scan.kernel.arch not in ("aarch64", "ppc64le") or "nohlt" not in names:
        return None
    return None if "hlt" in names[names.index("nohlt") :] else "nohlt"


def lightsleep_idles(scan: Scan) -> bool:
    """Return whether lightsleep's driver idles the CPUs: it is bound, and the idle loop asks it."""
    return scan.cpuidle.driver == LIGHTSLEEP_DRIVER and not spins(scan)


def idle_option(scan: Scan) -> str | None:
    """Return the option of the command line by which the driver does not load, or is not asked.

    idle_override() in kernel/drivers/cpuidle/idle_override.h looks at the same options.
    """
    if option := spins(scan):
        return option
    options = scan.kernel.options
    if override := idle_override(scan):
        return f"idle={override}"
    if scan.kernel.arch == "aarch64" and options.get("idle") in ("yield", "nop"):
        return f"idle={options['idle']}"
    if scan.kernel.arch == "ppc64le" and options.get("powersave") == "off":
        return "powersave=off"
    return None


def is_off(value: str | None) -> bool:
    """Return whether the kernel's kstrtobool() takes ``value`` for false."""
    value = (value or "").lower()
    return value[:1] in ("0", "n", "f") or value[:2] == "of"


def cpuidle_off(scan: Scan) -> bool:
    """Return whether cpuidle.off= switched cpuidle off; it takes any integer."""
    return scan.kernel.options.get("cpuidle.off") not in (None, "0")


def governor_is_haltpoll(scan: Scan) -> bool:
    """Return whether the current governor is haltpoll."""
    return scan.cpuidle.governor == "haltpoll"


def interrupts_polling_cpus(scan: Scan) -> bool:
    """Return whether a wakeup takes an IPI even where the CPU polls.

    It does on arm64, unless the kernel has TIF_POLLING_NRFLAG. A kernel that polls in the idle loop
    says so. Others do not; but whoever brings the governor haltpoll to arm64 brings the flag, too.
    """
    if scan.kernel.arch != "aarch64":
        return False
    if scan.kernel.polling_flag is not None:
        return not scan.kernel.polling_flag
    return "haltpoll" not in scan.cpuidle.available_governors


def on(cpus: Iterable[Cpu]) -> str | None:
    """Return "CPU 0-3" for the CPUs that a check fired on, None for none."""
    numbers = [cpu.number for cpu in cpus]
    return f"CPU {cpulist.format(numbers)}" if numbers else None


def where(scan: Scan, condition: Callable[[Cpu], bool]) -> str | None:
    """Return "CPU 0-3" for the CPUs that meet ``condition``, None for none."""
    return on(cpu for cpu in scan.cpus if condition(cpu))


def deeper(cpu: Cpu) -> list[State]:
    """Return the states of a CPU that do not poll."""
    return [state for state in cpu.states if not state.polls]


def latency_limit_us(scan: Scan, cpu: Cpu) -> int | None:
    """Return the strictest latency limit of a CPU, the system's or its own; None without one."""
    limits = (cpu.resume_latency_us, scan.latency_limit_us)
    return min((x for x in limits if x is not None), default=None)


def limit_forces_polling(scan: Scan, cpu: Cpu) -> bool:
    """Return whether a latency limit has the CPU poll whenever it is idle.

    lightsleep's driver does not heed a limit while the host is short of cores: that is not looked
    at here, as it may change any moment.
    """
    limit_us = latency_limit_us(scan, cpu)
    usable = [state.latency_us for state in deeper(cpu) if not state.disabled]
    latencies = [latency for latency in usable if latency is not None]
    if limit_us is None or not latencies or not polls_first(cpu):
        return False
    ours = scan.cpuidle.driver == LIGHTSLEEP_DRIVER
    if ours and scan.lightsleep and scan.lightsleep.mode == "off":
        return False  # switched off, it obeys no limit
    # haltpoll and ladder poll only where no latency at all is tolerated; menu and teo compare
    # the limit with the exit latencies. So does lightsleep's driver, unless POLL is disabled.
    compares = ours and not cpu.states[0].disabled
    if scan.cpuidle.governor in ("haltpoll", "ladder") and not compares:
        return limit_us == 0
    # With the polling state disabled, both take a state that is beyond the limit: menu unless no
    # latency is tolerated, teo if it is the only one. Else they poll all the same.
    if cpu.states[0].disabled and scan.cpuidle.governor == "menu":
        return limit_us == 0
    if cpu.states[0].disabled and scan.cpuidle.governor == "teo" and len(usable) == 1:
        return False
    return limit_us < min(latencies)


def haltpoll_may_poll(scan: Scan, cpu: Cpu) -> bool:
    """Return whether lightsleep's driver may poll, under the governor haltpoll, with POLL disabled.

    It does so where haltpoll has chosen POLL all the same, and a limit forbids HALT. Under a limit
    of 0, CPUs poll anyway: limit_forces_polling() says so.
    """
    mode = scan.lightsleep.mode if scan.lightsleep else None
    grows = not scan.haltpoll or scan.haltpoll.guest_halt_poll_ns != 0
    if mode == "off" or not grows or not polls_first(cpu) or not cpu.states[0].disabled:
        return False
    limit_us = latency_limit_us(scan, cpu) or 0
    return any(0 < limit_us < (halt.latency_us or 0) for halt in deeper(cpu))


def polls_first(cpu: Cpu) -> bool:
    """Return whether the shallowest state of a CPU polls."""
    return bool(cpu.states) and cpu.states[0].polls


def may_poll(cpu: Cpu) -> bool:
    """Return whether the shallowest state of a CPU polls and is enabled."""
    return polls_first(cpu) and not cpu.states[0].disabled


def state_pairs(scan: Scan) -> Iterator[tuple[State, State]]:
    """Yield each state that does not poll with the next deeper one."""
    for cpu in scan.cpus:
        yield from itertools.pairwise(deeper(cpu))
