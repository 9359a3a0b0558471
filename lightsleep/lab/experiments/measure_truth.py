# SPDX-License-Identifier: GPL-2.0-only
"""Whether ``lightsleep measure`` tells the truth, where the truth is known: synthetic states.

The states of cpuidle-synthetic take what they are told to take. That they take no more, and that
a busy CPU is woken as fast every time, takes a machine on which nothing else costs time: one whose
clock counts the instructions that the guest executes.
"""

from __future__ import annotations

from typing import Any

from lightsleep.compare.result import Claim
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.loads.waking import (
    DEST_CPU,
    MODULE,
    SOURCE_CPU,
    measure_in,
    median_us,
    row_of,
    sources,
)
from lightsleep.lab.run.experiment import Arm, Experiment, Metric

SOURCES = ("timer", "ipi")
TRUTHS_US = (2, 20, 200, 2000)
NEVER = "never"

TOLERANCE = 0.05
TOLERANCE_US = 2.0

# name:advertised:residency:real
HONEST = ",".join(f"T{us}:{us}:{2 * us}:{us}" for us in TRUTHS_US)
LIES = ",".join(f"T{us}:{us // 2}:{2 * us}:{us}" for us in TRUTHS_US)
UNREACHABLE = f"{NEVER}:5000:10000:never"

SAMPLES = 100

CANNOT_TELL = ("too-few", "too-noisy")
"""Verdicts that are none."""
OPEN = 2
"""How many of the verdicts of a round may be none."""


def synthetic(states: str) -> tuple[str, ...]:
    """Return the modules of an arm with these states, and one that is never entered."""
    return (f"cpuidle_synthetic states={states},{UNREACHABLE}", MODULE)


def expected(advertised_us: int, truth_us: int) -> tuple[str, ...]:
    """Return the verdicts that are right; 1 us and 2 us cannot be told apart."""
    if advertised_us == truth_us or truth_us == 2:
        return ("agrees",)
    return ("optimistic",)


def figures(document: dict[str, Any]) -> dict[str, float]:
    """Return the metrics of one measurement."""
    values: dict[str, float] = {}
    wrong = beyond = undecided = 0
    for source in SOURCES:
        for truth_us in TRUTHS_US:
            row = row_of(document, source, f"T{truth_us}")
            observed_us = median_us(row, "subtracted")
            values[f"{source}_{truth_us}us"] = observed_us
            beyond += abs(observed_us - truth_us) > max(TOLERANCE * truth_us, TOLERANCE_US)
            if row["verdict"]["kind"] in CANNOT_TELL:
                undecided += 1
            else:
                wrong += row["verdict"]["kind"] not in expected(row["advertised_us"], truth_us)
        unreachable = row_of(document, source, NEVER)
        wrong += unreachable["verdict"]["kind"] != "not-entered" or bool(
            unreachable["latencies_ns"]
        )
    return values | {
        "beyond_tolerance": beyond,
        "wrong_verdicts": wrong,
        "open_verdicts": undecided,
    }


def measure(guest: Guest) -> dict[str, float]:
    """Measure all states of one CPU, by timer and by IPI."""
    # The idle loop of the CPU that wakes is not to ask for it over and over.
    never = f"/sys/devices/system/cpu/cpu{SOURCE_CPU}/cpuidle/state{len(TRUTHS_US)}/disable"
    guest.write_text(never, "1")
    options = ("-c", str(DEST_CPU), "-n", str(SAMPLES), *sources(*SOURCES))
    return figures(measure_in(guest, *options))


EXPERIMENT = Experiment(
    title="Is what lightsleep measure says true?",
    hypothesis=(
        "With states that take exactly 2, 20, 200 and 2000 us, the median, less the busy "
        f"baseline, is within {TOLERANCE:.0%} or {TOLERANCE_US:g} us of that, by timer and by "
        "IPI. States of 20 us and more that advertise half of what they take are called "
        f"optimistic, and take as long as those that do not, within {TOLERANCE:.0%}. That of 2 us, "
        "advertised as 1 us, agrees: both cannot be told apart. A state that is never entered is "
        "called so and not measured. Falsified by one median beyond tolerance, one wrong verdict, "
        f"or more than {OPEN} verdicts in a round that cannot be given."
    ),
    arms=(
        Arm(
            "honest",
            "baseline",
            "states that advertise what they take",
            modules=synthetic(HONEST),
        ),
        Arm(
            "liar",
            "treatment",
            "the same states, advertised at half of what they take",
            modules=synthetic(LIES),
        ),
        Arm(
            "honest-again",
            "control",
            "booted as honest is",
            modules=synthetic(HONEST),
        ),
    ),
    metrics=(
        *(
            Metric(
                f"{source}_{us}us",
                "us",
                "none",
                f"Latency of a state of {us} us, woken by {source}",
                "Median wake latency less the median of the busy CPU's",
            )
            for source in SOURCES
            for us in TRUTHS_US
        ),
        Metric(
            "beyond_tolerance",
            "",
            "lower",
            "Measured medians that are too far from the truth",
            f"Of {len(SOURCES) * len(TRUTHS_US)} medians, those further from the truth than "
            f"{TOLERANCE:.0%} and {TOLERANCE_US:g} us",
        ),
        Metric(
            "wrong_verdicts",
            "",
            "lower",
            "Wrong verdicts",
            f"Of {len(SOURCES) * (len(TRUTHS_US) + 1)} verdicts, the state that is never entered "
            "among them",
        ),
        Metric(
            "open_verdicts",
            "",
            "lower",
            "Verdicts that cannot tell",
            f"Of {len(SOURCES) * len(TRUTHS_US)} verdicts, those that were too noisy or of too few "
            "samples",
        ),
    ),
    measure=measure,
    claims=(
        *(
            Claim(arm, None, (metric,), at_most=0)
            for arm in ("honest", "liar")
            for metric in ("beyond_tolerance", "wrong_verdicts")
        ),
        *(Claim(arm, None, ("open_verdicts",), at_most=OPEN) for arm in ("honest", "liar")),
        # What a state advertises does not change what it takes.
        *(
            Claim(
                *("liar", "honest", (f"{source}_{us}us",)),
                at_least=1 - TOLERANCE,
                at_most=1 + TOLERANCE,
            )
            for source in SOURCES
            for us in TRUTHS_US[1:]
        ),
    ),
    least_vcpus=DEST_CPU + 1,
    warmup=0,  # nothing in such a guest is faster the second time
    accel="tcg-icount",
)
