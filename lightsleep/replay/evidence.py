# SPDX-License-Identifier: GPL-2.0-only
"""Finds in a recording what leaving idle states costs there, and who converses with whom.

1. *What a state costs*: the median time from waking to running, for wakeups by other CPUs, less the
   same median for CPUs found polling or awake (the reference of lost.py). Where that does not tell,
   but the module had measured that a halt costs less than the median, a CPU that is awake is taken
   to be so much faster. Else, nothing is subtracted and the cost is an upper bound. The states of a
   big and of a little CPU are different ones: only CPUs whose tables of states are the same share
   a median, and a reference (reference.py). A state that fewer than ENOUGH such wakeups came out of
   costs as much as the one of its table that most came out of. What a user says (given.py)
   replaces all of that.
2. *What one wakeup cost*: its own time, less that of a wakeup of the reference that is as slow
   among its like, by rank: the slowest hundredth is compared with the slowest hundredth. (This is
   the quantile treatment effect: K. Doksum, "Empirical probability plots and statistical inference
   for nonlinear models in the two-sample case", 1974.) A wakeup that waits long has mostly waited
   for something else, such as a softirq or a host. That is in the reference, too, and no poll
   avoids it. With the median alone subtracted, it would count as a slow exit.
3. *Closed loops.* Two tasks that wake each other in turn form a conversation. What the wakeup of a
   task costs its peer there is at most what the costliest state costs that the task was woken out
   of. It is 0 where the CPU was always found polling or awake.
4. *A turn through the idle loop*: the median time from the end of a poll that reached its limit, to
   the next period. A CPU that has polled in vain takes it before it halts. Where fewer than ENOUGH
   such polls tell, it is the median time from the end of any period that no task ended. That is too
   long: it contains what is left of an interrupt's handler.

The evidence for all is added up by CPU, so that several processes may read a recording: what they
found together is the same for any number of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate, compress

import numpy as np
import pyarrow as pa

from lightsleep.order import quantile
from lightsleep.periods.lost import ENOUGH, Wakes, least_ns
from lightsleep.periods.model import AWAKE, Metadata
from lightsleep.replay.costs import Content, Costs, Ranks, Tables
from lightsleep.replay.given import Given
from lightsleep.replay.reference import Reference, references
from lightsleep.replay.rows import JOINED_NS, Ns, Rows, distinct, places
from lightsleep.replay.stays import NO_STATE, STATES
from lightsleep.units import counted

LOOP_WAKES = 30
LOOP_BALANCE = 0.5
"""Two tasks are in a loop if each wakes the other so often, and neither much less often."""

PAIRS_OF_CPU = 1 << 14
"""So many pairs of waker and wakee are counted on each CPU: those that come first. If a CPU was in
five idle states, they take 0.9 MB of memory at most."""

AT_ONCE = STATES
"""In place of a state's index: the CPU was found polling or awake."""


def ranked(halted: Wakes, reference: Wakes) -> Ranks:
    """Compare wakeups from a state, one at least, with those of the reference, by rank."""
    from_ns: list[int] = [0]
    usual_ns: list[int] = []
    counts = sorted(halted.histogram.items())
    ends = accumulate(count for _, count in counts)
    for (index, count), end in zip(counts, ends, strict=True):
        usual = round(reference.within_ns((end - count / 2) / halted.count))
        if not usual_ns:
            usual_ns.append(usual)
        elif usual != usual_ns[-1]:
            from_ns.append(least_ns(index))
            usual_ns.append(usual)
    return Ranks(tuple(from_ns), tuple(usual_ns))


