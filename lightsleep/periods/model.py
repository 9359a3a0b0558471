# SPDX-License-Identifier: GPL-2.0-only
"""The metadata of a recording: what is known of it as a whole, beside its rows (see columns.py)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lightsleep import cpulist
from lightsleep.document import UNPRINTABLE, headed, shortened
from lightsleep.scan.facts import LIGHTSLEEP_DRIVER
from lightsleep.scan.model import distinct_name

SCHEMA = "lightsleep.periods"
VERSION = 3

AWAKE = -1
"""The state of a CPU that ran its idle task, but was in no idle state."""

PLAIN: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("environment", "settings"), (dict,)),
    "notes": (list,),
    **dict.fromkeys(("first_ns", "last_ns"), (int, type(None))),
}
"""What is in the metadata of a table as it is here, and of which type."""

CAUSES = ("ipi", "store", "timer", "tick", "device", "unknown")

NEEDED = ("cpu_idle", "sched_waking", "sched_switch")
"""Events without which nothing tells which tasks waited for a CPU in an idle state."""

NAMED, NAMELESS = "a timer with a name", "a timer without one in an idle period"
"""Timers that expired, by whether the recording names their functions."""

MET = (*NEEDED, NAMED, NAMELESS)
"""What a builder remembers to have met."""

LACKS = "the recording has no event "
"""How the note begins that one of these is missing."""

MAX_CPUS = 1 << 16
MAX_STATES = 256
MAX_NS = 1 << 62
"""Beyond what any machine has, and within what columns of a table hold."""


def _bounded(name: str, value: Any, end: int, least: int = 0) -> int:
    """Return a number from ``least`` on, below ``end``. Raises ValueError where it is none such."""
    number = int(value)
    if isinstance(value, bool) or not least <= number < end:
        raise ValueError(f"{name} is {shortened(repr(value))}")
    return number


def _by_cpu(name: str, counts: Any, least: int = 0) -> dict[int, int]:
    if not isinstance(counts, dict):
        raise ValueError(f"{name} is {shortened(repr(counts))}")
    return {
        _bounded(f"a CPU of {name}", cpu, MAX_CPUS): _bounded(name, count, MAX_NS, least)
        for cpu, count in counts.items()
    }


@dataclass
class Metadata:
    """What is known of a recording beside its rows; complete once all rows are read.

    ``expected_ns`` is about how long the recording is, where that is known before it is read.
    ``window_ns`` is when the recording began and ended, by its own clock, if somebody said so.
    ``states`` maps CPU and index to a state's name, ``polling`` holds the states that the governor
    takes for polling, ``disabled`` those that nobody may choose, ``advertised_us`` and
    ``residency_us`` are what their driver advertises.
    ``driver_cost_ns`` is by which figure cpuidle-lightsleep decides on a CPU, where it was loaded.
    ``incomplete`` counts idle periods without a begin or an end, of which there is no row.
    ``cpus`` are those that were recorded, as far as somebody said so; ``seen`` had events of ours.
    ``met`` says what of MET is in the recording.
    ``supposed`` are CPUs whose idle states nobody described; see architecture.py.
    """

    host: str
    source: str
    environment: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    states: dict[int, dict[int, str]] = field(default_factory=dict)
    polling: set[tuple[int, int]] = field(default_factory=set)
    disabled: set[tuple[int, int]] = field(default_factory=set)
    advertised_us: dict[tuple[int, int], int] = field(default_factory=dict)
    residency_us: dict[tuple[int, int], int] = field(default_factory=dict)
    driver_cost_ns: dict[int, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    first_ns: int | None = None
    last_ns: int | None = None
    events: int = 0
    incomplete: int = 0
    lost: dict[int, int] = field(default_factory=dict)
    expected_ns: int | None = None
    window_ns: tuple[int, int] | None = None
    cpus: set[int] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)
    met: set[str] = field(default_factory=set)
    supposed: set[int] = field(default_factory=set)

    @property
    def span_ns(self) -> int:
        """The time from the first event to the last."""
        if self.first_ns is None or self.last_ns is None:
            return 0
        return self.last_ns - self.first_ns

    def name(self, cpu: int, state: int) -> str:
        """Return what a state of a CPU is called, and no other of its states."""
        if state == AWAKE:
            return "awake"
        known = self.states.get(cpu, {}).values()
        return distinct_name(state, self.name_by_driver(cpu, state), known)

    def name_by_driver(self, cpu: int, state: int) -> str:
        """Return what the driver calls a state of a CPU; the name may be that of others, too."""
        return self.states.get(cpu, {}).get(state, f"state {state}")

    @property
    def hides_polls(self) -> bool:
        """Whether the driver may poll in each state, so that no event tells when it did."""
        return self._driver_is_ours and self.environment.get("driver_mode") != "off"

    @property
    def _driver_is_ours(self) -> bool:
        return bool(self.environment.get("cpuidle_driver") == LIGHTSLEEP_DRIVER)

    @property
    def lacks_driver(self) -> bool:
        """Whether there was no idle driver, as far as somebody looked."""
        return self.environment.get("cpuidle_driver", "") is None

    @property
    def polled(self) -> set[tuple[int, int]]:
        """The CPUs and states in which a CPU polls and never halts, as far as somebody said so."""
        # Our driver halts in each of its states, too.
        return set() if self._driver_is_ours else self.polling

    def polls(self, cpu: int, state: int) -> bool:
        """Whether a CPU in this state polls and never halts, as far as somebody said so."""
        return (cpu, state) in self.polled

    @property
    def lacking(self) -> str | None:
        """The note that an event of NEEDED is missing; None where there is no such note."""
        return next((note for note in self.notes if note.startswith(LACKS)), None)

    def warnings(self) -> list[str]:
        """Return what a reader has to know about the figures of the recording."""
        said = list(self.notes)
        if self.lost and not any("events were lost" in note for note in said):
            said.append(
                f"{sum(self.lost.values()):,} events or more were lost on CPU "
                f"{cpulist.format(self.lost)}: figures are too low"
            )
        if self.incomplete:
            said.append(
                "idle periods whose begin or end is not in the recording, and which are not "
                f"counted: {self.incomplete:,}"
            )
        return [UNPRINTABLE.sub("?", note) for note in said]

    def to_json(self) -> dict[str, Any]:
        """Return it as the metadata of a Parquet file."""
        plain = {x.name: getattr(self, x.name) for x in dataclasses.fields(self)}
        pairs = [
            {
                "cpu": cpu,
                "state": state,
                "name": name,
                "polls": (cpu, state) in self.polling,
                "disabled": (cpu, state) in self.disabled,
                "advertised_us": self.advertised_us.get((cpu, state)),
                "residency_us": self.residency_us.get((cpu, state)),
            }
            for cpu, states in sorted(self.states.items())
            for state, name in sorted(states.items())
        ]
        of_states = ("polling", "disabled", "advertised_us", "residency_us")
        for key in (*of_states, "expected_ns", "window_ns", "cpus", "seen", "met", "supposed"):
            del plain[key]
        return headed(SCHEMA, VERSION, plain | {"states": pairs})

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Metadata:
        """Return what to_json() was given; raises KeyError, TypeError and ValueError."""
        if document["schema"] != SCHEMA or document["version"] > VERSION:
            raise ValueError(f"schema {document['schema']} version {document['version']}")
        # A table is somebody else's, and its host is printed on a terminal.
        host, source = (UNPRINTABLE.sub("?", str(document[key])) for key in ("host", "source"))
        metadata = cls(host=host, source=source)
        for key, kinds in PLAIN.items():
            if not isinstance(document[key], kinds) or isinstance(document[key], bool):
                raise ValueError(f"{key} is {shortened(repr(document[key]))}")
            setattr(metadata, key, document[key])
        metadata.events, metadata.incomplete = int(document["events"]), int(document["incomplete"])
        metadata.expected_ns = metadata.span_ns
        for key in ("first_ns", "last_ns"):
            if (at_ns := getattr(metadata, key)) is not None:
                _bounded(key, at_ns, MAX_NS, -MAX_NS)
        if metadata.span_ns < 0:
            raise ValueError("last_ns is before first_ns")
        metadata.lost = _by_cpu("lost", document["lost"])
        costs = document["driver_cost_ns"]
        metadata.driver_cost_ns = _by_cpu("driver_cost_ns", costs, least=1)
        for row in document["states"]:
            _bounded("the CPU of a state", row["cpu"], MAX_CPUS)
            _bounded("a state", row["state"], MAX_STATES)
            for key in ("advertised_us", "residency_us"):
                if row[key] is not None:
                    _bounded(key, row[key], MAX_NS // 1000)
            metadata.add_state(row)
        return metadata

    def add_described(self, cpu: int, states: Iterable[dict[str, Any]]) -> None:
        """Learn of the states of a CPU, as a document of ``lightsleep record`` lists them."""
        for state in states:
            row = {"cpu": cpu, "state": state["index"], "advertised_us": state["latency_us"]}
            same = ("name", "polls", "residency_us", "disabled")
            self.add_state(row | {key: state[key] for key in same})

    def add_state(self, row: dict[str, Any]) -> None:
        """Learn of a state: its cpu, state, name, polls, disabled, advertised_us, residency_us."""
        key = (int(row["cpu"]), int(row["state"]))
        self.states.setdefault(key[0], {})[key[1]] = str(row["name"])
        if row["polls"]:
            self.polling.add(key)
        if row["disabled"]:
            self.disabled.add(key)
        if row["advertised_us"] is not None:
            self.advertised_us[key] = int(row["advertised_us"])
        if row["residency_us"] is not None:
            self.residency_us[key] = int(row["residency_us"])
