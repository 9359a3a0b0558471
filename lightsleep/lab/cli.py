# SPDX-License-Identifier: GPL-2.0-only
"""``lightsleep lab``: compare, shell, build, series, list."""

from __future__ import annotations

import contextlib
import os
import random
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lightsleep import terminal
from lightsleep.compare import words
from lightsleep.compare.analysis import control_failed
from lightsleep.compare.boots import LEAST_BOOTS
from lightsleep.compare.method import rounds_needed
from lightsleep.compare.result import CompareResult
from lightsleep.compare.table import print_table
from lightsleep.document import text_of
from lightsleep.errors import LightsleepError
from lightsleep.files import check_writable, write_json, written
from lightsleep.lab import experiments
from lightsleep.lab.boot.foreign import source_of
from lightsleep.lab.boot.guest import Guest, lacks_modprobe, prepare
from lightsleep.lab.boot.initramfs import NO_MODPROBE
from lightsleep.lab.boot.machine import Described, Machine
from lightsleep.lab.kernels.build import any_tree
from lightsleep.lab.kernels.config import ARCHES, ROOTS, lookup
from lightsleep.lab.kernels.series import bases, check_without_mails, read_topics, write_mails
from lightsleep.lab.kernels.source import kernel_source
from lightsleep.lab.options import (
    accel_named,
    arch_option,
    arguments_given,
    available,
    kernel_named,
    machine_options,
)
from lightsleep.lab.run import experiment, facts, protocol
from lightsleep.options import NamedPath, json_option, output_option, seed_option

STAYS = (facts.LITTLE_MEMORY, facts.FEW_CPUS, NO_MODPROBE)
"""How warnings begin that stay on a terminal, where other steps replace each other."""


@click.group()
def lab() -> None:
    """Experiments in QEMU guests: compare, shell, build, series, list.

    The lab boots unmodified distribution kernels and needs no root. It keeps downloads and builds
    in $LIGHTSLEEP_CACHE (default: ~/.cache/lightsleep).
    """


def enough_rounds(_: click.Context, __: click.Parameter, rounds: int | None) -> int | None:
    """Refuse numbers of rounds that prove nothing."""
    if rounds is not None and rounds < rounds_needed():
        raise click.BadParameter(
            f"{rounds} rounds give no 95 % confidence interval: at least {rounds_needed()}; "
            f"{protocol.ROUNDS} show a difference of 20 % in most metrics (docs/lab.md)"
        )
    return rounds


