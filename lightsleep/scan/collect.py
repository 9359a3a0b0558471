# SPDX-License-Identifier: GPL-2.0-only
"""Turns /sys and /proc into a Scan. All knowledge of where a setting lives is here."""

import os
import re
import stat
import struct
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from lightsleep import cpulist
from lightsleep.errors import LightsleepError, WrongUsage
from lightsleep.scan import loading
from lightsleep.scan.model import (
    Clock,
    Cpu,
    Cpuidle,
    Haltpoll,
    IoPolling,
    Kernel,
    KvmPolling,
    Lightsleep,
    PollSource,
    PollStats,
    Queue,
    Scan,
    State,
)
from lightsleep.scan.tree import (
    LATENCY_LIMIT,
    MAX_INTERRUPTS_BYTES,
    Tree,
    printable,
    status_of,
)

CPU_DIR = "sys/devices/system/cpu"
OS_RELEASE = "proc/sys/kernel/osrelease"
ARCH = "proc/sys/kernel/arch"
INTERRUPTS = "proc/interrupts"
POLL_SOURCES = "sys/kernel/debug/poll_source"
GOVERNORS = f"{CPU_DIR}/cpuidle/available_governors"
PARTITIONS = "sys/fs/cgroup/cpuset.cpus.isolated"

# Options whose value changes how CPUs idle, or what may be concluded from their idling.
IDLE_OPTIONS = re.compile(
    r"idle|nohlt|hlt|nohz|nohz_full|isolcpus|powersave|highres|nosmt|module_blacklist"
    r"|processor\.max_cstate|virtio_blk\.poll_queues|nvme\.poll_queues|kvm\.halt_poll_ns\w*"
    r"|(intel_idle|cpuidle|cpuidle_haltpoll|cpuidle_lightsleep|haltpoll)\.\w+"
)

PARTITION_NAME = "proc/device-tree/ibm,partition-name"
BLACKLIST = "module_blacklist"

# (file, what it holds on such a machine, hypervisor); the first match decides. Flags come
# last: they tell that there is a hypervisor, not which.
HYPERVISORS = [
    ("sys/hypervisor/type", r"xen", "Xen"),
    ("sys/devices/system/clocksource/clocksource0/available_clocksource", r"kvm-clock", "KVM"),
    ("sys/devices/system/clocksource/clocksource0/available_clocksource", r"hyperv_", "Hyper-V"),
    (GOVERNORS, r"\bhaltpoll\b", "KVM"),
    ("proc/device-tree/hypervisor/compatible", r"linux,kvm", "KVM"),
    ("sys/class/dmi/id/sys_vendor", r"VMware", "VMware"),
    ("sys/class/dmi/id/sys_vendor", r"QEMU", "QEMU"),
    ("sys/class/dmi/id/product_name", r"VirtualBox", "VirtualBox"),
    ("sys/class/dmi/id/product_name", r"Google Compute Engine", "KVM"),
    ("sys/class/dmi/id/product_name", r"^KVM$|OpenStack|KubeVirt", "KVM"),
    ("sys/class/dmi/id/sys_vendor", r"KubeVirt", "KVM"),
    # arm64 guests have neither a clock nor a flag that tells. EC2's product is the instance type.
    ("sys/class/dmi/id/modalias", r":svnAmazonEC2:pn[^:.]+\.(?!metal)", "KVM"),
    ("sys/class/dmi/id/modalias", r":svnMicrosoftCorporation:pnVirtualMachine:", "Hyper-V"),
    ("sys/class/dmi/id/product_name", r"Apple Virtualization", "Apple Virtualization"),
    ("proc/device-tree/compatible", r"linux,dummy-virt", "unknown"),
    ("proc/cpuinfo", r"(?m)^machine\s*:.*emulated by qemu", "QEMU"),
    (PARTITION_NAME, r".", "PowerVM"),
    ("proc/cpuinfo", r"(?m)^flags\s*:.*\bhypervisor\b", "unknown"),
]

# Config changes have an interrupt of their own, which is no queue's.
QUEUE_NAME = re.compile(r"virtio[0-9]{1,6}-(?!config$)\S{1,64}")
IRQ = re.compile(r"[0-9]{1,6}")
MAX_DIGITS = 19
"""Of a count of interrupts."""

