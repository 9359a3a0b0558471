# SPDX-License-Identifier: GPL-2.0-only
"""Samples without a kernel module: how long until a thread runs that sleeps on an idle CPU.

The stamps are taken in user space (sleeper.py), so that the way from the interrupt to the thread is
in them: leaving the idle loop, scheduling, returning from the system call. The busy baseline takes
the same way except for the idling; what its spread leaves uncertain, ``notes`` tells.

Nothing tells for a single sample which idle state the CPU was in. The kernel counts entries into
each state, so a batch as a whole is judged: it counts where nearly all entries went to the state in
question, and otherwise none of it does. Nor does anything tell whether a wake from another CPU took
an interrupt: its path is unknown.
"""

import contextlib
import errno
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from lightsleep import cpulist
from lightsleep.errors import LightsleepError
from lightsleep.matches import matches
from lightsleep.measure import sleeper
from lightsleep.measure.kernel_backend import CpuGone, NotPermitted
from lightsleep.measure.model import NOT_IDLE, Batch, Sample, Source, WakePath
from lightsleep.order import percentile

# Share of the entries that must go to the state in question: the others, each of which may stand
# for a sample, then move the median by no more than a tenth of the ranks.
PURITY = 0.9

# What a batch may take beyond its launch distances before something must be wrong.
PATIENCE_S = 30.0

_PATHS: dict[Source, WakePath | None] = {"timer": "timer", "ipi": None}


class UserspaceBackend:
    """Takes samples with a sleeper, on the machine whose sysfs is below ``root``."""

    mode: Literal["userspace"] = "userspace"

    def __init__(self, process: subprocess.Popen[bytes], root: Path) -> None:
        """``process`` is the sleeper."""
        self._process = process
        self._root = root
        self._realtime: bool | None = None

    def sources(self) -> dict[Source, str | None]:
        """Return the sources, with the reason for those that cannot be used."""
        return {
            "timer": None,
            "ipi": None,
            "store": "needs the kernel module",
            "device": "needs the kernel module",
        }

    def run(self, batch: Batch) -> list[Sample]:
        """Take a batch; ``batch.min_residency_ns`` is not looked at.

        Raises CpuGone where a CPU is not online, LightsleepError where this process may not use
        it, where there is no such state or source, and where the wakes do not come in time.
        """
        if batch.source not in _PATHS:
            raise LightsleepError(f"source {batch.source} needs the kernel module")
        self._check_online(batch.src, batch.dest)
        usage = self._usage_files(batch.dest)
        if batch.requested not in ("any", "busy") and usage and int(batch.requested) not in usage:
            raise LightsleepError(f"CPU {batch.dest} has no idle state {batch.requested}")
        answer = self._ask(batch, usage)
        self._realtime = answer["realtime"]
        entries = dict(zip(usage, answer["entries"], strict=True))
        entered, verdict = judge(batch.requested, entries, batch.samples)
        return [
            Sample(
                source=batch.source,
                src=batch.src,
                dest=batch.dest,
                requested=batch.requested,
                entered=entered,
                path=_PATHS[batch.source],
                residency_ns=None,
                launch_ns=launch_ns,
                wake_ns=wake_ns,
                latency_ns=wake_ns - launch_ns,
                verdict=verdict if cpu == batch.dest else "wrong-cpu",
            )
            for launch_ns, wake_ns, cpu in zip(
                answer["launches_ns"], answer["wakes_ns"], answer["cpus"], strict=True
            )
        ]

    def notes(self, samples: Iterable[Sample]) -> list[str]:
        """Return what a reader of these samples must know of the mode, and of its noise."""
        notes = [
            "user space mode: a sample is the time until a thread runs, not until the interrupt; "
            "the idle state is known only for a whole batch",
            "ipi means that another CPU wakes a thread; whether it sends an interrupt is not known",
        ]
        if self._realtime is False:
            notes.append(
                "without real-time priority (root or CAP_SYS_NICE), other threads delay wakeups"
            )
        baseline = [sample for sample in samples if sample.requested == "busy" and sample.valid]
        for source in sorted({sample.source for sample in baseline}):
            latencies = sorted(x.latency_ns / 1000 for x in baseline if x.source == source)
            if len(latencies) >= 10:
                p10, p50, p90 = (percentile(latencies, percent) for percent in (10, 50, 90))
                notes.append(
                    f"{source}: user space and the scheduler add {p50:.1f} us (median of "
                    f"{len(latencies)} wakes of a busy CPU), in 8 of 10 wakes between "
                    f"{p10:.1f} and {p90:.1f} us; the subtraction removes the median, "
                    "not the spread"
                )
        return notes

    def _check_online(self, *cpus: int) -> None:
        online = cpulist.parse((self._root / "sys/devices/system/cpu/online").read_text())
        for cpu in cpus:
            if cpu not in online:
                raise CpuGone(f"CPU {cpu} is not online; online are CPUs {cpulist.format(online)}")

    def _usage_files(self, cpu: int) -> dict[int, Path]:
        """Return the entry counter of each idle state; none without a cpuidle driver."""
        folder = self._root / f"sys/devices/system/cpu/cpu{cpu}/cpuidle"
        files = matches(folder, "state[0-9]*/usage")
        return {int(file.parent.name.removeprefix("state")): file for file in files}

    def _ask(self, batch: Batch, usage: Mapping[int, Path]) -> dict[str, Any]:
        request = {
            "source": batch.source,
            "src": batch.src,
            "dest": batch.dest,
            "busy": batch.requested == "busy",
            "samples": batch.samples,
            "min_ns": batch.min_ns,
            "max_ns": batch.max_ns,
            "usage": [str(file) for file in usage.values()],
        }
        assert self._process.stdin
        assert self._process.stdout
        wakes = batch.samples + sleeper.WARM_UP
        limit_s = PATIENCE_S + 2 * wakes * batch.max_ns / 1e9
        line = b""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{json.dumps(request)}\n".encode())
            if not select.select([self._process.stdout], [], [], limit_s)[0]:
                self._process.kill()
                raise LightsleepError(
                    f"CPU {batch.dest}, source {batch.source}: {batch.samples} wakes did not end "
                    f"in {limit_s:.0f} s; a thread of higher priority may occupy the CPU"
                )
            line = self._process.stdout.readline()
        if not line:
            raise LightsleepError(
                "the process that takes the samples ended: it was killed, or this Python has no "
                f"ctypes ({sys.executable})"
            )
        answer: dict[str, Any] = json.loads(line)
        if "errno" in answer:
            self._check_online(batch.src, batch.dest)
            raise _refused(batch, answer["errno"])
        return answer


