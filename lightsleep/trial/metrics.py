# SPDX-License-Identifier: GPL-2.0-only
"""What one run of the command is measured by: figures of its own, and of the machine meanwhile.

``wall`` is the time from start to end of the command, ``cpu`` what it and its children used. The
rest is read before and after, so it counts the whole machine: what else ran meanwhile is in it.

- ``busy`` is the time of all CPUs together that was not idle. A command may be the client of a
  server that runs on, or of a guest whose vCPUs are threads of this machine: what these use is in
  no other time. It is an amount, as ``cpu`` is: of a run that is shorter for the same work, the
  share would be larger. What it takes to read all figures is not in it.
- ``polled`` and ``in STATE`` are shares of the time of all CPUs. ``polled`` is the time in states
  that poll, and in polls of the idle loop, which are in no state. Where a setting has no such
  state, no CPU entered it, so its share is 0. A name that a CPU has twice ends in ``#`` and the
  state's index.
- ``wakes`` are entries into states that do not poll, and polls of lightsleep's driver that saw a
  wakeup. Which polls of other drivers did, nothing counts; nor anything without a cpuidle driver.
- ``ipis``, ``stolen`` and ``energy`` are there where the machine counts them.

A period of a service that runs on has the same figures, per second or as shares, without the times
of a command.

A figure that the command prints is found by a regular expression, in the last place that matches.
The first group is the number, or all of the match; ^ and $ stand for the ends of a line. Of a
counter, which a command prints at both ends of a period, the rate is taken.

An expression may match a part of a number only: [0-9.]+ matches the 1 of 1,234 and of 1e-05, and
the seconds of 1m0.2s. And a program may choose the unit by the size of the number: 935us, then
1.02ms. Either would be a wrong figure that nobody sees, so both are refused. The unit is looked at
only where it stands behind the number. One in front, or one that UNIT does not know, is for the
expression to have: with another one, it matches nothing.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from lightsleep.compare.result import LARGEST, Better, MetricResult
from lightsleep.errors import LightsleepError, WrongUsage
from lightsleep.trial.reading import Energy, Reading

THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2}(,[0-9]{3})+(\.[0-9]*)?")
"""A number whose commas are taken to separate thousands."""

BEGUN = re.compile(r"\d\.?\Z|(?<![\d;\[])\d+[hm]\Z")
"""What stands before a part of a number, the end of it; or of a time. ESC[32m is a colour."""

CONTINUED = re.compile(r"\.?\d|[eE][+-]?\d|[hm]\d")
"""What stands behind a part of a number, the beginning; or of a time, as 1m2.5s is one."""

UNIT = re.compile(
    r"[A-Za-z%\u00b5\u03bc]+"
    r"|[^\S\n]+(?:[num\u00b5\u03bc]|[kKMGT]i?)?(?:s|secs?|B|[Bb]its?|[Bb]ytes)(?![A-Za-z])"
    r"|[^\S\n]+[kKMGT](?=/)"
)
"""What stands behind a number: letters at once, or behind blanks a unit that a program chooses."""

MOST_W = 1000
"""More than a processor package uses. Where that could exceed the range of its counter, and so the
counter have started again more than once, nobody knows what was used. AMD's have a range of 65 kJ.
"""

UNITS = {
    "_per_s": "/s",
    "_per_ms": "/ms",
    "_per_us": "/us",
    "_per_ns": "/ns",
    "_s": "s",
    "_ms": "ms",
    "_us": "us",
    "_ns": "ns",
    "_pct": "%",
}
TIMES = ("ms", "us", "ns")
"""Of these, less is better. Of anything else, who names it is to say so. In seconds, too: took_s
is a time, and req_s is a rate."""


@dataclass(frozen=True)
class Printed:
    """A figure that the command prints; of a counter, the ``rate`` is wanted."""

    name: str
    pattern: re.Pattern[str]
    better: Better
    rate: bool = False

    @property
    def unit(self) -> str:
        """The unit that the end of the name tells."""
        return next((unit for end, unit in UNITS.items() if self.name.endswith(end)), "")


@dataclass(frozen=True)
class Kind:
    """How a metric is shown and judged."""

    unit: str
    better: Better
    title: str
    description: str
    amount: bool = False
    """As in MetricResult."""


WAKES = (
    "Entries of all CPUs into states that do not poll, and polls of lightsleep's driver that saw a "
    "wakeup."
)

POLLED = (
    "Share of all CPUs' time in polling states, and in polls of the idle loop where the kernel "
    "has them."
)

KINDS = {
    "wall_s": Kind("s", "lower", "Wall time", "Time from the start to the end of the command."),
    "cpu_s": Kind(
        "s",
        "lower",
        "CPU time",
        "User and system time of the command and its children.",
        amount=True,
    ),
    "busy_s": Kind(
        "s",
        "lower",
        "CPU time of the machine",
        "Time of all CPUs together that was not idle, whatever ran. Stolen time is in it.",
        amount=True,
    ),
    # A service that answers less is less busy, too: only a number of its own can decide.
    "busy_pct": Kind(
        "%", "none", "CPU time of the machine", "Share of all CPUs' time that was not idle."
    ),
    "polled_pct": Kind("%", "none", "Time polled", POLLED),
    "wakes": Kind("", "none", "Wakes", WAKES),
    "ipis": Kind("", "none", "Interrupts between CPUs", "Counted in /proc/interrupts."),
    "stolen_s": Kind(
        "s", "lower", "Stolen time", "Time that the hypervisor ran something else.", amount=True
    ),
    "energy_J": Kind("J", "lower", "Energy", "Energy of all processor packages (powercap)."),
    "wakes_per_s": Kind("/s", "none", "Wakes", WAKES),
    "ipis_per_s": Kind("/s", "none", "Interrupts between CPUs", "Counted in /proc/interrupts."),
    "stolen_pct": Kind(
        "%", "lower", "Stolen time", "Share of all CPUs' time that the hypervisor used otherwise."
    ),
    "power_W": Kind("W", "lower", "Power", "Power of all processor packages (powercap)."),
}


def parse_printed(text: str) -> Printed:
    """Return the figure that ``NAME=REGEX[:rate][:higher|lower]`` describes. Raises WrongUsage."""
    name, equals, pattern = text.partition("=")
    words = []
    while (end := pattern.rpartition(":"))[1] and end[2] in ("rate", "higher", "lower"):
        pattern = end[0]
        words.append(end[2])
    if len(words) != len({word == "rate" for word in words}):
        raise WrongUsage(f"metric {text!r}: it ends in :rate, one of :higher and :lower, or both")
    better: Better = "higher" if "higher" in words else "lower"
    rate = "rate" in words
    if not equals or not pattern or not re.fullmatch(r"[A-Za-z][\w-]{0,60}", name, re.ASCII):
        raise WrongUsage(f"metric {text!r}: it is written NAME=REGEX:higher or NAME=REGEX:lower")
    if name.startswith("in_"):
        raise WrongUsage(
            f"metric {name}: names that begin with in_ are those of idle states: choose another one"
        )
    if name in KINDS:
        raise WrongUsage(f"metric {name} is measured already: choose another name")
    try:
        printed = Printed(name, re.compile(pattern, re.MULTILINE), better, rate)
    except (re.error, OverflowError, RecursionError) as error:
        raise WrongUsage(f"metric {name}: {pattern!r} is no regular expression: {error}") from error
    if (rate or printed.unit not in TIMES) and not {"higher", "lower"} & set(words):
        raise WrongUsage(
            f"metric {name}: let it end in :higher or in :lower, to say which is better. Only of a "
            "time whose name ends in _ms, _us, or _ns, lower is the default"
        )
    return printed


def find(printed: Printed, output: str, units: dict[str, str]) -> float:
    """Return the figure from the output of the command. Raises LightsleepError.

    ``units`` is what stood behind the first figure of each metric: there it has to stand again,
    unless the figure is 0.
    """
    matches = list(printed.pattern.finditer(output))
    if not matches:
        raise LightsleepError(
            f"metric {printed.name}: nothing in the output matches {printed.pattern.pattern!r}; "
            f"the output ends with {output[-300:]!r}"
        )
    match, group = matches[-1], 1 if printed.pattern.groups else 0
    text = match[group] or ""
    if "," in text and not THOUSANDS.fullmatch(text):
        raise LightsleepError(
            f"metric {printed.name}: {text!r} is no number: a comma separates thousands; if it is "
            "a decimal comma, run the command with LC_ALL=C in its environment"
        )
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise LightsleepError(f"metric {printed.name}: {text!r} is not a number")
    if abs(number) > LARGEST:
        raise LightsleepError(
            f"metric {printed.name}: {text} is beyond {LARGEST:g}: use a larger unit"
        )
    _check_whole(printed.name, match, group)
    found = UNIT.match(output, match.end(group))
    unit = found[0].strip() if found else ""
    if number and unit != (first := units.setdefault(printed.name, unit)):
        raise LightsleepError(
            f"metric {printed.name}: the unit behind the number was {first or 'none'} before, and "
            f"is {unit or 'none'} now ({text}{found[0] if found else ''}): have the program print "
            "the same unit always"
        )
    return number


def _check_whole(name: str, match: re.Match[str], group: int) -> None:
    """Raise LightsleepError where a match ends or begins in the middle of a number."""
    start, end = match.span(group)
    before, behind = match.string[max(start - 20, 0) : start], match.string[end : end + 20]
    begun, continued = BEGUN.search(before), CONTINUED.match(behind)
    commas = [start - 1] if re.search(r"\d,\Z", before) else []
    commas += [end] if re.match(r",\d", behind) else []
    comma = not all(_has_comma(match, group, place) for place in commas)
    if not (comma or begun or continued):
        return
    why = "have it match all of the number"
    if comma:
        why += (
            "; if it is a decimal comma, run the command with LC_ALL=C in its environment; if it "
            "separates columns, let the expression name it outside of the group, as in "
            ",([0-9.]+),"
        )
    if (begun and begun[0][-1] in "hm") or (continued and continued[0][0] in "hm"):
        why += (
            "; if it is a time of minutes and seconds, have the program print seconds, as the time "
            "of bash does with TIMEFORMAT=%R"
        )
    raise LightsleepError(
        f"metric {name}: {match[group]!r} is only a part of a number in "
        f"{match.string[max(start - 10, 0) : end + 10]!r}: {why}"
    )


def _has_comma(match: re.Match[str], group: int, place: int) -> bool:
    """Return whether an expression has the comma that stands in this place, outside of its group.

    Then the comma separates columns. What matches anything, as .* does, has none: with another
    character there, it finds the same.
    """
    if not match.start() <= place < match.end():
        return False
    text = match.string
    other = match.re.match(f"{text[:place]}\0{text[place + 1 :]}", match.start())
    return other is None or other.span(group) != match.span(group)


def of_run(before: Reading, after: Reading, wall_s: float, cpu_s: float) -> dict[str, float]:
    """Return the metrics of a run that the machine tells."""
    found = {"wall_s": wall_s, "cpu_s": cpu_s, **_of_machine(before, after)}
    if times_s := _busy_and_all_s(before, after):
        found["busy_s"], _ = times_s
    return found


def of_period(before: Reading, after: Reading) -> dict[str, float]:
    """Return the metrics of a period: the machine's, per second or as shares of all CPUs' time."""
    span_s = max(after.time_s - before.time_s, 1e-9)
    found = _of_machine(before, after)
    for count, rate in (("wakes", "wakes_per_s"), ("ipis", "ipis_per_s"), ("energy_J", "power_W")):
        if count in found:
            found[rate] = found.pop(count) / span_s
    share = 100 / (span_s * max(after.cpus, 1))
    if "stolen_s" in found:
        found["stolen_pct"] = found.pop("stolen_s") * share
    if times_s := _busy_and_all_s(before, after):
        busy_s, all_s = times_s
        found["busy_pct"] = 100 * busy_s / all_s
    return found


def _busy_and_all_s(before: Reading, after: Reading) -> tuple[float, float] | None:
    """Return the time of all CPUs together that was not idle between two readings, and all of it.

    None where the machine does not tell.
    """
    begin, end = before.idle_end, after.idle_begin
    if begin is None or end is None:
        return None
    all_s = max(end.time_s - begin.time_s, 1e-9) * max(after.cpus, 1)
    return min(max(all_s - (end.idle_s - begin.idle_s), 0.0), all_s), all_s


IRQ_COUNT = 1 << 32
"""The kernel counts interrupts in 32 bits (kstat_irqs(), arch_irq_stat_cpu())."""


def _of_machine(before: Reading, after: Reading) -> dict[str, float]:
    span_us = max(after.time_s - before.time_s, 1e-9) * 1e6 * max(after.cpus, 1)
    found: dict[str, float] = {}
    polled_us, wakes = 0.0, 0
    in_state: dict[str, int] = {}
    # A CPU that came online meanwhile has counted since boot.
    shared = [key for key in after.states if key in before.states]
    for key in shared:
        earlier, now = before.states[key], after.states[key]
        time_us = max(now.time_us - earlier.time_us, 0)
        in_state[key[1]] = in_state.get(key[1], 0) + time_us
        polled_us += time_us if now.polls else 0
        if not now.polls:
            wakes += max(now.usage - earlier.usage, 0)
    for cpu in after.hits.keys() & before.hits.keys():
        wakes += max(after.hits[cpu] - before.hits[cpu], 0)
    for cpu in after.polled_ns.keys() & before.polled_ns.keys():
        polled_us += max(after.polled_ns[cpu] - before.polled_ns[cpu], 0) / 1000
    found["polled_pct"] = 100 * polled_us / span_us
    found |= {f"in_{name}_pct": 100 * us / span_us for name, us in in_state.items()}
    if shared:
        found["wakes"] = wakes
    if before.ipis is not None and after.ipis is not None:
        found["ipis"] = sum(
            (count - before.ipis[cpu]) % IRQ_COUNT
            for cpu, count in after.ipis.items()
            if cpu in before.ipis
        )
    if before.stolen_s is not None and after.stolen_s is not None:
        found["stolen_s"] = max(after.stolen_s - before.stolen_s, 0)
    most_uj = MOST_W * 1e6 * (after.time_s - before.time_s)
    told = before.energy and before.energy.keys() == after.energy.keys()
    if told and all(x.range_uj >= most_uj for x in after.energy.values()):
        found["energy_J"] = (
            sum(_used_uj(before.energy[name], after.energy[name]) for name in after.energy) / 1e6
        )
    return found


def _used_uj(before: Energy, after: Energy) -> int:
    """Return what was used; the counter may have started again, once at most."""
    used = after.uj - before.uj
    return used if used >= 0 else used + after.range_uj


def collected(
    runs: Mapping[str, list[dict[str, float]]], printed: list[Printed]
) -> dict[str, MetricResult]:
    """Return the metrics of all runs by setting, those that the command prints first.

    A metric that a run of any setting lacks is left out: it could not be compared. Wakes are one
    where only some settings have a cpuidle driver.
    """
    names = [x.name for x in printed]
    names += [name for name in KINDS if name not in names]
    seen = dict.fromkeys(name for samples in runs.values() for run in samples for name in run)
    names += sorted(name for name in seen if name not in names)
    own = {x.name: Kind(x.unit, x.better, x.name, "Printed by the command.") for x in printed}
    results = {}
    for name in names:
        kind = own.get(name) or KINDS.get(name) or _residency(name)
        samples = {
            arm: [run.get(name, 0.0) if _is_share(name) else run[name] for run in done]
            for arm, done in runs.items()
            if _is_share(name) or all(name in run for run in done)
        }
        if len(samples) == len(runs) and any(samples.values()):
            results[name] = MetricResult(
                kind.unit, kind.better, kind.title, kind.description, samples, kind.amount
            )
    return results


def is_printed(name: str) -> bool:
    """Whether a metric is a number that the command prints: else, the machine counts it."""
    return name not in KINDS and not _is_share(name)


def _is_share(name: str) -> bool:
    return name.startswith("in_") and name not in KINDS


def _residency(name: str) -> Kind:
    state = name.removeprefix("in_").removesuffix("_pct")
    return Kind("%", "none", f"Time in {state}", f"Share of all CPUs' time in idle state {state}.")
