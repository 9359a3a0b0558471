# SPDX-License-Identifier: GPL-2.0-only
"""``lightsleep measure``: the command."""

import contextlib
import csv
import dataclasses
import io
import os
import random
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

import click

from lightsleep import terminal
from lightsleep.document import text_of
from lightsleep.ending import postponed, status_of
from lightsleep.errors import LightsleepError
from lightsleep.files import check_writable, same, write_json, write_text, written
from lightsleep.measure import assess, module, noise, plan, userspace
from lightsleep.measure.model import Backend, Sample, Source
from lightsleep.measure.render import render
from lightsleep.measure.result import MeasureResult
from lightsleep.measure.run import Ended, Taken, Tally
from lightsleep.measure.run import measure as take
from lightsleep.options import (
    OutputFile,
    cpus_option,
    json_option,
    need_root,
    output_option,
    seed_option,
)
from lightsleep.scan import machine
from lightsleep.settings import journalled
from lightsleep.settings.catalogue import GOVERNOR

ROOT = Path("/")
DEFAULT_SOURCES: tuple[Source, ...] = ("timer", "ipi", "store")
OBEDIENT = ("menu", "teo")
"""Governors that never choose a disabled state while another one is enabled."""

Mode = Literal["auto", "module", "userspace"]


@click.command()
@cpus_option
@click.option(
    "-s",
    "--state",
    "states",
    multiple=True,
    metavar="NAME|INDEX",
    help="Measure only this idle state; repeatable. Includes disabled states.",
)
@click.option(
    "--source",
    "sources",
    multiple=True,
    type=click.Choice(["timer", "ipi", "store", "device"]),
    help="Wakeup source; repeatable. Default: timer, ipi, and store if a state polls.",
)
@click.option(
    "-n",
    "--samples",
    type=click.IntRange(1, 10_000),
    default=200,
    show_default=True,
    help="Valid samples per state and source.",
)
@click.option(
    "--source-cpu",
    type=int,
    metavar="CPU",
    help="The CPU that wakes the others. Default: the nearest one that fits.",
)
@click.option(
    "--mode",
    type=click.Choice(["auto", "module", "userspace"]),
    default="auto",
    show_default=True,
    help="Who takes the samples. auto: the kernel module if it is loaded, else user space.",
)
@click.option(
    "--load",
    is_flag=True,
    help="Load the kernel module for this run; build it if it is not installed.",
)
@seed_option("Repeat the order of an earlier measurement.")
@json_option()
@output_option
@click.option(
    "--csv",
    "table",
    type=OutputFile(),
    metavar="FILE",
    help="Also save every sample, valid or not, as CSV.",
)
@click.option(
    "-v", "--verbose", is_flag=True, help="Show every CPU, and the samples that do not count."
)
def measure(
    cpus: list[int] | None,
    states: tuple[str, ...],
    sources: tuple[Source, ...],
    samples: int,
    source_cpu: int | None,
    mode: Mode,
    load: bool,
    seed: int | None,
    as_json: bool,
    output: Path | None,
    table: Path | None,
    verbose: bool,
) -> None:
    """Measure what a wakeup costs, and check the advertised latencies.

    Wakes every CPU out of every idle state, by its timer and from other CPUs. Compares the median
    with the exit latency that the state advertises. While a CPU is measured, its other states are
    disabled; they are restored however the command ends. Needs root.
    """
    _check_options(mode, load, as_json, verbose, output, table)
    # What a killed command left is not how the machine is.
    left = journalled.set_back_left(ROOT, "measure") if os.geteuid() == 0 else []
    terminal.tell(left)  # at once: what follows may fail
    here = machine.read(ROOT)
    wish = plan.Wish(tuple(cpus or ()), states, sources or DEFAULT_SOURCES, samples, source_cpu)
    plan.check(here, wish)
    _check_states(here, wish)
    need_root("measuring changes settings of the machine")
    for path in (output, table):
        if path:
            check_writable(path)
    seed = random.getrandbits(32) if seed is None else seed

    with contextlib.ExitStack() as whole:
        with journalled.session(ROOT, "measure") as session, contextlib.ExitStack() as stack:
            backend, remarks = _backend(stack, mode, load, session)
            governor, remark = _obeyed(here, session)
            remarks += remark
            cells, left_out = plan.cells(here, wish, backend.sources())
            taken = _measure(here, cells, wish, backend, seed, session)
            # A signal while settings go back would lose what was measured, in hours perhaps.
            whole.enter_context(postponed())
        if taken.ended and not any(tally.valid for tally in taken.tallies):
            _tell_of_nothing(taken.ended, [*taken.notes, *session.notes])
            raise _ending(taken.ended)

        standing = noise.standing(here, {cell.dest for cell in cells}, governor)
        trouble = [*taken.notes, *_ended_early(taken), *left, *session.notes]
        result = MeasureResult(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            mode=backend.mode,
            environment=here.environment,
            settings={
                **dataclasses.asdict(wish),
                "cpus": sorted({x.dest for x in cells}),
                "seed": seed,
            },
            notes=[*remarks, *left_out, *standing, *trouble],
            rows=assess.rows(here, taken.tallies, wish.samples),
        )
        with written(*_files(result, taken, output, table)):
            if as_json:
                click.echo(text_of(result.document()))
            else:
                render(terminal.output(), result, verbose)
        if taken.ended:
            raise _ending(taken.ended)
        if session.refused:
            raise LightsleepError("measured, but not set back: " + "; ".join(session.refused))


