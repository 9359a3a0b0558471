# SPDX-License-Identifier: GPL-2.0-only
"""A scan on the terminal: one screen for a usual machine, CPUs that are alike in one line."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lightsleep import cpulist
from lightsleep.scan import explain
from lightsleep.scan.collect import POLL_SOURCES
from lightsleep.scan.model import Cpu, PollSource, Queue, Scan
from lightsleep.scan.obstacles import in_short
from lightsleep.scan.rule import Finding
from lightsleep.terminal import whole

SEVERITY_STYLE = {"warning": "bold yellow", "note": "bold cyan"}


def render(console: Console, scan: Scan, findings: list[Finding], verbose: bool) -> None:
    """Print a scan and its findings; ``verbose`` adds a table per CPU and what was unreadable."""
    parts: list[RenderableType] = [_facts(_machine(scan))]
    parts += [_states(scan, cpus) for cpus in _alike(scan.cpus)]
    polling = list(_polling(scan))
    if polling:
        parts.append(_facts(polling))
    if scan.queues:
        parts.append(_queues(scan))
    if any(queue.source for queue in scan.queues):
        parts.append(_sources(scan.queues))
    if verbose:
        parts += _per_cpu(scan)
    if verbose and scan.problems:
        title = Text("files that could not be used", style="bold")
        parts.append(Group(title, _facts(scan.problems.items())))
    elif scan.problems:
        parts.append(Text(f"files that could not be used: {len(scan.problems)} (-v names them)"))
    parts += [_finding(finding) for finding in findings]
    for number, part in enumerate(parts):
        if number:
            console.print()
        console.print(part, crop=False)


def _facts(facts: Iterable[tuple[str, str]]) -> Table:
    grid = Table.grid("name", "value", padding=(0, 2))
    for name, value in facts:
        grid.add_row(Text(name, style="bold"), Text(value))
    return whole(grid, "value")


def _machine(scan: Scan) -> Iterator[tuple[str, str]]:
    kernel = scan.kernel
    yield from in_short(scan)
    yield "kernel", f"{kernel.release or 'unknown'}, {kernel.arch or 'unknown'}"
    guest = f"guest (hypervisor: {scan.hypervisor})" if scan.hypervisor else "no hypervisor seen"
    yield "machine", f"{scan.cpu_model or 'unknown'}, {guest}"
    if kernel.options:
        options = (
            name if value is None else f"{name}={value}" for name, value in kernel.options.items()
        )
        yield "options", " ".join(options)
    yield "cpus", _cpus(scan)
    if scan.clocksource.current:
        yield "clocksource", scan.clocksource.current
    yield from _cpuidle(scan)
    yield "halt", explain.halt(scan)
    yield "wakeup", explain.wakeup(scan) or "unknown"
    # Time is stolen in guests only, also in one that does not show its hypervisor.
    if scan.stolen_s or (scan.stolen_s is not None and scan.hypervisor):
        share = _share(int(scan.stolen_s * 1e6), _passed_s(scan, scan.cpus))
        yield "stolen", f"{scan.stolen_s:,.1f} s since boot ({share})"
    if scan.energy:
        yield "energy", f"counted for {', '.join(scan.energy)}; only root may read it"
    if scan.latency_limit_us is not None:
        yield "latency limit", f"{scan.latency_limit_us} us (/dev/cpu_dma_latency){_asked(scan)}"


def _asked(scan: Scan) -> str:
    request = scan.latency_request
    if not request:
        return ""
    who = ", ".join(request.holders) or "no process that can be seen here"
    share = request.polled_share
    cost = "" if share is None else f"; CPUs poll {share:.0%} of the time now"
    return f", held open by {who}{cost}"


def _cpus(scan: Scan) -> str:
    parts = [f"{cpulist.format(cpu.number for cpu in scan.cpus) or 'none'} online"]
    if scan.offline:
        parts.append(f"{cpulist.format(scan.offline)} offline")
    if scan.isolated:
        parts.append(f"{cpulist.format(scan.isolated)} isolated")
    threads = {len(cpu.siblings) for cpu in scan.cpus if cpu.siblings}
    if threads:
        parts.append(f"{'/'.join(map(str, sorted(threads)))} thread(s) per core")
    return ", ".join(parts)


def _cpuidle(scan: Scan) -> Iterator[tuple[str, str]]:
    cpuidle = scan.cpuidle
    if not scan.cpus:
        yield "driver", "unknown: /sys/devices/system/cpu shows no CPU"
    elif cpuidle.driver:
        yield "driver", cpuidle.driver
    else:
        why = explain.why_no_driver(scan)
        yield "driver", "none" + (f": {why}" if why else "")
    if cpuidle.governor:
        others = [name for name in cpuidle.available_governors if name != cpuidle.governor]
        yield "governor", cpuidle.governor + (f" (also: {', '.join(others)})" if others else "")


def _alike(cpus: list[Cpu]) -> list[list[Cpu]]:
    """Return CPUs grouped by what is advertised and enabled, without those that have no states."""
    groups: dict[tuple[object, ...], list[Cpu]] = defaultdict(list)
    for cpu in cpus:
        if cpu.states:
            key = (
                cpu.resume_latency_us,
                *((s.name, s.latency_us, s.residency_us, s.disabled) for s in cpu.states),
            )
            groups[key].append(cpu)
    return list(groups.values())


def _states(scan: Scan, cpus: list[Cpu]) -> Table:
    title = f"cpu {cpulist.format(cpu.number for cpu in cpus)}"
    limit = cpus[0].resume_latency_us
    if limit is not None:
        title += f", resume latency limit {limit} us"
    table = Table(title=Text(title, style="bold"), title_justify="left", box=None, pad_edge=False)
    table.add_column("state")
    for column in ("latency us", "residency us", "entered", "time"):
        table.add_column(column, justify="right")
    promotes = any(s.promoted is not None for cpu in cpus for s in cpu.states)
    if promotes:
        table.add_column("promoted", justify="right")
    table.add_column("description")
    for index, state in enumerate(cpus[0].states):
        same = [cpu.states[index] for cpu in cpus]
        table.add_row(
            Text(state.name + (" (disabled)" if state.disabled else "")),
            _number(state.latency_us),
            _number(state.residency_us),
            _number(_sum(s.usage for s in same)),
            _share(_sum(s.time_us for s in same), _passed_s(scan, cpus)),
            *((_number(_sum(s.promoted for s in same)),) if promotes else ()),
            Text(state.desc or ""),
        )
    return whole(table, "description")


def _sum(values: Iterator[int | None]) -> int | None:
    """Return the sum of those that are known, None where none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _passed_s(scan: Scan, cpus: list[Cpu]) -> float | None:
    """Return the time that passed on these CPUs since boot, in sum.

    States count no suspend and no time offline, and neither does /proc/stat. The uptime, which
    does, is the next best.
    """
    known = [cpu.counted_s for cpu in cpus if cpu.counted_s is not None]
    if len(known) == len(cpus):
        return sum(known)
    return None if scan.kernel.uptime_s is None else scan.kernel.uptime_s * len(cpus)


