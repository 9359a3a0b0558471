# SPDX-License-Identifier: GPL-2.0-only
"""Which wakeups count, by what the kernel module observed."""

import pytest

from lightsleep.measure.model import Batch, Source, WakePath
from lightsleep.measure.observation import TIMEOUT_NS, Observation, judge

LAUNCH = 1_000_000


def batch(requested: str = "2", source: Source = "ipi", min_residency_ns: int = 0) -> Batch:
    return Batch(source, 0, 1, requested, 10, 50_000, 150_000, min_residency_ns)


def seen(
    state: int = 2,
    entered_ns: int = LAUNCH - 50_000,
    left_ns: int = 0,
    wake_ns: int = LAUNCH + 9000,
    cpu: int = 1,
    path: WakePath | None = "ipi",
) -> Observation:
    return Observation(LAUNCH, wake_ns, cpu, path, state, entered_ns, left_ns)


@pytest.mark.parametrize(
    ("asked", "observed", "verdict", "entered", "residency_ns"),
    [
        # An interrupt that found the CPU in its state, one that ran after it had left, and any.
        (batch(), seen(), "ok", 2, 50_000),
        (batch(), seen(left_ns=LAUNCH + 5000), "ok", 2, 50_000),
        (batch("any"), seen(), "ok", 2, 50_000),
        # It had left before the launch, never idled, or entered only after the launch.
        (batch(), seen(left_ns=LAUNCH - 1), "not-idle", -1, 0),
        (batch(), seen(state=-1, entered_ns=0), "not-idle", -1, 0),
        (batch("any"), seen(entered_ns=LAUNCH + 1), "not-idle", -1, 0),
        (batch("1"), seen(), "wrong-state", 2, 50_000),
        (batch(min_residency_ns=50_001), seen(), "unsettled", 2, 50_000),
        (batch(min_residency_ns=50_000), seen(), "ok", 2, 50_000),
        # The wakeup ran on another CPU, whose idle period says nothing.
        (batch(), seen(cpu=0), "wrong-cpu", -1, 0),
        # A busy CPU.
        (batch("busy"), seen(left_ns=LAUNCH - 1), "ok", -1, 0),
        (batch("busy"), seen(), "busy-was-idle", 2, 50_000),
        # No wakeup, and one that came too late.
        (batch(), seen(wake_ns=0, cpu=0, path=None), "timeout", -1, 0),
        (batch(), seen(wake_ns=LAUNCH + TIMEOUT_NS), "timeout", 2, 50_000),
        # A store counts if it sent no interrupt.
        (batch(source="store"), seen(path="none"), "ok", 2, 50_000),
        (batch(source="store"), seen(), "not-polling", 2, 50_000),
        (batch("busy", "store"), seen(path="none", left_ns=LAUNCH - 1), "ok", -1, 0),
    ],
)
def test_verdicts(
    asked: Batch, observed: Observation, verdict: str, entered: int, residency_ns: int
) -> None:
    sample = judge(asked, observed)
    assert (sample.verdict, sample.entered, sample.residency_ns) == (verdict, entered, residency_ns)


def test_latency() -> None:
    assert judge(batch(), seen(left_ns=LAUNCH + 5000)).latency_ns == 9000
    assert judge(batch(), seen(wake_ns=0)).latency_ns == 0


def test_a_store_ends_where_the_cpu_left_its_state() -> None:
    thread = seen(path="none", left_ns=LAUNCH + 5000)
    sample = judge(batch(source="store"), thread)
    assert (sample.latency_ns, sample.wake_ns) == (5000, LAUNCH + 5000)
    busy = seen(path="none", left_ns=LAUNCH - 1)
    assert judge(batch("busy", "store"), busy).latency_ns == 9000
