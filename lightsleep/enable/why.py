# SPDX-License-Identifier: GPL-2.0-only
"""Why a CPU does not poll, as far as its counters and settings tell.

The order is that of docs/how-to/why-not-polling.md: a reason comes before those that follow from
it. A CPU whose limit is 0 without another reason has idle periods that are too long to poll in.
"""

from lightsleep.scan.model import Cpu, Lightsleep

POLL = "POLL"
"""The driver's name for its polling state."""


def not_polling(cpu: Cpu, parameters: Lightsleep | None) -> str | None:
    """Return why a CPU that lightsleep idles would not poll now; None where it would."""
    counts = cpu.lightsleep
    if counts is None:
        return "not registered: see dmesg"
    if parameters and parameters.mode == "off":
        return "mode is off"
    if any(state.name == POLL and state.disabled for state in cpu.states):
        return "POLL is disabled"
    if counts.contended:
        return "the host needs the core"
    if counts.program_cost_upper_ns is not None and counts.program_cost_upper_ns < 0:
        return "polls slow its programs"
    if counts.limit_ns != 0:
        return None
    return "a halt costs nothing" if counts.halt_cost_ns == 0 else "idle for too long"