class Pairs:
    """Pairs of waker and wakee, the first PAIRS_OF_CPU that come, and how often each occurred.

    ``counts`` has a row for each of ``keys``, which are in order, and a column for each of
    ``states``: the idle state that the CPU was woken out of, or AT_ONCE.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self.keys: Ns = np.zeros(0, np.int64)
        self.states: list[int] = []
        self.counts: Ns = np.zeros((0, 0), np.int64)

    def add(self, pairs: Ns, states: Ns) -> None:
        """Count pairs; the same ones are kept however they are cut into calls."""
        found = pa.array(pairs).dictionary_encode()  # in the order of their first occurrence
        keys, codes = np.asarray(found.dictionary), np.asarray(found.indices)
        self._keep(keys)
        at, kept = places(keys, self.keys)
        for state in distinct(states):
            if state not in self.states:
                self.states.append(state)
                self.counts = np.pad(self.counts, ((0, 0), (0, 1)))
            counts = np.bincount(codes[states == state], minlength=len(keys))
            self.counts[at[kept], self.states.index(state)] += counts[kept]

    def _keep(self, keys: Ns) -> None:
        """Make room for the first of those that are new."""
        new = keys[~places(keys, self.keys)[1]][: PAIRS_OF_CPU - len(self.keys)]
        if len(new):
            self.keys = np.concatenate([self.keys, new])
            order = np.argsort(self.keys)
            self.keys = self.keys[order]
            self.counts = np.pad(self.counts, ((0, len(new)), (0, 0)))[order]


class Evidence:
    """What some CPUs of a recording say of the costs there; see the top of this file."""

    def __init__(self, metadata: Metadata) -> None:
        """Begin with nothing."""
        self.metadata, self._tables = metadata, Tables(metadata)
        # By what a table says, not by its number: CPUs that had no event are forgotten in the end.
        self._by_table: defaultdict[tuple[Content, int], Wakes] = defaultdict(Wakes)
        self._references: defaultdict[Content, Wakes] = defaultdict(Wakes)
        self._pairs: defaultdict[int, Pairs] = defaultdict(Pairs)
        self._cpus: dict[Content, int] = {}  # of each table, the lowest that woke from a halt
        self._turns, self._after_polls = Wakes(), Wakes()
        self._by_itself: Counter[tuple[Content, int]] = Counter()
        self._periods = self._untimed = 0
        # Of each CPU, its last row: when it ended; whether without a task, or at a poll's limit.
        self._ended: dict[int, tuple[int, bool, bool]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the next rows."""
        rows = Rows(self.metadata, batch)
        at_once = (rows.state == AWAKE) | rows.polls
        idle = rows.state != AWAKE
        self._periods += int(idle.sum())
        self._untimed += int((idle & (rows.sleep_ns < 0)).sum())
        asleep = idle & ~rows.polls
        halted = rows.woken & asleep
        table_of = self._tables.of(rows.cpu)
        found_awake = rows.by_other & at_once
        for table in distinct(table_of[found_awake]):
            waits_ns = rows.wait_ns[found_awake & (table_of == table)]
            self._references[self._tables.contents[table]].add(waits_ns)
        for table in distinct(table_of[halted]):
            of_table = halted & (table_of == table)
            lowest = int(rows.cpu[of_table].min())
            content = self._tables.contents[table]
            self._cpus[content] = min(lowest, self._cpus.get(content, lowest))
            for state in distinct(rows.state[of_table]):
                here = of_table & (rows.state == state)
                if count := int((here & rows.by_other).sum()):
                    self._by_table[content, state].add(rows.wait_ns[here & rows.by_other])
                if others := int(here.sum()) - count:
                    self._by_itself[content, state] += others
        known = np.where((rows.state >= 0) & (rows.state < NO_STATE), rows.state, NO_STATE)
        states = np.where(at_once, AT_ONCE, known)
        by_task = rows.by_other & (rows.waker != 0)  # 0 is each idle CPU
        for cpu in distinct(rows.cpu[by_task]):
            here = by_task & (rows.cpu == cpu)
            self._pairs[cpu].add(rows.pair[here], states[here])
        self._add_turns(rows)

    def _add_turns(self, rows: Rows) -> None:
        """Count the times from rows that no task ended to the next ones of their CPUs."""
        if not len(rows.cpu):
            return
        order = np.argsort(rows.cpu.astype(np.uint16), kind="stable")  # CPUs are below MAX_CPUS
        cpu, entered_ns = rows.cpu[order], rows.entered_ns[order]
        end_ns, asleep = entered_ns + rows.length_ns[order], rows.state[order] != AWAKE
        nobody = (rows.nobody & ~rows.woken)[order] & asleep
        expired = rows.continued[order]
        first = np.flatnonzero(np.diff(cpu, prepend=-1))
        last = np.append(first[1:], len(cpu)) - 1
        before_ns = np.concatenate([[0], end_ns[:-1]])
        follows = np.concatenate([[False], nobody[:-1]])
        follows_poll = np.concatenate([[False], expired[:-1]])
        for begin, end in zip(first.tolist(), last.tolist(), strict=True):
            number = int(cpu[begin])
            ended = self._ended.get(number, (0, False, False))
            before_ns[begin], follows[begin], follows_poll[begin] = ended
            self._ended[number] = int(end_ns[end]), bool(nobody[end]), bool(expired[end])
        turns_ns = entered_ns - before_ns
        near = asleep & (turns_ns >= 0) & (turns_ns <= JOINED_NS)
        self._turns.add(turns_ns[near & follows])
        self._after_polls.add(turns_ns[near & follows_poll])

    def merge(self, other: Evidence) -> None:
        """Add what other CPUs of the same recording say."""
        for key, wakes in other._by_table.items():
            self._by_table[key].merge(wakes)
        for content, wakes in other._references.items():
            self._references[content].merge(wakes)
        for content, cpu in other._cpus.items():
            self._cpus[content] = min(cpu, self._cpus.get(content, cpu))
        self._pairs.update(other._pairs)
        self._turns.merge(other._turns)
        self._after_polls.merge(other._after_polls)
        self._by_itself.update(other._by_itself)
        self._periods += other._periods
        self._untimed += other._untimed

    def costs(self, given: Given | None = None) -> Costs | None:
        """Return the costs that follow; None where no wakeup tells them.

        ``given`` has the cost of each state that halts, where somebody knows better. Then a wakeup
        by an interrupt is enough. Raises LightsleepError where it lacks a state that tasks were
        woken out of.
        """
        if not (self._by_table or (given and self._by_itself)):
            return None
        metadata = self.metadata
        tables = Tables(metadata)
        cpus = {tables.number(content): cpu for content, cpu in self._cpus.items()}
        by_state = {(tables.number(key[0]), key[1]): x for key, x in self._by_table.items()}
        by_itself = {(tables.number(x[0]), x[1]): n for x, n in self._by_itself.items()}
        awake = defaultdict[int, Wakes](Wakes)
        for content, wakes in self._references.items():
            awake[tables.number(content)].merge(wakes)
        known = references(awake, cpus)
        counts = {key: wakes.count for key, wakes in by_state.items()} or by_itself
        often = sorted(counts, key=lambda key: (counts[key], key))
        reference = known[often[-1][0]]
        if not by_state or not reference.tells(by_state[often[-1]]):
            known = {}
        told = (
            self._by_medians(tables, by_state, often, cpus, known)
            if given is None
            else _StateCosts(_given(metadata, tables, given, {*often, *by_itself}, cpus))
        )
        found = Costs(
            reference_ns=reference.usual_ns if known else None,
            states=told.states,
            halt_ns=round(told.states[often[-1]]),
            loops={},
            hides_polls=metadata.hides_polls,
            lacks_driver=metadata.lacks_driver,
            references_ns={table: x.usual_ns for table, x in known.items()},
            ranks={
                key: ranked(x, known[key[0]].wakes)
                for key, x in by_state.items()
                if known and key not in told.rare
            },
            given=given is not None,
            measured=given.file if given else "",
            halts=dict(often),  # of each table, the last one stays
            driver_ns={} if given else dict(metadata.driver_cost_ns),
            supposed_ns=told.supposed_ns,
            warnings=(*metadata.warnings(), *told.doubt, *told.few),
            turn_ns=self._turn_ns(),
            measured_wakes=sum(wakes.count for wakes in by_state.values()),
            estimated_wakes=self._by_itself.total(),
            periods=self._periods,
            untimed=self._untimed,
            doubted=bool(told.doubt),
        )
        self._add_loops(tables, found)
        return found

    def _by_medians(
        self,
        tables: Tables,
        by_state: Mapping[tuple[int, int], Wakes],
        often: Sequence[tuple[int, int]],
        cpus: Mapping[int, int],
        known: Mapping[int, Reference],
    ) -> _StateCosts:
        """Return what leaving each state costs by the medians of its wakeups.

        ``often`` has the keys of ``by_state``, the rarest first, ``cpus`` a CPU of each table, and
        ``known`` the reference of each, unless that does not tell.
        """
        halts, supposed_ns = dict(often), None
        if not known and (driver_ns := self.metadata.driver_cost_ns):
            left_ns = by_state[often[-1]].within_ns(0.5) - quantile(sorted(driver_ns.values()), 0.5)
            supposed_ns = left_ns if left_ns > 0 else None  # else it is not the module's
        awake_ns = {x: known[x].usual_ns if known else supposed_ns or 0.0 for x in cpus}
        states = {x: max(0.0, by_state[x].within_ns(0.5) - awake_ns[x[0]]) for x in often}
        counts = {(tables.number(content), x): 0 for content, x in self._by_itself}
        counts |= {key: wakes.count for key, wakes in by_state.items()}
        usually = {x: (x, halts[x]) if x in halts else often[-1] for x in cpus}
        rare = {x for x, count in counts.items() if count < ENOUGH and x != usually[x[0]]}
        states |= {key: states[usually[key[0]]] for key in rare}
        few = _told_by_few(self.metadata, cpus, counts, usually)
        doubt = list[str]()
        if known:
            told = {key: wakes for key, wakes in by_state.items() if key not in rare}
            few += self._for_nothing(cpus, told, known) + _shared(cpus, halts, known)
            doubt = _doubt(cpus, {x: by_state[x, halts[x]] for x in halts}, known)
        return _StateCosts(states, supposed_ns, rare, doubt, few)

    def _for_nothing(
        self,
        cpus: Mapping[int, int],
        told: Mapping[tuple[int, int], Wakes],
        known: Mapping[int, Reference],
    ) -> list[str]:
        """Return a warning for each table with states that cost nothing, which may be by chance.

        ``told`` has the wakeups from states whose medians say what they cost. A reference that is
        exact, and hardly slower than they are, shows that it is nothing.
        """
        free = sorted(
            (table, state)
            for (table, state), wakes in told.items()
            if wakes.within_ns(0.5) <= known[table].usual_ns and not known[table].is_near(wakes)
        )
        said = []
        for table in sorted({table for table, _ in free}):
            names = [self.metadata.name(cpus[table], x) for at, x in free if at == table]
            said.append(
                f"leaving {', '.join(names)} {_where(cpus, table)}counts as nothing: wakeups from "
                f"there took no longer than the {known[table].wakes.count:,} that found a CPU "
                "polling or awake. These differ much, or took much longer, so it may cost more; "
                "--measured sets it"
            )
        return said

    def _add_loops(self, tables: Tables, costs: Costs) -> None:
        """Let ``costs`` know of closed loops.

        A mean would be no end of a range: a peer that polls at times has slept at others.
        """
        counted = Counter[int]()
        for pairs in self._pairs.values():
            sums = pairs.counts.sum(axis=1).tolist()
            counted.update(dict(zip(pairs.keys.tolist(), sums, strict=True)))
        loops = _loops(counted)
        most_ns = dict.fromkeys(loops.tolist(), 0)
        for cpu, pairs in self._pairs.items():
            prices_ns = [_price_ns(costs, tables[cpu], state) for state in pairs.states]
            at, there = places(loops, pairs.keys)
            for key, counts in zip(loops[there].tolist(), pairs.counts[at[there]], strict=True):
                most_ns[key] = max([most_ns[key], *compress(prices_ns, counts.tolist())])
        costs.loops = {key: most_ns[_back(key)] for key in most_ns}
        costs.loop_wakes = sum(counted[key] for key in most_ns)
        costs.task_wakes = counted.total()
        wakers = Counter(key >> 32 for key in most_ns)
        costs.chained = max(wakers.values(), default=0) > 1

    def _turn_ns(self) -> int:
        """Return what a turn through the idle loop takes; 0 where too few are known."""
        turns = self._after_polls if self._after_polls.count >= ENOUGH else self._turns
        return round(turns.within_ns(0.5)) if turns.count >= ENOUGH else 0


