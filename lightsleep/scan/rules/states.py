# SPDX-License-Identifier: GPL-2.0-only
"""Idle states as drivers and firmware describe them, and which of them CPUs may use."""

from lightsleep.scan import facts
from lightsleep.scan.model import Cpu, Scan, State, distinct_names
from lightsleep.scan.rule import Rule

# CPUIDLE_POLL_MIN of drivers/cpuidle/cpuidle.c.
POLL_MIN_US = 10


def _has_only_polling_left(cpu: Cpu) -> bool:
    deeper = facts.deeper(cpu)
    return facts.polls_first(cpu) and bool(deeper) and all(state.disabled for state in deeper)


def _only_polling_left(scan: Scan) -> str | None:
    # These two choose the first state that halts though it is disabled. lightsleep polls in it.
    chosen = scan.cpuidle.governor in ("haltpoll", "ladder")
    if chosen and scan.cpuidle.driver != facts.LIGHTSLEEP_DRIVER:
        return None
    where = facts.where(scan, _has_only_polling_left)
    return f"{where}: every state but the polling one is disabled" if where else None


def _limits(scan: Scan, cpus: list[Cpu]) -> list[str]:
    """Return the latency limits of these CPUs, with the files that set them."""
    limits = []
    if scan.latency_limit_us is not None:
        who = ", ".join(scan.latency_request.holders) if scan.latency_request else ""
        asked = f" (held open by {who})" if who else ""
        limits.append(f"/dev/cpu_dma_latency {scan.latency_limit_us} us{asked}")
    own = sorted({cpu.resume_latency_us for cpu in cpus if cpu.resume_latency_us is not None})
    if own:
        limits.append(f"pm_qos_resume_latency_us {', '.join(str(x or 'n/a') for x in own)}")
    return limits


def _qos_polls(scan: Scan) -> str | None:
    cpus = [cpu for cpu in scan.cpus if facts.limit_forces_polling(scan, cpu)]
    return f"{facts.on(cpus)}: {' and '.join(_limits(scan, cpus))}" if cpus else None


def _limited_by_no_state(cpu: Cpu) -> bool:
    if not facts.may_poll(cpu) or cpu.states[0].name != "POLL":  # snooze has a limit of its own
        return False
    deeper = [state.residency_us for state in cpu.states[1:] if not state.disabled]
    return bool(deeper) and all(us is not None and us < POLL_MIN_US for us in deeper)


def _poll_limit_is_core_default(scan: Scan) -> str | None:
    if facts.governor_is_haltpoll(scan) or scan.cpuidle.driver == facts.LIGHTSLEEP_DRIVER:
        return None
    where = facts.where(scan, _limited_by_no_state)
    return f"{where}: no usable state has a target residency of 10 us or more" if where else None


def _asymmetric(scan: Scan) -> str | None:
    # Large and small cores have states of their own: only CPUs with the same states are compared.
    kinds: dict[tuple[str, ...], dict[tuple[str, ...], list[Cpu]]] = {}
    for cpu in scan.cpus:
        if cpu.states:
            names = distinct_names(cpu.states)
            disabled = tuple(names[state.index] for state in cpu.states if state.disabled)
            kinds.setdefault(tuple(names.values()), {}).setdefault(disabled, []).append(cpu)
    parts = [
        f"{facts.on(cpus)}: {', '.join(off) or 'none'}"
        for groups in kinds.values()
        if len(groups) > 1
        for off, cpus in groups.items()
    ]
    return "; ".join(parts) or None


def _falls(shallow: int | None, deep: int | None) -> bool:
    return deep is not None and deep < (shallow or 0)


def _not_sorted(scan: Scan) -> str | None:
    wrong = {
        f"{deep.name} after {shallow.name}"
        for shallow, deep in facts.state_pairs(scan)
        if _falls(shallow.latency_us, deep.latency_us)
        or _falls(shallow.residency_us, deep.residency_us)
    }
    return f"latency or residency falls: {', '.join(sorted(wrong))}" if wrong else None


def _residency_below_latency(scan: Scan) -> str | None:
    # lightsleep's HALT polls before it halts, so no idle period is too short for it.
    if scan.cpuidle.driver == facts.LIGHTSLEEP_DRIVER:
        return None
    wrong = {
        f"{state.name} ({state.residency_us} us residency, {state.latency_us} us latency)"
        for cpu in scan.cpus
        for state in facts.deeper(cpu)
        if state.residency_us is not None and state.residency_us < (state.latency_us or 0)
    }
    return ", ".join(sorted(wrong)) or None


def _times(state: State) -> tuple[int | None, int | None]:
    return state.latency_us, state.residency_us


def _equal_states(scan: Scan) -> str | None:
    wrong = {
        f"{shallow.name} and {deep.name}"
        for shallow, deep in facts.state_pairs(scan)
        if None not in _times(deep) and _times(shallow) == _times(deep)
        if not (shallow.disabled or deep.disabled)
    }
    return f"same latency and residency: {', '.join(sorted(wrong))}" if wrong else None


RULES = (
    Rule(
        "only-polling-left",
        "warning",
        _only_polling_left,
        "Such a CPU spins at full power whenever it is idle, and slows its SMT sibling.",
        "Write 0 to the disable file of a state that halts.",
    ),
    Rule(
        "qos-polls",
        "warning",
        _qos_polls,
        "The latency limit is below the exit latency of every state that halts. These CPUs "
        'therefore spin whenever they are idle. The value "n/a" tolerates no latency at all. '
        "(lightsleep's driver halts in mode off, and where the host runs something else "
        "meanwhile.)",
        "Raise the limit to the exit latency of the shallowest state that halts, or end the "
        "process that holds /dev/cpu_dma_latency open: sudo lightsleep scan names it.",
    ),
    Rule(
        "poll-limit-core",
        "note",
        _poll_limit_is_core_default,
        "The cpuidle core derives the poll limit from the first enabled state with a target "
        "residency of 10 us or more. No state has one, so POLL spins for up to 1/16 of a tick: 62 "
        "us at HZ=1000, 625 us at HZ=100.",
        "No action is needed if this is intended. Otherwise, use a governor or driver that sets "
        "its own limit.",
    ),
    Rule(
        "asymmetric-states",
        "note",
        _asymmetric,
        "The CPUs differ in which states are disabled, so the wakeup latency of a task depends on "
        "its CPU.",
        "No action is needed if this is intended. Otherwise, write the same value to the disable "
        "files of all CPUs.",
    ),
    Rule(
        "states-not-sorted",
        "note",
        _not_sorted,
        "Governors assume that a higher index is a deeper state. They stop searching at the first "
        "state that does not fit.",
        "The driver or the firmware table is wrong. Measure both states.",
    ),
    Rule(
        "residency-below-latency",
        "note",
        _residency_below_latency,
        "A sleep that is shorter than its exit latency saves no energy. One of the two numbers is "
        "therefore wrong.",
        "The driver or the firmware table is wrong. Measure the state.",
    ),
    Rule(
        "equal-states",
        "note",
        _equal_states,
        "menu and teo choose the deepest state that fits, so they never choose the shallower of "
        "the two.",
        "The driver or the firmware table is wrong. Measure both states.",
    ),
)