@lab.command(short_help="Run an experiment, show what differs.")
@click.argument("name")
@machine_options
@click.option(
    "--rounds",
    type=int,
    callback=enough_rounds,
    help="Rounds, each with a sample of every arm and metric; 6 at least, and as many as it takes "
    f"to judge the control. Default: the experiment's own number, else {protocol.ROUNDS}.",
)
@click.option(
    "--boots",
    type=click.IntRange(LEAST_BOOTS),
    help="How often each arm is booted; the rounds are divided among the boots. "
    "Default: the experiment's if it divides them, else the largest number from "
    f"{protocol.BOOTS} down to {LEAST_BOOTS} that divides the rounds, else one boot for "
    "each round.",
)
@seed_option("Repeat the order of an earlier comparison.")
@output_option
@click.option(
    "--arms",
    metavar="NAME,NAME...",
    help="Only these arms; the one with which the others are compared must be among them.",
)
@click.option(
    "--vcpus", type=click.IntRange(1, 64), help="CPUs of each guest. Default: the experiment's."
)
@click.option(
    "--patched-tree",
    "patched",
    type=NamedPath(exists=True, file_okay=False, path_type=Path),
    help="Compare two kernels: that of this built tree (arm `patched`) with that of --kernel-tree, "
    "--image, or --kernel. Both are set up as the experiment's baseline; its other arms are left "
    "out unless --arms names them.",
)
@click.option(
    "--claim",
    "claimed",
    multiple=True,
    metavar="METRIC[,BOUND]",
    help="Claim beforehand that the kernel of --patched-tree is better in METRIC; repeatable. With "
    "at_most=NUMBER or at_least=NUMBER as BOUND: what the ratio of both kernels is, or their "
    "difference in points if the unit is %.",
)
def compare(
    name: str,
    machine: Machine,
    rounds: int | None,
    boots: int | None,
    seed: int | None,
    output: Path | None,
    arms: str | None,
    vcpus: int | None,
    patched: Path | None,
    claimed: tuple[str, ...],
) -> None:
    """Run the experiment NAME, and show what differs between its arms.

    `lightsleep lab list` names the experiments. One of your own is named by its path: ./mine.py.

    If the control differs from the baseline, the exit status is 1; the result is still shown and
    written.
    """
    named = [arm.strip() for arm in (arms or "").split(",") if arm.strip()]
    if arms is not None and not named:
        raise click.UsageError(f"--arms {arms!r} names no arm")
    if patched:
        _is_another_kernel(patched, machine)
    elif claimed:
        raise click.UsageError("--claim is about the kernel of --patched-tree: name that, too")
    loaded, digest = experiments.load(name), experiments.digest(name)
    chosen = experiment.adapted(
        loaded,
        arms=named,
        vcpus=vcpus,
        kernel_named=kernel_named(),
        accel_named=accel_named(),
        patched=patched,
        claimed=claimed,
    )
    rounds = rounds or chosen.rounds or protocol.ROUNDS
    boots = boots or (chosen.boots if rounds % (chosen.boots or 1) == 0 else None)
    boots = boots or protocol.boots_for(rounds)
    _judges_the_control(chosen, rounds)
    if rounds % boots:
        raise click.UsageError(
            f"{rounds} rounds cannot be divided among {boots} boots: --rounds must be a multiple "
            f"of {boots}"
        )
    if output:
        check_writable(output)
    seed = random.randrange(2**31) if seed is None else seed
    console = terminal.messages()
    if not (screen := terminal.has_screen(console)):
        console = terminal.messages(force_terminal=False)
    with console.status("") as status:
        said: set[str] = set()

        def show(what: str, left_s: float | None) -> None:
            if screen and what.startswith(STAYS):
                console.print(what)  # stays above the status, which what comes next replaces
                return
            left = "" if left_s is None else f", {max(left_s, 0) / 60:.1f} min left"
            status.update(Text(what + left))  # a string would be taken for markup
            if not screen and what + left not in said:
                said.add(what + left)  # each arm prepares what the others do
                console.print(what + left)

        result = protocol.compare(
            experiments.name_in_results(name), chosen, machine, rounds, boots, seed, show
        )
    result.protocol["arguments"] = arguments_given(name)
    if digest:
        result.protocol["experiment_sha256"] = digest
    writes = [partial(write_json, output, result.document())] if output else []
    with written(*writes):
        print_table(result, terminal.output())
        _print_remarks(result, console)
    if control_failed(result):
        raise LightsleepError(
            "the control differs from the baseline, although both were booted alike: differences "
            "of that size say nothing in this comparison; repeat it on a quiet host"
        )


def _is_another_kernel(patched: Path, machine: Machine) -> None:
    """Refuse to compare the kernel of a tree with none, or with another tree of its source."""
    if not kernel_named():
        raise click.UsageError(
            "--patched-tree: name the kernel without the patch, too, best with --kernel-tree"
        )
    other = machine.foreign.tree if machine.foreign else None
    if other and (source := source_of(patched)).samefile(source_of(other)):
        raise click.UsageError(
            f"--patched-tree and --kernel-tree have one source, {source}: our modules would "
            "be built with the headers of one kernel for both; give each its own source, such as "
            "with git worktree"
        )