@dataclass(frozen=True)
class _StateCosts:
    """What leaving states costs: two fields of Costs, and what is to be said of them.

    ``rare`` are the states that too few wakeups came out of: they cost what another one does.
    ``doubt`` and ``few`` are warnings; the latter say that little tells what some states cost.
    """

    states: dict[tuple[int, int], float]
    supposed_ns: float | None = None
    rare: Set[tuple[int, int]] = frozenset()
    doubt: Sequence[str] = ()
    few: Sequence[str] = ()


def costs_of(
    metadata: Metadata, batches: Iterable[pa.RecordBatch], given: Given | None = None
) -> Costs | None:
    """Read a recording and return its costs, as Evidence.costs() does."""
    evidence = Evidence(metadata)
    for batch in batches:
        evidence.add(batch)
    return evidence.costs(given)


def _where(cpus: Mapping[int, int], table: int) -> str:
    """Return which CPUs have a table of states, where there are several tables."""
    return f"of CPU {cpus[table]} and those with the same states " if len(cpus) > 1 else ""


def _doubt(
    cpus: Mapping[int, int], halted: Mapping[int, Wakes], known: Mapping[int, Reference]
) -> list[str]:
    """Return a warning for each table whose reference tells less than it seems to.

    ``cpus`` has a CPU of each table, ``halted`` the wakeups from the state that it halts in most.
    """
    return [
        f"{known[table].wakes.count:,} wakeups found a CPU polling or awake, and differ so much "
        f"that what a halt {_where(cpus, table)}costs is not shown; --halt-cost sets it"
        for table, wakes in sorted(halted.items())
        if known[table].is_doubtful(wakes)
    ]