POWERCAP = "sys/class/powercap"
# Columns of /proc/stat. Those of guests, behind ALL, are in user and nice already.
IDLE, STOLEN, ALL = (4, 5), (8,), tuple(range(1, 9))
TICK_S = 1 / os.sysconf("SC_CLK_TCK")

BLOCK_DRIVERS = ["virtio_blk", "nvme"]


def collect(root: Path = Path("/"), cpus: list[int] | None = None) -> tuple[Scan, Tree]:
    """Scan the machine below ``root``; ``cpus`` limits the scan to these CPUs.

    Returns the scan and the tree, which holds the files that were read. Raises LightsleepError
    where ``root`` is no folder or cannot be reached, WrongUsage where a CPU of ``cpus`` is not
    online.
    """
    try:
        found = status_of(root)
    except OSError as error:
        raise LightsleepError(f"cannot scan {root}: {error.strerror}") from error
    if found is None or not stat.S_ISDIR(found.st_mode):
        raise LightsleepError(f"{root} is not a folder; --root takes one that holds sys and proc")
    running = root.resolve() == Path("/")
    uname = os.uname()
    fallback = {OS_RELEASE: uname.release, ARCH: uname.machine} if running else {}
    tree = Tree(root, fallback)
    return _scan(tree, cpus, running), tree


def _scan(tree: Tree, cpus: list[int] | None, running: bool) -> Scan:
    clock = "sys/devices/system/clocksource/clocksource0"
    kernel = _kernel(tree)
    online = _online(tree, cpus)
    counted = _seconds(tree, ALL)
    return Scan(
        kernel=kernel,
        hypervisor=_hypervisor(tree),
        clocksource=Clock(
            tree.line(f"{clock}/current_clocksource"),
            (tree.line(f"{clock}/available_clocksource") or "").split(),
        ),
        cpuidle=_cpuidle(tree),
        cpus=[_cpu(tree, number, counted.get(f"cpu{number}")) for number in online],
        offline=_offline(tree),
        isolated=_isolated(tree),
        smt_active=tree.flag(f"{CPU_DIR}/smt/active"),
        cpu_model=cpu_model(tree.text("proc/cpuinfo") or ""),
        can_mwait=_can_mwait(tree),
        stolen_s=cpu_seconds(tree, STOLEN, None if cpus is None else online),
        energy=packages(tree),
        latency_limit_us=_latency_limit_us(tree),
        latency_request=None,
        haltpoll=_haltpoll(tree),
        kvm=_kvm(tree),
        io=_io(tree),
        lightsleep=_lightsleep(tree),
        loading=loading.read(tree, kernel.release, running),
        queues=_queues(tree),
        problems=tree.problems,
    )


def _kernel(tree: Tree) -> Kernel:
    uptime = re.match(r"\d{1,12}\.\d+", tree.text("proc/uptime") or "", re.ASCII)
    return Kernel(
        release=tree.line(OS_RELEASE),
        arch=tree.line(ARCH),
        uptime_s=float(uptime[0]) if uptime else None,
        options=idle_options(tree.text("proc/cmdline") or ""),
        polling_flag=tree.flag("sys/module/idle_poll/parameters/polling_flag"),
    )


def idle_options(cmdline: str) -> dict[str, str | None]:
    """Return the options of a kernel command line that touch idle; a later one replaces an earlier.

    Options behind ``--`` are for init. The kernel takes ``-`` and ``_`` in a name for the same.
    Of the modules that module_blacklist names, only lightsleep's is returned.
    """
    options: dict[str, str | None] = {}
    for word in re.findall(r'(?:[^\s"]|"[^"]*"?)+', cmdline):
        if word == "--":
            break
        name, equals, value = word.replace('"', "").partition("=")
        name = name.replace("-", "_")
        if IDLE_OPTIONS.fullmatch(name):
            options[name] = value if equals else None
    if loading.MODULE in (options.pop(BLACKLIST, None) or "").split(","):
        options[BLACKLIST] = loading.MODULE
    return options


def _hypervisor(tree: Tree) -> str | None:
    for path, pattern, name in HYPERVISORS:
        # On arm64, where a kernel has haltpoll at all, it is there on every machine.
        if path == GOVERNORS and tree.line(ARCH) == "aarch64":
            continue
        if re.search(pattern, tree.text(path) or ""):
            return name
    return None