def _share(time_us: int | None, passed_s: float | None) -> str:
    """Return the share of the time that passed; none where a counter is damaged.

    The counters are not read at the same moment, so one may be somewhat ahead.
    """
    if time_us is None or not passed_s:
        return "-"
    share = time_us / (passed_s * 1e6)
    return f"{min(share, 1):.1%}" if share <= 1.01 else "-"


def _polling(scan: Scan) -> Iterator[tuple[str, str]]:
    if scan.lightsleep:
        yield "parameters", _lightsleep(scan)
    if scan.haltpoll and "haltpoll" in scan.cpuidle.available_governors:
        knobs = scan.haltpoll
        yield (
            "haltpoll",
            f"guest_halt_poll_ns {_number(knobs.guest_halt_poll_ns)}, "
            f"grow {_number(knobs.grow)} from {_number(knobs.grow_start_ns)}, "
            f"shrink {_number(knobs.shrink)}" + (", force" if knobs.force else ""),
        )
    if scan.kvm:
        yield (
            "as host",
            f"kvm halt_poll_ns {_number(scan.kvm.halt_poll_ns)}, grow {_number(scan.kvm.grow)} "
            f"from {_number(scan.kvm.grow_start_ns)}, shrink {_number(scan.kvm.shrink)}",
        )
    if scan.io.busy_poll_us or scan.io.busy_read_us:
        yield (
            "network",
            f"busy_poll {_number(scan.io.busy_poll_us)} us, "
            f"busy_read {_number(scan.io.busy_read_us)} us",
        )
    queues = [f"{driver}.poll_queues {n}" for driver, n in scan.io.poll_queues.items() if n]
    queues += [f"{disk} polled" for disk, polled in scan.io.disks.items() if polled]
    if queues:
        yield "disks", ", ".join(queues)


