# SPDX-License-Identifier: GPL-2.0-only
"""``lightsleep enable``, ``disable``, ``status``: the commands."""

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from lightsleep import terminal
from lightsleep.document import headed, text_of
from lightsleep.enable import change, undo
from lightsleep.enable import status as state
from lightsleep.enable.boot_files import Changes
from lightsleep.enable.render import render
from lightsleep.errors import LightsleepError
from lightsleep.options import json_option, module_option, need_root
from lightsleep.settings import catalogue

ROOT = Path("/")
SCHEMA = "lightsleep.enable"
VERSION = 1


@click.command()
@click.argument("setting", default="lightsleep")
@click.option("--persist", is_flag=True, help="Also at every boot.")
@click.option(
    "--now/--later",
    default=True,
    show_default="--now",
    help="--now: at once; --later: only from the next boot on, needs --persist.",
)
@module_option
@json_option()
def enable(setting: str, persist: bool, now: bool, module_file: Path | None, as_json: bool) -> None:
    """Apply an idle setting to this machine, until the next boot or for good.

    SETTING is lightsleep unless given. Its mode, its poll limit, and what waiting is worth may
    follow, as in lightsleep:fixed:100us and lightsleep:weight=20. Other settings, as lightsleep try
    knows them, last until the next boot.

    Prints everything that it changed. lightsleep disable undoes all of it. Exits with 4 if it is
    enabled already. Needs root.
    """
    if not now and not persist:
        raise click.UsageError("--later does nothing without --persist")
    if persist and module_file:
        raise click.UsageError("--persist needs an installed module; --module loads a file once")
    with _failure_told(as_json):
        catalogue.check_module(module_file, [setting])
        need_root("enabling changes settings of the machine")
        file = module_file or catalogue.module_beside_sources(ROOT)
        done = change.enable(setting, ROOT, now=now, persist=persist, module_file=file)
    _tell(done, as_json)
    if not as_json:
        click.echo("undo with: sudo lightsleep disable")


@click.command()
@json_option()
def disable(as_json: bool) -> None:
    """Undo lightsleep enable, to the last file.

    Sets back what enable changed, removes the files it wrote, and unloads the module. Removes no
    file that it did not write, and sets back no setting that somebody else has changed since. Exits
    with 4 if there is nothing to do. Needs root.
    """
    with _failure_told(as_json):
        need_root("disabling changes settings of the machine")
        done = undo.disable(ROOT)
    _tell(done, as_json)


@click.command()
@json_option()
def status(as_json: bool) -> None:
    """Show whether lightsleep is active here, and whether it pays.

    Shows who enabled it and when, what each CPU polled and how often that saw a wakeup. Where it is
    not active: what keeps it from being loaded, and what to do. Exits with 4 if it is not active.
    """
    found = state.read(ROOT)
    if as_json:
        click.echo(text_of(state.document(found)))
    else:
        render(terminal.output(), found)
    if not found.active:
        raise SystemExit(4)


@contextlib.contextmanager
def _failure_told(as_json: bool) -> Iterator[None]:
    """Print a document where nothing is to be done, or something fails, too."""
    try:
        yield
    except LightsleepError as error:
        if as_json:
            done = error.done if isinstance(error, undo.Unfinished) else Changes([], [])
            _print_json(done, error.format_message())
        raise


def _print_json(done: Changes, error: str | None) -> None:
    click.echo(text_of(headed(SCHEMA, VERSION, asdict(done) | {"error": error})))


def _tell(done: Changes, as_json: bool) -> None:
    if as_json:
        _print_json(done, None)
        return
    for line in done.changed:
        click.echo(line)
    terminal.tell(done.notes)
