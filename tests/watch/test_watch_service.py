# SPDX-License-Identifier: GPL-2.0-only
"""The systemd unit in contrib: its command is one of ours, and may write what it is told to."""

import configparser
import re
from pathlib import Path

from paths import ROOT

from lightsleep.watch.cli import watch

DOCS = (ROOT / "docs/watch.md").read_text()
UNIT = ROOT / "contrib/systemd/lightsleep-watch.service"


def service() -> configparser.SectionProxy:
    unit = configparser.ConfigParser(interpolation=None, delimiters="=")
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT)
    return unit["Service"]


def test_the_command_is_the_one_of_the_page() -> None:
    command = service()["ExecStart"]
    assert f"    sudo {command}\n" in DOCS
    program, verb, *words = command.split()
    assert (program, verb) == ("lightsleep", "watch")
    watch.make_context(verb, words)  # raises UsageError where they cannot be parsed


def test_it_may_write_the_file_and_read_what_it_counts() -> None:
    options = service()
    file = Path(options["ExecStart"].split()[-1])
    assert options["ReadWritePaths"] == str(file.parent)
    assert options["ProtectSystem"] == "strict"
    assert "ProcSubset" not in options  # would hide /proc/stat and /proc/interrupts


def test_the_page_names_files_that_there_are() -> None:
    (source,) = re.findall(r"(?m)^    sudo cp (\S+) /etc/systemd/system/$", DOCS)
    assert ROOT / source == UNIT
    removed = re.findall(r"(?m)^    sudo rm (\S+)$", DOCS)
    written = service()["ExecStart"].split()[-1]
    # The second one is that of a folder of one's own.
    folder = f"/FOLDER/{Path(written).name}"
    assert removed == [written, folder, f"/etc/systemd/system/{UNIT.name}"]


def test_the_packages_have_it() -> None:
    assert (ROOT / "debian/lightsleep.lightsleep-watch.service").samefile(UNIT)
    assert "--name=lightsleep-watch --no-enable\n" in (ROOT / "debian/rules").read_text()
    spec = (ROOT / "contrib/lightsleep.spec").read_text()
    assert f"\n%{{_unitdir}}/{UNIT.name}\n" in spec
