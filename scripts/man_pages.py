# SPDX-License-Identifier: GPL-2.0-only
"""Writes a man page per verb: the text that --help prints, exit statuses, files, and examples.

The packages are built where only click and rich are installed. Verbs import more, but their help
does not need it, so modules without content stand in for the packages that are missing.
"""

import importlib.abc
import importlib.machinery
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

import click

from lightsleep import __version__, cli
from lightsleep.enable.boot_files import LOAD_FILE, OPTIONS_FILE
from lightsleep.record.cli import COUNTS, TRACE
from lightsleep.settings.journalled import RUN_DIR
from lightsleep.settings.restorer import KEPT

OF_LAB = (
    *("cffi", "jinja2", "jsonschema", "markupsafe", "matplotlib", "numpy", "perfetto", "pyarrow"),
    "qemu",
)
"""What verbs import beside click and rich."""


@dataclass(frozen=True)
class Page:
    """What a page has beside the text of --help."""

    examples: dict[str, str]
    """Command -> what it does. Each command stands in README.md or docs, too."""

    statuses: dict[str, str] = field(default_factory=dict)
    """Exit status -> meaning, where it is not in STATUSES."""

    files: dict[str, str] = field(default_factory=dict)

    see: Sequence[str] = ()
    """Verbs whose pages one reads next."""


DOCS = "/usr/share/doc/lightsleep/docs"
"""Where the packages have the pages of documentation (debian/lightsleep.docs)."""

STATUSES = {
    "0": "Done.",
    "1": "It failed. A message says why.",
    "2": "Wrong usage.",
    "128+N": "Signal N ended it: 130 for Ctrl-C, 143 for SIGTERM.",
}

LOCK = {f"/{RUN_DIR}/lock": "The command that changes settings holds this file locked."}
JOURNAL = {
    f"/{RUN_DIR}/journal": "How to set back what is changed now. It is gone when the command ends.",
    **LOCK,
}
ENABLED = {
    f"/{LOAD_FILE}": "Loads the module at boot. `enable --persist` writes it.",
    f"/{OPTIONS_FILE}": "Parameters of the module, where they are not the defaults.",
    f"/{RUN_DIR}/{KEPT}": "What `enable` changed until the next boot, and how to undo it.",
}
CACHE = {
    "~/.cache/lightsleep": "What was downloaded and built. $LIGHTSLEEP_CACHE names another folder. "
    "Without it, $XDG_CACHE_HOME names one in place of ~/.cache."
}

