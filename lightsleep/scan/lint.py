# SPDX-License-Identifier: GPL-2.0-only
"""Settings that contradict each other, or do not do what their name promises.

A rule is an entry of RULES: a pure check that says what it saw, or None, and two texts that
hold wherever it fires. ``why`` states what the kernel does (checked in the sources of 6.12),
never an opinion on what a good setting would be. A setting that merely costs power is no
finding; one that is silently ignored is.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from lightsleep import cpulist
from lightsleep.scan.model import Cpu, Scan, State

Severity = Literal["warning", "note"]

LIGHTSLEEP_DRIVER = "lightsleep"
HALTPOLL_DEFAULTS = {
    "guest_halt_poll_ns": 200_000,
    "grow": 2,
    "grow_start_ns": 50_000,
    "shrink": 2,
    "allow_shrink": True,
}
# CPUIDLE_POLL_MIN of drivers/cpuidle/cpuidle.c.
POLL_MIN_US = 10
# The tick period at HZ=1000, the shortest there is.
SHORTEST_TICK_US = 1000
# Too few polls say nothing about a hit rate.
ENOUGH_POLLS = 1000
POOR_HIT_RATE = 0.1


@dataclass(frozen=True)
class Finding:
    """One rule that fired: ``what`` was seen here, ``why`` it matters, what ``fix`` there is."""

    id: str
    severity: Severity
    what: str
    why: str
    fix: str


@dataclass(frozen=True)
class Rule:
    """``check`` returns what it saw, or None where all is well."""

    id: str
    severity: Severity
    check: Callable[[Scan], str | None]
    why: str
    fix: str


def lint(scan: Scan) -> list[Finding]:
    """Return the findings of all rules, warnings first."""
    findings = [
        Finding(rule.id, rule.severity, what, rule.why, rule.fix)
        for rule in RULES
        if (what := rule.check(scan)) is not None
    ]
    return sorted(findings, key=lambda finding: finding.severity != "warning")


# What several checks ask for.


def _words(scan: Scan, *prefixes: str) -> list[str]:
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


def _is_off(value: str | None) -> bool:
    """Return whether the kernel's kstrtobool() takes ``value`` for false."""
    value = (value or "").lower()
    return value[:1] in ("0", "n", "f") or value[:2] == "of"


def cpuidle_off(scan: Scan) -> bool:
    """Return whether cpuidle.off= switched cpuidle off; it takes any integer."""
    return scan.kernel.options.get("cpuidle.off") not in (None, "0")


def _governor_is_haltpoll(scan: Scan) -> bool:
    return scan.cpuidle.governor == "haltpoll"


def _on(cpus: list[Cpu]) -> str | None:
    """Return "CPU 0-3" for the CPUs a check fired on, None for none."""
    return f"CPU {cpulist.format(cpu.number for cpu in cpus)}" if cpus else None


def _deeper(cpu: Cpu) -> list[State]:
    """Return the states of a CPU that do not poll."""
    return [state for state in cpu.states if not state.polls]


def _polls_first(cpu: Cpu) -> bool:
    return bool(cpu.states) and cpu.states[0].polls


def _state_pairs(scan: Scan) -> Iterator[tuple[Cpu, State, State]]:
    """Yield each state that does not poll with the next deeper one."""
    for cpu in scan.cpus:
        for shallow, deep in itertools.pairwise(_deeper(cpu)):
            yield cpu, shallow, deep


# The checks.


def _idle_poll_wins(scan: Scan) -> str | None:
    if idle_override(scan) != "poll":
        return None
    unused = _words(scan, "intel_idle.", "processor.", "cpuidle", "haltpoll.")
    if scan.lightsleep:
        unused.append("module cpuidle_lightsleep")
    if scan.cpuidle.driver:
        unused.append(f"driver {scan.cpuidle.driver}")
    return f"idle=poll together with {', '.join(unused)}" if unused else None


def _idle_poll_smt(scan: Scan) -> str | None:
    if idle_override(scan) == "poll" and scan.smt_active:
        return "idle=poll with SMT active"
    return None


def _idle_override(scan: Scan) -> str | None:
    override = idle_override(scan)
    if override not in ("halt", "nomwait"):
        return None
    ignored = _words(scan, "intel_idle.", "cpuidle_haltpoll.", "haltpoll.")
    if override == "halt":
        ignored += _words(scan, "processor.")
    return f"idle={override} together with {', '.join(ignored)}" if ignored else None


