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
        "nohz-off",
        "note",
        _nohz_off,
        "The tick wakes every idle CPU 100 to 1000 times a second, so states that need longer to "
        "pay off are hardly ever chosen.",
        "Drop nohz=off.",
    ),
)
