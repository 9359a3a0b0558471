# SPDX-License-Identifier: GPL-2.0-only
"""What a scan knows about a machine: plain data, as it appears in the JSON document.

None means "not there, or not readable", never zero. The document is ``Scan`` as
``dataclasses.asdict`` gives it, with ``schema`` and ``version`` first and the findings of the
lint last; ``scan.schema.json`` beside this file describes it key by key.

    {"schema": "lightsleep.scan", "version": 1, "kernel": {...}, "hypervisor": "KVM",
     "cpuidle": {"driver": ..., "governor": ..., "available_governors": [...]},
     "cpus": [{"cpu": 0, "states": [{"name": "POLL", ...}], ...}], ..., "findings": [...]}
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

SCHEMA = "lightsleep.scan"
VERSION = 1


@dataclass(frozen=True)
class Kernel:
    """The running kernel; ``options`` are those of its command line that touch idle."""

    release: str | None
    arch: str | None
    uptime_s: float | None
    options: dict[str, str | None]
    polling_flag: bool | None
    """Whether it has TIF_POLLING_NRFLAG; only kernels that poll in the idle loop tell."""


@dataclass(frozen=True)
class Clock:
    """The clock source in use and those the kernel could use."""

    current: str | None
    available: list[str]


@dataclass(frozen=True)
class State:
    """One idle state of one CPU: what the driver advertises, and what came of it since boot."""

    index: int
    name: str
    desc: str | None
    latency_us: int | None
    residency_us: int | None
    disabled: bool | None
    default_status: str | None
    usage: int | None
    time_us: int | None
    above: int | None
    below: int | None
    rejected: int | None
    promoted: int | None
    """How often promotion ended this state; only where a kernel has it, and the driver asks."""

    @property
    def polls(self) -> bool:
        """Whether a CPU in it spins; nothing that user space sees but its name tells."""
        return self.name.lower() in ("poll", "snooze")


def distinct_names(states: Sequence[State]) -> dict[int, str]:
    """Return names of one CPU's states by index, no two of them alike.

    The kernel cuts names to 15 characters, so that ``cluster-sleep-0-0`` and ``cluster-sleep-0-1``
    are ``cluster-sleep-0`` both. Such names get the index: ``cluster-sleep-0#1``. So does one that
    has a ``#`` already, which is then nobody else's.
    """
    names = [state.name for state in states]
    return {state.index: distinct_name(state.index, state.name, names) for state in states}


def distinct_name(index: int, name: str, names: Collection[str]) -> str:
    """Return the same of one state, by its ``name`` and the ``names`` of all states of its CPU."""
    return f"{name}#{index}" if "#" in name or list(names).count(name) > 1 else name


@dataclass(frozen=True)
class PollStats:
    """What lightsleep's driver counted on one CPU since it was loaded."""

    polls: int | None = None
    hits: int | None = None
    halts: int | None = None
    polled_ns: int | None = None
    wasted_ns: int | None = None
    limit_ns: int | None = None
    halt_cost_ns: int | None = None
    """What a wakeup from halt costs here, 0 where that is not known or polling does harm."""
    contended: int | None = None
    """1 while the CPU finds its host short of cores.

    It then polls only in mode fixed, while HALT is disabled, or for a measurement of the machine.
    """
    contention_pauses: int | None = None
    program_cost_upper_ns: int | None = None
    """What a halt costs the programs here, at most; below 0, polls make them slower."""
    paused_ns: int | None = None
    """Time in pauses, in which ``contended`` is 1; each counts in full when it begins."""
    pause_left_ms: int | None = None
    """How much longer the pause lasts, 0 outside of one. Older drivers have neither."""

    @property
    def passed_in_pauses_ns(self) -> int | None:
        """The time in pauses that has passed."""
        if self.paused_ns is None or self.pause_left_ms is None:
            return None
        return max(self.paused_ns - self.pause_left_ms * 1_000_000, 0)


@dataclass(frozen=True)
class Cpu:
    """One online CPU.

    ``resume_latency_us`` is its PM QoS limit: None without one, 0 where no latency at all is
    tolerated (sysfs writes "0" and "n/a" for these).
    """

    number: int
    states: list[State]
    resume_latency_us: int | None
    siblings: list[int]
    lightsleep: PollStats | None
    counted_s: float | None = None
    """Time since boot that /proc/stat counts: without suspend, and without time offline."""


@dataclass(frozen=True)
class Cpuidle:
    """The cpuidle core: None everywhere where the kernel has none."""

    driver: str | None
    governor: str | None
    available_governors: list[str]