def _cpuidle_off(scan: Scan) -> str | None:
    ignored = _words(scan, "cpuidle.governor", "cpuidle_", "intel_idle.", "processor.", "haltpoll.")
    return (
        f"cpuidle.off together with {', '.join(ignored)}" if cpuidle_off(scan) and ignored else None
    )


def _governor_unknown(scan: Scan) -> str | None:
    wanted = scan.kernel.options.get("cpuidle.governor")
    available = scan.cpuidle.available_governors
    # The kernel compares without regard to case.
    if not wanted or not available or wanted.lower() in (name.lower() for name in available):
        return None
    return f"cpuidle.governor={wanted}, but this kernel has {', '.join(available)}"


def _acpi_takes_over(scan: Scan) -> str | None:
    if scan.kernel.options.get("intel_idle.max_cstate") != "0":
        return None
    if scan.cpuidle.driver != "acpi_idle":
        return None
    deep = {s.name for cpu in scan.cpus for s in _deeper(cpu)[1:] if not s.disabled}
    return (
        f"intel_idle.max_cstate=0, yet acpi_idle offers {', '.join(sorted(deep))}" if deep else None
    )


def _max_cstate_unused(scan: Scan) -> str | None:
    options = scan.kernel.options
    if scan.cpuidle.driver != "intel_idle" or "intel_idle.max_cstate" in options:
        return None
    words = _words(scan, "processor.max_cstate")
    return f"{words[0]} with driver intel_idle" if words else None


def _haltpoll_grow_start(scan: Scan) -> str | None:
    knobs = scan.haltpoll
    if not knobs or not knobs.guest_halt_poll_ns or knobs.grow_start_ns is None:
        return None
    if knobs.grow_start_ns <= knobs.guest_halt_poll_ns:
        return None
    return (
        f"guest_halt_poll_grow_start {knobs.grow_start_ns:,} ns is above "
        f"guest_halt_poll_ns {knobs.guest_halt_poll_ns:,} ns"
    )


def _haltpoll_zero(scan: Scan) -> str | None:
    if _governor_is_haltpoll(scan) and scan.haltpoll and scan.haltpoll.guest_halt_poll_ns == 0:
        return "governor haltpoll with guest_halt_poll_ns 0"
    return None


def _haltpoll_unused(scan: Scan) -> str | None:
    if _governor_is_haltpoll(scan) or not scan.haltpoll or not scan.cpus:
        return None
    changed = [
        f"{name} {value}"
        for name, default in HALTPOLL_DEFAULTS.items()
        if (value := getattr(scan.haltpoll, name)) not in (None, default)
    ]
    if scan.cpuidle.driver == "haltpoll":
        changed.insert(0, "driver haltpoll")
    if not changed:
        return None
    return f"{', '.join(changed)}, but the governor is {scan.cpuidle.governor or 'none'}"


def _haltpoll_not_bound(scan: Scan) -> str | None:
    if not scan.haltpoll or not scan.haltpoll.force or not scan.cpus:
        return None
    if scan.cpuidle.driver == "haltpoll":
        return None
    return f"cpuidle_haltpoll.force is set, but the driver is {scan.cpuidle.driver or 'none'}"


def _haltpoll_shallow(scan: Scan) -> str | None:
    if not _governor_is_haltpoll(scan):
        return None
    unreachable = {state.name for cpu in scan.cpus for state in cpu.states[2:]}
    return f"governor haltpoll never uses {', '.join(sorted(unreachable))}" if unreachable else None


def _haltpoll_ignores_disable(scan: Scan) -> str | None:
    if not _governor_is_haltpoll(scan):
        return None
    where = _on([cpu for cpu in scan.cpus if any(state.disabled for state in cpu.states[:2])])
    return f"{where}: state disabled, but the governor is haltpoll" if where else None


def _poll_limit_is_core_default(scan: Scan) -> str | None:
    if _governor_is_haltpoll(scan) or scan.cpuidle.driver == LIGHTSLEEP_DRIVER:
        return None

    def limited_by_no_state(cpu: Cpu) -> bool:
        deeper = [state for state in cpu.states[1:] if not state.disabled]
        # snooze has a limit of its own.
        return (
            _polls_first(cpu)
            and cpu.states[0].name == "POLL"
            and not cpu.states[0].disabled
            and bool(deeper)
            and all(s.residency_us is not None and s.residency_us < POLL_MIN_US for s in deeper)
        )

    where = _on([cpu for cpu in scan.cpus if limited_by_no_state(cpu)])
    return f"{where}: no usable state has a target residency of 10 us or more" if where else None


