# SPDX-License-Identifier: GPL-2.0-only
"""What leaving idle states costs on a machine, and who converses with whom there.

evidence.py finds it in a recording.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from lightsleep.periods.model import Metadata
from lightsleep.replay.rows import Flags, Ns, distinct
from lightsleep.replay.stays import NO_STATE

Content = tuple[object, ...]
"""What a table of idle states says: of each, index, name, whether it polls, and what it advertises.
() where nobody described any."""


class Tables:
    """Which CPUs have the same table of states: a number for each CPU.

    CPUs of which nobody described any state share the last number. ``first`` has a CPU of each
    other table. A number holds as long as no CPU is forgotten (keep_seen() of architecture.py);
    ``contents`` has what each number stands for.
    """

    def __init__(self, metadata: Metadata) -> None:
        """Compare what the states of CPUs are called and advertise."""
        numbers: dict[Content, int] = {}
        self.of_cpu: dict[int, int] = {}
        for cpu, states in sorted(metadata.states.items()):
            table = tuple(
                (
                    *(state, name, (cpu, state) in metadata.polling),
                    metadata.advertised_us.get((cpu, state)),
                    metadata.residency_us.get((cpu, state)),
                )
                for state, name in sorted(states.items())
            )
            self.of_cpu[cpu] = numbers.setdefault(table, len(numbers))
        self.count = len(numbers) + 1
        self.contents: list[Content] = [*numbers, ()]
        self.first = {table: cpu for cpu, table in sorted(self.of_cpu.items(), reverse=True)}

    def __getitem__(self, cpu: int) -> int:
        """Return the number of a CPU's table."""
        return self.of_cpu.get(cpu, self.count - 1)

    def number(self, content: Content) -> int:
        """Return the number of the table that says so; the last one where no CPU has it."""
        return self.contents.index(content) if content in self.contents else self.count - 1

    def of(self, cpus: Ns) -> Ns:
        """Return the number of each CPU's table."""
        if self.count == 1:
            return np.zeros(len(cpus), np.int64)
        found = np.full(len(cpus), self.count - 1)
        for cpu in distinct(cpus):
            found[cpus == cpu] = self[cpu]
        return found


@dataclass(frozen=True)
class Ranks:
    """How long wakeups of the reference took that are as slow as those from a state, by rank.

    The wakeup from the state that took ``from_ns[i]`` or longer, but less than the next one, is as
    slow as one of the reference that took ``usual_ns[i]``. The first element of ``from_ns`` is 0.
    """

    from_ns: tuple[int, ...]
    usual_ns: tuple[int, ...]

    def of(self, waits_ns: Ns) -> Ns:
        """Return the time of the reference for wakeups from the state that took so long."""
        at = np.searchsorted(np.array(self.from_ns), waits_ns, side="right") - 1
        usual_ns: Ns = np.array(self.usual_ns, np.int64)[at]
        return usual_ns