@dataclass(frozen=True)
class LatencyRequest:
    """The processes that hold the system-wide latency limit, and what it costs now.

    ``holders`` are processes that hold /dev/cpu_dma_latency open, each as "name (process ID)".
    ``polled_share`` is the share of all CPUs' time in polling states, in the moment of the scan.
    """

    holders: list[str]
    polled_share: float | None


@dataclass(frozen=True)
class Haltpoll:
    """Knobs of the haltpoll governor, and ``force`` of the haltpoll driver."""

    guest_halt_poll_ns: int | None
    grow: int | None
    grow_start_ns: int | None
    shrink: int | None
    allow_shrink: bool | None
    force: bool | None


@dataclass(frozen=True)
class KvmPolling:
    """How long this machine, as a KVM host, polls before it puts a halted vCPU to sleep."""

    halt_poll_ns: int | None
    grow: int | None
    grow_start_ns: int | None
    shrink: int | None


@dataclass(frozen=True)
class IoPolling:
    """Polling outside the idle loop.

    ``poll_queues`` is what the module parameter of each block driver requests, ``disks`` what
    each disk got (its io_poll). ``fabric_disks`` are those that NVMe reaches by other ways than PCI
    Express, by drivers that do not read nvme.poll_queues.
    """

    busy_poll_us: int | None
    busy_read_us: int | None
    poll_queues: dict[str, int]
    disks: dict[str, bool]
    fabric_disks: list[str]


@dataclass(frozen=True)
class Lightsleep:
    """Parameters of the cpuidle_lightsleep module."""

    mode: str | None
    poll_limit_us: int | None
    halt_cost_ns: int | None
    wait_weight: int | None
    host_is_short: bool | None = None
    """Whether no CPU heeds a latency limit, because the host is short of cores."""


@dataclass(frozen=True)
class PollSource:
    """What became of a queue as a poll source; ``enabled`` is false where it was too slow."""

    enabled: bool
    polls: int
    hits: int
    peeks: int
    peek_ns: int
    overruns: int
    handled: int
    handle_ns: int
    holds: int
    expired: int


@dataclass(frozen=True)
class Queue:
    """A virtio queue with an interrupt of its own, named as in /proc/interrupts.

    ``cpus`` are those that the interrupt goes to, ``interrupts`` is how many there were. ``source``
    is None where idle CPUs do not poll the queue, or where debugfs cannot be read.
    """

    name: str
    irq: int
    cpus: list[int]
    interrupts: int
    source: PollSource | None


@dataclass(frozen=True)
class Loading:
    """What decides whether the module cpuidle_lightsleep can be loaded here.

    ``unloadable`` names those of haltpoll's and our modules that can be unloaded, ``holders`` the
    modules that use ours. ``modules_disabled`` is the sysctl, None where it is not there.
    ``installed`` is the file of the module for the running kernel. Without
    one, ``built`` is the file that was built in the sources, which no boot finds. ``headers`` is
    None where /lib/modules cannot be read: a recording has none. ``lockdown`` is integrity or
    confidentiality, ``container`` the kind of container. ``tdx_guest`` tells of a TDX guest,
    ``timers_stop`` of CPUs whose timers stop when they halt (AMD erratum 400); both are None where
    /proc/cpuinfo does not tell.
    """

    loaded: bool
    built_in: bool
    unloadable: list[str]
    holders: list[str]
    modules: bool | None
    modules_disabled: bool | None
    installed: str | None
    built: str | None
    headers: bool | None
    signed: bool | None
    enrolled: bool | None
    lockdown: str | None
    sig_enforce: bool | None
    secure_boot: bool | None
    container: str | None
    root: bool | None
    tdx_guest: bool | None
    timers_stop: bool | None


@dataclass(frozen=True)
class Scan:
    """Everything one scan found."""

    kernel: Kernel
    hypervisor: str | None
    clocksource: Clock
    cpuidle: Cpuidle
    cpus: list[Cpu]
    offline: list[int]
    isolated: list[int]
    smt_active: bool | None
    cpu_model: str | None
    can_mwait: bool | None
    stolen_s: float | None
    """Time that the hypervisor ran something else, of all CPUs since boot."""
    energy: list[str]
    """The processor packages whose energy powercap counts."""
    latency_limit_us: int | None
    latency_request: LatencyRequest | None
    """None without such a limit, in a recording, and for whoever does not ask."""
    haltpoll: Haltpoll | None
    kvm: KvmPolling | None
    io: IoPolling
    lightsleep: Lightsleep | None
    loading: Loading
    queues: list[Queue]
    problems: dict[str, str]
