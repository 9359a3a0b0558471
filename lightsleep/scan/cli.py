# SPDX-License-Identifier: GPL-2.0-only
"""``lightsleep scan``: the command."""

from pathlib import Path

import click

from lightsleep.document import text_of
from lightsleep.options import NamedPath, OutputFile, cpus_option, json_option
from lightsleep.scan.archive import record
from lightsleep.scan.collect import collect
from lightsleep.scan.document import document
from lightsleep.scan.lint import lint
from lightsleep.scan.render import render
from lightsleep.scan.requests import with_request
from lightsleep.terminal import output


@click.command()
@cpus_option
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Also show counters and thread siblings per CPU, and which files could not be used.",
)
@json_option()
@click.option(
    "--root",
    type=NamedPath(path_type=Path),
    default=Path("/"),
    metavar="DIR",
    help="Scan a recorded tree of /sys and /proc instead of this machine.",
)
@click.option(
    "--record",
    "archive",
    type=OutputFile(),
    metavar="FILE.tar.gz",
    help="Also save the files that were read, anonymised.",
)
def scan(
    cpus: list[int] | None, verbose: bool, as_json: bool, root: Path, archive: Path | None
) -> None:
    """Show how the CPUs of this machine idle.

    Says first whether lightsleep could be loaded here. Then shows the cpuidle driver, governor
    and states, and everything that makes an idle CPU poll. Warns about settings that contradict
    each other. Changes nothing and needs no privileges. To root, it also shows the system-wide
    latency limit, the processes that hold it, and how much CPUs poll under it.
    """
    if as_json and verbose:
        raise click.UsageError("--json has everything: leave out --verbose")
    result, tree = collect(root, cpus)
    if root.resolve() == Path("/"):
        result = with_request(result, lambda: collect(root, cpus)[0], root)
    findings = lint(result)
    if archive:
        count = record(tree, archive)
        click.echo(f"saved {count} files in {archive}", err=True)
    if as_json:
        click.echo(text_of(document(result, findings)))
    else:
        render(output(), result, findings, verbose)
