# SPDX-License-Identifier: GPL-2.0-only
"""What the kernel counts for ``lightsleep record --histogram``, as lines for tracefs.

No event reaches user space, or is kept. Histogram triggers (Documentation/trace/histogram.rst)
do all of it, so that a recording of days is as large as one of a second:

1. When a CPU enters a state, a variable of that CPU takes the state and the time.
2. When it leaves the state, the difference is a synthetic event *idle* (cpu, state, ns).
3. When a task is woken, a variable of its pid takes the time.
4. When the idle task is switched out for it, the difference is an event *woke* (cpu, ns). The state
   that the CPU was in last makes an event *wake* (cpu, state, ns) of it. ``after`` is how long the
   CPU had been idle when the task was woken. A task that was woken before has waited for something
   else: ``after`` is then negative, which is a very large number here, and is not counted.

``idle`` and ``wake`` are counted by CPU, state and time. Buckets are 1 us wide below 64 us, 16 us
below 1.024 ms, and a factor of two wide above. Each also has the sum of its times, so that totals
are exact.

The kernel never forgets a pid. A histogram that is full takes no new ones, so the keeper removes
those that have pids for keys (``forget``), and makes them again, before that can be. The counts are
in others. Wakeups for which there was no room are counted.

Names of synthetic events are the same for all instances: they begin with the keeper's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightsleep.errors import LightsleepError
from lightsleep.record.tracing import CLOCK, Event

EXIT = 4294967295
"""The state of the cpu_idle event at the end of a period."""

NEEDED = ("power/cpu_idle", "sched/sched_waking", "sched/sched_switch")

EVENTS = {
    "idle": "unsigned int cpu; u32 state; u64 ns",
    "woke": "unsigned int cpu; u64 ns",
    "wake": "unsigned int cpu; u32 state; u64 ns; u64 after",
}

NEGATIVE = 1 << 63

RANGES = (
    ("ns.buckets=1000", "ns<64000"),
    ("ns.buckets=16000", "ns>=64000&&ns<1024000"),
    ("ns.log2", f"ns>=1024000&&ns<{NEGATIVE}"),
)
"""How wide buckets are, and of which times; a negative time is none."""

FEW, MANY = 1 << 11, 1 << 17
"""The fewest and the most entries of a histogram; the kernel takes no more."""

ENTRIES = 64
"""Buckets that one state of one CPU typically fills."""

PIDS = 1 << 14
"""Pids that there is room for, at least."""

LOOK_S = 10.0
"""How often the keeper looks whether many tasks were made."""


def available(tracing: Path) -> None:
    """Raise LightsleepError where this kernel cannot count."""
    for name in NEEDED:
        if not (tracing / "events" / name).is_dir():
            raise LightsleepError(
                f"this kernel has no tracepoint {name.replace('/', ':')}: a histogram needs it"
            )
    if not (tracing / "events/power/cpu_idle/hist").exists():
        raise LightsleepError(
            "this kernel keeps no histograms of events (CONFIG_HIST_TRIGGERS): record without "
            "--histogram"
        )
    if not (tracing / "synthetic_events").exists():
        raise LightsleepError(
            "this kernel has no synthetic events (CONFIG_SYNTH_EVENTS): record without --histogram"
        )


def order(cpus: Sequence[int] | None, states: int, tasks: int) -> dict[str, Any]:
    """Return what the keeper has to do; ``{group}`` is its name.

    ``states`` is how many idle states all CPUs have together, ``tasks`` how many tasks there are.
    """
    clock = f"clock={CLOCK}"
    size = f"{clock}:size={_power_of_two(states * ENTRIES)}"
    pids = _power_of_two(max(PIDS, 4 * tasks))
    chosen = Event("", cpu="cpu_id").filter_for(cpus)
    mine = f"&&{chosen}" if chosen else ""
    running = Event("", cpu="CPU", filter="prev_pid==0").filter_for(cpus)
    waking = ("sched/sched_waking", f"hist:keys=pid:woken=common_timestamp:{clock}:size={pids}")
    switch = (
        "sched/sched_switch",
        f"hist:keys=next_pid:on=common_cpu:took=common_timestamp-$woken:{clock}:size={pids}"
        f":onmatch(sched.sched_waking).{{group}}_woke($on,$took) if {running}",
    )
    triggers = [
        (
            "power/cpu_idle",
            f"hist:keys=cpu_id:in=state:began=common_timestamp:since=common_timestamp:{clock} "
            f"if state!={EXIT}{mine}",
        ),
        (
            "power/cpu_idle",
            f"hist:keys=cpu_id:slept=common_timestamp-$began:{clock}"
            f":onmatch(power.cpu_idle).{{group}}_idle(cpu_id,$in,$slept) if state=={EXIT}{mine}",
        ),
        waking,
        switch,
        (
            "synthetic/{group}_woke",
            f"hist:keys=cpu:after=common_timestamp-$since-ns:{clock}"
            ":onmatch(power.cpu_idle).{group}_wake(cpu,$in,ns,$after)",
        ),
    ]
    for event, more in (("idle", ""), ("wake", f"&&after<{NEGATIVE}")):
        triggers += [
            (
                f"synthetic/{{group}}_{event}",
                f"hist:keys=cpu,state,{key}:vals=ns:{size} if {times}{more}",
            )
            for key, times in RANGES
        ]
    return {
        "events": [f"{{group}}_{name} {fields}" for name, fields in EVENTS.items()],
        "triggers": triggers,
        "forget": {
            "triggers": [(file, f"!{line}") for file, line in (switch, waking)] + [waking, switch],
            "full": [f"{file}/hist" for file, _ in (waking, switch)],
            "forks": pids // 4,
            "look_s": LOOK_S,
        },
        "read": {name: f"synthetic/{{group}}_{name}/hist" for name in ("idle", "wake")},
    }


def tasks(root: Path) -> int:
    """Return how many tasks there are."""
    return int((root / "proc/loadavg").read_text().split()[3].partition("/")[2])


def _power_of_two(least: int) -> int:
    return min(MANY, max(FEW, 1 << (least - 1).bit_length()))