def _shared(
    cpus: Mapping[int, int], tables: Iterable[int], known: Mapping[int, Reference]
) -> list[str]:
    """Return a warning for each of some tables that lacks a reference of its own, beside others.

    ``cpus`` has a CPU of each table.
    """
    return [
        f"fewer than {ENOUGH} wakeups {_where(cpus, table)}found the CPU polling or awake, so that "
        "what one takes there without a halt counts as what it takes on all CPUs"
        for table in sorted(tables)
        if known[table].shared and len(known) > 1
    ]


def _told_by_few(
    metadata: Metadata,
    cpus: Mapping[int, int],
    counts: Mapping[tuple[int, int], int],
    usually: Mapping[int, tuple[int, int]],
) -> list[str]:
    """Return a warning for each table whose states too few wakeups by other CPUs came out of.

    ``cpus`` has a CPU of each table, ``counts`` the wakeups by table and state, and ``usually`` the
    table and state whose cost each table's other states have then.
    """
    said = []
    for table, cpu in sorted(cpus.items()):
        where = _where(cpus, table)
        other, usual = usually[table]
        name = metadata.name(cpus[other], usual)
        few = sorted(x for x, count in counts.items() if x[0] == table and count < ENOUGH)
        rare = [metadata.name(cpu, state) for _, state in few if (table, state) != (other, usual)]
        if rare:
            of = f" on CPU {cpus[other]}" if other != table else ""
            said.append(
                f"{', '.join(rare)} {where}woke tasks fewer than {ENOUGH} times by another CPU, so "
                f"that leaving one counts as what leaving {name}{of} costs"
            )
        if (other, usual) in few:
            number = counts[other, usual]
            said.append(
                f"{counted(number, 'wakeup')} by other CPUs {'is' if number == 1 else 'are'} all "
                f"that tells what leaving {name} {where}costs"
            )
    return said


