# SPDX-License-Identifier: GPL-2.0-only
"""What to trace: the events of a recording, their filters, and what this kernel has of them."""

import contextlib
import mmap
import os
import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from lightsleep import cpulist
from lightsleep.errors import LightsleepError
from lightsleep.record import keeper, tracefs
from lightsleep.scan.tree import status_of

CLOCK = keeper.CLOCK
"""One clock for all CPUs, on every architecture."""

RETURN = "r:{group}/sleep_length tick_nohz_get_sleep_length ret=$retval:s64"
PROBES = (f"{RETURN} next=+0($arg1):s64", RETURN)
"""What a governor is told: the time until the next timer and, since Linux 6.9, until the next event
of the clock, which may be the tick."""

PROBED = "{group}:sleep_length"

GROUP = re.compile(r"lightsleep_(\d+)_(\d+)")
"""The name of an instance: tracefs.group_of(), with its PID namespace and its keeper."""

INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""The number of the one from which all processes are seen."""

PROC = Path("/proc")


@dataclass(frozen=True)
class Event:
    """A tracepoint and the filter that the kernel applies to it.

    ``cpu`` is the field of the CPU that the event is about, or ``CPU``, the one that it happens on.
    It is empty where an event about any CPU may explain a wakeup. ``instead_of`` names the event
    that makes this one unnecessary.
    """

    name: str
    cpu: str = ""
    filter: str = ""
    required: bool = False
    instead_of: str = ""

    def filter_for(self, cpus: Sequence[int] | None) -> str:
        """Return the filter, for these CPUs only where the event is about one.

        Raises LightsleepError where it is longer than the kernel takes.
        """
        parts = [f"({self.filter})"] if self.filter else []
        if cpus is not None and self.cpu:
            parts.append("(" + "||".join(_ranges(self.cpu, cpus)) + ")")
        found = "&&".join(parts)
        if len(found) >= mmap.PAGESIZE:
            ranges = len(cpulist.runs(cpus or ()))
            raise LightsleepError(
                f"the CPUs of -c are {ranges:,} ranges, more than the kernel accepts in a filter "
                "of trace-cmd: name fewer ranges, or record all CPUs"
            )
        return found


EVENTS = (
    Event("power:cpu_idle", cpu="cpu_id", required=True),
    Event("power:cpu_idle_miss", cpu="cpu_id"),
    Event("sched:sched_waking", required=True),
    Event("sched:sched_switch", cpu="CPU", filter="prev_pid==0||next_pid==0", required=True),
    Event("sched:sched_migrate_task"),
    Event("sched:sched_wake_idle_without_ipi", cpu="cpu"),
    Event("ipi:ipi_send_cpu", cpu="cpu"),
    Event("ipi:ipi_send_cpumask"),
    Event("timer:hrtimer_expire_entry", cpu="CPU"),
    Event("irq:irq_handler_entry", cpu="CPU"),
    # Before Linux 6.5 no event says that an IPI is sent; on x86 one says that it has arrived.
    Event("irq_vectors:reschedule_entry", cpu="CPU", instead_of="ipi:ipi_send_cpu"),
    Event("irq_vectors:call_function_single_entry", cpu="CPU", instead_of="ipi:ipi_send_cpu"),
    Event("irq_vectors:call_function_entry", cpu="CPU", instead_of="ipi:ipi_send_cpu"),
)


def _ranges(field: str, cpus: Sequence[int]) -> Iterable[str]:
    for first, last in cpulist.runs(cpus):
        yield f"{field}=={first}" if first == last else f"({field}>={first}&&{field}<={last})"


def tracing_folder(root: Path) -> Path:
    """Return where tracing is mounted. Raises LightsleepError where it is not, or is not ours."""
    for name in ("sys/kernel/tracing", "sys/kernel/debug/tracing"):
        folder = root / name
        try:
            if status_of(folder / "instances"):
                (folder / "events").stat()
                return folder
        except PermissionError as error:
            raise LightsleepError(
                f"no permission to use {folder}: record on the host, or in a privileged container"
            ) from error
    known = "tracefs" in (root / "proc/filesystems").read_text()
    if known:
        raise LightsleepError(
            "tracing is not mounted: mount -t tracefs nodev /sys/kernel/tracing, and start again"
        )
    raise LightsleepError(
        "this kernel has no tracing (CONFIG_FTRACE): a recording needs its tracepoints"
    )


def tracepoints(tracing: Path) -> set[str]:
    """Return the names of EVENTS that this kernel has."""
    return {x.name for x in EVENTS if (tracing / "events" / x.name.replace(":", "/")).is_dir()}


def available(there: Set[str]) -> tuple[list[Event], list[str]]:
    """Return the events to record and the names of those that this kernel lacks.

    Raises LightsleepError where it lacks one that a recording cannot do without.
    """
    for event in EVENTS:
        if event.required and event.name not in there:
            raise LightsleepError(
                f"this kernel has no tracepoint {event.name}: a recording needs it (CONFIG_TRACING)"
            )
    wanted = [x for x in EVENTS if x.instead_of not in there]
    missing = [x.name for x in wanted if x.name not in there and not x.instead_of]
    return [x for x in wanted if x.name in there], missing


def remove_leftovers(tracing: Path) -> list[str]:
    """Remove what a keeper made that was killed; return what could not be removed.

    That is one of this PID namespace, or of one that is gone: what a keeper of another one made
    may be in use.
    """
    if Path("/proc/self").resolve().name != str(os.getpid()):
        return []  # /proc is of another PID namespace, and does not show whether a keeper runs
    own = tracefs.group_of(0).split("_")[1]
    probes = tracing / "kprobe_events"
    groups = {folder.name for folder in (tracing / "instances").glob("lightsleep_*")}
    if probes.exists():
        named = (line.split()[0].partition(":")[2] for line in probes.read_text().splitlines())
        groups |= {name.partition("/")[0] for name in named}
    there = _namespaces()  # after the groups: their keepers are older
    left = []
    for group in sorted(groups):
        if not (found := GROUP.fullmatch(group)):
            continue
        namespace, pid = found.groups()
        gone = there is not None and int(namespace) not in there
        if not _alive(pid) if namespace == own else gone:
            # What is busy is in use by somebody: that is not waited for.
            left.append(tracefs.remove_instance(tracing / "instances" / group, busy_s=0))
            left.append(tracefs.remove_probes(tracing, group, busy_s=0))
    return [note for note in left if note]


def _namespaces() -> set[int] | None:
    """Return which PID namespaces have a process; None where that cannot be seen from this one."""
    found = set()
    try:
        if tracefs.PID_NAMESPACE.stat().st_ino != INITIAL_PID_NAMESPACE:
            return None
        for process in PROC.glob("[0-9]*"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended just now
                found.add((process / "ns/pid").stat().st_ino)
    except OSError:
        return None
    return found


def _alive(pid: str) -> bool:
    """Whether this process is a keeper, of any installation: a number may have been used again."""
    keepers = "/".join(Path(keeper.__file__).parts[-3:])
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(word.endswith(f"/{keepers}".encode()) for word in words)


def command(events: Iterable[Event], cpus: Sequence[int] | None, buffer_kb: int) -> list[str]:
    """Return the command that records ``events`` until it is interrupted."""
    words = ["setpriv", "--pdeathsig", "INT", "trace-cmd", "record", "-q", "--no-filter"]
    words += ["-o", "{scratch}", "-B", "{group}", "-C", CLOCK, "-b", str(buffer_kb)]
    for event in events:
        words += ["-e", event.name]
        if chosen := event.filter_for(cpus):
            words += ["-f", chosen]
    return words


def probe_options(cpus: Sequence[int] | None) -> list[str]:
    """Return what the probe adds to the command."""
    chosen = Event(PROBED, cpu="CPU").filter_for(cpus)
    return ["-e", PROBED, *(["-f", chosen] if chosen else [])]