def cpu_model(cpuinfo: str) -> str | None:
    """Return the CPU's name from /proc/cpuinfo, whose key for it depends on the architecture."""
    for key, prefix in (("model name", ""), ("cpu", ""), ("CPU part", "CPU part ")):
        if model := re.search(rf"(?m)^{key}[ \t]*:[ \t]*(\S.{{0,63}})", cpuinfo):
            return prefix + model[1].strip()
    return None


def _can_mwait(tree: Tree) -> bool | None:
    """Return whether an x86 CPU offers MWAIT; None where /proc/cpuinfo does not tell."""
    flags = loading.cpuinfo_words(tree, "flags")
    return None if flags is None else "monitor" in flags


def cpu_seconds(
    tree: Tree, columns: tuple[int, ...], cpus: list[int] | None = None
) -> float | None:
    """Return the time in columns of /proc/stat, of all CPUs together, or only of some."""
    found = _seconds(tree, columns)
    counts = [found.get(x) for x in (["cpu"] if cpus is None else [f"cpu{cpu}" for cpu in cpus])]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _seconds(tree: Tree, columns: tuple[int, ...]) -> dict[str, float]:
    """Return the time in columns of /proc/stat by row, of those rows that have it."""
    found = {}
    for line in (tree.text("proc/stat") or "").splitlines():
        name, *_ = words = line.split() or [""]
        if name.startswith("cpu") and len(words) > max(columns):
            counts = [words[column] for column in columns]
            if all(re.fullmatch(r"[0-9]{1,20}", count) for count in counts):
                found[name] = sum(map(int, counts)) * TICK_S
    return found


def packages(tree: Tree) -> list[str]:
    """Return the packages that powercap knows, each once.

    Their parts, the whole platform (psys), and what registers in memory tell of the same package
    (mmio) would count twice.
    """
    zones = [x for x in tree.names(POWERCAP) if re.fullmatch(r"[a-z-]+:[0-9]+", x, re.ASCII)]
    return [
        x
        for x in zones
        if "-mmio:" not in x and (tree.line(f"{POWERCAP}/{x}/name") or "").startswith("package")
    ]


def _cpuidle(tree: Tree) -> Cpuidle:
    def read(name: str) -> str | None:
        text = tree.line(f"{CPU_DIR}/cpuidle/{name}")
        return None if text == "none" else text

    return Cpuidle(
        driver=read("current_driver"),
        # Older kernels show only current_governor_ro, unless asked for more at boot.
        governor=read("current_governor") or read("current_governor_ro"),
        available_governors=(read("available_governors") or "").split(),
    )


def _present(tree: Tree) -> list[int]:
    matches = (re.fullmatch(r"cpu([0-9]{1,5})", name) for name in tree.names(CPU_DIR))
    return sorted(int(match[1]) for match in matches if match)


def _offline(tree: Tree) -> list[int]:
    """Return CPUs that are present but offline; sysfs also lists those that never were there."""
    present = tree.cpus(f"{CPU_DIR}/present")
    offline = tree.cpus(f"{CPU_DIR}/offline") or []
    return [cpu for cpu in offline if present is None or cpu in present]


def _isolated(tree: Tree) -> list[int]:
    """Return CPUs isolated at boot and by cpuset partitions, which older kernels list apart."""
    found = (tree.cpus(path) or [] for path in (f"{CPU_DIR}/isolated", PARTITIONS))
    return sorted(set().union(*found))


def _online(tree: Tree, wanted: list[int] | None) -> list[int]:
    online = tree.cpus(f"{CPU_DIR}/online")
    folders = _present(tree)
    cpus = [cpu for cpu in folders if online is None or cpu in online]
    if wanted is None:
        return cpus
    missing = sorted(set(wanted) - set(cpus))
    if missing:
        raise WrongUsage(
            f"CPU {cpulist.format(missing)} is not online; online are {cpulist.format(cpus)}"
        )
    return wanted


def _cpu(tree: Tree, number: int, counted_s: float | None) -> Cpu:
    folder = f"{CPU_DIR}/cpu{number}"
    indexes = (re.fullmatch(r"state([0-9]{1,3})", n) for n in tree.names(f"{folder}/cpuidle"))
    return Cpu(
        number=number,
        states=[
            _state(tree, f"{folder}/cpuidle/state{index}", index)
            for index in sorted(int(match[1]) for match in indexes if match)
        ],
        resume_latency_us=_resume_latency_us(tree, f"{folder}/power/pm_qos_resume_latency_us"),
        siblings=tree.cpus(f"{folder}/topology/thread_siblings_list") or [],
        lightsleep=_poll_stats(tree, f"{folder}/lightsleep"),
        counted_s=counted_s,
    )


