# SPDX-License-Identifier: GPL-2.0-only
"""Options that several verbs have."""

import click

from lightsleep import cpulist
from lightsleep.errors import LightsleepError


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


cpus_option = click.option(
    "-c", "--cpus", callback=_cpus, metavar="LIST", help="Use only these CPUs, for example 0-3,8."
)
