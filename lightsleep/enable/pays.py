# SPDX-License-Identifier: GPL-2.0-only
"""Whether lightsleep pays on this machine, from what its driver counted.

A poll that ends with a wakeup (a hit) spares a halt. The driver has measured what a wakeup from a
halt costs more than one from a poll. So the time saved is hits x that cost: time that wakers and
the woken would have waited. A poll that ends without a wakeup is time polled in vain. It delays
nothing, for the CPU was idle, but it uses power, and in a guest the host's CPU.

The rule: it pays if the time saved is at least the time polled in vain. The rate of exchange is 1,
because both are times of one CPU. Where power is dear, or the host is overcommitted, ask for more.

With fewer than ENOUGH_POLLS polls the counters say nothing yet. Nothing is polled while the cost is
not known, or where the learned limit is 0 because polling does not pay: then nothing is lost.
"""

from dataclasses import dataclass
from typing import Literal

from lightsleep.scan.model import Scan

ENOUGH_POLLS = 1000

Verdict = Literal["pays", "does not pay", "too early", "not polling", "unknown"]


@dataclass(frozen=True)
class Pays:
    """The verdict, what it follows from (ns, None if unknown), and a sentence that says both."""

    verdict: Verdict
    saved_ns: int | None
    wasted_ns: int | None
    sentence: str


def pays(scan: Scan) -> Pays:
    """Return whether lightsleep pays on the CPUs of a scan, on which it is active."""
    counts = [cpu.lightsleep for cpu in scan.cpus if cpu.lightsleep]
    parameters = scan.lightsleep
    if not parameters or not counts:
        return Pays("unknown", None, None, "Whether it pays is unknown: it shows no statistics.")
    if parameters.mode == "off":
        return Pays("not polling", None, None, "It does not poll: its mode is off.")
    if not parameters.halt_cost_ns:
        return Pays(
            "not polling",
            None,
            None,
            "It does not poll yet: it has not measured what a wakeup from a halt costs.",
        )
    polls = sum(x.polls or 0 for x in counts)
    hits = sum(x.hits or 0 for x in counts)
    wasted_ns = sum(x.wasted_ns or 0 for x in counts)
    saved_ns = hits * parameters.halt_cost_ns
    if polls < ENOUGH_POLLS:
        return Pays(
            "too early",
            saved_ns,
            wasted_ns,
            f"It is too early to tell: {polls:,} polls, and {ENOUGH_POLLS:,} are needed.",
        )
    figures = (
        f"{hits:,} polls spared a halt of {parameters.halt_cost_ns / 1000:,.0f} us each, "
        f"{seconds(saved_ns)} in all, against {seconds(wasted_ns)} polled in vain"
    )
    if saved_ns >= wasted_ns:
        return Pays("pays", saved_ns, wasted_ns, f"It pays: {figures}.")
    return Pays("does not pay", saved_ns, wasted_ns, f"It does not pay: {figures}.")


def seconds(time_ns: int) -> str:
    """Return a time in words."""
    return f"{time_ns / 1e9:,.3g} s" if time_ns < 1e12 else f"{time_ns / 1e9:,.0f} s"
