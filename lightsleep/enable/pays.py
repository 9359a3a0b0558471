# SPDX-License-Identifier: GPL-2.0-only
"""Whether lightsleep pays on this machine, from what its driver counted.

A poll that ends with a wakeup (a hit) spares a halt. The driver knows for each CPU what a wakeup
from a halt costs more than one from a poll. So the time saved is the sum over CPUs of hits x that
cost: time that wakers and the woken would have waited. A poll that ends without a wakeup is time
polled in vain. It delays nothing, for the CPU was idle, but it uses power, and in a guest the
host's CPU. So does the time of a hit, up to the wakeup: the sentence also says how much was polled
in all.

The rule: it pays if the time saved, times the driver's exchange rate (``wait_weight``), is at least
the time polled in vain. A driver without that parameter is judged at a rate of 1.

The time up to wakeups can be left out of that where the driver decides: no poll is longer than two
prices, and than eight in a probe. A price is what a halt costs, times that rate. But where a
latency limit or the user forbids halts, and in mode fixed, a poll may last for as long as the CPU
is idle, and none is in vain. So a CPU polls for too long if its time up to wakeups is more than
LONGEST_POLL prices for each of them. It does not pay either if the time of these CPUs is more than
the time saved on all of them is worth: one CPU with many short waits does not hide the others.

With fewer than ENOUGH_POLLS polls the counters say nothing yet. Where the cost is 0 on all CPUs, a
halt costs nothing there, or polls made wakeups slower, or the machine has not been measured yet.
Before that, no CPU polls; later, one does so in mode fixed, or because a latency limit or the user
forbids it to halt. Such polls spare nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lightsleep.enable.why import always_polls, not_polling
from lightsleep.scan import facts
from lightsleep.scan.model import PollStats, Scan
from lightsleep.scan.tree import LATENCY_LIMIT
from lightsleep.units import seconds

NO_COST = (
    "the cost of a halt is 0, because {}halts cost nothing here, or polls made wakeups slower "
    "(dmesg says which)"
)

LONGEST_POLL = 8
"""In prices: the longest poll of a CPU that decides by itself."""

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
    polls = sum(x.polls or 0 for x in counts)
    hits = sum(x.hits or 0 for x in counts)
    wasted_ns = sum(x.wasted_ns or 0 for x in counts)
    costs_ns = [x.halt_cost_ns or 0 for x in counts]
    saved_ns = sum(map(_saved_ns, counts))
    polled_ns = sum(x.polled_ns or 0 for x in counts)
    if not any(costs_ns) and not _polls_now(scan):
        return Pays("not polling", None, None, _not_polling(scan, polls))
    if polls < facts.ENOUGH_POLLS:
        return Pays(
            "too early",
            saved_ns,
            wasted_ns,
            f"It is too early to tell: {polls:,} polls, and {facts.ENOUGH_POLLS:,} are needed.",
        )
    if not any(costs_ns):
        told = f"{seconds(polled_ns)} so far, {seconds(wasted_ns)} of it in vain"
        sentence = f"It does not pay: {NO_COST.format('')}, and CPUs poll all the same: {told}."
        return Pays("does not pay", 0, wasted_ns, sentence)
    weight = parameters.wait_weight or 1
    figures = (
        f"{hits:,} polls spared a halt each, {seconds(saved_ns)} of waiting in all, against "
        f"{seconds(wasted_ns)} polled in vain"
    )
    if polled_ns:
        figures += f", of {seconds(polled_ns)} polled"
    figures += _at_rate(weight)
    long = [x for x in counts if _until_hits_ns(x) > LONGEST_POLL * weight * _saved_ns(x)]
    if sum(map(_until_hits_ns, long)) > max(saved_ns * weight, wasted_ns):
        sentence = _too_long(scan, long, weight)
        return Pays("does not pay", saved_ns, wasted_ns, sentence)
    pays_off = saved_ns * weight >= wasted_ns
    sentence = f"It {'pays' if pays_off else 'does not pay'}: {figures}."
    if parameters.halt_cost_ns == 0:
        sentence += (
            " The machine has no measured cost, or it is 0 (dmesg says which): a halt counts as "
            f"{max(costs_ns) / 1000:.3g} us, which programs tell, or which is assumed."
        )
    return Pays("pays" if pays_off else "does not pay", saved_ns, wasted_ns, sentence)


def _at_rate(weight: int) -> str:
    return f" (a second of waiting counts as {weight} of polling)" if weight != 1 else ""


def _saved_ns(x: PollStats) -> int:
    return (x.hits or 0) * (x.halt_cost_ns or 0)


def _until_hits_ns(x: PollStats) -> int:
    return (x.polled_ns or 0) - (x.wasted_ns or 0)


def _too_long(scan: Scan, counts: Sequence[PollStats], weight: int) -> str:
    until_hits_ns, saved_ns = sum(map(_until_hits_ns, counts)), sum(map(_saved_ns, counts))
    hits = sum(x.hits or 0 for x in counts)
    one = len(counts) == 1
    return (
        f"It does not pay: {'1 CPU' if one else f'{len(counts)} CPUs'} polled for "
        f"{seconds(until_hits_ns)} in all until {hits:,} wakeups came, and that spared "
        f"{seconds(saved_ns)} of waiting{_at_rate(weight)}. {_why_so_long(scan)}."
    )


def _why_so_long(scan: Scan) -> str:
    """Return what can be the reason now: nothing tells how it was when the CPUs polled."""
    if scan.lightsleep and scan.lightsleep.mode == "fixed":
        return "The mode is fixed"
    if always := always_polls(scan):
        return f"Now, {always}"
    if LATENCY_LIMIT in scan.problems:
        return "A latency limit may forbid CPUs to halt, which only root sees"
    return (
        "Nothing keeps CPUs polling now: when they did, it was a latency limit, a disabled HALT, "
        "another mode, or a halt that cost more"
    )


def _polls_now(scan: Scan) -> bool:
    """Return whether a CPU is known to poll now."""
    return any(not_polling(cpu, scan) is None for cpu in scan.cpus)


def _not_polling(scan: Scan, polls: int) -> str:
    """Return the sentence on CPUs that do not poll now, as the cost of a halt is 0."""
    why = NO_COST.format("" if polls else "it is not measured yet, or ")
    unseen = polls and LATENCY_LIMIT in scan.problems
    unless = ", unless a latency limit keeps CPUs polling, which only root sees"
    return f"It does not poll: {why}{unless if unseen else ''}."