def _only_polling_left(scan: Scan) -> str | None:
    if _governor_is_haltpoll(scan):
        return None
    where = _on(
        [
            cpu
            for cpu in scan.cpus
            if _polls_first(cpu) and _deeper(cpu) and all(state.disabled for state in _deeper(cpu))
        ]
    )
    return f"{where}: every state but the polling one is disabled" if where else None


def _asymmetric(scan: Scan) -> str | None:
    groups: dict[tuple[str, ...], list[Cpu]] = {}
    for cpu in scan.cpus:
        if cpu.states:
            disabled = tuple(state.name for state in cpu.states if state.disabled)
            groups.setdefault(disabled, []).append(cpu)
    if len(groups) < 2:
        return None
    return "; ".join(f"{_on(cpus)}: {', '.join(off) or 'none'}" for off, cpus in groups.items())


def _qos_polls(scan: Scan) -> str | None:
    # haltpoll and ladder poll only where no latency at all is tolerated; menu and teo compare
    # the limit with the exit latencies.
    only_zero = scan.cpuidle.governor in ("haltpoll", "ladder")

    def polls(cpu: Cpu) -> bool:
        limits = [x for x in (cpu.resume_latency_us, scan.latency_limit_us) if x is not None]
        usable = [state.latency_us for state in _deeper(cpu) if not state.disabled]
        latencies = [latency for latency in usable if latency is not None]
        if not limits or not latencies or not _polls_first(cpu):
            return False
        return min(limits) == 0 if only_zero else min(limits) < min(latencies)

    cpus = [cpu for cpu in scan.cpus if polls(cpu)]
    if not cpus:
        return None
    sources = []
    if scan.latency_limit_us is not None:
        sources.append(f"/dev/cpu_dma_latency {scan.latency_limit_us} us")
    own = {cpu.resume_latency_us for cpu in cpus if cpu.resume_latency_us is not None}
    if own:
        sources.append(
            f"pm_qos_resume_latency_us {', '.join(str(x or 'n/a') for x in sorted(own))}"
        )
    return f"{_on(cpus)}: {' and '.join(sources)}"


def _nohz_off(scan: Scan) -> str | None:
    if not _is_off(scan.kernel.options.get("nohz", "on")):
        return None
    deep = {
        state.name
        for cpu in scan.cpus
        for state in _deeper(cpu)
        if not state.disabled and (state.residency_us or 0) >= SHORTEST_TICK_US
    }
    return f"nohz=off with {', '.join(sorted(deep))}" if deep else None


def _poll_queues_missing(scan: Scan) -> str | None:
    disk_of = {"virtio_blk": "vd", "nvme": "nvme"}
    missing = [
        f"{driver}.poll_queues={count}, but {disk} has io_poll 0"
        for driver, count in scan.io.poll_queues.items()
        for disk, polled in scan.io.disks.items()
        if count and disk.startswith(disk_of[driver]) and not polled
    ]
    return "; ".join(missing) or None


def _lightsleep_off(scan: Scan) -> str | None:
    if scan.lightsleep and scan.lightsleep.mode == "off":
        return "module cpuidle_lightsleep is loaded with mode off"
    return None


def _lightsleep_limit_low(scan: Scan) -> str | None:
    knobs = scan.lightsleep
    if not knobs or knobs.mode == "off" or knobs.poll_limit_us is None or not knobs.halt_cost_ns:
        return None
    if knobs.poll_limit_us * 1000 >= knobs.halt_cost_ns:
        return None
    return f"poll_limit_us {knobs.poll_limit_us} is below the {knobs.halt_cost_ns:,} ns of a halt"


def _lightsleep_wasteful(scan: Scan) -> str | None:
    if not scan.lightsleep or scan.lightsleep.mode != "fixed":
        return None
    stats = [cpu.lightsleep for cpu in scan.cpus if cpu.lightsleep]
    polls = sum(s.polls or 0 for s in stats)
    hits = sum(s.hits or 0 for s in stats)
    if polls < ENOUGH_POLLS or hits >= polls * POOR_HIT_RATE:
        return None
    return f"mode fixed, and {hits:,} of {polls:,} polls ({hits / polls:.1%}) saw a wakeup"


def interrupts_polling_cpus(scan: Scan) -> bool:
    """Return whether a wakeup takes an IPI even where the CPU polls.

    It does on arm64, unless the kernel has TIF_POLLING_NRFLAG. Nothing tells user space so; but
    whoever brings the governor haltpoll to arm64 brings the flag, too.
    """
    return scan.kernel.arch == "aarch64" and "haltpoll" not in scan.cpuidle.available_governors


