# SPDX-License-Identifier: GPL-2.0-only
"""Options of the kernel command line that exclude each other, or that nothing reads."""

from lightsleep.scan import facts
from lightsleep.scan.model import Scan
from lightsleep.scan.rule import Rule

# The tick period at HZ=1000, the shortest there is.
SHORTEST_TICK_US = 1000


def _idle_poll_wins(scan: Scan) -> str | None:
    if facts.idle_override(scan) != "poll":
        return None
    unused = facts.words(scan, "intel_idle.", "processor.", "cpuidle", "haltpoll.")
    if scan.lightsleep:
        unused.append("module cpuidle_lightsleep")
    if scan.cpuidle.driver:
        unused.append(f"driver {scan.cpuidle.driver}")
    return f"idle=poll together with {', '.join(unused)}" if unused else None


def _idle_poll_smt(scan: Scan) -> str | None:
    if facts.idle_override(scan) == "poll" and scan.smt_active:
        return "idle=poll with SMT active"
    return None


def _idle_override(scan: Scan) -> str | None:
    override = facts.idle_override(scan)
    if override not in ("halt", "nomwait"):
        return None
    ignored = facts.words(scan, "intel_idle.", "cpuidle_haltpoll.", "haltpoll.")
    if override == "halt":
        ignored += facts.words(scan, "processor.")
    return f"idle={override} together with {', '.join(ignored)}" if ignored else None


def _cpuidle_off(scan: Scan) -> str | None:
    if not facts.cpuidle_off(scan):
        return None
    prefixes = ("cpuidle.governor", "cpuidle_", "intel_idle.", "processor.", "haltpoll.")
    ignored = facts.words(scan, *prefixes)
    return f"cpuidle.off together with {', '.join(ignored)}" if ignored else None


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
    deep = {s.name for cpu in scan.cpus for s in facts.deeper(cpu)[1:] if not s.disabled}
    return (
        f"intel_idle.max_cstate=0, yet acpi_idle offers {', '.join(sorted(deep))}" if deep else None
    )


def _max_cstate_unused(scan: Scan) -> str | None:
    options = scan.kernel.options
    if scan.cpuidle.driver != "intel_idle" or "intel_idle.max_cstate" in options:
        return None
    words = facts.words(scan, "processor.max_cstate")
    return f"{words[0]} with driver intel_idle" if words else None


def _nohz_off(scan: Scan) -> str | None:
    if not facts.is_off(scan.kernel.options.get("nohz", "on")):
        return None
    deep = {
        state.name
        for cpu in scan.cpus
        for state in facts.deeper(cpu)
        if not state.disabled and (state.residency_us or 0) >= SHORTEST_TICK_US
    }
    return f"nohz=off with {', '.join(sorted(deep))}" if deep else None


RULES = (
    Rule(
        "idle-poll-wins",
        "warning",
        _idle_poll_wins,
        "With idle=poll, the idle loop spins and never asks cpuidle. The kernel uses no driver, "
        "governor, or poll limit, and an idle CPU runs at full power.",
        "Remove idle=poll, or remove the settings named above.",
    ),
    Rule(
        "idle-poll-smt",
        "warning",
        _idle_poll_smt,
        "A spinning thread slows its busy sibling: they share execution units and turbo budget. "
        "The kernel warns about this pair at boot.",
        "Boot with nosmt, or replace idle=poll by an idle driver that polls for a limited time.",
    ),
    Rule(
        "idle-override",
        "warning",
        _idle_override,
        "intel_idle and haltpoll do not load with any idle= option. acpi_idle does not load with "
        "idle=halt. Their own options then have no effect.",
        "Remove idle=, or remove the options named above.",
    ),
    Rule(
        "cpuidle-off",
        "warning",
        _cpuidle_off,
        "With cpuidle.off=1, no driver and no governor registers. Their options have no effect.",
        "Remove cpuidle.off, or remove the options named above.",
    ),
    Rule(
        "governor-unknown",
        "warning",
        _governor_unknown,
        "The kernel ignores an unknown governor name without a message. The option still keeps a "
        "driver from choosing its own governor.",
        "Name one of the available governors.",
    ),
    Rule(
        "acpi-takes-over",
        "warning",
        _acpi_takes_over,
        "intel_idle.max_cstate=0 disables only intel_idle. acpi_idle ignores it, and offers the "
        "deep states of the firmware.",
        "Add processor.max_cstate=1. On Intel, intel_idle.max_cstate=1 alone is enough.",
    ),
    Rule(
        "max-cstate-unused",
        "warning",
        _max_cstate_unused,
        "Only acpi_idle reads processor.max_cstate. intel_idle ignores it.",
        "Use intel_idle.max_cstate instead.",
    ),
    Rule(
        "nohz-off",
        "note",
        _nohz_off,
        "The tick wakes every idle CPU 100 to 1000 times a second. Governors therefore rarely "
        "choose a state whose residency is longer than the tick period.",
        "Remove nohz=off.",
    ),
)
