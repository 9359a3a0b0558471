# SPDX-License-Identifier: GPL-2.0-only
"""Samples from the kernel module test_cpuidle_latency, through its debugfs files.

A request is written to ``run``; what was observed is then read from ``samples``. A lock on ``run``
keeps the two together: the module keeps only the last batch. It repeats the request above the
samples, so an answer to a program that does not lock is noticed.
"""

import errno
import fcntl
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from lightsleep.errors import LightsleepError
from lightsleep.measure.model import Batch, Sample, Source
from lightsleep.measure.observation import TIMEOUT_NS, judge, parse

FILES = Path("sys/kernel/debug/latency_test")
DRIVER = Path("sys/bus/virtio/drivers/test_cpuidle_latency")

NO_DEVICE = (
    "no virtio entropy device is bound to test_cpuidle_latency: in a guest that has one, unbind it "
    "from virtio_rng first (docs/latency-test.md)"
)

MEANING = {
    errno.EBUSY: "another measurement is running; wait for its end",
    errno.EINTR: "the measurement was interrupted",
    errno.EINVAL: "the module refuses the request; install the module and lightsleep in the same "
    "version",
    errno.ENOENT: "the module was unloaded meanwhile",
    errno.EOPNOTSUPP: "this device maps memory in ways that a real-time kernel (PREEMPT_RT) cannot "
    "use in an interrupt: measure without --source device",
    errno.ETIMEDOUT: "the CPU is too busy to run a thread, or the wakeups took too long",
}
"""What the module's error numbers mean to somebody who reads no kernel sources."""


class CpuGone(LightsleepError):
    """A CPU or device of a batch is no longer there; others may still be measured."""


class CpuBusy(LightsleepError):
    """A CPU of a batch has no time for it; others may still be measured."""


class NotPermitted(LightsleepError):
    """This process may not use a CPU of a batch; others may still be measured."""


Exchange = Callable[[str], str]


class KernelBackend:
    """Takes samples with the kernel module of the machine whose files are below ``root``."""

    mode: Literal["module"] = "module"

    def __init__(self, root: Path, exchange: Exchange | None = None) -> None:
        """``exchange`` sends a request and returns the answer, by default through debugfs."""
        self._root = root
        self._exchange = exchange or (lambda request: exchange_with(root / FILES, request))

    def sources(self) -> dict[Source, str | None]:
        """Return the module's sources, with the reason for those that cannot be used."""
        bound = any((self._root / DRIVER).glob("virtio*"))
        return {
            "timer": None,
            "ipi": None,
            "store": None,
            "device": None if bound else NO_DEVICE,
        }

    def run(self, batch: Batch) -> list[Sample]:
        """Take a batch. Raises CpuGone or CpuBusy where only this one cannot be.

        Else raises LightsleepError.
        """
        asked = request(batch)
        try:
            answer = self._exchange(asked)
        except OSError as error:
            raise _explained(batch, error.errno or errno.EIO) from error
        observed = parse(answer, asked)
        if not 0 < len(observed) <= batch.samples:
            raise LightsleepError(
                f"asked the module for {batch.samples} samples, got {len(observed)}; "
                "install the module and lightsleep in the same version"
            )
        return [judge(batch, seen) for seen in observed]

    def notes(self, samples: Iterable[Sample]) -> list[str]:
        """Return nothing: what is special about a sample stands in it."""
        return []


def request(batch: Batch) -> str:
    """Return a batch as the file ``run`` reads it."""
    busy = int(batch.requested == "busy")
    return (
        f"{batch.source} {batch.src} {batch.dest} {busy} {batch.samples} "
        f"{batch.min_ns} {batch.max_ns} {TIMEOUT_NS}\n"
    )


def exchange_with(folder: Path, request: str) -> str:
    """Write a request to ``run`` in ``folder`` and return what ``samples`` holds then.

    Raises OSError; EBUSY where another process measures.
    """
    descriptor = os.open(folder / "run", os.O_WRONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY)) from error
        os.write(descriptor, request.encode())
        return (folder / "samples").read_text(errors="replace")
    finally:
        os.close(descriptor)


def _explained(batch: Batch, number: int) -> LightsleepError:
    what = f"CPU {batch.dest}, source {batch.source}: "
    if number == errno.ENODEV:
        what += _gone(batch)
    else:
        what += MEANING.get(number) or os.strerror(number)
    return {errno.ENODEV: CpuGone, errno.ETIMEDOUT: CpuBusy}.get(number, LightsleepError)(what)


def _gone(batch: Batch) -> str:
    """Say what of a batch may be gone."""
    cpus = f"CPU {batch.dest}"
    if batch.src != batch.dest:
        cpus += f", or CPU {batch.src}, which wakes it,"
    if batch.source == "device":
        return f"{cpus} or the device is no longer there, or the device owes an answer"
    return f"{cpus} went offline"
