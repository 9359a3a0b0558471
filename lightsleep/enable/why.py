# SPDX-License-Identifier: GPL-2.0-only
"""Why a CPU does not poll, as far as its counters and settings tell.

The order is that of docs/how-to/why-not-polling.md: a reason comes before those that follow from
it. A CPU whose limit is 0 without another reason has idle periods that are too long to poll in.
Only root may read the system-wide latency limit, which can keep such a CPU polling.
"""

from lightsleep import cpulist
from lightsleep.scan import facts
from lightsleep.scan.model import Cpu, PollStats, Scan
from lightsleep.scan.tree import LATENCY_LIMIT

POLL = "POLL"
"""The driver's name for its polling state."""
HOST_NEEDS_CORE = "the host needs the core"
"""The reason of a pause."""
FORBIDDEN = "a latency limit forbids it"
"""Why a CPU may not halt, unless HALT is disabled."""


def not_polling(cpu: Cpu, scan: Scan) -> str | None:
    """Return why a CPU that lightsleep idles would not poll now; None where it would."""
    counts = cpu.lightsleep
    if counts is None:
        return "no statistics: see dmesg"
    if _may_not_halt(cpu):
        return None
    forced = facts.limit_forces_polling(scan, cpu)
    if forced and _heeds_limits(counts, scan):
        return None
    if scan.lightsleep and scan.lightsleep.mode == "off":
        return "mode is off"
    if any(state.name == POLL and state.disabled for state in cpu.states):
        haltpoll = facts.governor_is_haltpoll(scan) and facts.haltpoll_may_poll(scan, cpu)
        chosen = haltpoll and _heeds_limits(counts, scan)
        return "POLL is disabled" + (", unless the governor haltpoll chooses it" if chosen else "")
    fixed = scan.lightsleep and scan.lightsleep.mode == "fixed"  # whatever the CPU has learned
    halts_at_once = counts.limit_ns == 0
    if counts.contended and (not fixed or (forced and halts_at_once)):
        return HOST_NEEDS_CORE
    if forced and halts_at_once:  # though a limit would have it poll all the time
        return "the host is short of cores: no latency limit counts"
    harm_ns = counts.program_cost_upper_ns
    if harm_ns is not None and harm_ns < 0 and not fixed:
        return "polls slow its programs"
    if not halts_at_once:
        return None
    why = "the cost of a halt is 0" if counts.halt_cost_ns == 0 else "idle for too long"
    unknown = LATENCY_LIMIT in scan.problems and _heeds_limits(counts, scan)
    return f"{why}, or a latency limit keeps it polling (root sees)" if unknown else why


def always_polling(cpu: Cpu, scan: Scan) -> str | None:
    """Return why a CPU that lightsleep idles polls whenever it is idle; None where it may halt.

    Without root, a limit of the whole system is not seen.
    """
    if cpu.lightsleep is None:
        return None
    if _may_not_halt(cpu):
        return "HALT is disabled"
    if facts.limit_forces_polling(scan, cpu) and _heeds_limits(cpu.lightsleep, scan):
        return FORBIDDEN
    return None


def always_polls(scan: Scan) -> str:
    """Say which CPUs poll whenever they are idle now, and why; empty where none is known to."""
    cpus: dict[str, list[int]] = {}
    for cpu in scan.cpus:
        if why := always_polling(cpu, scan):
            cpus.setdefault(why, []).append(cpu.number)
    return "; ".join(
        f"CPU {cpulist.format(numbers)} may not halt: {why}"
        + (" (sudo lightsleep scan names who holds it)" if why == FORBIDDEN else "")
        for why, numbers in sorted(cpus.items())
    )


def _may_not_halt(cpu: Cpu) -> bool:
    """Return whether the user has disabled all that halts."""
    halts = facts.deeper(cpu)
    return bool(halts) and all(state.disabled for state in halts)


def _heeds_limits(counts: PollStats, scan: Scan) -> bool:
    """Return whether the CPU lets a latency limit keep it polling."""
    knobs = scan.lightsleep
    if knobs and (knobs.mode == "off" or knobs.host_is_short):
        return False
    return not counts.contended
