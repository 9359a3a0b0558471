# SPDX-License-Identifier: GPL-2.0-only
"""How fast ``lightsleep measure`` is: valid samples per second, and a whole guest's wall time.

Each sample waits a random time before its wake, so the state and the distance set the pace; the
method costs no more than an interrupt per sample.
"""

from __future__ import annotations

from lightsleep.compare.result import Claim
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.loads.waking import DEST_CPU, MODULE, measure_in, row_of, sources
from lightsleep.lab.run.experiment import Arm, Experiment, Metric

SOURCES = ("timer", "ipi")
FAST_US = (2, 20, 50)
STATES = ",".join(f"T{us}:{us}:{us}" for us in (*FAST_US, 200))
FAST_SAMPLES = 500
WHOLE_SAMPLES = 200


def measure(guest: Guest) -> dict[str, float]:
    """Measure the fast states of one CPU thoroughly, then every state of every CPU."""
    states = [word for us in FAST_US for word in ("--state", f"T{us}")]
    fast = measure_in(
        guest, "-c", str(DEST_CPU), *states, *sources(*SOURCES), "-n", str(FAST_SAMPLES)
    )
    whole = guest.run(
        [
            *("python3", "-m", "lightsleep", "measure", "--mode", "module", "--json"),
            *(*sources(*SOURCES), "-n", str(WHOLE_SAMPLES)),
        ],
        timeout_s=300,
    )
    rates = {}
    for source in SOURCES:
        for us in FAST_US:
            row = row_of(fast, source, f"T{us}")
            rates[f"{source}_{us}us_per_s"] = len(row["latencies_ns"]) / row["elapsed_s"]
    return rates | {"whole_s": whole.duration_s}


EXPERIMENT = Experiment(
    title="How fast is lightsleep measure?",
    hypothesis=(
        "At least 1000 valid samples per second from states of up to 50 us on one CPU, and a "
        f"whole guest (2 CPUs, 4 states, 2 sources, {WHOLE_SAMPLES} samples each) in less than a "
        "minute. Falsified by a lower rate or a longer time in either arm."
    ),
    arms=(
        Arm(
            "halting",
            "baseline",
            "states that halt: the hypervisor's own wake cost comes on top",
            modules=(f"cpuidle_synthetic states={STATES}", MODULE),
        ),
        Arm(
            "spinning",
            "treatment",
            "states that take their latency and no more",
            modules=(f"cpuidle_synthetic spin=1 states={STATES}", MODULE),
        ),
        Arm(
            "halting-again",
            "control",
            "booted as halting is",
            modules=(f"cpuidle_synthetic states={STATES}", MODULE),
        ),
    ),
    metrics=(
        *(
            Metric(
                f"{source}_{us}us_per_s",
                "1/s",
                "higher",
                f"Samples per second of a state of {us} us, by {source}",
                f"Valid samples per second of batches, {FAST_SAMPLES} samples on one CPU",
            )
            for source in SOURCES
            for us in FAST_US
        ),
        Metric(
            "whole_s",
            "s",
            "lower",
            "Time to measure a whole guest",
            "Wall time of lightsleep measure, the start of Python included, for every CPU and "
            f"state by {' and '.join(SOURCES)}, {WHOLE_SAMPLES} samples each",
        ),
    ),
    measure=measure,
    claims=tuple(
        claim
        for arm in ("halting", "spinning")
        for claim in (
            *(
                Claim(arm, None, (f"{source}_{us}us_per_s",), at_least=1000)
                for source in SOURCES
                for us in FAST_US
            ),
            Claim(arm, None, ("whole_s",), at_most=60),
        )
    ),
    vcpus=2,
    least_vcpus=DEST_CPU + 1,
)
