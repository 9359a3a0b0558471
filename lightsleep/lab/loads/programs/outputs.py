# SPDX-License-Identifier: GPL-2.0-only
"""What load generators print, read.

Each function takes the standard output of one generator and returns what it says of the requests.
None has a side effect. All raise LightsleepError where the output has another form than expected,
or where requests failed: a rate of errors is no rate of requests.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass

from lightsleep.errors import LightsleepError
from lightsleep.order import binned_quantile

UNITS_US = {"us": 1.0, "ms": 1e3, "s": 1e6}
DATAGRAMS_PER_LOSS = 1000
CYCLICTEST_STEPS = "cyclictest tells in steps of 1 us"


@dataclass(frozen=True)
class Outcome:
    """The requests of one run of a generator, as far as it says."""

    per_s: float
    requests: int | None = None
    p50_us: float | None = None
    p99_us: float | None = None


def redis_benchmark(text: str) -> Outcome:
    """Read ``redis-benchmark --csv`` with one test; it does not say how many requests it made."""
    rows = list(csv.DictReader(text.splitlines()))
    try:
        (row,) = rows
        return Outcome(
            per_s=float(row["rps"]),
            p50_us=1000 * float(row["p50_latency_ms"]),
            p99_us=1000 * float(row["p99_latency_ms"]),
        )
    except (KeyError, TypeError, ValueError):
        raise _unexpected("redis-benchmark", text) from None


def wrk(text: str) -> Outcome:
    """Read ``wrk --latency``."""
    if "Socket errors" in text or "Non-2xx" in text:
        raise _failed("wrk", text)
    return Outcome(
        per_s=_number("wrk", r"^Requests/sec:\s+([\d.]+)", text),
        requests=int(_number("wrk", r"^\s+(\d+) requests in ", text)),
        p50_us=_wrk_us("50", text),
        p99_us=_wrk_us("99", text),
    )


def _wrk_us(percent: str, text: str) -> float:
    found = re.search(rf"(?m)^\s+{percent}%\s+([\d.]+)(us|ms|s)$", text)
    if not found:
        raise _unexpected("wrk", text)
    return float(found[1]) * UNITS_US[found[2]]


def memaslap(text: str) -> Outcome:
    """Read ``memaslap``, which Debian calls memcaslap; it prints no percentiles."""
    if _number("memaslap", r"^get_misses: (\d+)$", text):
        raise _failed("memaslap", text)
    last = r"^Run time: [\d.]+s Ops: {} TPS: {} "
    return Outcome(
        per_s=_number("memaslap", last.format(r"\d+", r"(\d+)"), text),
        requests=int(_number("memaslap", last.format(r"(\d+)", r"\d+"), text)),
    )


def pgbench(text: str) -> Outcome:
    """Read ``pgbench``; it prints no percentiles, and its rate leaves out the time to connect."""
    if _number("pgbench", r"^number of failed transactions: (\d+) ", text):
        raise _failed("pgbench", text)
    return Outcome(
        per_s=_number("pgbench", r"^tps = ([\d.]+) \(without initial connection time\)$", text),
        requests=int(
            _number("pgbench", r"^number of transactions actually processed: (\d+)(?:/\d+)?$", text)
        ),
    )


def dnsperf(text: str) -> Outcome:
    """Read ``dnsperf -O latency-histogram``; a percentile is the middle of its bucket.

    One datagram in DATAGRAMS_PER_LOSS may be lost, as UDP loses some now and then.
    """
    completed = int(_number("dnsperf", r"^  Queries completed:\s+(\d+) ", text))
    lost = _number("dnsperf", r"^  Queries lost:\s+(\d+) ", text)
    answered = _number("dnsperf", r"^  Response codes:\s+NOERROR (\d+) \(100\.00%\)$", text)
    if DATAGRAMS_PER_LOSS * lost > completed or answered != completed:
        # The histogram is long, and says nothing of them.
        raise _failed("dnsperf", text.partition("Latency StdDev")[0])
    buckets = re.findall(r"(?m)^  ([\d.]+) - ([\d.]+):\s+(\d+)$", text)
    middles_us = [1e6 * (float(low) + float(high)) / 2 for low, high, _ in buckets]
    counts = {bucket: int(count) for bucket, (*_, count) in enumerate(buckets)}
    if sum(counts.values()) != completed:
        raise _unexpected("dnsperf", text)
    return Outcome(
        per_s=_number("dnsperf", r"^  Queries per second:\s+([\d.]+)$", text),
        requests=completed,
        p50_us=middles_us[binned_quantile(counts, 0.50)],
        p99_us=middles_us[binned_quantile(counts, 0.99)],
    )


def cyclictest_mean_us(text: str, warnings: str) -> float:
    """Return the average wakeup latency that ``cyclictest -q`` with one thread prints, in us.

    ``warnings`` is its standard error: without its QoS request it measures something else.
    """
    if "cpu_dma_latency" in warnings:
        raise _failed("cyclictest", warnings)
    return _number("cyclictest", r"^T: 0 .* Avg:\s*(\d+) Max:", text)


def _number(generator: str, pattern: str, text: str) -> float:
    found = re.search(f"(?m){pattern}", text)
    if not found:
        raise _unexpected(generator, text)
    return float(found[1])


def _unexpected(generator: str, text: str) -> LightsleepError:
    return LightsleepError(
        f"{generator}: its output has another form than expected (is it another version?):\n"
        f"{text.strip()[-2000:] or '(no output)'}"
    )


def _failed(generator: str, text: str) -> LightsleepError:
    return LightsleepError(f"{generator}: requests failed:\n{text.strip()[-2000:]}")