PAGES = {
    "": Page(
        {
            "lightsleep scan": "Show whether lightsleep can run here.",
            "sudo lightsleep try -- COMMAND": "Run COMMAND with and without it, and compare.",
            "sudo lightsleep enable": "Switch it on until the next boot.",
        },
        {
            "4": "Nothing to do, or not active: `measure`, `enable`, `disable`, `status`, and "
            "`try --enable`."
        },
    ),
    "scan": Page(
        {
            "lightsleep scan": "Show how the CPUs of this machine idle.",
            "lightsleep scan -c 0-3,8": "Show only these CPUs.",
            "lightsleep scan --record odd.tar.gz": "Also save what was read, anonymised.",
        },
        {
            "0": "Done, whatever the scan finds.",
            "2": "Wrong usage, for example a CPU that is not online.",
        },
    ),
    "measure": Page(
        {
            "sudo lightsleep measure --load": "Load the kernel module, and measure every CPU.",
            "sudo lightsleep measure -c 1 -s C6 -n 1000": "Measure one CPU and one state.",
            "sudo lightsleep measure -o result.json --csv raw.csv": "Also save the result and the "
            "samples.",
        },
        {
            "0": "Measured, whatever the verdicts.",
            "1": "It failed, or an error ended it early.",
            "2": "Wrong usage, for example a CPU or state that does not exist.",
            "4": "Nothing to measure.",
        },
        JOURNAL,
    ),
    "record": Page(
        {
            "sudo lightsleep record -- redis-benchmark -q -c 1 -n 10000 -t get": "Record while a "
            "command runs.",
            "sudo lightsleep record -c 0-3 -o web.dat --for 5min": "Record four CPUs for a time, "
            "into another file.",
            "sudo lightsleep record --histogram --for 48h -o weekend.json": "Count for a long "
            "time.",
        },
        {
            "0": "Recorded; without COMMAND and --for, until Ctrl-C, SIGTERM or SIGHUP.",
            "1": "It failed, or the recording ended before COMMAND did.",
            "Any other": "That of COMMAND, if the recording lasted as long.",
            "128+N": "Signal N ended it before the recording began or before the time of --for was "
            "over, or ended COMMAND.",
        },
        {
            TRACE: "The trace. -o names another file.",
            f"{TRACE}.json": "The machine: its idle states, and what `lightsleep scan` finds.",
            COUNTS: "What --histogram counted, in place of the other two.",
        },
        see=("report", "replay"),
    ),
    "report": Page(
        {
            "lightsleep report lightsleep.dat": "Show how much time tasks lost, and write a page.",
            "lightsleep report lightsleep.dat --parquet periods.parquet": "Also save the idle "
            "periods as a table.",
            "lightsleep report out/governor-pipe.json -o out/governor-pipe.html": "Write a page "
            "from the result of a comparison.",
        },
        files={"report.html": "The page. -o names another file."},
        see=("record", "replay"),
    ),
    "replay": Page(
        {
            "lightsleep replay web.dat": "Compare the policies with a recording.",
            "lightsleep replay web.dat --policies stock,lightsleep,fixed:100us": "Compare these.",
            "lightsleep replay web.dat -o replay.html": "Also write a page with a plot.",
        },
        files=CACHE,
        see=("record", "report"),
    ),
    "try": Page(
        {
            "sudo lightsleep try -s lightsleep,haltpoll:200us -- COMMAND": "Compare two settings "
            "with the machine as it is, by the wall time of COMMAND.",
            "sudo lightsleep try -m 'rps=([0-9.]+) requests per second:higher' -- COMMAND": "Let a "
            "number decide that COMMAND prints.",
            "sudo lightsleep try --switchback 10s --for 10m": "Change the setting under a service "
            "that runs anyway.",
        },
        {
            "0": "Compared, whether or not a setting is better.",
            "1": "It failed, or as-is and as-is-again differ, so that the trial proves nothing.",
            "4": "With --enable: no setting won, so nothing is enabled.",
        },
        JOURNAL,
    ),
    "enable": Page(
        {
            "sudo lightsleep enable": "Switch lightsleep on until the next boot.",
            "sudo lightsleep enable --persist": "Switch it on now and at every boot.",
            "sudo lightsleep enable lightsleep:fixed:100us": "Choose a mode and a poll limit.",
        },
        {
            "1": "It failed. Nothing has changed, unless all that failed was to print what was "
            "done.",
            "4": "Nothing to do: enabled already.",
        },
        {**ENABLED, **JOURNAL},
    ),
    "disable": Page(
        {"sudo lightsleep disable": "Undo everything that enable changed."},
        {
            "1": "It failed. A message names what could not be undone.",
            "4": "Nothing to do: not enabled.",
        },
        {**ENABLED, **JOURNAL},
    ),
    "status": Page(
        {
            "lightsleep status": "Show what is active, and whether it pays.",
            "lightsleep status --json": "The same as a JSON document.",
        },
        {"0": "lightsleep is active.", "4": "lightsleep is not active."},
        ENABLED,
    ),
    "watch": Page(
        {
            "lightsleep watch --sort wakes --top 20": "Show the 20 CPUs that wake most often.",
            "lightsleep watch --count 1": "Show one interval, and end.",
            "sudo lightsleep watch --openmetrics "
            "/var/lib/prometheus/node-exporter/lightsleep.prom": "Write counters for Prometheus.",
        },
        {
            "0": "Ended by Ctrl-C or SIGTERM, or after --count intervals.",
            "1": "It failed. With --openmetrics: the first write failed, or the last of --count.",
            "2": "Wrong usage, for example a CPU that this machine does not have.",
            "128+N": "Another signal ended it: 129 for a terminal that closed.",
        },
    ),
    "lab": Page(
        {
            "lightsleep lab list": "List experiments, architectures, and kernels.",
            "lightsleep lab compare idle": "Run an experiment.",
            "lightsleep lab shell --module cpuidle_lightsleep": "Boot a guest with a module.",
        },
        files=CACHE,
    ),
    "lab compare": Page(
        {
            "lightsleep lab compare governor-pipe -o out/governor-pipe.json": "Run an experiment, "
            "and save the result.",
            "lightsleep lab compare idle-poll --arch aarch64": "Run it on another architecture.",
            "lightsleep lab compare ./governor_pipe.py": "Run an experiment of your own.",
        },
        {
            "1": "It failed, or the control differs from the baseline. Then the result is still "
            "shown and written."
        },
        CACHE,
    ),
    "lab shell": Page(
        {
            "lightsleep lab shell --module cpuidle_lightsleep": "Boot a guest with a module.",
            "lightsleep lab shell --arch ppc64le": "Boot a guest of another architecture.",
            "lightsleep lab shell --kernel 6.12-series --arch ppc64le": "Boot another kernel.",
        },
        files=CACHE,
    ),
    "lab build": Page(
        {
            "lightsleep lab build 6.12-series": "Build a kernel with all patches.",
            "lightsleep lab build 6.12-series --arch aarch64": "Build it for arm64.",
        },
        files=CACHE,
    ),
    "lab series": Page(
        {
            "lightsleep lab series 6.12 mails": "Write all topics as mails.",
            "lightsleep lab series 6.12 mails --topic promotion": "Write one topic.",
        },
        files=CACHE,
    ),
    "lab list": Page({"lightsleep lab list": "List experiments, architectures, and kernels."}),
}
"""Verb -> what its page has of its own."""


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a module without content for each package of the lab that is not installed."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return how to make it. Python asks where nobody else has found the module."""
        if name.partition(".")[0] not in OF_LAB:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return an object that has every attribute."""
        return MagicMock(name=spec.name, __path__=[])

    def exec_module(self, module: ModuleType) -> None:
        """Add nothing."""


def commands() -> Iterator[tuple[str, click.Context]]:
    """Yield the words of each command after "lightsleep", and its context."""
    top = click.Context(cli.main, info_name="lightsleep", **cli.main.context_settings)
    ahead = [("", top)]
    for words, context in ahead:
        yield words, context
        if isinstance(group := context.command, click.Group):
            for name in group.list_commands(context):
                command = group.get_command(context, name)
                assert command
                inside = click.Context(
                    command, info_name=name, parent=context, **command.context_settings
                )
                ahead.append((f"{words} {name}".strip(), inside))


def roff(text: str) -> str:
    """Return text as roff wants it: each character as it is, `code` in bold.

    A line may be broken within a list of choices.
    """
    for mark, written in (("\\", r"\e"), ("-", r"\-"), ("'", r"\(aq"), ("^", r"\(ha")):
        text = text.replace(mark, written)
    text = re.sub(r"`([^`]*)`", r"\\fB\1\\fP", text.replace("~", r"\(ti"))
    text = re.sub(r"(?<=[|,])(?! )", r"\\:", text)
    return f"\\&{text}" if text.startswith(".") else text


def bold(text: str) -> str:
    """Return a line in bold."""
    return rf"\fB{roff(text)}\fP"


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a text, a line each."""
    return [" ".join(each.split()) for each in re.split(r"\n\s*\n", text.strip())]


