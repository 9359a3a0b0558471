# SPDX-License-Identifier: GPL-2.0-only
"""Polling policies: how long an idle CPU polls before it halts, period by period.

The kernel's idle governors, which choose among states, are in governed.py.

A policy says how long a CPU polls in its next idle period, and learns from a period once that is
over. An interrupt that brings no task does not end a poll: the period goes on with what is left of
the limit. Once the CPU has halted, it depends on the kernel's code. Under cpuidle-lightsleep, a
period lasts until a task comes. After an interrupt without one, the CPU halts again at once. The
haltpoll governor does not ask what ended a halt: it polls anew.

- ``fixed:TIME`` polls for the same time in each period: the module with ``mode=fixed``.
- ``lightsleep`` is the kernel module's own poll_limit.c, compiled for user space (engine.c); where
  there is no compiler, the model that tests hold it against. Its ceiling is the module's default.
  Its price of a missed wakeup is the recording's halt cost, weighed as the module weighs it.
- ``haltpoll`` is the adaptive rule of the kernel's haltpoll governor, written from its
  documentation (Documentation/virt/guest-halt-polling.rst). A CPU polls for its own limit, then
  halts. When a wakeup ends a halt within ``guest_halt_poll_ns``, longer polling would have caught
  it: the limit grows by the factor ``guest_halt_poll_grow``, to ``guest_halt_poll_grow_start`` at
  least and ``guest_halt_poll_ns`` at most. When the halt lasted longer, polling was in vain: the
  limit is divided by ``guest_halt_poll_shrink``, and is 0 below ``guest_halt_poll_grow_start``. A
  wakeup that the poll caught changes nothing. All parameters have their defaults.

What a policy learns from is what the kernel knows. A halt is as long as the CPU was away, so its
length contains what leaving it took. Between a poll and the halt, the CPU turns once through the
idle loop, which counts as neither (``Costs.turn_ns``). lightsleep, as the module does, adds up all
polls and halts of a period, and takes the cost that it decides by off the last halt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from lightsleep import units
from lightsleep.errors import LightsleepError
from lightsleep.replay.governed import Governor
from lightsleep.replay.poll_limit import Model
from lightsleep.scan import facts

CEILING_NS = 10_000_000
"""POLL_LIMIT_US_MAX of lightsleep.h: by default, the limit follows from the price alone."""

WAIT_WEIGHT = 4
"""WAIT_WEIGHT_DEFAULT of lightsleep_sysfs.c: what 1 ns of waiting is worth in ns of CPU time."""

STOCK = "stock"


class Policy(Protocol):
    """What one CPU does."""

    @property
    def limit_ns(self) -> int:
        """How long it polls in the next period."""

    @property
    def whole(self) -> bool:
        """Whether a period lasts until a task comes; else, any interrupt ends it after a halt."""

    def learn(self, polled_ns: int, halted_ns: int | None = None, earlier_ns: int = 0) -> None:
        """A period is over: the CPU polled, and then it halted, or None if something came before.

        ``halted_ns`` is until the last halt was left, ``earlier_ns`` how long the others were.
        """


@dataclass(frozen=True)
class Fixed:
    """The same limit in each period."""

    limit_ns: int
    whole: ClassVar[bool] = True

    def learn(self, polled_ns: int, halted_ns: int | None = None, earlier_ns: int = 0) -> None:
        """There is nothing to learn."""


class Lightsleep:
    """The module's policy, by the model that poll_limit.c is held against; engine.c runs the file.

    ``halt_cost_ns`` is what a halt costs, ``miss_cost_ns`` what a missed wakeup is worth.
    """

    whole: ClassVar[bool] = True

    def __init__(self, halt_cost_ns: int, weight: int, ceiling_ns: int = CEILING_NS) -> None:
        """Start with nothing learned; 1 ns of waiting counts ``weight`` ns."""
        self.halt_cost_ns, self.miss_cost_ns = halt_cost_ns, weight * halt_cost_ns
        self.ceiling_ns = ceiling_ns
        self._model = Model(self.miss_cost_ns, ceiling_ns)

    @property
    def limit_ns(self) -> int:
        """What the model says."""
        return self._model.limit_ns

    def learn(self, polled_ns: int, halted_ns: int | None = None, earlier_ns: int = 0) -> None:
        """Update the model."""
        idle_ns = polled_ns + earlier_ns + max(0, (halted_ns or 0) - self.halt_cost_ns)
        self._model.update(self.miss_cost_ns, self.ceiling_ns, idle_ns)


@dataclass
class Haltpoll(facts.HaltpollParameters):
    """The haltpoll governor's rule; the fields are its parameters and what a CPU has learned."""

    limit_ns: int = 0
    whole: ClassVar[bool] = False

    def as_struct(self) -> tuple[int, ...]:
        """Return it in the order of ``struct haltpoll`` of engine.h."""
        most, grow, start = self.guest_halt_poll_ns, self.grow, self.grow_start_ns
        return most, grow, start, self.shrink, int(self.allow_shrink), self.limit_ns

    def learn(self, polled_ns: int, halted_ns: int | None = None, earlier_ns: int = 0) -> None:
        """Adapt the limit to a halt."""
        if halted_ns is not None:
            self.limit_ns = self._adapted(self.limit_ns, halted_ns)

    def _adapted(self, limit_ns: int, halted_ns: int) -> int:
        if limit_ns < halted_ns <= self.guest_halt_poll_ns:
            return min(max(limit_ns * self.grow, self.grow_start_ns), self.guest_halt_poll_ns)
        if halted_ns > self.guest_halt_poll_ns and self.allow_shrink:
            shrunk_ns = limit_ns // self.shrink if self.shrink else 0
            return shrunk_ns if shrunk_ns >= self.grow_start_ns else 0
        return limit_ns


Make = Callable[[int, int], Policy]
"""Makes the policy of a CPU where a halt costs so many ns, each of which is worth so many."""


def parse(names: str) -> dict[str, Make | Governor | None]:
    """Return what makes each of the policies named, apart by commas; None for stock.

    Raises LightsleepError that says which name is wrong, and what there is.
    """
    found: dict[str, Make | Governor | None] = {}
    for name in (part.strip() for part in names.split(",")):
        found[name] = _maker(name)
    return found


def setting_of(name: str, weight: int = WAIT_WEIGHT) -> str | None:
    """Return the setting of ``lightsleep try`` that does the same; None where there is none.

    1 ns of waiting counts ``weight`` ns.
    """
    if name == "lightsleep":
        return name if weight == WAIT_WEIGHT else f"{name}:weight={weight}"
    kind, _, time = name.partition(":")
    limit_ns = (units.parse_ns(time) if kind == "fixed" else None) or 0
    if 0 < limit_ns <= CEILING_NS and limit_ns % 1000 == 0:
        return f"lightsleep:fixed:{limit_ns // 1000}us"
    return name if name == "haltpoll" else None


def _maker(name: str) -> Make | Governor | None:
    if name == STOCK:
        return None
    if name == "lightsleep":
        return Lightsleep
    if name == "haltpoll":
        return lambda _cost_ns, _weight: Haltpoll()
    kind, _, time = name.partition(":")
    if kind == "fixed" and (limit_ns := units.parse_ns(time)) is not None:
        return lambda _cost_ns, _weight: Fixed(limit_ns)
    if governor := Governor.named(name):
        return governor
    raise LightsleepError(
        f"no policy {name!r}; there are: stock, lightsleep, haltpoll, fixed:TIME as in "
        "fixed:100us, GOVERNOR@KERNEL as in menu@6.12, and GOVERNOR@KERNEL+promote"
    )
