# SPDX-License-Identifier: GPL-2.0-only
"""Why a CPU does not poll, as far as its counters and settings tell.

The order is that of docs/how-to/why-not-polling.md: a reason comes before those that follow from
it. A CPU whose limit is 0 without another reason has idle periods that are too long to poll in.
Only root may read the system-wide latency limit, which can keep such a CPU polling.
"""

from lightsleep.scan import facts
from lightsleep.scan.model import Cpu, PollStats, Scan
from lightsleep.scan.tree import LATENCY_LIMIT

POLL = "POLL"
"""The driver's name for its polling state."""


def not_polling(cpu: Cpu, scan: Scan) -> str | None:
    """Return why a CPU that lightsleep idles would not poll now; None where it would."""
    counts = cpu.lightsleep
    if counts is None:
        return "no statistics: see dmesg"
    if _may_not_halt(cpu) or (_heeds_limits(counts, scan) and _limit_forbids_halt(cpu, scan)):
        return None
    if scan.lightsleep and scan.lightsleep.mode == "off":
        return "mode is off"
    if any(state.name == POLL and state.disabled for state in cpu.states):
        return "POLL is disabled"
    fixed = scan.lightsleep and scan.lightsleep.mode == "fixed"  # whatever the CPU has learned
    if counts.contended and not fixed:
        return "the host needs the core"
    harm_ns = counts.program_cost_upper_ns
    if harm_ns is not None and harm_ns < 0 and not fixed:
        return "polls slow its programs"
    if counts.limit_ns != 0:
        return None
    why = "the cost of a halt is 0" if counts.halt_cost_ns == 0 else "idle for too long"
    unknown = LATENCY_LIMIT in scan.problems and _heeds_limits(counts, scan)
    return f"{why}, or a latency limit keeps it polling (root sees)" if unknown else why


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


def _limit_forbids_halt(cpu: Cpu, scan: Scan) -> bool:
    """Return whether a latency limit is below what a halt takes to leave.

    The driver compares by itself, so it does not matter which governor runs.
    """
    limit_us = facts.latency_limit_us(scan, cpu)
    latencies = [x.latency_us for x in facts.deeper(cpu) if x.latency_us is not None]
    return limit_us is not None and bool(latencies) and limit_us < min(latencies)