def _queues(scan: Scan) -> Table:
    title = Text("virtio queues", style="bold")
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("queue")
    for column in ("irq", "cpu", "interrupts"):
        table.add_column(column, justify="right")
    table.add_column("while idle")
    # Without the list of sources, a queue without one may be polled all the same.
    without = "-" if POLL_SOURCES in scan.problems else "interrupts"
    for queue in scan.queues:
        source = queue.source
        table.add_row(
            Text(queue.name),
            str(queue.irq),
            cpulist.format(queue.cpus) or "-",
            _number(queue.interrupts),
            without if not source else "polled" if source.enabled else "too slow",
        )
    return whole(table)


def _sources(queues: list[Queue]) -> Table:
    """Return what came of polling the queues; beside the other columns it would be too wide."""
    title = Text("virtio queues, polled", style="bold")
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("queue")
    for column in ("polls", "hits", "holds", "expired", "ns/look", "ns/hit"):
        table.add_column(column, justify="right")
    for queue in queues:
        if queue.source:
            table.add_row(Text(queue.name), *map(_number, _counts(queue.source)))
    return whole(table)


def _counts(source: PollSource) -> tuple[int | None, ...]:
    look_ns = source.peek_ns // source.peeks if source.peeks else None
    hit_ns = source.handle_ns // source.handled if source.handled else None
    return source.polls, source.hits, source.holds, source.expired, look_ns, hit_ns


def _lightsleep(scan: Scan) -> str:
    assert scan.lightsleep
    knobs = scan.lightsleep
    parts = [
        f"mode {knobs.mode or '-'}, poll_limit_us {_number(knobs.poll_limit_us)}, "
        f"a halt costs {_number(knobs.halt_cost_ns)} ns"
    ]
    stats = [cpu.lightsleep for cpu in scan.cpus if cpu.lightsleep]
    polls = _sum(s.polls for s in stats)
    if polls:
        hits = _sum(s.hits for s in stats) or 0
        parts.append(f"{polls:,} polls, {min(hits / polls, 1):.1%} saw a wakeup")
    wasted_ns = _sum(s.wasted_ns for s in stats)
    # The driver's state counters and its own start at the same moment.
    idle_us = _sum(state.time_us for cpu in scan.cpus for state in cpu.states)
    if wasted_ns is not None and idle_us:
        parts.append(f"{wasted_ns / idle_us:,.3f} ms polled in vain per second of idle")
    limits: dict[int, list[int]] = defaultdict(list)
    for cpu in scan.cpus:
        if cpu.lightsleep and cpu.lightsleep.limit_ns is not None:
            limits[cpu.lightsleep.limit_ns].append(cpu.number)
    if limits:
        folded = (f"{limit:,} ns on cpu {cpulist.format(cpus)}" for limit, cpus in limits.items())
        parts.append(f"limit now {'; '.join(folded)}")
    return "\n".join(parts)


def _per_cpu(scan: Scan) -> Iterator[Table]:
    states = _counters(
        "cpu", "entered", "time us", "above", "below", "rejected", "promoted", "state"
    )
    for cpu in scan.cpus:
        for s in cpu.states:
            counters = (s.usage, s.time_us, s.above, s.below, s.rejected, s.promoted)
            states.add_row(str(cpu.number), *map(_number, counters), Text(s.name))
    polls = _counters("cpu", "polls", "hits", "halts", "polled ns", "in vain ns", "limit ns")
    for cpu in scan.cpus:
        if p := cpu.lightsleep:
            values = (p.polls, p.hits, p.halts, p.polled_ns, p.wasted_ns, p.limit_ns)
            polls.add_row(str(cpu.number), *map(_number, values))
    siblings = _counters("cpu", "thread siblings")
    for cpu in scan.cpus:
        if len(cpu.siblings) > 1:
            siblings.add_row(str(cpu.number), cpulist.format(cpu.siblings))
    return (whole(table) for table in (states, polls, siblings) if table.rows)


def _counters(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column == "state" else "right")
    return table


def _finding(finding: Finding) -> RenderableType:
    head = Text.assemble(
        (f"{finding.severity}: ", SEVERITY_STYLE[finding.severity]),
        finding.what,
        (f" [{finding.id}]", "dim"),
    )
    body = Text(f"{finding.why}\n{finding.fix}")
    return Group(head, Padding(body, (0, 0, 0, 4), expand=False))