def terms(title: str, rows: dict[str, str]) -> Iterator[str]:
    """Yield the lines of a section that is a list of terms, of which there may be none."""
    if rows:
        yield f".SH {title}"
    for term, meaning in rows.items():
        first, *more = paragraphs(meaning)
        yield from (".TP", bold(term), roff(first))
        for each in more:
            yield from (".IP", roff(each))


def summary(command: click.Command) -> str:
    """Return what a command does, as NAME and lists of commands have it."""
    return command.get_short_help_str(limit=1000).removesuffix(".")


def statuses(page: Page) -> dict[str, str]:
    """Return each exit status with its meaning, the lowest first."""
    found = STATUSES | page.statuses
    return dict(sorted(found.items(), key=lambda row: (not row[0].isdigit(), row[0] == "128+N")))


def man_page(words: str, context: click.Context, date: str) -> str:
    """Return the page of a command."""
    command, page = context.command, PAGES[words]
    name = context.command_path.replace(" ", "-")
    options = [x for x in command.get_params(context) if isinstance(x, click.Option)]
    records = filter(None, (option.get_help_record(context) for option in options))
    lines = [
        f'.TH "{roff(name.upper())}" 1 {date} "lightsleep {__version__}" "User Commands"',
        *(".nh", ".ad l"),  # no word is divided, so that options and files can be copied
        ".SH NAME",
        f"{roff(name)} \\- {roff(summary(command))}",
        ".SH SYNOPSIS",
        f"{bold(context.command_path)} {roff(' '.join(command.collect_usage_pieces(context)))}",
        ".SH DESCRIPTION",
        "\n.PP\n".join(roff(each) for each in paragraphs(command.help or "")),
        *terms("OPTIONS", dict(records)),
    ]
    inside = {}
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found
            inside[f"{name}-{each}(1)"] = summary(found)
    lines += [
        *terms("COMMANDS", inside),
        *terms("EXIT STATUS", statuses(page)),
        *terms("FILES", page.files),
        ".SH EXAMPLES",
        "\n.PP\n".join(
            f"{roff(what)}\n.PP\n.RS 4\n.nf\n{bold(example)}\n.fi\n.RE"
            for example, what in page.examples.items()
        ),
    ]
    others = [context.parent.command_path] if context.parent else []
    others += [f"lightsleep {verb}" for verb in page.see]
    named = ", ".join(f"{bold(x.replace(' ', '-'))}(1)" for x in others)
    told = f"The packages have the pages of documentation, with all results, in {DOCS}."
    lines += [".SH SEE ALSO", *([named, ".PP"] if named else []), roff(told)]
    return "\n".join(lines) + "\n"


def date_of_pages() -> str:
    """Return the date that the pages bear: that of the source where a package is built."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH")
    return f"{datetime.fromtimestamp(int(seconds), UTC) if seconds else datetime.now(UTC):%F}"


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def main(folder: Path) -> None:
    """Write the man pages to FOLDER."""
    sys.meta_path.append(StandIns())
    folder.mkdir(parents=True, exist_ok=True)
    for words, context in commands():
        name = context.command_path.replace(" ", "-")
        text = man_page(words, context, date_of_pages())
        (folder / f"{name}.1").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