def _arm64_ipi(scan: Scan) -> str | None:
    if not interrupts_polling_cpus(scan):
        return None
    if scan.lightsleep and scan.lightsleep.mode != "off":
        return "lightsleep polls on arm64"
    polling = _on([cpu for cpu in scan.cpus if _polls_first(cpu) and not cpu.states[0].disabled])
    return f"{polling}: polling state on arm64" if polling else None


def _not_sorted(scan: Scan) -> str | None:
    wrong = {
        f"{deep.name} after {shallow.name}"
        for _, shallow, deep in _state_pairs(scan)
        if (deep.latency_us is not None and deep.latency_us < (shallow.latency_us or 0))
        or (deep.residency_us is not None and deep.residency_us < (shallow.residency_us or 0))
    }
    return f"latency or residency falls: {', '.join(sorted(wrong))}" if wrong else None


def _residency_below_latency(scan: Scan) -> str | None:
    # lightsleep's HALT polls before it halts, so no idle period is too short for it.
    if scan.cpuidle.driver == LIGHTSLEEP_DRIVER:
        return None
    wrong = {
        f"{state.name} ({state.residency_us} us residency, {state.latency_us} us latency)"
        for cpu in scan.cpus
        for state in _deeper(cpu)
        if state.residency_us is not None and state.residency_us < (state.latency_us or 0)
    }
    return ", ".join(sorted(wrong)) or None


def _equal_states(scan: Scan) -> str | None:
    wrong = {
        f"{shallow.name} and {deep.name}"
        for _, shallow, deep in _state_pairs(scan)
        if None not in (deep.latency_us, deep.residency_us)
        and (shallow.latency_us, shallow.residency_us) == (deep.latency_us, deep.residency_us)
    }
    return f"same latency and residency: {', '.join(sorted(wrong))}" if wrong else None