def _refused(batch: Batch, number: int) -> LightsleepError:
    if number == errno.EINVAL:  # from sched_setaffinity
        return NotPermitted(
            f"CPU {batch.dest}, source {batch.source}: a cpuset or container does not let this "
            f"process use CPUs {cpulist.format([batch.src, batch.dest])}; choose CPUs with -c, and "
            "one to wake them with --source-cpu"
        )
    return LightsleepError(f"CPU {batch.dest}, source {batch.source}: {os.strerror(number)}")


def judge(requested: str, entries: Mapping[int, int], samples: int) -> tuple[int | None, str]:
    """Return the state entered in a batch, and the verdict on its samples.

    ``entries`` counts by state index how often the CPU entered it meanwhile; empty: not known.
    """
    idled = sum(entries.values())
    if requested == "busy":
        return NOT_IDLE, "ok" if samples - idled >= samples * PURITY else "busy-was-idle"
    if not entries:
        return None, "ok"
    if idled < samples * PURITY:
        return NOT_IDLE, "not-idle"
    most = max(entries, key=lambda state: entries[state])
    if requested != "any" and entries[int(requested)] < idled * PURITY:
        others = {state: count for state, count in entries.items() if state != int(requested)}
        return max(others, key=lambda state: others[state]), "wrong-state"
    return most, "ok"


@contextlib.contextmanager
def attached(root: Path = Path("/")) -> Iterator[UserspaceBackend]:
    """Start a sleeper; nothing of it outlives the context, nor the thread that entered it."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", sleeper.__file__, str(os.getpid())],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield UserspaceBackend(process, root)
    finally:
        process.kill()
        process.communicate()
