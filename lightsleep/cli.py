# SPDX-License-Identifier: GPL-2.0-only
"""The ``lightsleep`` command: finds a verb's module only when that verb is called.

``scan`` runs on machines (and in guests) that have neither numpy nor a lab, so no verb may
pay for, or fail on, what only another verb needs.
"""

import importlib

import click

from lightsleep import __version__

# verb -> (module, name of its click command, one-line help)
VERBS = {
    "scan": ("lightsleep.scan.cli", "scan", "What idles on this machine, and how."),
    "measure": (
        "lightsleep.measure.cli",
        "measure",
        "What waking costs here; are the advertised latencies true?",
    ),
    "report": ("lightsleep.report.cli", "report", "One self-contained HTML page from results."),
    "lab": ("lightsleep.lab.cli", "lab", "The QEMU lab: compare, shell, list."),
}


class VerbGroup(click.Group):
    """A click group that imports the module of a verb when the verb is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs, in the order in which a newcomer meets them."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one verb, or None where there is no such verb."""
        if cmd_name not in VERBS:
            return None
        module, attribute, _ = VERBS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(verb, text) for verb, (_, _, text) in VERBS.items()])


@click.group(cls=VerbGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Idle Linux CPUs that wake in the time the hardware needs."""
