# SPDX-License-Identifier: GPL-2.0-only
"""What to measure, in which order, and when it is enough. No side effects.

A *cell* is one question: what does it cost to wake CPU ``dest`` out of this state by this
source? Beside every (dest, source) stands one cell of its own, the baseline, in which a kernel
thread keeps the CPU busy: what the interrupt, the timer and the stamps themselves cost. Only the
difference is the price of idling, and it is taken on the same CPU, by the same source, in the
same minute, because the baseline of another CPU is another number.

Order. Machines drift: clocks change, caches warm, neighbours come and go. So a cell is not
measured in one go but in batches, and the batches come in rounds: every round holds each
unfinished cell of a CPU once, in random order, so that drift meets all cells alike (a randomised
block design).

Batches. The samples of a batch are alike: the machine has no time to drift. How much they are worth
together shows in how they resemble each other, but only if there are many batches
(lightsleep/order.py). So each has BATCH samples at most, however many are wanted: tests simulate
that the intervals then hold what they should where batches differ, and with 50 in a batch they do
not. And a batch cannot be interrupted: that is what Ctrl-C and the progress bar wait for. So it
ends within BATCH_NS, or has one sample only, which takes MAX_DISTANCE_NS at most. A state that is
never entered, or a source that is dead, shows in a few samples; but so does a burst of other work.
Two batches or more without a valid sample close the cell once they have HOPELESS samples, or took
HOPELESS_NS. A cell that yields valid samples is topped up until it has what was asked for, or until
it took TRIES times as many, or PATIENCE batches of which not one sample in YIELD was valid.

Launch distance. Between arming and launch the CPU must run to the idle loop (FLOOR_NS), enter the
state and stay there. A state is only ever a fair choice for sleeps of its target residency, and it
may take its exit latency to enter, which the advertised numbers do not tell apart. So the distance
is at least FLOOR_NS + residency + latency, and a sample counts only where the CPU has been in the
state for its exit latency by then. Above that minimum the distance is random, by SPREAD_NS or
half of the minimum, whichever is more: an even distance would lock to the tick, or to a governor
that learns it. For states of up to 50 us this keeps the mean under half a millisecond.

Who wakes. The source CPU runs for every launch, so it must not be the destination, nor share its
core (a busy sibling keeps the core awake, and most deep states are those of the core), nor be a
CPU that somebody set apart. Near ones come first: a wake across sockets measures the
interconnect. Of those as near as each other, a CPU of another cluster comes first: a state of a
whole cluster lasts only while all its CPUs idle, so a waker in it ends that state before the
launch. A store wakes only who watches memory: polling and MWAIT states, and not on a kernel that
interrupts CPUs that poll, too (arm64 without TIF_POLLING_NRFLAG).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lightsleep import cpulist
from lightsleep.errors import Skipped, WrongUsage
from lightsleep.measure.model import Batch, Source
from lightsleep.scan.machine import Cpu, IdleState, Machine, say

FLOOR_NS = 50_000
SPREAD_NS = 100_000
MAX_DISTANCE_NS = 1_000_000_000  # the kernel module's own limit
BATCH_NS = 500_000_000
BATCH = 10
PATIENCE = 16
TRIES = 4
YIELD = 8
HOPELESS = 50
HOPELESS_NS = 1_000_000_000

# What a sample takes beside its distance and the latency, for estimates only.
OVERHEAD_NS = 50_000

NOBODY_WATCHES = (
    "a store wakes only states that poll or use MWAIT, and no state to measure does: "
    "use --source ipi"
)
INTERRUPTED = (
    "this kernel interrupts a CPU that polls, too (no TIF_POLLING_NRFLAG), so a store wakes no "
    "state: use --source ipi"
)


@dataclass(frozen=True)
class Wish:
    """What the user asked for. ``cpus`` empty: all that nobody set apart; ``states``: all."""

    cpus: tuple[int, ...]
    states: tuple[str, ...]
    sources: tuple[Source, ...]
    samples: int
    source_cpu: int | None


@dataclass(frozen=True)
class Cell:
    """A question: wakes of ``dest`` by ``source`` from CPU ``src``; no state: kept busy.

    A timer is its own source: ``src`` is ``dest``.
    """

    source: Source
    src: int
    dest: int
    state: IdleState | None

    @property
    def requested(self) -> str:
        """The state in the words of a Batch."""
        return str(self.state.index) if self.state else "busy"

    def distances(self) -> tuple[int, int, int]:
        """Return shortest and longest launch distance, and the least residency then, in ns."""
        latency_ns = 1000 * ((self.state and self.state.latency_us) or 0)
        residency_ns = 1000 * ((self.state and self.state.residency_us) or 0)
        longest = MAX_DISTANCE_NS * 2 // 3
        shortest = min(FLOOR_NS + residency_ns + latency_ns, longest)
        return shortest, shortest + max(SPREAD_NS, shortest // 2), min(latency_ns, shortest)

    def cost_ns(self) -> int:
        """Return about how long a sample takes."""
        shortest, longest, min_residency = self.distances()
        return (shortest + longest) // 2 + min_residency + OVERHEAD_NS

    def batch(self, samples: int) -> Batch:
        """Return the request for so many samples."""
        shortest, longest, min_residency = self.distances()
        return Batch(
            self.source,
            self.src,
            self.dest,
            self.requested,
            samples,
            shortest,
            longest,
            min_residency,
        )


def next_batch(cell: Cell, wanted: int, tried: int, valid: int, batches: int, taken_ns: int) -> int:
    """Return how many samples to take next for a cell, 0 where it is finished.

    ``tried`` and ``valid`` count the samples so far, ``batches`` what they came in. All batches of
    the cell together took ``taken_ns``.
    """
    if valid:
        hopeless = batches >= PATIENCE and valid * YIELD < tried
    else:
        hopeless = batches >= 2 and (tried >= HOPELESS or taken_ns >= HOPELESS_NS)
    left = min(wanted - valid, wanted * TRIES - tried)
    if hopeless or left <= 0:
        return 0
    fits = max(1, BATCH_NS // (cell.distances()[1] + OVERHEAD_NS))
    return min(BATCH, fits, left)


def check(machine: Machine, wish: Wish) -> None:
    """Raise WrongUsage for a CPU that is not there, and for one that has only itself to wake."""
    asked = {*wish.cpus} if wish.source_cpu is None else {*wish.cpus, wish.source_cpu}
    if missing := asked - machine.cpus.keys():
        raise WrongUsage(
            f"CPU {cpulist.format(missing)} is not online; "
            f"online are {cpulist.format(machine.cpus)}"
        )
    others = [source for source in wish.sources if source != "timer"]
    if wish.source_cpu is not None and not others:
        raise WrongUsage(
            "--source-cpu names the CPU that wakes others, and a timer wakes its own CPU: name "
            "another --source, too"
        )
    if others and [cpu.number for cpu in _destinations(machine, wish)] == [wish.source_cpu]:
        raise WrongUsage(
            f"CPU {wish.source_cpu} cannot wake itself by {', '.join(others)}, and no other CPU is "
            "to be measured: name another one with --source-cpu or with -c"
        )


def cells(
    machine: Machine, wish: Wish, usable: dict[Source, str | None]
) -> tuple[list[Cell], list[str]]:
    """Return what to measure, CPU by CPU, and notes on what is left out and why.

    ``wish`` has passed check(). ``usable`` gives the reason for every source that cannot be used.
    Raises Skipped where nothing is left to measure.
    """
    whys = {source: usable[source] for source in wish.sources}
    notes = [f"{source}: {why}" for source, why in whys.items() if why]
    sources = [source for source, why in whys.items() if not why]
    spared = [] if wish.cpus else [x.number for x in machine.cpus.values() if x.reserved]
    if spared:
        notes.append(
            f"CPU {cpulist.format(spared)} is isolated or in nohz_full=: use -c to measure it"
        )
    found: list[Cell] = []
    said: list[tuple[int, str]] = []
    deaf: str | None = None  # why a store would wake none of a CPU's states
    for cpu in _destinations(machine, wish):
        states = _states(cpu, wish, said)
        src = source_cpu(machine, cpu, wish.source_cpu)
        others = [source for source in sources if source != "timer"]
        if src is None and others:
            said.append((cpu.number, _unwoken(machine, cpu, wish, others)))
        elif src in cpu.siblings and others:
            said.append(
                (cpu.number, "the CPU that wakes it shares its core, so the core never sleeps")
            )
        elif src in cpu.cluster and others:
            why = "only its timer measures what a state of the whole cluster adds"
            said.append((cpu.number, f"the CPU that wakes it shares its cluster: {why}"))
        for source in sources:
            waker = cpu.number if source == "timer" else src
            if waker is not None:
                block = _block(source, waker, cpu.number, states)
                if source == "store" and states and not block:
                    watch = any(state.polls or state.monitors for state in states)
                    deaf = INTERRUPTED if watch else NOBODY_WATCHES
                found += block
    notes += say(said)
    if not found and deaf:
        notes.append(deaf)
    if not found:
        raise Skipped("nothing to measure: " + ("; ".join(notes) or "no idle state is enabled"))
    return found, notes


def _unwoken(machine: Machine, dest: Cpu, wish: Wish, others: Sequence[Source]) -> str:
    """Say why no CPU wakes ``dest`` by ``others``."""
    if dest.number == wish.source_cpu:
        return f"--source-cpu names it, and no CPU can wake itself by {', '.join(others)}"
    if machine.cpus.keys() - {dest.number}:
        return (
            f"not woken by {', '.join(others)}: all other CPUs are isolated or in nohz_full=; "
            "name one with --source-cpu to have it wake others"
        )
    return f"no other CPU can wake it by {', '.join(others)}"


def _block(source: Source, src: int, dest: int, states: Sequence[IdleState]) -> list[Cell]:
    """Return the cells of one source, its baseline first."""
    fitting = [state for state in states if source != "store" or state.sees_stores]
    return [Cell(source, src, dest, state) for state in (None, *fitting)] if fitting else []


def _destinations(machine: Machine, wish: Wish) -> list[Cpu]:
    if wish.cpus:
        return [machine.cpus[number] for number in wish.cpus]
    return [cpu for cpu in machine.cpus.values() if not cpu.reserved]


def _states(cpu: Cpu, wish: Wish, said: list[tuple[int, str]]) -> list[IdleState]:
    if wish.states:
        return [state for state in cpu.states if names(state) & set(wish.states)]
    disabled = (state.name for state in cpu.states if state.disabled)
    said += (
        (cpu.number, f"{name} is disabled: name it with --state to measure it") for name in disabled
    )
    return [state for state in cpu.states if not state.disabled]


def names(state: IdleState) -> set[str]:
    """Return what a user may call a state."""
    return {state.name, str(state.index)}


def source_cpu(machine: Machine, dest: Cpu, asked: int | None) -> int | None:
    """Return the CPU that wakes ``dest``, None where there is none."""
    if asked is not None:
        return asked if asked != dest.number else None
    free = [x for x in machine.cpus.values() if x.number != dest.number and not x.reserved]
    best = min(
        free,
        key=lambda cpu: (
            cpu.number in dest.siblings,
            cpu.node != dest.node,
            cpu.package != dest.package,
            cpu.number in dest.cluster,
            abs(cpu.number - dest.number),
            cpu.number,
        ),
        default=None,
    )
    return best.number if best else None
