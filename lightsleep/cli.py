# SPDX-License-Identifier: GPL-2.0-only
"""The ``lightsleep`` command: finds a verb's module only when that verb is called.

``scan`` runs on machines (and in guests) that have neither numpy nor a lab, so no verb may
pay for, or fail on, what only another verb needs.
"""

import contextlib
import errno
import importlib
import io
import os
import sys
from collections.abc import Iterator

import click

from lightsleep import __version__
from lightsleep.ending import orderly_end, status_of
from lightsleep.errors import LightsleepError
from lightsleep.sources import kernel_sources

# verb -> (module, name of its click command, one-line help)
VERBS = {
    "scan": (
        "lightsleep.scan.cli",
        "scan",
        "Show how CPUs idle here; warn about contradictory settings.",
    ),
    "measure": (
        "lightsleep.measure.cli",
        "measure",
        "Measure what a wakeup costs; check advertised latencies.",
    ),
    "record": (
        "lightsleep.record.cli",
        "record",
        "Record idle periods and wakeups of a real workload.",
    ),
    "report": (
        "lightsleep.report.cli",
        "report",
        "Write one self-contained HTML page from results and recordings.",
    ),
    "replay": (
        "lightsleep.replay.cli",
        "replay_command",
        "Show what other polling policies would have made of a recording.",
    ),
    "try": (
        "lightsleep.trial.cli",
        "try_settings",
        "Run a command under several idle settings: which is best?",
    ),
    "enable": (
        "lightsleep.enable.cli",
        "enable",
        "Switch lightsleep on, until the next boot or for good.",
    ),
    "disable": ("lightsleep.enable.cli", "disable", "Undo everything that enable changed."),
    "status": ("lightsleep.enable.cli", "status", "Show what is active, and whether it pays."),
    "watch": ("lightsleep.watch.cli", "watch", "Show live how CPUs idle, poll and wake."),
    "lab": (
        "lightsleep.lab.cli",
        "lab",
        "Experiments in QEMU guests: compare, shell, build, series, list.",
    ),
}

DEBIAN = ("cffi", "jinja2", "jsonschema", "matplotlib", "numpy")
"""The packages that verbs import, and that Debian has, too; it has neither pyarrow nor qemu.qmp."""


def _open_standard_files() -> None:
    """Put /dev/null in the place of standard files that are closed.

    Otherwise the next file that is opened, such as a journal, would get the number of one of them,
    and what other programs print would go there.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
            os.set_inheritable(number, True)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _stdout_fails(text: str = "") -> bool:
    """Return whether standard output fails to take ``text`` or what it still holds."""
    if not sys.stdout:
        return False
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        # Else Python would try again when it ends, complain, and change the exit status.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


@contextlib.contextmanager
def _output_checked() -> Iterator[None]:
    """Report a standard output that accepts no more, such as a full disk, alike for every verb."""
    try:
        yield
    except OSError as error:
        # click ends quietly when the reader of a pipe is gone. Whether it was standard output that
        # failed, and not a file, shows when it is given one more character.
        if error.errno == errno.EPIPE or not _stdout_fails("\n"):
            raise
        raise LightsleepError(f"cannot write standard output: {error.strerror}") from error
    except LightsleepError:
        _stdout_fails()  # as well; the error is what the user has to know
        raise


@contextlib.contextmanager
def _packages_named() -> Iterator[None]:
    """Say what to install if a verb needs a Python package that is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "lightsleep", *sys.stdlib_module_names):
            raise
        apt = f"apt install python3-{package} (Debian, Ubuntu), or " if package in DEBIAN else ""
        raise LightsleepError(
            f"this command needs the Python package {package}, which is not installed: {apt}"
            "pip install '.[lab]' in lightsleep's source tree, into a virtual environment"
        ) from error


class VerbGroup(click.Group):
    """A click group that imports the module of a verb when the verb is used."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options before the verb; two of them print something."""
        _open_standard_files()
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # not all encodings have our ✔ and ×
        with _output_checked():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the verb. Ctrl-C ends it with the status that shells expect, which click's is not."""
        with orderly_end():
            try:
                with _output_checked(), _packages_named():
                    return super().invoke(ctx)
            except KeyboardInterrupt as ended:
                click.echo("\ninterrupted", err=True)  # below the terminal's ^C
                raise SystemExit(status_of(ended)) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs, in the order in which a newcomer meets them."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one verb, or None where there is no such verb."""
        if cmd_name not in VERBS:
            return None
        module, attribute, text = VERBS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        command.short_help = text
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(verb, text) for verb, (_, _, text) in VERBS.items()])


def _print_sources(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(kernel_sources())
        ctx.exit()


@click.group(cls=VerbGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.option(
    "--sources",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_sources,
    help="Print the folder of the kernel modules' sources, for make -C.",
)
def main() -> None:
    """Make idle Linux CPUs wake fast: they poll for a moment before they halt.

    Start with lightsleep scan: it says whether lightsleep can run here. lightsleep COMMAND --help
    explains each command.
    """