def _judges_the_control(chosen: experiment.Experiment, rounds: int) -> None:
    """Refuse numbers of rounds that leave it open whether the control differs."""
    if callable(chosen.metrics):
        return  # the guest that tells its metrics is not yet booted
    try:
        protocol.judges_the_control(chosen, chosen.metrics, rounds)
    except LightsleepError as error:
        raise click.BadParameter(error.message, param_hint="'--rounds'") from error


def _print_remarks(result: CompareResult, console: Console) -> None:
    """Say what a reader of the table has to know of how it came about."""
    if why := result.protocol.get("started_over"):
        console.print(f"The first attempt failed and everything was measured again: {why}")
    if short := result.protocol.get("little_memory"):
        console.print(f"Before the first boot, the host had {short}")
    if crowded := result.protocol.get("few_cpus"):
        console.print(f"The host had {crowded}")
    if without := result.protocol.get("no_modprobe"):
        console.print(f"The guests had {without}")
    for why in result.protocol.get("guests_booted_again", ()):
        console.print(f"A guest was booted again: {why}")
    for why in result.protocol.get("booted_again", ()):
        console.print(f"A boot of all guests and its rounds were done again: {why}")
    if disturbed := words.disturbed(result):
        console.print(
            f"The host was not quiet: {disturbed}. This widens the intervals; repeat the "
            "comparison on a quiet host."
        )
    if paused := words.paused(result):
        console.print(f"Guests found the host short of cores: {paused}.")


def _named(_: click.Context, __: click.Parameter, modules: tuple[str, ...]) -> tuple[str, ...]:
    if any(not module.split() for module in modules):
        raise click.BadParameter("the name of a module is missing")
    return modules


def _needs_input() -> None:
    """Refuse a shell that nobody can ever end: of /dev/null, QEMU does not see the end."""
    with contextlib.suppress(OSError):
        null = Path(os.devnull).stat()
        if sys.stdin is None or os.path.samestat(os.fstat(sys.stdin.fileno()), null):
            raise LightsleepError(
                "lab shell needs a terminal, or a pipe that commands come from, as its standard "
                "input; a script can use lightsleep.lab.boot.guest: see docs/lab.md"
            )


@lab.command()
@machine_options
@click.option(
    "--module",
    "ours",
    multiple=True,
    metavar="'NAME [PARAMETER=VALUE...]'",
    callback=_named,
    help="One of our modules to load; repeatable.",
)
@click.option("--vcpus", type=click.IntRange(1, 64), default=2, show_default=True, help="Its CPUs.")
@click.option(
    "--threads", type=click.IntRange(1, 8), default=1, show_default=True, help="Threads per core."
)
@click.option(
    "--idle-state",
    type=click.Choice(get_args(Described)),
    default="no",
    help="Let the firmware describe an idle state (aarch64 only).",
)
@click.option(
    "--root",
    type=click.Choice(list(ROOTS)),
    default="base",
    show_default=True,
    help="Root file system; `programs` has the servers of the experiments.",
)
def shell(
    machine: Machine,
    ours: tuple[str, ...],
    vcpus: int,
    threads: int,
    idle_state: Described,
    root: str,
) -> None:
    """Boot a guest to a prompt; Ctrl-A X ends it.

    Changes to its root are lost at the end. The guest has perf, python3 and lightsleep (python3 -m
    lightsleep); our modules are in /usr/lib/lightsleep/modules.
    """
    if vcpus % threads:
        raise click.UsageError(f"{vcpus} CPUs cannot form cores of {threads} threads each")
    machine = replace(
        machine, modules=ours, vcpus=vcpus, threads=threads, idle_state=idle_state, root=root
    )
    _needs_input()
    console = terminal.messages()
    with console.status("preparing") as status:
        hardware = prepare(
            machine, interactive=True, note=lambda x: status.update(Text(f"preparing: {x}"))
        )
    if without := lacks_modprobe({"": machine}):
        console.print(without)
    console.print(f"{hardware.accelerator.name}: {hardware.accelerator.reason}; Ctrl-A X ends it")
    guest = Guest(machine, hardware)
    try:
        guest.wait()
        guest.load()
        guest.shell()
    finally:
        guest.close()


