# SPDX-License-Identifier: GPL-2.0-only
"""A status on the terminal: facts, a row per CPU, and the sentence that says whether it pays."""

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lightsleep.enable import boot
from lightsleep.enable.status import Status
from lightsleep.enable.why import HOST_NEEDS_CORE, always_polls, not_polling
from lightsleep.scan.loading import MODULE
from lightsleep.scan.model import Cpu, PollStats, Scan
from lightsleep.scan.obstacles import passed_by_enable
from lightsleep.terminal import whole
from lightsleep.units import whole_s
from lightsleep.watch.rates import hit_rate


def render(console: Console, status: Status) -> None:
    """Print a status."""
    grid = Table.grid("name", "value", padding=(0, 2))
    for name, value in _facts(status):
        grid.add_row(Text(name, style="bold"), Text(value))
    console.print(whole(grid, "value"), crop=False)
    if status.active:
        console.print()
        console.print(_cpus(status), crop=False)
    if status.pays:
        console.print()
        console.print(Text(status.pays.sentence), crop=False)
    if not status.active and {x.id for x in status.obstacles} <= passed_by_enable(status.scan):
        console.print()
        console.print(Text(_how_to_load(status)), crop=False)
    for obstacle in status.obstacles:
        console.print()
        console.print(Text(f"{obstacle.what} [{obstacle.id}]"), crop=False)
        console.print(Padding(Text(obstacle.fix), (0, 0, 0, 4), expand=False), crop=False)


def _how_to_load(status: Status) -> str:
    load = "To load it now: sudo lightsleep enable"
    if status.at_boot and _is_later(status):
        return f"The next boot loads {MODULE}. {load} {status.boot_setting or ''}".rstrip()
    if status.at_boot:
        return (
            f"The boot did not load {MODULE}, or somebody has unloaded it since. journalctl -b -u "
            f"systemd-modules-load and dmesg say what happened. {load}"
        )
    return load


def _is_later(status: Status) -> bool:
    """Whether what was enabled holds from the next boot on, and nothing does until then."""
    return not status.enabled and status.since is not None


def _facts(status: Status) -> Iterator[tuple[str, str]]:
    scan = status.scan
    yield "lightsleep", "active" if status.active else "not active"
    if status.enabled:
        yield "enabled", f"{status.enabled}, since {status.since} by {status.by}"
    elif status.active:
        yield "enabled", "not by lightsleep enable since this boot"
    if status.interrupted and status.at_boot is False:
        yield "at boot", f"no; {status.files[0]} is left of an interrupted enable"
    else:
        yield "at boot", _at_boot(status)
    if status.boot_setting:
        whose = f", enabled {status.since} by {status.by}" if _is_later(status) else ""
        yield "next boot", f"brings {status.boot_setting}{whose}"
    if status.at_boot and status.kernels_without_module:
        yield "not with", f"{', '.join(status.kernels_without_module)}: no {MODULE} is installed"
    if status.unfinished:
        yield "unfinished", status.unfinished
    if status.another_build:
        yield (
            "loaded",
            f"another build than /{scan.loading.installed}, which is installed: until a reboot, or "
            "until you run sudo lightsleep disable and repeat the enable command that you used",
        )
    if status.changed:
        yield "changed", "\n".join(status.changed)
    yield "driver", scan.cpuidle.driver or "none"
    yield "governor", scan.cpuidle.governor or "none"
    if own := scan.lightsleep:
        yield "mode", own.mode or "-"
        derived = own.poll_limit_us == 0
        yield "ceiling", "from the halt cost" if derived else f"{_number(own.poll_limit_us)} us"
        # 0 also says that the machine was too busy to be measured; CPUs have figures of their own.
        unsure = "" if own.halt_cost_ns else " (nothing measured on the machine, or nothing lost)"
        yield "halt cost", f"{_number(own.halt_cost_ns)} ns{unsure}"
        if always := always_polls(scan):
            yield "always polls", always
        if own.host_is_short:
            yield "host", "short of cores: for now, no CPU heeds a latency limit"


def _at_boot(status: Status) -> str:
    folders = " and ".join(str(Path(name).parent) for name in status.unreadable)
    denied = f"only root may look into {folders}"
    if status.at_boot is None:
        return f"unknown: {denied if folders else 'only root may tell'}"
    if not status.at_boot:
        away = [boot.blacklist(name.removeprefix("/")) for name in status.boot_kept_away_by]
        return f"no: kept away by {' and '.join(away)}" if away else "no"
    files = dict.fromkeys([*status.files, *status.boot_files])
    return f"yes: {', '.join(files)}" + (f"; {denied}" if folders else "")


def _cpus(status: Status) -> Table:
    table = Table(box=None, pad_edge=False)
    before = ("cpu", "limit ns", "polls", "hits", "hit rate", "store/s")
    stats = [cpu.lightsleep or PollStats() for cpu in status.scan.cpus]
    timed = any(x.paused_ns is not None for x in stats)
    pauses = "paused s" if timed else "pauses"
    for column in (*before, "halts", "polled ms", "in vain ms", pauses):
        table.add_column(column, justify="right")
    table.add_column("does not poll because")
    for cpu, x in zip(status.scan.cpus, stats, strict=True):
        rate = hit_rate(x.polls, x.hits)
        table.add_row(
            str(cpu.number),
            *(_number(value) for value in (x.limit_ns, x.polls, x.hits)),
            "-" if rate is None else f"{rate:.1%}",
            _number(status.stores.get(cpu.number)),
            _number(x.halts),
            _ms(x.polled_ns),
            _ms(x.wasted_ns),
            _seconds(x.passed_in_pauses_ns) if timed else _number(x.contention_pauses),
            _why_not(cpu, status.scan),
        )
    return whole(table)


def _why_not(cpu: Cpu, scan: Scan) -> str:
    """Return why a CPU does not poll and, in a pause, for how much longer."""
    why = not_polling(cpu, scan) or ""
    left_ms = cpu.lightsleep.pause_left_ms if cpu.lightsleep else None
    return f"{why}, for {whole_s(left_ms)} s more" if left_ms and why == HOST_NEEDS_CORE else why


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _seconds(time_ns: int | None) -> str:
    return "-" if time_ns is None else f"{time_ns / 1e9:,.1f}"


def _ms(time_ns: int | None) -> str:
    return "-" if time_ns is None else f"{time_ns / 1e6:,.1f}"
