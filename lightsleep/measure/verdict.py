# SPDX-License-Identifier: GPL-2.0-only
"""Is the advertised latency true? One verdict per state, from its samples. No side effects.

What an exit latency means is not defined to the microsecond: some drivers count the interrupt in,
some advertise the median, some the worst case, and what a driver advertises is a whole number of
microseconds. The observed value is the median after subtraction of the busy baseline. It has an
error of its own: a timer or an IPI finds a busy CPU's caches warm, which shifts the subtracted
value by a microsecond or so. By store, the waker works on the wakeup of a thread until it stores
what the idle CPU sees. A busy CPU sees an earlier store, so that work counts as the state's.

So an advertised latency A is true enough where the observed one is in

    [A / RATIO - SLACK_NS, A x RATIO + SLACK_NS]

RATIO = 1.25: a governor decides between states whose latencies differ by factors of 2 to 10, so a
quarter changes no decision. SLACK_NS = 2000: resolution of what is advertised, plus the errors
above; it also decides for polling states, which advertise 0. A lie by a factor of 2 is outside from
7 us on: below that, nobody can tell it from the test's own error.

Noise. Whatever else a machine does only ever adds to a latency: to the state's, which makes it
look slower, and to the baseline's, which makes the state look faster. Where there was noise, the
fastest tenth of the samples is what it spared, and the state takes no longer than the whole wake.
So the difference that counts is the 95 % interval of the subtracted median; where there was noise,
it reaches from the fastest tenth minus the median of the baseline up to the unsubtracted median.
There was noise if time was stolen, if other programs ran, or if a busy CPU, which has nothing to
wake from, took longer than what is to be told apart, or in one wake of ten that much longer.

With that interval, in this order:

1. No valid sample, or a driver that counted less than half as many entries as there were samples
   (it was asked for the state but entered another; a polling state may last for several wakes):
   *not entered*, with what was entered instead. Where it is not the state's fault (the wake did
   not come, the CPU was busy): *too noisy*. A state without a single entry is at fault only if the
   CPU went idle: if it entered some state, or had this one refused, for every other wake.
2. No baseline, or too few samples for an interval: *too few*, as in 7.
3. Nothing advertised: said so, and whether the state is shown to be slower than a busy CPU. If it
   is faster by more than SLACK_NS, *too noisy* as in 4. Woken without an IPI, where the busy CPU
   was woken by one: there is nothing to subtract, *too noisy*. A CPU that polls, or waits by MWAIT,
   is woken by a store. In user space nothing tells how a wake came: of such a CPU, it is assumed.
4. Wholly below -SLACK_NS, or below an accepted range that begins below 0: faster than a busy CPU.
   No state is; the baseline is no measure here (as where a spinning thread must first be scheduled
   away): *too noisy*.
5. Wholly above the accepted range: the advertisement is *optimistic*, the state is slower; but not
   where there was so much noise that a busy wake, too, takes longer than that range.
6. Nowhere above the range, but a wake took longer than a sample may: *too noisy*, with how many
   did. The median is only of those that came in time. Else, wholly below: *pessimistic*. Wholly
   within the range, ends included: it *agrees*.
7. Otherwise the interval holds values on both sides of an end of the range, and nobody can tell.
   With noise, *too noisy*, with the reason. Without, the interval shrinks with the square root of
   the number of samples: *too few*, with how many more it takes until this median is told from that
   end, unless that is more than a run can take (MAX_SAMPLES). Where so few samples are valid that a
   run ends without as many as it was asked for, that many more have to be asked for. Where a run
   gives up on them, no number helps: *too noisy*, with how few count. What ended early tells no
   number: those that were asked for may be enough.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lightsleep.measure.result import Figures, Verdict
from lightsleep.order import ranks
from lightsleep.units import us

RATIO = 1.25
SLACK_NS = 2000
MAX_SAMPLES = 10_000
MIN_SAMPLES = next(n for n in range(1, 100) if ranks(n)[0])

FASTER = "faster than a busy CPU: no baseline to go by"
SPARED = "woken without an IPI, a busy CPU with one: measure with --source store"
MAYBE_SPARED = f"perhaps {SPARED}, which needs the module"
CUT_SHORT = Verdict("too-few", None, None, "cannot tell: ended early")

# Reasons why a sample is invalid that speak of the state, not of something that came between.
NOT_ENTERED = {"wrong-state", "not-entered", "not-polling"}


@dataclass(frozen=True)
class Evidence:
    """What is known about one state, source and CPU.

    ``fastest_ns`` is what the fastest tenth of the samples does not exceed. ``invalid`` counts
    samples by reason, ``instead`` by name of the state that the CPU was in, ``usage`` is how often
    the driver says that the state was entered; one that ``polls`` may last for several wakes.
    ``idled`` is how often the CPU went idle, into whatever state or refused; None: nothing tells.
    ``disturbed`` says what else went on; None: nothing of note. ``spared``: wakes from the state
    took no IPI, as those of the baseline did, so there is no ``subtracted``; in words, None if not.
    ``worth`` is how many valid samples come of each that is asked for: 1, unless most do not count;
    0 where so few do that a run gives up. ``cut_short``: it ended before it had what was asked for.
    """

    advertised_us: int | None
    raw: Figures | None
    baseline: Figures | None
    subtracted: Figures | None
    fastest_ns: int | None
    invalid: Mapping[str, int]
    instead: Mapping[str, int]
    usage: int | None
    idled: int | None
    polls: bool
    disturbed: str | None
    spared: str | None = None
    worth: float = 1.0
    cut_short: bool = False


def judge(evidence: Evidence) -> Verdict:
    """Return the verdict on a state."""
    return _unmeasured(evidence) or _incomplete(evidence) or _compared(evidence)


def accepted_ns(advertised_us: int) -> tuple[float, float]:
    """Return the range in which an observed latency agrees with the advertised one."""
    advertised_ns = 1000 * advertised_us
    return advertised_ns / RATIO - SLACK_NS, advertised_ns * RATIO + SLACK_NS


def _unmeasured(evidence: Evidence) -> Verdict | None:
    raw, usage, idled = evidence.raw, evidence.usage, evidence.idled
    if raw is None:
        missed = sum(evidence.invalid.get(reason, 0) for reason in NOT_ENTERED)
        total = sum(evidence.invalid.values())
        if not total:
            return Verdict("too-few", None, None, "no sample was taken")
        busy = idled is not None and 2 * idled < total
        if 2 * missed >= total or (usage == 0 and idled is not None and not busy):
            return Verdict("not-entered", None, None, f"never entered{_instead(evidence)}")
        why = "the CPU was busy" if busy else "no valid sample"
        return Verdict("too-noisy", None, None, f"{why}: {_reasons(evidence.invalid)}")
    if usage is not None and 2 * usage < raw.count and not evidence.polls:
        text = f"chosen {raw.count} times, but the driver counted {usage} entries"
        return Verdict("not-entered", None, None, text)
    return None


def _incomplete(evidence: Evidence) -> Verdict | None:
    raw, subtracted = evidence.raw, evidence.subtracted
    assert raw
    # First: with nothing to compare with, more samples would not give another verdict.
    if evidence.advertised_us is None:
        return _nothing_advertised(subtracted)
    if evidence.spared:
        return Verdict("too-noisy", None, None, evidence.spared)
    if raw.ci_ns is None:
        needed = math.ceil(MIN_SAMPLES * raw.count / raw.independent)
        return _cannot_tell(evidence, needed)
    if subtracted is None or subtracted.ci_ns is None:
        if evidence.cut_short:
            return CUT_SHORT
        return Verdict("too-few", None, None, "the busy baseline has too few samples")
    return None


def _nothing_advertised(own: Figures | None) -> Verdict:
    text = "nothing advertised"
    if own and own.ci_ns:
        low, high = own.ci_ns
        if high < -SLACK_NS:
            return Verdict("too-noisy", None, None, FASTER)
        if low <= 0:
            text += "; not shown to be slower than a busy CPU"
    return Verdict("nothing-advertised", None, None, text)


def _compared(evidence: Evidence) -> Verdict:
    raw, own, advertised_us = evidence.raw, evidence.subtracted, evidence.advertised_us
    assert raw
    assert own
    assert advertised_us is not None
    accepted = accepted_ns(advertised_us)
    noise = _noise(evidence, accepted[1] - accepted[0])
    low, high = _interval(evidence, noise)
    slower = low > accepted[1]
    # Of what may be 0, or less, no factor is known.
    ratio = own.p50_ns / (1000 * advertised_us) if advertised_us and low > 0 else None
    if high < -SLACK_NS or high < accepted[0] <= 0:
        return Verdict("too-noisy", None, None, FASTER)
    if slower and not (noise and raw.p50_ns - own.p50_ns > accepted[1]):
        by = _by(ratio, own.p50_ns - 1000 * advertised_us)
        return Verdict("optimistic", ratio, None, f"optimistic by {by}")
    if (late := evidence.invalid.get("timeout")) and high <= accepted[1]:
        text = f"{late} of {raw.count + late} wakes took longer than a sample may"
        return Verdict("too-noisy", None, None, text)
    if high < accepted[0]:
        by = _by(1 / ratio if ratio else None, 1000 * advertised_us - own.p50_ns)
        return Verdict("pessimistic", ratio, None, f"pessimistic by {by}")
    if accepted[0] <= low and high <= accepted[1]:
        return Verdict("agrees", ratio, None, "agrees")
    if noise:
        text = f"{us(low)} to {us(high)} us: {noise}"
        return Verdict("too-noisy", None, None, text)
    needed = raw.count * _times(own.p50_ns, (low, high), accepted) ** 2
    if evidence.worth and needed > MAX_SAMPLES * evidence.worth:
        text = f"{us(low)} to {us(high)} us: too close to what is accepted, or too scattered"
        return Verdict("too-noisy", None, None, text)
    return _cannot_tell(evidence, needed)


def _cannot_tell(evidence: Evidence, needed: float) -> Verdict:
    """Say how many more samples to ask for until ``needed`` are valid, or why that is no help."""
    raw = evidence.raw
    assert raw
    if evidence.cut_short:
        return CUT_SHORT
    if not evidence.worth:
        total = raw.count + sum(evidence.invalid.values())
        return Verdict("too-noisy", None, None, f"only {raw.count} of {total} wakes count")
    missing = max(1, math.ceil((math.ceil(needed) - raw.count) / evidence.worth))
    samples = "sample" if missing == 1 else "samples"
    return Verdict("too-few", None, missing, f"cannot tell, {missing} more {samples} needed")


def _times(
    median_ns: float, interval_ns: tuple[float, float], accepted_ns: tuple[float, float]
) -> float:
    """Return how many times narrower the interval must be to hold no end of the range."""
    low, high = interval_ns
    times = 1.0
    for end in accepted_ns:
        if low < end < high:
            reach = high - median_ns if end > median_ns else median_ns - low
            times = max(times, reach / abs(end - median_ns)) if end != median_ns else math.inf
    return times


def _by(factor: float | None, difference_ns: float) -> str:
    """Return by how much a state is off: as a factor where that means something."""
    if not factor or factor <= 0:
        return f"{us(difference_ns)} us"
    return f"{factor:,.0f}x" if factor >= 100 else f"{factor:.3g}x"


def _noise(evidence: Evidence, apart_ns: float) -> str | None:
    """Return what was noisy, if anything, where ``apart_ns`` are to be told apart."""
    busy = evidence.baseline
    assert busy
    if evidence.disturbed:
        return evidence.disturbed
    late_ns = busy.p90_ns - busy.p50_ns
    if late_ns > apart_ns:
        return f"1 busy wake in 10 is {us(late_ns)} us late"
    if busy.p50_ns > apart_ns:
        return f"busy wakes take {us(busy.p50_ns)} us"
    return None


def _interval(evidence: Evidence, noise: str | None) -> tuple[float, float]:
    """Return where the difference to a busy CPU lies."""
    raw, busy, own = evidence.raw, evidence.baseline, evidence.subtracted
    assert raw
    assert raw.ci_ns
    assert busy
    assert own
    assert own.ci_ns
    if not noise or evidence.fastest_ns is None:
        return own.ci_ns
    return min(own.ci_ns[0], evidence.fastest_ns - busy.p50_ns), raw.ci_ns[1]


def _instead(evidence: Evidence) -> str:
    if not evidence.instead:
        return f" ({_reasons(evidence.invalid)})"
    name = max(evidence.instead, key=lambda name: evidence.instead[name])
    return f": the CPU was in {name} instead"


def _reasons(invalid: Mapping[str, int]) -> str:
    worst = sorted(invalid.items(), key=lambda item: -item[1])
    return ", ".join(f"{count} x {reason}" for reason, count in worst)
