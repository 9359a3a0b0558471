# SPDX-License-Identifier: GPL-2.0-only
"""From events to idle periods: what each period was, how it ended, and who waited for it.

A CPU is in one of these phases. It is *idle* between the two cpu_idle events. It has *left* from
then until its idle task is switched out or it enters a state again. In all other time it is *busy*,
or, between the switch to the idle task and the first state, *awake*. A period whose begin or end is
not in the recording is no row, but *counted* as incomplete; the CPU is in that phase until it
enters a state or switches.

What ended a period is the first evidence seen since it began, or a later store, unless the first
was an IPI. A poll goes on after an interrupt that wakes nobody, and only a CPU that polls, or
watches memory, needs no IPI. After an IPI, a CPU may still watch memory until it has left a state.

- an IPI sent to the CPU (ipi_send_cpu, ipi_send_cpumask): ``ipi``;
- a wakeup that saves the IPI because the CPU polls (sched_wake_idle_without_ipi): ``store``;
- a timer that expires on the CPU (hrtimer_expire_entry): ``tick`` if it is the kernel's tick, else
  ``timer``;
- an interrupt handler on the CPU (irq_handler_entry): ``device``.

Interrupts may be handled before the CPU leaves its state (HLT) or after (most cpuidle drivers), so
evidence on the CPU itself also counts while it has left. Evidence from other CPUs does not: the CPU
was awake already, and ran a softirq, for one. A period without evidence ended by ``unknown``, as a
poll does at its limit.

The task that is switched in is the wakee. Its sched_waking event says who woke it. The time from
there to the switch is the wakeup's, if the waking came after the CPU had become idle; a task that
was woken before has waited for something else. So has a task that another CPU has run since
(sched_switch), or that was moved here later (sched_migrate_task). A wakeup itself may move the
task: then the move is the next event of the waker's CPU, within WAKEUP_NS, as both happen with
interrupts off.

A wakeup that finds the CPU awake, in no state, ends no period. It becomes a row of its own, with
state -1 and no length, to compare others with. So does one by another CPU once the CPU has left its
state: its period is a row without a wakee.
"""

from __future__ import annotations

from dataclasses import dataclass

from lightsleep.periods.model import AWAKE, NAMED, NAMELESS, Metadata

EXIT = 0xFFFFFFFF
"""The state of the cpu_idle event at the end of a period."""

MAX_WAKINGS = 1 << 17
"""Tasks whose wakeup is remembered until they run: more than any kernel has by default."""

MAX_NAMES = 1 << 14
"""Tasks whose names are remembered; of two whose numbers differ by a multiple, the later one."""

WAKEUP_NS = 1_000_000
"""From a waking to a move that is part of the wakeup, at most. With interrupts off, that is some
microseconds, in a guest on a busy host perhaps some hundred. Where a host stops the CPU for longer
in between, the wakeup has no time. A higher limit would take other moves for part of a wakeup. Of
CPUs that were not selected, nothing but wakings and moves is recorded: a task may run there unseen
before the load balancer moves it.
"""

Row = tuple[
    int,
    int,
    int,
    int,
    int | None,
    str,
    str | None,
    int | None,
    str | None,
    int | None,
    int | None,
    str | None,
    int | None,
    int | None,
]
"""The columns of columns.COLUMNS behind the host."""


@dataclass(slots=True)
class Waking:
    """A task was woken: when, by whom if that is known, and on which CPU that happened."""

    at_ns: int
    comm: str | None
    pid: int | None
    cpu: int


NO_PREDICTION = (None, None)


@dataclass(slots=True)
class Cpu:
    """What is known of one CPU; ``phase`` is idle, left, awake, counted or busy.

    ``prediction`` is what the governor knew as it chose the state that the CPU enters next: the
    sleep length, and the time until the next event of its clock. ``woke`` is the task that this
    event wakes, ``woke_last`` the one that the event before it woke.
    """

    phase: str = "busy"
    last_ns: int = 0
    entered_ns: int = 0
    left_ns: int = 0
    state: int = AWAKE
    cause: str = ""
    miss: str | None = None
    sleep_length_ns: int | None = None
    next_event_ns: int | None = None
    prediction: tuple[int | None, int | None] = NO_PREDICTION
    woke: int | None = None
    woke_last: int | None = None


