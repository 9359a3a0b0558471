# SPDX-License-Identifier: GPL-2.0-only
"""The two files of a setting that comes back at each boot: what they hold, and how they change.

modules-load.d loads the module; modprobe.d, where needed, has its parameters. They are the smallest
thing that does it: no unit, no script, nothing that runs.

Each file says in its first line who wrote it. One without that line belongs to somebody else, as
does a link, wherever it leads. It is neither overwritten nor removed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lightsleep.errors import LightsleepError
from lightsleep.scan.loading import MODULE
from lightsleep.settings import restorer
from lightsleep.settings.catalogue import DEFAULTS

HEADER = "# Written by lightsleep enable. Remove it with: lightsleep disable"
OPTIONS_FILE = "etc/modprobe.d/lightsleep.conf"
LOAD_FILE = "etc/modules-load.d/lightsleep.conf"
assert set(restorer.FILES) == {OPTIONS_FILE, LOAD_FILE}


@dataclass(frozen=True)
class Changes:
    """What was changed, a sentence each, and what is worth knowing besides."""

    changed: list[str]
    notes: list[str]


def content_of(root: Path, name: str) -> str | None:
    """Return what one of restorer.FILES holds, None without it. Raises LightsleepError."""
    try:
        return restorer.read_file(root, str(root / name))
    except OSError as error:
        raise LightsleepError(f"cannot read /{name}: {error.strerror}") from error


def is_ours(text: str | None) -> bool:
    """Return whether a file says that we wrote it."""
    return text is not None and text.startswith(HEADER)


def write_files(
    files: dict[str, str | None], root: Path, write: Callable[[Path, str | None], None]
) -> Changes:
    """Write or remove those of restorer.FILES that are not as wanted."""
    done = Changes([], [])
    for name, content in files.items():
        if content != (there := content_of(root, name)):
            write(root / name, content)
            done.notes.extend(lost(name, there))
            done.changed.append(f"{'wrote' if content else 'removed'} /{name}")
    return done


def write_elsewhere(root: Path, file: Path, content: str | None) -> None:
    """Write a file, or remove it, where no session undoes that. Raises LightsleepError."""
    try:
        restorer.write_file(root, str(file), content)
    except OSError as error:
        raise LightsleepError(f"cannot write {file}: {error.strerror}") from error


def lost(name: str, there: str | None) -> list[str]:
    """Return what to say of lines that somebody added to a file of ours, which is gone now."""
    added = [
        line
        for line in (there or "").splitlines()
        if line.strip() and line not in (HEADER, MODULE) and not _sets_ours(line)
    ]
    if not added:
        return []
    return [f"/{name} held lines that lightsleep did not write; they are gone: {'; '.join(added)}"]


def _sets_ours(line: str) -> bool:
    """Return whether a line gives our module parameters, and none that a setting does not name."""
    words = line.split()
    names = {word.partition("=")[0] for word in words[2:]}
    return words[:2] == ["options", MODULE] and names <= DEFAULTS.keys()
