# SPDX-License-Identifier: GPL-2.0-only
"""Writes tests/slow.txt, the tests that `make check-quick` leaves out, from a run of them all."""

from pathlib import Path
from xml.etree import ElementTree

import click

from lightsleep.errors import LightsleepError
from lightsleep.files import write_text
from lightsleep.options import NamedPath

SLOW_S = 0.7
"""A function whose cases take longer than this in all is slow. Few are, and they take most of the
time, so that the others run within two minutes."""

KEPT = Path(__file__).resolve().parent.parent / "tests" / "slow.txt"


def slow(junit: Path) -> list[str]:
    """Return each slow function of a run, as ``tests/file.py::function``, in order.

    ``junit`` is what ``pytest --junit-xml`` writes: of each case, the file as ``tests.file``, the
    function with its parameters in brackets, and the seconds with those of fixtures.
    """
    try:
        taken: dict[str, float] = {}
        for case in ElementTree.parse(junit).iter("testcase"):
            path = case.attrib["classname"].replace(".", "/") + ".py"
            name = f"{path}::{case.attrib['name'].partition('[')[0]}"
            taken[name] = taken.get(name, 0.0) + float(case.attrib["time"])
    except (ElementTree.ParseError, KeyError, ValueError) as error:
        message = f"{junit}: not a file that pytest --junit-xml writes: {error!r}"
        raise LightsleepError(message) from error
    if not taken:
        raise LightsleepError(f"{junit}: no test ran")
    return sorted(name for name, seconds in taken.items() if seconds > SLOW_S)


@click.command()
@click.argument("junit", type=NamedPath(exists=True, dir_okay=False, path_type=Path))
def main(junit: Path) -> None:
    """Write tests/slow.txt from JUNIT, written by pytest --junit-xml of a run of all unit tests."""
    names = slow(junit)
    write_text(KEPT, "".join(f"{name}\n" for name in names))
    click.echo(f"{KEPT}: {len(names)} slow tests")


if __name__ == "__main__":
    main()
