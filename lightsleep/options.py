# SPDX-License-Identifier: GPL-2.0-only
"""Options that several verbs have, and the check that root runs them."""

import os
import re
from pathlib import Path
from typing import Any

import click

from lightsleep import cpulist
from lightsleep.errors import LightsleepError

UNITS_S = {"ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}


def need_root(what: str) -> None:
    """Raise LightsleepError unless this is root."""
    if os.geteuid() != 0:
        raise LightsleepError(f"{what}: run it as root (sudo)")


def seconds(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    """Return an option such as 10s or 1.5h in seconds; the callback of such options."""
    if text is None:
        return None
    found = re.fullmatch(rf"([0-9]{{1,9}}(?:\.[0-9]{{1,9}})?)\s*({'|'.join(UNITS_S)})", text)
    if not found or not float(found[1]):
        raise click.BadParameter(f"{text!r} is no time such as 500ms, 10s, 5min or 1h")
    return float(found[1]) * UNITS_S[found[2]]


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

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document instead."
)

module_option = click.option(
    "--module",
    "module_file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
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
