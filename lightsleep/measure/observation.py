# SPDX-License-Identifier: GPL-2.0-only
"""What the kernel module observed of a wakeup, and whether that makes a sample which counts. Pure.

The module reports facts: when it launched the wakeup, when and on which CPU it arrived, what woke
that CPU, and the last idle period of that CPU. A sample counts if the CPU that was to be woken was
in the requested state at the launch, and had been for ``min_residency_ns``.

The state must have been entered before the launch, and not left before it: an interrupt may find
the CPU still in its state, as on x86, or run after it has left, as on arm64.

A store wakes a thread. The way from the idle loop to the thread is the same for every state and is
not measured, so a CPU counts as awake when it left its state. By any other source it counts as
awake when the handler or the called function runs. So latencies by store and by other sources end
at different points. A store counts only if no interrupt was sent.
"""

from dataclasses import dataclass, fields
from typing import get_args

from lightsleep.errors import LightsleepError
from lightsleep.measure.model import NOT_IDLE, Batch, Sample, WakePath

TIMEOUT_NS = 1_000_000_000
"""How long a wakeup may take. One that takes longer ends its batch."""

_PATHS: dict[str, WakePath | None] = {path: path for path in get_args(WakePath)} | {"-": None}


@dataclass(frozen=True, slots=True)
class Observation:
    """One line of the module's file ``samples``, field by field in the order of its columns.

    Times are in ns, in CLOCK_MONOTONIC. ``wake_ns`` is 0 if the wakeup did not arrive. ``state`` is
    the index of the last idle state of the CPU that was to be woken. It is NOT_IDLE if there was
    none since the batch began, or if the wakeup did not arrive on that CPU. ``left_ns`` is 0 if the
    CPU was still in it.
    """

    launch_ns: int
    wake_ns: int
    cpu: int
    path: WakePath | None
    state: int
    entered_ns: int
    left_ns: int


COLUMNS = [column.name for column in fields(Observation)]


def parse(text: str, request: str) -> list[Observation]:
    """Return what ``samples`` holds. Raises LightsleepError that names the line in question.

    It opens with the request that it answers, which must be ``request``.
    """
    answered, header, *lines = [*text.splitlines(), "", ""]
    if header.split() != COLUMNS:
        raise LightsleepError(
            f"the module's answer has unknown columns: {header[:80]!r}; "
            "install the module and lightsleep in the same version"
        )
    if answered != request.strip():
        raise LightsleepError(
            f"the module answers another request, {answered[:80]!r}: does another program use it, "
            "too? end that, and measure again"
        )
    observed = []
    for number, line in enumerate(lines[:-2], start=3):
        try:
            launch, wake, cpu, path, state, entered, left = line.split()
            times = int(launch), int(wake), int(cpu)
            if 0 < times[1] < times[0]:
                raise ValueError("woken before the launch")
            observed.append(Observation(*times, _PATHS[path], int(state), int(entered), int(left)))
        except (KeyError, ValueError) as error:
            raise LightsleepError(
                f"line {number} of the module's answer is not a sample: {line[:120]!r}"
            ) from error
    return observed


def judge(batch: Batch, seen: Observation) -> Sample:
    """Return an observation as a sample of ``batch``, with its verdict."""
    idle = (
        seen.cpu == batch.dest
        and seen.state >= 0
        and seen.entered_ns <= seen.launch_ns
        and (not seen.left_ns or seen.left_ns >= seen.launch_ns)
    )
    entered = seen.state if idle else NOT_IDLE
    residency_ns = seen.launch_ns - seen.entered_ns if idle else 0
    wake_ns = seen.wake_ns
    if batch.source == "store" and wake_ns and seen.left_ns >= seen.launch_ns:
        wake_ns = seen.left_ns
    return Sample(
        source=batch.source,
        src=batch.src,
        dest=batch.dest,
        requested=batch.requested,
        entered=entered,
        path=seen.path,
        residency_ns=residency_ns,
        launch_ns=seen.launch_ns,
        wake_ns=wake_ns,
        latency_ns=wake_ns - seen.launch_ns if wake_ns else 0,
        verdict=_verdict(batch, seen, entered, residency_ns),
    )


def _verdict(batch: Batch, seen: Observation, entered: int, residency_ns: int) -> str:
    if not seen.wake_ns or seen.wake_ns - seen.launch_ns >= TIMEOUT_NS:
        return "timeout"
    if seen.cpu != batch.dest:
        return "wrong-cpu"
    if batch.requested == "busy":
        return "ok" if entered == NOT_IDLE else "busy-was-idle"
    if entered == NOT_IDLE:
        return "not-idle"
    if batch.requested not in ("any", str(entered)):
        return "wrong-state"
    if residency_ns < batch.min_residency_ns:
        return "unsettled"
    if batch.source == "store" and seen.path != "none":
        return "not-polling"
    return "ok"
