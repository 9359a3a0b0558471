# SPDX-License-Identifier: GPL-2.0-only
"""Samples from the kernel module test_cpuidle_latency, through its debugfs files.

A request and its answer belong to one open file: write a line to ``run``, read what came of it.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Literal, get_args

from lightsleep.errors import LightsleepError
from lightsleep.measure.model import Batch, Sample, Source, WakePath

FILES = Path("sys/kernel/debug/latency_test")
COLUMNS = [column.name for column in fields(Sample)]

_SOURCES: dict[str, Source] = {source: source for source in get_args(Source)}
_PATHS: dict[str, WakePath | None] = {path: path for path in get_args(WakePath)} | {"-": None}

# What the module's error numbers mean to somebody who reads no kernel sources.
MEANING = {
    errno.EBUSY: "another measurement is running; wait for its end",
    errno.EINTR: "the measurement was interrupted",
    errno.ETIMEDOUT: "the wake did not come in time",
    errno.ENOENT: "the module was unloaded meanwhile",
}


class CpuGone(LightsleepError):
    """A CPU or device of a batch is no longer there; others may still be measured."""


class RunFailed(Exception):
    """The kernel refused a batch: ``number`` (errno) and what it says, mostly with the reason."""

    def __init__(self, number: int, said: str) -> None:
        """Keep both."""
        super().__init__(number, said)
        self.number = number
        self.said = said


Exchange = Callable[[str], str]


class KernelBackend:
    """Takes samples with the kernel module whose debugfs files are in ``folder``."""

    mode: Literal["module"] = "module"

    def __init__(self, folder: Path, exchange: Exchange | None = None) -> None:
        """``exchange`` sends a request and returns the answer, by default through ``run``."""
        self._folder = folder
        self._exchange = exchange or (lambda request: exchange_with(folder / "run", request))

    def sources(self) -> dict[Source, str | None]:
        """Return the module's sources, with the reason for those that cannot be used."""
        path = self._folder / "sources"
        try:
            return parse_sources(path.read_text())
        except OSError as error:
            raise LightsleepError(f"cannot read {path}: {error.strerror}") from error

    def run(self, batch: Batch) -> list[Sample]:
        """Take a batch. Raises CpuGone where only this batch cannot be, else LightsleepError."""
        try:
            answer = self._exchange(request(batch))
        except RunFailed as failed:
            raise _explained(batch, failed) from failed
        samples = parse_answer(answer)
        if len(samples) > batch.samples:
            raise LightsleepError(f"asked for {batch.samples} samples, got {len(samples)}")
        return samples

    def notes(self, samples: Iterable[Sample]) -> list[str]:
        """Return nothing: what is special about a sample stands in it."""
        return []


def request(batch: Batch) -> str:
    """Return a batch as ``run`` takes it."""
    return (
        f"source={batch.source} src={batch.src} dest={batch.dest} state={batch.requested} "
        f"samples={batch.samples} min_ns={batch.min_ns} max_ns={batch.max_ns} "
        f"settle_ns={batch.settle_ns}\n"
    )


def exchange_with(run: Path, request: str) -> str:
    """Write a request to ``run`` and return the answer. Raises RunFailed."""
    try:
        descriptor = os.open(run, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise RunFailed(error.errno or errno.EIO, f"cannot open {run}: {error.strerror}") from error
    try:
        os.write(descriptor, request.encode())
        return _read_all(descriptor)
    except OSError as error:
        said = ""
        with contextlib.suppress(OSError):
            said = _read_all(descriptor).strip().removeprefix("error: ")
        raise RunFailed(error.errno or errno.EIO, said) from error
    finally:
        os.close(descriptor)


def _read_all(descriptor: int) -> str:
    content = b""
    while chunk := os.pread(descriptor, 1 << 16, len(content)):
        content += chunk
    return content.decode(errors="replace")


def _explained(batch: Batch, failed: RunFailed) -> LightsleepError:
    what = f"CPU {batch.dest}, source {batch.source}: "
    what += failed.said or MEANING.get(failed.number) or os.strerror(failed.number)
    if failed.said and failed.number in MEANING:
        what += f" ({MEANING[failed.number]})"
    return (CpuGone if failed.number == errno.ENODEV else LightsleepError)(what)


def parse_sources(text: str) -> dict[Source, str | None]:
    """Return what the file ``sources`` says; lines it does not know are sources of the future."""
    lines = [line.partition(":") for line in text.splitlines()]
    return {
        _SOURCES[name.strip()]: reason.strip() or None
        for name, _, reason in lines
        if name.strip() in _SOURCES
    }


def parse_answer(text: str) -> list[Sample]:
    """Return the samples of an answer. Raises LightsleepError that names the line in question."""
    header, *lines = text.splitlines() or [""]
    if header.split() != COLUMNS:
        raise LightsleepError(
            f"the module's answer has unknown columns: {header[:80]!r}; "
            "install the module and lightsleep in the same version"
        )
    samples = []
    for number, line in enumerate(lines, start=2):
        try:
            samples.append(_sample(line.split()))
        except (KeyError, ValueError) as error:
            raise LightsleepError(
                f"line {number} of the module's answer is not a sample: {line[:120]!r}"
            ) from error
    return samples


def _sample(words: list[str]) -> Sample:
    """Return one line as a sample. Raises ValueError, or KeyError for an unknown word."""
    source, src, dest, requested, entered, path, settled, launch, wake, latency, verdict = words
    return Sample(
        source=_SOURCES[source],
        src=int(src),
        dest=int(dest),
        requested=requested,
        entered=int(entered),
        path=_PATHS[path],
        settled_ns=int(settled),
        launch_ns=int(launch),
        wake_ns=int(wake),
        latency_ns=int(latency),
        verdict=verdict,
    )