RULES = [
    Rule(
        "idle-poll-wins",
        "warning",
        _idle_poll_wins,
        "With idle=poll the idle loop spins and never asks cpuidle: no driver, governor or "
        "polling limit is used, and an idle CPU takes full power.",
        "Drop idle=poll, or drop the rest.",
    ),
    Rule(
        "idle-poll-smt",
        "warning",
        _idle_poll_smt,
        "A spinning thread takes issue slots and turbo budget from its busy sibling; the kernel "
        "itself warns about this pair at boot.",
        "Boot with nosmt, or use a polling idle with a limit instead of idle=poll.",
    ),
    Rule(
        "idle-override",
        "warning",
        _idle_override,
        "intel_idle and haltpoll refuse to load with any idle= option, acpi_idle with idle=halt; "
        "their own options are then without effect.",
        "Drop idle=, or drop the options named here.",
    ),
    Rule(
        "cpuidle-off",
        "warning",
        _cpuidle_off,
        "cpuidle.off=1 makes every driver and governor fail to register; options for them are "
        "without effect.",
        "Drop cpuidle.off, or drop the options named here.",
    ),
    Rule(
        "governor-unknown",
        "warning",
        _governor_unknown,
        "A governor name that matches none is ignored without a message, but still stops a "
        "driver from choosing its own governor.",
        "Name an available governor.",
    ),
    Rule(
        "acpi-takes-over",
        "warning",
        _acpi_takes_over,
        "intel_idle.max_cstate=0 switches only intel_idle off. acpi_idle then binds and offers "
        "the deep states of the firmware.",
        "Use intel_idle.max_cstate=1, or add processor.max_cstate=1.",
    ),
    Rule(
        "max-cstate-unused",
        "warning",
        _max_cstate_unused,
        "processor.max_cstate limits acpi_idle only; intel_idle does not read it.",
        "Use intel_idle.max_cstate.",
    ),
    Rule(
        "haltpoll-grow-start",
        "warning",
        _haltpoll_grow_start,
        "The first growth is cut to guest_halt_poll_ns and the first shrink falls below "
        "grow_start, which means 0: the limit no longer adapts, it is all or nothing. Published "
        "SAP HANA settings differ by 10x here (24,000,000 and 2,400,000).",
        "Set guest_halt_poll_grow_start at or below guest_halt_poll_ns.",
    ),
    Rule(
        "haltpoll-zero",
        "warning",
        _haltpoll_zero,
        "The limit never grows from 0, so the guest never polls. The haltpoll driver, where bound, "
        "has asked the host not to poll for this guest either.",
        "Set guest_halt_poll_ns (default 200000), or unload cpuidle-haltpoll so that the host "
        "polls again.",
    ),
    Rule(
        "haltpoll-unused",
        "warning",
        _haltpoll_unused,
        "Only the haltpoll governor reads guest_halt_poll_*; under any other governor they are "
        "without effect.",
        "Write haltpoll to current_governor, or drop the settings.",
    ),
    Rule(
        "haltpoll-not-bound",
        "warning",
        _haltpoll_not_bound,
        "force only replaces the host's KVM_HINTS_REALTIME. The driver still needs a KVM guest, "
        "no idle= option, and no other cpuidle driver before it.",
        "Remove what stands in its way, or drop the option.",
    ),
    Rule(
        "haltpoll-shallow",
        "warning",
        _haltpoll_shallow,
        "The haltpoll governor chooses between the first two states only.",
        "Write menu or teo to current_governor.",
    ),
    Rule(
        "haltpoll-ignores-disable",
        "warning",
        _haltpoll_ignores_disable,
        "The haltpoll governor does not look at a state's disable file; the state is still used.",
        "Write menu or teo to current_governor, or enable the state again.",
    ),
    Rule(
        "only-polling-left",
        "warning",
        _only_polling_left,
        "Such a CPU spins whenever it is idle, at full power, and slows its SMT sibling.",
        "Write 0 to the disable file of a state that halts.",
    ),
    Rule(
        "qos-polls",
        "warning",
        _qos_polls,
        "The latency limit is below the exit latency of every state that halts, so these CPUs "
        'spin whenever they are idle ("n/a" tolerates no latency at all).',
        "Raise the limit to the exit latency of the shallowest halting state, or end the process "
        "that holds /dev/cpu_dma_latency open.",
    ),
    Rule(
        "poll-queues-missing",
        "warning",
        _poll_queues_missing,
        "The driver gives poll queues only out of the queues the device has left; a virtio disk "
        "with one queue gets none. Polled I/O on this disk falls back to interrupts.",
        "Give the device more queues, or drop poll_queues.",
    ),
    Rule(
        "lightsleep-wasteful",
        "warning",
        _lightsleep_wasteful,
        "Fewer than one poll in ten ended in a wakeup: the rest delayed the halt and burned power.",
        "Use mode adaptive, which stops polling where it does not pay.",
    ),
    Rule(
        "poll-limit-core",
        "note",
        _poll_limit_is_core_default,
        "The core takes the poll limit from the first enabled state with a target residency of "
        "10 us or more. There is none, so POLL spins for up to 1/16 of a tick (62 us at HZ=1000, "
        "625 us at HZ=100) whatever the states say.",
        "Nothing, if that is wanted; else a governor or driver that sets its own limit.",
    ),
    Rule(
        "asymmetric-states",
        "note",
        _asymmetric,
        "CPUs differ in what is disabled, so wakeup latency depends on where a task runs.",
        "Nothing, if that is wanted; else write the same to the disable files of all CPUs.",
    ),
    Rule(
        "nohz-off",
        "note",
        _nohz_off,
        "The tick wakes every idle CPU 100 to 1000 times a second, so states that need longer to "
        "pay off are hardly ever chosen.",
        "Drop nohz=off.",
    ),
    Rule(
        "lightsleep-off",
        "note",
        _lightsleep_off,
        "With mode off the driver only halts, as the kernel does without it.",
        "Set mode to adaptive, or unload the module.",
    ),
    Rule(
        "lightsleep-limit-low",
        "note",
        _lightsleep_limit_low,
        "Polling as long as a halt costs is what bounds the loss to twice the optimum; below "
        "that, wakeups that come just after the limit pay for both.",
        "Raise poll_limit_us to the cost of a halt.",
    ),
    Rule(
        "arm64-ipi",
        "note",
        _arm64_ipi,
        "Stock arm64 kernels have no TIF_POLLING_NRFLAG: polling saves the halt, but every wakeup "
        "still sends an IPI. (Kernels that have the flag are told by their governor haltpoll.)",
        "Nothing on a stock kernel; the arm64 patches of lightsleep's kernel series add the flag.",
    ),
    Rule(
        "states-not-sorted",
        "note",
        _not_sorted,
        "Governors take a higher index for a deeper state and stop searching at the first that "
        "does not fit.",
        "Measure both states; the driver or firmware table is wrong.",
    ),
    Rule(
        "residency-below-latency",
        "note",
        _residency_below_latency,
        "A sleep shorter than its own exit latency cannot save anything, so one of the two "
        "numbers is not true.",
        "Measure the state; the driver or firmware table is wrong.",
    ),
    Rule(
        "equal-states",
        "note",
        _equal_states,
        "menu and teo take the deepest state that fits, so the shallower twin is never chosen.",
        "Measure both states; the driver or firmware table is wrong.",
    ),
]