class Builder:
    """Turns events into rows. Feed it in the order of time; take ``rows`` now and then.

    Every method raises ValueError where an event cannot follow those before it. For readers that
    need it, ``running`` keeps the name and the number of the task that each CPU has switched to
    last, and ``elsewhere`` that tasks have other numbers elsewhere than in the fields of events.
    """

    def __init__(self, metadata: Metadata) -> None:
        """Tell ``metadata`` which CPUs there are, and count there what cannot be a row."""
        self.rows: list[Row] = []
        self.running: dict[int, tuple[str, int]] = {}
        self.elsewhere = False
        self._metadata = metadata
        self._cpus: dict[int, Cpu] = {}
        self._wakings: dict[int, Waking] = {}
        self._names: dict[int, tuple[int, str]] = {}

    def at(self, number: int, now_ns: int) -> Cpu:
        """Return the CPU on which something happens now."""
        metadata = self._metadata
        metadata.events += 1
        if metadata.first_ns is None:
            metadata.first_ns = now_ns
        if metadata.last_ns is None or now_ns > metadata.last_ns:
            metadata.last_ns = now_ns
        cpu = self._cpus.get(number)
        if cpu is None:
            cpu = self._cpus[number] = Cpu()
            metadata.seen.add(number)
        if now_ns < cpu.last_ns:
            raise ValueError(
                f"time runs backwards on CPU {number}, from {cpu.last_ns} ns to {now_ns} ns"
            )
        cpu.last_ns = now_ns
        cpu.woke, cpu.woke_last = None, cpu.woke
        return cpu

    def cpu_idle(self, number: int, now_ns: int, state: int) -> None:
        """A CPU enters a state, or leaves one."""
        self._metadata.met.add("cpu_idle")
        cpu = self._cpus[number]
        if state == EXIT:
            if cpu.phase == "idle":
                cpu.phase, cpu.left_ns = "left", now_ns
            elif cpu.phase in ("busy", "awake"):  # it was asleep before the recording began
                self._metadata.incomplete += 1
                cpu.phase = "counted"
            return
        if cpu.phase == "left":
            self._emit(number, cpu)
        elif cpu.phase == "idle":
            self._metadata.incomplete += 1
        cpu.phase, cpu.entered_ns, cpu.state, cpu.cause = "idle", now_ns, state, ""
        cpu.miss = None
        cpu.sleep_length_ns, cpu.next_event_ns = cpu.prediction
        cpu.prediction = NO_PREDICTION

    def sleep_length(self, number: int, length_ns: int, event_ns: int | None) -> None:
        """The governor of a CPU was told how far away its next timer is, and its next event."""
        self._cpus[number].prediction = (length_ns, event_ns)

    def miss(self, number: int, kind: str) -> None:
        """The governor's last choice was too deep (``above``) or too shallow (``below``)."""
        if cpu := self._cpus.get(number):
            cpu.miss = kind

    def sent(self, number: int, cause: str) -> None:
        """Another CPU did something that ends an idle period of this one."""
        cpu = self._cpus.get(number)
        if not cpu or cpu.phase != "idle":
            return
        if not cpu.cause or (cause == "store" and cpu.cause != "ipi"):
            cpu.cause = cause

    def happened(self, number: int, cause: str) -> None:
        """Something happens on a CPU that ends an idle period."""
        cpu = self._cpus[number]
        if cpu.phase in ("idle", "left") and not cpu.cause:
            cpu.cause = cause

    def timer(self, number: int, named: bool) -> None:
        """A timer expires, before what happens by it. Without a name, it may be the tick."""
        cpu = self._cpus[number]
        if named:
            self._metadata.met.add(NAMED)
        elif cpu.phase in ("idle", "left") and not cpu.cause:
            self._metadata.met.add(NAMELESS)

    def named(self, task: int, comm: str) -> None:
        """An event says what a task is called. The idle tasks have one name for each CPU."""
        if task:
            self._names[task % MAX_NAMES] = (task, comm)

    def name(self, task: int) -> str | None:
        """Return what the last event that names a task calls it; None if none has."""
        known, comm = self._names.get(task % MAX_NAMES, (0, None))
        return comm if known == task else None

    def waking(
        self, number: int, now_ns: int, wakee: int, comm: str | None, pid: int | None
    ) -> None:
        """A task is woken on a CPU, by None if nobody knows who; it may run on another."""
        self._metadata.met.add("sched_waking")
        self._cpus[number].woke = wakee
        if len(self._wakings) >= MAX_WAKINGS:
            self._wakings.clear()
        self._wakings[wakee] = Waking(now_ns, comm, pid, number)

    def migrated(self, number: int, now_ns: int, task: int) -> None:
        """A CPU moves a task to another one."""
        waking = self._wakings.get(task)
        woke = self._cpus[number].woke_last == task
        if waking and not (woke and now_ns - waking.at_ns <= WAKEUP_NS):
            del self._wakings[task]

    def switch_between_tasks(self, task: int) -> None:
        """A CPU that was not idle runs a task."""
        self._metadata.met.add("sched_switch")
        self._wakings.pop(task, None)

    def switch_from_idle(self, number: int, now_ns: int, comm: str, pid: int) -> None:
        """A CPU runs a task again."""
        self._metadata.met.add("sched_switch")
        cpu = self._cpus[number]
        waking = self._wakings.pop(pid, None)
        if cpu.phase == "left":
            if waking and waking.cpu != number and waking.at_ns > cpu.left_ns:
                self._emit(number, cpu)
                self._emit_awake(number, cpu, (comm, pid), waking, now_ns)
            else:
                self._emit(number, cpu, (comm, pid), waking, now_ns)
        elif cpu.phase == "idle":  # its end is lost
            self._metadata.incomplete += 1
        elif cpu.phase == "awake" and waking and waking.at_ns >= cpu.entered_ns:
            self._emit_awake(number, cpu, (comm, pid), waking, now_ns)
        cpu.phase = "busy"

    def switch_to_idle(self, number: int, now_ns: int) -> None:
        """A CPU has nothing to run."""
        self._metadata.met.add("sched_switch")
        cpu = self._cpus[number]
        if cpu.phase == "left":  # idle time was injected: a thread was idle, which goes now
            self._emit(number, cpu)
        elif cpu.phase == "idle":  # the switch between is lost
            self._metadata.incomplete += 1
        cpu.phase, cpu.entered_ns = "awake", now_ns
        cpu.prediction = NO_PREDICTION  # a state was chosen before, but not entered: a task came

    def lost(self, number: int, count: int | None) -> None:
        """The kernel lost events of a CPU: what it does is not known.

        A ``count`` of 0 says when a loss that is told elsewhere begins or ends. None says that it
        goes on, for how long is not known: then the wakings of all CPUs stay. Forgotten time and
        again, the longer waits would be missing, on CPUs that lost nothing, too.
        """
        self._metadata.lost[number] = self._metadata.lost.get(number, 0) + (count or 0)
        self.running.pop(number, None)
        if count is not None:
            self._wakings.clear()  # some of these tasks may have run since, and been woken again
        cpu = self._cpus.get(number)
        if cpu:
            asleep = cpu.phase in ("idle", "left")
            self._metadata.incomplete += asleep
            cpu.phase = "counted" if asleep or cpu.phase == "counted" else "busy"
            cpu.prediction = NO_PREDICTION

    def overwritten(self, count: int) -> None:
        """The kernel has overwritten the first events, of CPUs that nobody names."""
        self._metadata.notes.append(
            f"the kernel had overwritten {count:,} events, the oldest, before the file was made: "
            "figures are too low; trace again with a larger buffer_size_kb"
        )

    def finish(self) -> None:
        """No event follows: what has not ended is no period."""
        for number, cpu in self._cpus.items():
            if cpu.phase == "left":
                self._emit(number, cpu)
            elif cpu.phase == "idle":
                self._metadata.incomplete += 1
            cpu.phase = "busy"

    def _emit_awake(
        self, number: int, cpu: Cpu, wakee: tuple[str, int], waking: Waking, now_ns: int
    ) -> None:
        """Add the row of a wakeup that found its CPU in no state."""
        cpu.state, cpu.cause, cpu.miss = AWAKE, "", None
        cpu.sleep_length_ns, cpu.next_event_ns = NO_PREDICTION
        cpu.entered_ns = cpu.left_ns = waking.at_ns
        self._emit(number, cpu, wakee, waking, now_ns)

    def _emit(
        self,
        number: int,
        cpu: Cpu,
        wakee: tuple[str, int] | None = None,
        waking: Waking | None = None,
        now_ns: int = 0,
    ) -> None:
        if waking and waking.at_ns < cpu.entered_ns:
            waking = None
        self.rows.append(
            (
                number,
                cpu.entered_ns,
                cpu.left_ns - cpu.entered_ns,
                cpu.state,
                cpu.sleep_length_ns,
                cpu.cause or "unknown",
                waking.comm if waking else None,
                waking.pid if waking else None,
                wakee[0] if wakee else None,
                wakee[1] if wakee else None,
                now_ns - waking.at_ns if waking else None,
                cpu.miss,
                cpu.next_event_ns,
                waking.cpu if waking else None,
            )
        )