@dataclass
class Costs:
    """What leaving idle states costs here, and who converses with whom.

    ``reference_ns`` is None where too few wakeups found a CPU polling or awake, or took longer than
    those from a halt (see EXACT of reference.py); else it is that of CPUs that ``halt_ns`` is of.
    ``references_ns`` has what such wakeups take by table of states. ``supposed_ns`` is what they
    would take by the cost that the module had measured, None where that is not needed, not known,
    or no lower than what wakeups from a halt take. ``given`` says that a user knows what a wakeup
    from each halt costs, ``measured`` in which file. ``hides_polls`` and ``lacks_driver`` are those
    of Metadata.
    ``driver_ns`` is the cost by which the module decides on a CPU, where it had measured one and
    nobody gave another. ``turn_ns`` is what a turn through the idle loop takes, 0 where too few are
    known. ``loops`` has each pair of tasks in a closed loop, as waker << 32 | wakee, and the most
    that a wakeup of the waker by the wakee costs, with ``supposed_ns``. ``states`` has what leaving
    a state costs, by table of states (see Tables) and index; ``ranks`` what an awake CPU would have
    taken for each of its wakeups, where there is a reference; ``halts`` the state of each table
    that most wakeups by other CPUs came out of. ``halt_ns`` is the cost of the state that most
    wakeups of all CPUs came out of. ``warnings`` is what a reader of the recording has to know,
    lost events for one.
    ``measured_wakes`` counts the wakeups from halts by other CPUs, whose duration is known, and
    ``estimated_wakes`` those by interrupts of the CPU itself, which are taken to cost the same.
    ``periods`` counts the idle periods, ``untimed`` those of which the recording does not say when
    the next timer was due. ``doubted`` says that the reference differs so much that it shows no
    halt to cost anything. ``task_wakes`` counts the wakeups by tasks on other CPUs, and
    ``loop_wakes`` those of them that are in closed loops. ``chained`` says that a task is in loops
    with several others.
    """

    reference_ns: float | None
    states: dict[tuple[int, int], float]
    halt_ns: int
    loops: dict[int, int]
    hides_polls: bool = False
    lacks_driver: bool = False
    given: bool = False
    measured: str = ""
    references_ns: dict[int, float] = field(default_factory=dict)
    ranks: dict[tuple[int, int], Ranks] = field(default_factory=dict)
    halts: dict[int, int] = field(default_factory=dict)
    driver_ns: dict[int, int] = field(default_factory=dict)
    turn_ns: int = 0
    supposed_ns: float | None = None
    warnings: tuple[str, ...] = ()
    measured_wakes: int = 0
    estimated_wakes: int = 0
    periods: int = 0
    untimed: int = 0
    doubted: bool = False
    loop_wakes: int = 0
    task_wakes: int = 0
    chained: bool = False

    @property
    def at_most(self) -> bool:
        """Whether nothing tells how much of a wakeup is the halt's: all of it counts."""
        return self.reference_ns is None and self.supposed_ns is None and not self.given

    @property
    def mostly_estimated(self) -> bool:
        """Whether most wakeups count as what fewer others took."""
        return not self.given and self.estimated_wakes > self.measured_wakes

    def halt_of(self, table: int) -> tuple[int, int]:
        """Return the state that CPUs with a table usually halt in, and what leaving it costs."""
        state = self.halts.get(table, NO_STATE)
        cost_ns = round(self.states.get((table, state), self.halt_ns))
        return (state if 0 <= state < NO_STATE else NO_STATE), cost_ns

    def of(self, tables: Ns, states: Ns, polls: Flags) -> Ns:
        """Return what leaving the state of each row costs; a halt's cost where it polls."""
        wanted = np.full(len(states), self.halt_ns, np.int64)
        for table in self.halts:
            wanted[tables == table] = self.halt_of(table)[1]
        for (table, state), cost_ns in self.states.items():
            if not 0 <= state < NO_STATE:
                continue  # no kernel has such a state: it counts as unknown
            wanted[(tables == table) & (states == state) & ~polls] = round(cost_ns)
        return wanted

    def own(self, tables: Ns, states: Ns, waits_ns: Ns) -> Ns:
        """Return what the wakeup of each row cost; see the top of evidence.py."""
        usual_ns = np.zeros(len(waits_ns), np.int64)
        for table in distinct(tables):
            usual_ns[tables == table] = self.usual_ns(table)
        for (table, state), ranks in self.ranks.items():
            if not 0 <= state < NO_STATE:
                continue
            here = (tables == table) & (states == state)
            usual_ns[here] = ranks.of(waits_ns[here])
        own_ns: Ns = np.maximum(waits_ns - usual_ns, 0)
        return own_ns

    def peers(self) -> tuple[Ns, Ns]:
        """Return the pairs in closed loops, in order, and what the peer's wakeup costs in each."""
        pairs = sorted(self.loops)
        return np.array(pairs, np.int64), np.array([self.loops[x] for x in pairs], np.int64)

    def usual_ns(self, table: int) -> int:
        """Return what a wakeup of an awake CPU takes, for states of a table without ranks."""
        known_ns = self.supposed_ns if self.reference_ns is None else self.reference_ns
        return round(self.references_ns.get(table, known_ns or 0))

    def halt_states(self, tables: Ns) -> Ns:
        """Return the state that the CPU of each row usually halts in."""
        wanted = np.full(len(tables), NO_STATE, np.int64)
        for table in self.halts:
            wanted[tables == table] = self.halt_of(table)[0]
        return wanted