def _given(
    metadata: Metadata,
    tables: Tables,
    given: Given,
    seen: Iterable[tuple[int, int]],
    cpus: Mapping[int, int],
) -> dict[tuple[int, int], float]:
    """Return what leaving each state costs by what a user says; of those ``seen``, at least."""
    known = {
        (table, state): given.cost_ns(metadata, cpu, state)
        for table, cpu in tables.first.items()
        for state in metadata.states[cpu]
        if not metadata.polls(cpu, state)
    }
    states = {key: cost_ns for key, cost_ns in known.items() if cost_ns is not None}
    for table, state in sorted(seen):
        states[table, state] = given.required_ns(metadata, cpus[table], state)
    return states


def _price_ns(costs: Costs, table: int, state: int) -> int:
    """Return what a wakeup out of a state costs, with what is only supposed to be no part of it."""
    if state == AT_ONCE:
        return 0
    _, halt_ns = costs.halt_of(table)
    return round(costs.states.get((table, state), halt_ns)) + round(costs.supposed_ns or 0)


def _back(pair: int) -> int:
    """Return the pair whose waker is the wakee of this one, and the other way round."""
    return (pair & 0xFFFFFFFF) << 32 | pair >> 32


def _loops(pairs: Counter[int]) -> Ns:
    """Return the pairs whose tasks wake each other about equally often, in order."""
    found = []
    for key, count in pairs.items():
        low, high = sorted((count, pairs.get(_back(key), 0)))
        if low >= LOOP_WAKES and low >= LOOP_BALANCE * high:
            found.append(key)
    return np.array(sorted(found), np.int64)