def _state(tree: Tree, folder: str, index: int) -> State:
    return State(
        index=index,
        name=tree.line(f"{folder}/name") or f"state{index}",
        desc=tree.line(f"{folder}/desc"),
        latency_us=tree.number(f"{folder}/latency"),
        residency_us=tree.number(f"{folder}/residency"),
        disabled=tree.flag(f"{folder}/disable"),
        default_status=tree.line(f"{folder}/default_status"),
        usage=tree.number(f"{folder}/usage"),
        time_us=tree.number(f"{folder}/time"),
        above=tree.number(f"{folder}/above"),
        below=tree.number(f"{folder}/below"),
        rejected=tree.number(f"{folder}/rejected"),
        promoted=tree.number(f"{folder}/promoted"),
    )


def _resume_latency_us(tree: Tree, path: str) -> int | None:
    if tree.text(path) == "n/a":
        return 0
    return tree.number(path) or None


def _poll_stats(tree: Tree, folder: str) -> PollStats | None:
    if not tree.names(folder):
        return None
    return PollStats(
        polls=tree.number(f"{folder}/polls"),
        hits=tree.number(f"{folder}/hits"),
        halts=tree.number(f"{folder}/halts"),
        polled_ns=tree.number(f"{folder}/polled_ns"),
        wasted_ns=tree.number(f"{folder}/wasted_ns"),
        limit_ns=tree.number(f"{folder}/limit_ns"),
        halt_cost_ns=tree.number(f"{folder}/halt_cost_ns"),
        contended=tree.number(f"{folder}/contended"),
        contention_pauses=tree.number(f"{folder}/contention_pauses"),
        program_cost_upper_ns=tree.signed(f"{folder}/program_cost_upper_ns"),
        paused_ns=tree.number(f"{folder}/paused_ns"),
        pause_left_ms=tree.number(f"{folder}/pause_left_ms"),
    )


def _latency_limit_us(tree: Tree) -> int | None:
    """Return the system-wide PM QoS limit, None without one or without the right to read it.

    The device hands out the effective limit as a native 32-bit integer; 2000 s means no limit.
    """
    content = tree.content(LATENCY_LIMIT)
    if content is None:
        return None
    if len(content) != 4:
        tree.problems[LATENCY_LIMIT] = f"{len(content)} bytes, expected 4"
        return None
    limit_us: int = struct.unpack("=i", content)[0]
    return limit_us if 0 <= limit_us < 2_000_000_000 else None


def _haltpoll(tree: Tree) -> Haltpoll | None:
    governor = "sys/module/haltpoll/parameters"
    driver = "sys/module/cpuidle_haltpoll/parameters"
    if not tree.names(governor) and not tree.names(driver):
        return None
    return Haltpoll(
        guest_halt_poll_ns=tree.number(f"{governor}/guest_halt_poll_ns"),
        grow=tree.number(f"{governor}/guest_halt_poll_grow"),
        grow_start_ns=tree.number(f"{governor}/guest_halt_poll_grow_start"),
        shrink=tree.number(f"{governor}/guest_halt_poll_shrink"),
        allow_shrink=tree.flag(f"{governor}/guest_halt_poll_allow_shrink"),
        force=tree.flag(f"{driver}/force"),
    )


def _kvm(tree: Tree) -> KvmPolling | None:
    folder = "sys/module/kvm/parameters"
    if tree.text(f"{folder}/halt_poll_ns") is None:
        return None
    return KvmPolling(
        halt_poll_ns=tree.number(f"{folder}/halt_poll_ns"),
        grow=tree.number(f"{folder}/halt_poll_ns_grow"),
        grow_start_ns=tree.number(f"{folder}/halt_poll_ns_grow_start"),
        shrink=tree.number(f"{folder}/halt_poll_ns_shrink"),
    )


