# SPDX-License-Identifier: GPL-2.0-only
"""Is the advertised latency true? One verdict per state, from its samples. No side effects.

What an exit latency means is not defined to the microsecond: some drivers count the interrupt in,
some advertise the median, some the worst case, and what a driver advertises is a whole number of
microseconds. The observed value is the median after subtraction of the busy baseline. It has an
error of its own: a timer or an IPI finds a busy CPU's caches warm, which shifts the subtracted
value by a microsecond or so. So an advertised latency A is true enough where the observed one is in

    [A / RATIO - SLACK_NS, A x RATIO + SLACK_NS]

RATIO = 1.25: a governor decides between states whose latencies differ by factors of 2 to 10, so a
quarter changes no decision. SLACK_NS = 2000: resolution of what is advertised plus the shift above;
it also decides for polling states, which advertise 0. A lie by a factor of 2 is outside from 7 us
on: below that, nobody can tell it from the test's own error.

Then, with the 95 % interval of the subtracted median, in this order:

1. No valid sample, or a driver that counted less than half as many entries as there were samples
   (it was asked for the state but entered another): *not entered*, with what was entered instead.
   Where it is not the state's fault (the wake did not come, the CPU was busy): *too noisy*.
2. No baseline, or too few samples for an interval: *too few*, with how many are missing.
3. Nothing advertised: said so.
4. Interval wider than the accepted range, and not wholly on one side of it: it could mean
   anything. The width shrinks with the square root of the number of samples, so that many more are
   needed; where that is more than a run can take (MAX_SAMPLES), more samples are no remedy: *too
   noisy*, and the reason is whichever interval is wider, the state's or the baseline's.
5. Interval wholly below -SLACK_NS: faster than a busy CPU. No state is; the baseline is no
   measure here (as where a spinning thread must first be scheduled away): *too noisy*.
6. Interval wholly above the range: the advertisement is *optimistic*, the state is slower. Wholly
   below: *pessimistic*. In both cases *too noisy* instead where something else disturbed the CPU
   (stolen time, other load), for that adds to latencies and to baselines.
7. Otherwise it *agrees*: nothing speaks against it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lightsleep.measure.result import Figures, Verdict, VerdictKind
from lightsleep.measure.summary import rank

RATIO = 1.25
SLACK_NS = 2000
MAX_SAMPLES = 10_000
MIN_SAMPLES = next(n for n in range(1, 100) if rank(n))

# Reasons why a sample is invalid that speak of the state, not of something that came between.
NOT_ENTERED = {"wrong-state", "not-polling"}


@dataclass(frozen=True)
class Evidence:
    """What is known about one state, source and CPU.

    ``invalid`` counts samples by reason, ``instead`` by name of the state that the CPU was in,
    ``usage`` is how often the driver says that the state was entered. ``disturbed`` says what
    else went on; None: nothing of note.
    """

    advertised_us: int | None
    raw: Figures | None
    baseline: Figures | None
    subtracted: Figures | None
    invalid: Mapping[str, int]
    instead: Mapping[str, int]
    usage: int | None
    disturbed: str | None


def judge(evidence: Evidence) -> Verdict:
    """Return the verdict on a state."""
    return _unmeasured(evidence) or _undecided(evidence) or _compared(evidence)


def accepted_ns(advertised_us: int) -> tuple[float, float]:
    """Return the range in which an observed latency agrees with the advertised one."""
    advertised_ns = 1000 * advertised_us
    return advertised_ns / RATIO - SLACK_NS, advertised_ns * RATIO + SLACK_NS


def _unmeasured(evidence: Evidence) -> Verdict | None:
    raw, usage = evidence.raw, evidence.usage
    if raw is None:
        missed = sum(evidence.invalid.get(reason, 0) for reason in NOT_ENTERED)
        total = sum(evidence.invalid.values())
        if not total:
            return Verdict("too-few", None, None, "no sample was taken")
        if 2 * missed >= total:
            return Verdict("not-entered", None, None, f"never entered{_instead(evidence)}")
        return Verdict("too-noisy", None, None, f"no valid sample: {_reasons(evidence.invalid)}")
    if usage is not None and 2 * usage < raw.count:
        text = f"chosen {raw.count} times, but the driver counted {usage} entries"
        return Verdict("not-entered", None, None, text)
    return None


def _undecided(evidence: Evidence) -> Verdict | None:
    raw, baseline, subtracted = evidence.raw, evidence.baseline, evidence.subtracted
    assert raw
    if raw.ci_ns is None:
        missing = max(1, MIN_SAMPLES - raw.count)
        return Verdict("too-few", None, missing, f"{missing} more needed")
    if subtracted is None or subtracted.ci_ns is None:
        return Verdict("too-few", None, None, "the busy baseline has too few samples")
    if evidence.advertised_us is None:
        return Verdict("nothing-advertised", None, None, "nothing advertised")

    assert baseline
    assert baseline.ci_ns
    low, high = accepted_ns(evidence.advertised_us)
    width = subtracted.ci_ns[1] - subtracted.ci_ns[0]
    if width <= high - low or subtracted.ci_ns[0] > high or subtracted.ci_ns[1] < low:
        return None
    needed = math.ceil(raw.count * (width / (high - low)) ** 2)
    if needed <= MAX_SAMPLES:
        missing = needed - raw.count
        return Verdict("too-few", None, missing, f"{missing} more needed")
    own = raw.ci_ns[1] - raw.ci_ns[0]
    who = "the busy baseline" if baseline.ci_ns[1] - baseline.ci_ns[0] > own else "the latency"
    why = f"{who} varies too much to tell {(high - low) / 1000:.3g} us apart"
    return Verdict("too-noisy", None, None, f"{why}{_because(evidence)}")


def _compared(evidence: Evidence) -> Verdict:
    subtracted, advertised_us = evidence.subtracted, evidence.advertised_us
    assert subtracted
    assert subtracted.ci_ns
    assert advertised_us is not None
    low, high = accepted_ns(advertised_us)
    observed_us = subtracted.p50_ns / 1000
    ratio = observed_us / advertised_us if advertised_us else None
    kind: VerdictKind
    if subtracted.ci_ns[1] < -SLACK_NS:
        return Verdict("too-noisy", None, None, "faster than a busy CPU: no baseline to go by")
    if subtracted.ci_ns[0] > high:
        kind = "optimistic"
        by = f"{ratio:.3g}x" if ratio else f"{observed_us - advertised_us:.3g} us"
    elif subtracted.ci_ns[1] < low:
        kind = "pessimistic"
        by = f"{1 / ratio:.3g}x" if ratio and ratio > 0 else f"{advertised_us - observed_us:.3g} us"
    else:
        return Verdict("agrees", ratio, None, "agrees")
    if evidence.disturbed:
        return Verdict("too-noisy", ratio, None, f"looks {kind} by {by}{_because(evidence)}")
    return Verdict(kind, ratio, None, f"{kind} by {by}")


def _instead(evidence: Evidence) -> str:
    if not evidence.instead:
        return f" ({_reasons(evidence.invalid)})"
    name = max(evidence.instead, key=lambda name: evidence.instead[name])
    return f": the CPU was in {name} instead"


def _because(evidence: Evidence) -> str:
    return f", but {evidence.disturbed}" if evidence.disturbed else ""


def _reasons(invalid: Mapping[str, int]) -> str:
    worst = sorted(invalid.items(), key=lambda item: -item[1])
    return ", ".join(f"{count} x {reason}" for reason, count in worst)