def _check_options(
    mode: Mode,
    load: bool,
    as_json: bool,
    verbose: bool,
    output: Path | None,
    table: Path | None,
) -> None:
    """Raise UsageError where options exclude each other."""
    if load and mode == "userspace":
        raise click.UsageError(
            "--mode userspace does not use the module that --load loads: give only one of them"
        )
    if as_json and verbose:
        raise click.UsageError("--json has everything: leave out --verbose")
    if output and table and same(output, table):
        raise click.UsageError(f"-o and --csv both name {output}: give them different files")


def _check_states(here: machine.Machine, wish: plan.Wish) -> None:
    cpus = [cpu for cpu in here.cpus.values() if not wish.cpus or cpu.number in wish.cpus]
    known = {name: None for cpu in cpus for state in cpu.states for name in plan.names(state)}
    if cpus and (unknown := [name for name in wish.states if name not in known]):
        there = ", ".join(
            dict.fromkeys(f"{state.index} {state.name}" for cpu in cpus for state in cpu.states)
        )
        raise click.BadParameter(
            f"no idle state {unknown[0]!r}; there are: {there}", param_hint="'-s' / '--state'"
        )


def _backend(
    stack: contextlib.ExitStack, mode: Mode, load: bool, session: journalled.Session
) -> tuple[Backend, list[str]]:
    """Return what takes the samples until ``stack`` ends, and remarks on the choice."""
    remarks = []
    if mode != "userspace":
        try:
            return module.attached(ROOT, load, session), []
        except module.NoModule as error:
            if mode == "module" or load:
                raise
            remarks = [
                f"measured from user space, because {error.why}. The module ({error.remedy}) "
                "proves which state the kernel asked for, and measures up to the interrupt"
            ]
    return stack.enter_context(userspace.attached(ROOT)), remarks


def _obeyed(here: machine.Machine, session: journalled.Session) -> tuple[str | None, list[str]]:
    """Have a governor that heeds which states are disabled; return who governs, and remarks on it.

    haltpoll polls for a time of its own and then halts, whatever is disabled. ladder stays in its
    first state that halts, and never climbs past a disabled one. Of others, nothing is known.
    """
    governor = here.governor
    if governor is None or governor in OBEDIENT:
        return governor, []
    others = [name for name in OBEDIENT if name in here.governors]
    if not others:
        return governor, [
            f"no governor menu or teo can be chosen on this kernel, and {governor} may choose "
            "states that are disabled: do not trust a verdict that a state is never entered"
        ]
    session.set(ROOT / GOVERNOR, others[0])
    return others[0], [
        f"measured under the governor {others[0]}: {governor} may choose states that are disabled"
    ]


def _measure(
    here: machine.Machine,
    cells: list[plan.Cell],
    wish: plan.Wish,
    backend: Backend,
    seed: int,
    session: journalled.Session,
) -> Taken:
    with terminal.progress() as progress:
        taken = take(
            here, cells, wish.samples, backend, session, random.Random(seed), ROOT, progress
        )
    samples = (sample for tally in taken.tallies for sample in tally.samples)
    taken.notes[:0] = backend.notes(samples)
    return taken


def _tell_of_nothing(ended: Ended, notes: list[str]) -> None:
    """Say what there is to say where no sample is valid."""
    terminal.tell(notes)
    if not isinstance(ended, LightsleepError):
        click.echo("interrupted before the first sample", err=True)


def _ending(ended: Ended) -> LightsleepError | SystemExit:
    """Return what ends the command after what ended the measurement."""
    return ended if isinstance(ended, LightsleepError) else SystemExit(status_of(ended))


def _ended_early(taken: Taken) -> list[str]:
    """Return what to say of a measurement that ended early; nothing of one that did not."""
    if not taken.ended:
        return []
    why = taken.ended.message if isinstance(taken.ended, LightsleepError) else "interrupted"
    return [f"ended early, and shows only what was measured: {why}"]


def _files(
    result: MeasureResult, taken: Taken, output: Path | None, table: Path | None
) -> list[Callable[[], None]]:
    """Return what writes the files that were asked for."""
    writes: list[Callable[[], None]] = []
    if output:
        writes.append(partial(write_json, output, result.document()))
    if table:
        writes.append(partial(write_text, table, _csv(taken.tallies)))
    return writes


def _csv(tallies: list[Tally]) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(column.name for column in dataclasses.fields(Sample))
    samples = (x for tally in tallies for x in assess.settled(tally).samples)
    rows.writerows(dataclasses.astuple(x) for x in samples)
    return text.getvalue()
