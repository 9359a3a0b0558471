# SPDX-License-Identifier: GPL-2.0-only
"""The machine that measures or records: CPUs, how they are related, and the states they idle in."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from lightsleep import cpulist
from lightsleep.scan import facts
from lightsleep.scan.collect import CPU_DIR, collect
from lightsleep.scan.model import Scan, State
from lightsleep.scan.tree import Tree

# Said in the description of states in which a CPU watches memory, so that a store wakes it.
MONITORS = re.compile(r"\bMWAIT\b")

# Governors of cpufreq under which a CPU has one frequency, busy or not; None: nothing tells.
STEADY = {None, "performance", "powersave", "userspace"}
# Drivers of cpufreq with governors of their own. Their powersave is none of the generic ones.
SCALING_POWERSAVE = {"intel_pstate", "amd-pstate-epp"}


@dataclass(frozen=True)
class IdleState:
    """An idle state of one CPU; ``index`` as in sysfs and in the cpu_idle tracepoint.

    ``polls`` says that a CPU in it runs on, and never halts; ``monitors`` that it has halted, and a
    store to the word that it watches ends that (MWAIT). ``interrupted`` says that the kernel sends
    an IPI all the same. ``knob`` is its folder in sysfs: None for the idling of a CPU without a
    cpuidle driver, of which nothing is advertised either.
    """

    index: int
    name: str
    latency_us: int | None
    residency_us: int | None
    polls: bool
    monitors: bool
    disabled: bool
    knob: Path | None
    interrupted: bool = False

    @property
    def sees_stores(self) -> bool:
        """Whether a CPU in it needs no interrupt to be woken."""
        return (self.polls or self.monitors) and not self.interrupted


@dataclass(frozen=True)
class Cpufreq:
    """The driver and governor of a CPU's frequency, and the limits in kHz.

    None where nothing tells.
    """

    governor: str | None
    min_khz: int | None
    max_khz: int | None
    driver: str | None = None

    @property
    def varies(self) -> bool:
        """Whether a busy CPU may run faster than one that idles."""
        scales = self.governor == "powersave" and self.driver in SCALING_POWERSAVE
        return (
            (scales or self.governor not in STEADY)
            and self.min_khz is not None
            and self.max_khz is not None
            and self.min_khz < self.max_khz
        )


@dataclass(frozen=True)
class Cpu:
    """An online CPU. ``reserved`` says what it is kept free for, None where it is not.

    ``cluster`` are the other CPUs of its cluster, as the kernel counts them: on x86, those that
    share its L2 cache, which may be its siblings only; empty where nothing tells.
    """

    number: int
    states: tuple[IdleState, ...]
    siblings: frozenset[int]
    package: int | None
    node: int | None
    reserved: str | None
    latency_limit_us: int | None
    cluster: frozenset[int]
    cpufreq: Cpufreq


@dataclass(frozen=True)
class Machine:
    """All online CPUs by number, and what a result file says of the machine."""

    cpus: dict[int, Cpu]
    environment: dict[str, str | int | None]
    governors: tuple[str, ...] = ()
    """Those of cpuidle that can be chosen."""
    governor: str | None = None
    """The one that is chosen."""


def read(root: Path) -> Machine:
    """Return the machine whose sysfs and procfs are below ``root``."""
    return described(root, *collect(root))


def described(root: Path, scan: Scan, tree: Tree) -> Machine:
    """Return the machine of a scan that was collected below ``root``."""
    cpufreqs = {cpu.number: _cpufreq(tree, cpu.number) for cpu in scan.cpus}
    reserved = dict.fromkeys(tree.cpus(f"{CPU_DIR}/nohz_full") or [], "nohz_full")
    reserved |= dict.fromkeys(scan.isolated, "isolated")
    interrupted = facts.interrupts_polling_cpus(scan)
    return Machine(
        cpus={
            cpu.number: Cpu(
                number=cpu.number,
                states=tuple(_state(root, cpu.number, state, interrupted) for state in cpu.states)
                or (_default_idle(scan, interrupted),),
                siblings=frozenset(cpu.siblings) - {cpu.number},
                package=tree.number(f"{CPU_DIR}/cpu{cpu.number}/topology/physical_package_id"),
                node=_node(tree, cpu.number),
                reserved=reserved.get(cpu.number),
                latency_limit_us=facts.latency_limit_us(scan, cpu),
                cluster=_cluster(tree, cpu.number),
                cpufreq=cpufreqs[cpu.number],
            )
            for cpu in scan.cpus
        },
        environment=_environment(scan, tree, cpufreqs.values()),
        governors=tuple(scan.cpuidle.available_governors),
        governor=scan.cpuidle.governor,
    )


def say(of_cpus: Iterable[tuple[int, str]]) -> list[str]:
    """Return one sentence for all CPUs of which the same is said."""
    cpus: dict[str, list[int]] = {}
    for cpu, what in of_cpus:
        cpus.setdefault(what, []).append(cpu)
    return [f"CPU {cpulist.format(numbers)}: {what}" for what, numbers in cpus.items()]


def _state(root: Path, cpu: int, state: State, interrupted: bool) -> IdleState:
    return IdleState(
        index=state.index,
        name=state.name,
        latency_us=state.latency_us,
        residency_us=state.residency_us,
        polls=state.polls,
        monitors=bool(MONITORS.search(state.desc or "")),
        disabled=bool(state.disabled),
        knob=root / CPU_DIR / f"cpu{cpu}/cpuidle/state{state.index}",
        interrupted=interrupted,
    )


def _default_idle(scan: Scan, interrupted: bool) -> IdleState:
    """Return the idling of a CPU without a driver: the kernel traces it as state 1, or 0."""
    spins = facts.spins(scan) is not None
    name = "spin" if spins else "default"
    return IdleState(0 if spins else 1, name, None, None, spins, False, False, None, interrupted)


def _cluster(tree: Tree, cpu: int) -> frozenset[int]:
    listed = tree.cpus(f"{CPU_DIR}/cpu{cpu}/topology/cluster_cpus_list")
    return frozenset(listed or ()) - {cpu}


def _cpufreq(tree: Tree, cpu: int) -> Cpufreq:
    folder = f"{CPU_DIR}/cpu{cpu}/cpufreq"
    return Cpufreq(
        governor=tree.line(f"{folder}/scaling_governor"),
        min_khz=tree.number(f"{folder}/scaling_min_freq"),
        max_khz=tree.number(f"{folder}/scaling_max_freq"),
        driver=tree.line(f"{folder}/scaling_driver"),
    )


def _frequencies(cpufreqs: Collection[Cpufreq]) -> dict[str, str | int | None]:
    """Return what a result file says of cpufreq: each governor, and the widest limits."""
    governors = sorted({x.governor for x in cpufreqs if x.governor})
    least = [x.min_khz for x in cpufreqs if x.min_khz is not None]
    most = [x.max_khz for x in cpufreqs if x.max_khz is not None]
    return {
        "cpufreq_governor": ", ".join(governors) or None,
        "cpufreq_min_khz": min(least, default=None),
        "cpufreq_max_khz": max(most, default=None),
    }


def _node(tree: Tree, cpu: int) -> int | None:
    names = tree.names(f"{CPU_DIR}/cpu{cpu}")
    return next((int(m[1]) for name in names if (m := re.fullmatch(r"node(\d+)", name))), None)


def _environment(
    scan: Scan, tree: Tree, cpufreqs: Collection[Cpufreq]
) -> dict[str, str | int | None]:
    return {
        "kernel": scan.kernel.release,
        "arch": scan.kernel.arch,
        "cmdline": tree.text("proc/cmdline"),
        "cpu_model": scan.cpu_model,
        "hypervisor": scan.hypervisor,
        "cpuidle_driver": scan.cpuidle.driver,
        "governor": scan.cpuidle.governor,
        **_frequencies(cpufreqs),
        "clocksource": scan.clocksource.current,
        "cpus": len(scan.cpus),
    }