@lab.command(short_help="Build or fetch a kernel, print where it is.")
@click.argument("kernel", callback=available)
@arch_option
@json_option()
def build(kernel: str, arch: str, as_json: bool) -> None:
    """Build or fetch KERNEL, and print where its image, modules and headers are.

    A kernel that is in the cache is not built again. `lightsleep lab list` names the kernels.
    """
    console = terminal.messages()
    row = ARCHES[arch]
    tree = any_tree(row, row.bootable[kernel], lambda what: console.print(what))
    paths = {
        "image": tree.image,
        "modules": tree.modules,
        "headers": tree.path / f"usr/src/linux-headers-{tree.release}",
    }
    if as_json:
        click.echo(text_of({name: str(path) for name, path in paths.items()}))
    else:
        for name, path in paths.items():
            click.echo(f"{name:8} {path}")


def known_base(_: click.Context, __: click.Parameter, base: str) -> str:
    """Refuse a version of the kernel that there is no series for."""
    if base not in (there := bases()):
        raise click.BadParameter(f"no series for {base!r}; there are: {', '.join(there)}")
    return base


@lab.command(short_help="Write our series of patches as mails.")
@click.argument("base", callback=known_base)
@click.argument("out", type=NamedPath(path_type=Path, file_okay=False))
@click.option(
    "--topic",
    "names",
    multiple=True,
    metavar="NAME",
    help="Write only this topic; repeatable. Default: all.",
)
@click.option(
    "-v",
    "--reroll-count",
    "version",
    type=click.IntRange(1, 99),
    default=1,
    show_default=True,
    help="Write this version of the topics, [PATCH v2] and so on.",
)
def series(base: str, out: Path, names: tuple[str, ...], version: int) -> None:
    """Write our topics for kernel BASE below the folder OUT, as mails for `git am`.

    Each topic is a series of its own in OUT/NAME: a cover letter and numbered mails, which contain
    the new files. Each mail has a copy (Cc) for everybody whom the kernel's get_maintainer.pl names
    for the topic. BASE is the name of a folder in kernel/patches.
    """
    known = {topic.name: topic for topic in read_topics(base)}
    if unknown := [name for name in names if name not in known]:
        raise click.BadParameter(f"no topic {unknown[0]!r}; there are: {', '.join(known)}")
    topics = [known[name] for name in dict.fromkeys(names or known)]
    for topic in topics:  # before the kernel's source is fetched, and any of them is written
        check_writable(out / topic.name / "0000-cover-letter.patch")
        check_without_mails(out / topic.name)
    row = lookup("kernel", ARCHES["x86_64"].built, f"{base}-series")
    archive = kernel_source(row.version, row.suite, row.target)
    for topic in topics:
        for mail in write_mails(topic, archive, out / topic.name, version=version):
            click.echo(mail)


@lab.command("list", short_help="Show experiments, architectures, kernels.")
def list_() -> None:
    """Show the experiments, the architectures and their kernels."""
    table = Table("what", "name", "about", box=None, show_header=False, pad_edge=False)
    for name in experiments.names():
        table.add_row("experiment", name, experiments.load(name).title)
    for arch in ARCHES.values():
        table.add_row("architecture", arch.name, f"{arch.qemu} -machine {arch.machine}")
        for kernel in arch.kernels.values():
            package = kernel.image.format(debian=arch.debian)
            table.add_row("  kernel", kernel.name, f"{package} of {kernel.target}")
        for built in arch.built.values():
            origin = f"linux-source-{built.version} of {built.target or built.suite}"
            table.add_row("  kernel", built.name, f"built from {origin}: {built.purpose}")
    terminal.output().print(terminal.whole(table, "about"), crop=False)
