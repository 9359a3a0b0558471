# SPDX-License-Identifier: GPL-2.0-only
"""Options that several verbs have, and the checks that root runs them, and a program is there."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from lightsleep import cpulist, units
from lightsleep.document import shortened
from lightsleep.errors import LightsleepError, WrongUsage

Command = TypeVar("Command", bound="Callable[..., Any] | click.Command")


def need_root(what: str) -> None:
    """Raise LightsleepError unless this is root."""
    if os.geteuid() != 0:
        raise LightsleepError(f"{what}: run it as root (sudo)")


def check_program(name: str, cannot: str = "cannot run") -> None:
    """Raise LightsleepError unless a program has this name, and WrongUsage if the name is empty."""
    if not name:
        raise WrongUsage(f"{cannot} '': this names no program")
    if not shutil.which(name):
        there = "/" in name and Path(name).exists()
        why = "this is no executable file" if there else "there is no such program"
        raise LightsleepError(f"{cannot} {name}: {why}")


class Duration(click.ParamType):  # type: ignore[type-arg]  # older clicks have no argument
    """A time such as 50us, 10s or 1.5h, which the command gets in seconds.

    ``bare`` also takes a number of seconds without its unit.
    """

    name = "time"

    def __init__(
        self,
        least_s: float = 1e-9,
        most_s: float = units.MAX_NS / units.SECOND_NS,
        bare: bool = False,
    ) -> None:
        """Take a time between two, both included."""
        self.least_s, self.most_s, self.bare = least_s, most_s, bare

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the time in seconds."""
        text = str(value)
        is_bare = self.bare and re.fullmatch(r"[0-9.]+", text)
        time_ns = units.parse_ns(f"{text}s" if is_bare else text)
        if time_ns is None or (not time_ns and self.least_s):
            self.fail(
                f"{shortened(repr(text))} is no time such as 50us, 500ms, 10s, 5min or 1h",
                param,
                ctx,
            )
        time_s = time_ns / units.SECOND_NS
        if not self.least_s <= time_s <= self.most_s:
            limits = f"{self.spelled(self.least_s)} and {self.spelled(self.most_s)}"
            self.fail(f"{text} is not between {limits}", param, ctx)
        return time_s

    @staticmethod
    def spelled(time_s: float) -> str:
        """Return a time as the command line takes it: 600s, 0.5s."""
        return f"{time_s:.9f}".rstrip("0").rstrip(".") + "s"


def _cpus(_context: click.Context, _option: click.Parameter, text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        cpus = cpulist.parse(text)
    except LightsleepError as error:
        raise click.BadParameter(error.message) from error
    if not cpus:
        raise click.BadParameter("the list names no CPU; write for example 0-3,8")
    return cpus


class NamedPath(click.Path):
    """A file or folder. No name, as of a variable that is not set, is not the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if value == "":
            self.fail("'' names no file", param, ctx)
        return super().convert(value, param, ctx)


class OutputFile(NamedPath):
    """A file to write. For - many programs write to standard output: no file gets that name."""

    def __init__(self) -> None:
        """Take any path that is no folder."""
        super().__init__(path_type=Path, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if value == "-":
            self.fail("'-' is not standard output here: name a file", param, ctx)
        return super().convert(value, param, ctx)


cpus_option = click.option(
    "-c", "--cpus", callback=_cpus, metavar="LIST", help="Use only these CPUs, for example 0-3,8."
)


def json_option(help: str = "Print one JSON document instead.") -> Callable[[Command], Command]:
    """Return the option for a document in place of what a verb prints."""
    return click.option("--json", "as_json", is_flag=True, help=help)


def seed_option(help: str) -> Callable[[Command], Command]:
    """Return the option for a random order; what it is of stands in its ``help``."""
    return click.option("--seed", type=click.IntRange(min=0), metavar="N", help=help)


module_option = click.option(
    "--module",
    "module_file",
    type=NamedPath(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE.ko",
    help="Load this file instead of the installed module.",
)

output_option = click.option(
    "-o",
    "--output",
    type=OutputFile(),
    metavar="FILE",
    help="Also save the result, for lightsleep report.",
)