def _io(tree: Tree) -> IoPolling:
    asked = {
        driver: tree.number(f"sys/module/{driver}/parameters/poll_queues")
        for driver in BLOCK_DRIVERS
    }
    polled = {
        disk: tree.flag(f"sys/class/block/{disk}/queue/io_poll")
        for disk in tree.names("sys/class/block")
        if re.fullmatch(r"(vd|nvme)[0-9a-z]+", disk)
    }
    return IoPolling(
        busy_poll_us=tree.number("proc/sys/net/core/busy_poll"),
        busy_read_us=tree.number("proc/sys/net/core/busy_read"),
        poll_queues={driver: count for driver, count in asked.items() if count is not None},
        disks={disk: poll for disk, poll in polled.items() if poll is not None},
        fabric_disks=[disk for disk in polled if _transports(tree, disk) - {"pcie"}],
    )


def _transports(tree: Tree, disk: str) -> set[str]:
    """Return how an NVMe disk is reached; one of several paths belongs to a subsystem of these."""
    if not disk.startswith("nvme"):
        return set()
    device = f"sys/class/block/{disk}/device"
    paths = [name for name in tree.names(device) if re.fullmatch(r"nvme[0-9]+", name)]
    found = (tree.line(f"{x}/transport") for x in (device, *(f"{device}/{y}" for y in paths)))
    return {transport for transport in found if transport}


def _lightsleep(tree: Tree) -> Lightsleep | None:
    folder = "sys/module/cpuidle_lightsleep/parameters"
    if not tree.names(folder):
        return None
    return Lightsleep(
        mode=tree.line(f"{folder}/mode"),
        poll_limit_us=tree.number(f"{folder}/poll_limit_us"),
        halt_cost_ns=tree.number(f"{folder}/halt_cost_ns"),
        wait_weight=tree.number(f"{folder}/wait_weight"),
        host_is_short=tree.flag(f"{folder}/host_is_short"),
    )


class QueueRow(NamedTuple):
    """A row of /proc/interrupts that is of a virtio queue; ``text`` is all of it."""

    text: str
    irq: str
    interrupts: int
    name: str


def queue_rows(content: bytes) -> Iterator[QueueRow]:
    """Yield the rows of virtio queues: number, a count for each CPU, the way here, and the name.

    The file has up to 2000 rows of 1024 counts, and few are of queues. So only the last word of
    the others is looked at.
    """
    for line in content.split(b"\n"):
        if not line.startswith(b"virtio", line.rfind(b" ") + 1):
            continue
        text = printable(line.decode("utf-8", errors="replace"))
        irq, _, rest = text.lstrip().partition(":")
        words = rest.split()
        counts = [*takewhile(_is_count, words)]
        if not (IRQ.fullmatch(irq) and rest[:1].isspace() and 0 < len(counts) < len(words)):
            continue
        if QUEUE_NAME.fullmatch(words[-1]):
            yield QueueRow(text, irq, sum(map(int, counts)), words[-1])


def _is_count(word: str) -> bool:
    return len(word) <= MAX_DIGITS and word.isascii() and word.isdigit()


def _queues(tree: Tree) -> list[Queue]:
    sources = _poll_sources(tree)
    return [
        Queue(
            name=row.name,
            irq=int(row.irq),
            cpus=tree.cpus(f"proc/irq/{row.irq}/effective_affinity_list") or [],
            interrupts=row.interrupts,
            source=sources.get(row.name),
        )
        for row in queue_rows(tree.content(INTERRUPTS, MAX_INTERRUPTS_BYTES) or b"")
    ]


def _poll_sources(tree: Tree) -> dict[str, PollSource]:
    """Return the poll sources by name. Only root may look."""
    head, *rows = [line.split() for line in (tree.text(POLL_SOURCES) or "").splitlines()] or [[]]
    sources = {}
    for words in rows:
        row = dict(zip(head, words, strict=False))
        try:
            sources[row["name"]] = PollSource(
                enabled=row["state"] == "on",
                polls=_count(row["polls"]),
                hits=_count(row["hits"]),
                peeks=_count(row["peeks"]),
                peek_ns=_count(row["peek_ns"]),
                overruns=_count(row["overruns"]),
                handled=_count(row["handled"]),
                handle_ns=_count(row["handle_ns"]),
                holds=_count(row["holds"]),
                expired=_count(row["expired"]),
            )
        except (KeyError, ValueError):
            tree.problems[POLL_SOURCES] = f"not a poll source: {' '.join(words)[:40]!r}"
    return sources


def _count(word: str) -> int:
    """Return a counter of the kernel. Raises ValueError."""
    if not re.fullmatch(r"[0-9]{1,20}", word):
        raise ValueError(word)
    return int(word)
