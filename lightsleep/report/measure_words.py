# SPDX-License-Identifier: GPL-2.0-only
"""How a measurement is said: states, verdicts, what woke the CPU, and the machine it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from lightsleep import units
from lightsleep.measure.result import Mode, Row, RowPath, VerdictKind


class Said(NamedTuple):
    """A verdict as people read it; ``tone`` is a class of the style sheet."""

    mark: str
    tone: str
    word: str


class Idle(NamedTuple):
    """An idle state as advertised, which CPUs of different kinds may do differently.

    The busy baseline is the one with the state None.
    """

    state: int | None
    name: str
    advertised_us: float | None
    residency_us: float | None


# In the order in which they are counted.
VERDICTS: dict[VerdictKind, Said] = {
    "agrees": Said("✔", "good", "agrees"),
    "optimistic": Said("✘", "bad", "optimistic"),
    "pessimistic": Said("▼", "odd", "pessimistic"),
    "not-entered": Said("∅", "plain", "not entered"),
    "too-few": Said("?", "plain", "cannot tell yet"),
    "too-noisy": Said("?", "plain", "too noisy"),
    "nothing-advertised": Said("–", "plain", "nothing advertised"),
    "baseline": Said("", "plain", "baseline"),
}

# By mode and source: a title, and what happens.
SOURCES: dict[Mode, dict[str, tuple[str, str]]] = {
    "module": {
        "timer": ("Timer", "A timer of the CPU itself expires."),
        "ipi": ("IPI", "Another CPU sends an interrupt."),
        "store": (
            "Store",
            "Another CPU asks for a reschedule; a CPU that polls sees that without an interrupt.",
        ),
        "device": ("Device", "A virtio device completes a request."),
    },
    "userspace": {
        "timer": ("Timer", "A thread sleeps until its timer expires."),
        "ipi": ("Wakeup (ipi)", "A thread is woken by a thread on another CPU."),
    },
}

PATHS: dict[RowPath, str] = {
    "timer": "by the timer's interrupt",
    "ipi": "by an interrupt of another CPU",
    "irq": "by a device's interrupt",
    "thread": "by the thread of a device's interrupt",
    "none": "without an interrupt",
    "mixed": "on more than one path",
}

# The paths that go without saying.
USUAL = {"timer": "timer", "ipi": "ipi", "store": "none", "device": "irq"}


def idle(row: Row) -> Idle:
    """Return the state a row is about."""
    return Idle(row.state, row.name, row.advertised_us, row.residency_us)


def label(state: Idle) -> str:
    """Return a state and what it advertises, which tells states of one name apart."""
    if state.advertised_us is None:
        return state.name
    return f"{state.name} ({units.digits(state.advertised_us, '')} µs)"


def unusual(row: Row) -> bool:
    """Whether the path of a row is not what its source is about."""
    return row.path is not None and row.path != USUAL.get(row.source)


def source(mode: Mode, name: str) -> tuple[str, str]:
    """Return what a source is called, and what happens when it wakes a CPU."""
    return SOURCES[mode].get(name, (name, ""))


def machine(environment: Mapping[str, Any]) -> str:
    """Return the machine in a few words; empty where nothing is known."""
    known = (environment.get(key) for key in ("cpu_model", "arch"))
    return next((str(value) for value in known if value), "")


def system(environment: Mapping[str, Any]) -> str:
    """Return what runs on the machine as far as it matters to a wake, in one line."""
    words = {
        "kernel": "Linux {}",
        "arch": "{}",
        "cpuidle_driver": "idle driver {}",
        "governor": "governor {}",
        "clocksource": "clock source {}",
        "cpus": "{} CPUs online",
    }
    return ", ".join(
        said.format(environment[key]) for key, said in words.items() if environment.get(key)
    )
