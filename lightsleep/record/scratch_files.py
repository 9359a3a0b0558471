# SPDX-License-Identifier: GPL-2.0-only
"""Files of a recording that are not yet whole: in a folder of their own, until they have names.

root may record into a folder that belongs to somebody else, who may put a link in place of whatever
is there. So the scratch folder is opened once, has to be ours, and leads to its files by its
descriptor. A file gets its name when it is whole, and the owner that it would have without sudo.

Its neighbours in this folder that run on their own import it: the standard library is enough.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from lightsleep import place
from lightsleep.place import beside as beside

PRIVATE, FOLDER = 0o600, 0o700
"""Mode of every new file, as the document names the command with all its words; and of the folder
of files that are not yet whole."""

DESCRIPTORS = Path("/proc/self/fd")


def make_folder(scratch: Path) -> Path:
    """Make the folder of a file that is not yet whole; return a name that leads into it for sure.

    Who owns the folder around it may put another one, or a link, in its place. Raises OSError.
    """
    scratch.parent.mkdir(FOLDER)
    led = open_folder(scratch)
    with contextlib.suppress(PermissionError):  # a file system without modes
        os.fchmod(descriptor_of(led), FOLDER)
    if os.listdir(led.parent):  # noqa: PTH208 (of names)
        os.close(descriptor_of(led))
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
    return led


def open_folder(scratch: Path) -> Path:
    """Open the folder of a file, which has to be ours; return the file's name by descriptor.

    Raises OSError.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(scratch.parent, flags)
    led = DESCRIPTORS / str(descriptor) / scratch.name
    try:
        # On a network's file system, what root makes may belong to another user.
        with new_file(led.with_name("owner")) as file:
            led.with_name("owner").unlink()
            if os.fstat(file.fileno()).st_uid != os.fstat(descriptor).st_uid:
                raise PermissionError(errno.EPERM, "the folder of its scratch files was replaced")
    except OSError:
        os.close(descriptor)
        raise
    return led


def descriptor_of(led: Path) -> int:
    """Return the descriptor that a name of open_folder() leads through."""
    return int(led.parent.name)


def clear(scratch: Path, kept: Sequence[Path] = ()) -> None:
    """Remove all files of a recording that is whole, or that nobody wants, and their folder.

    ``scratch`` is a name of open_folder(). What is ``kept`` stays.
    """
    for file in scratch.parent.glob(f"{scratch.name}*"):
        if file not in kept:
            with contextlib.suppress(OSError):
                file.unlink()
    with contextlib.suppress(OSError):
        scratch.parent.readlink().rmdir()


def take_places(scratch: Path, output: Path) -> str | None:
    """Give a trace and its document their names; return why that failed."""
    try:
        scratch.stat()  # without it, the old pair stays together
        try:
            take_place(beside(scratch), beside(output))
        except FileNotFoundError:  # the old document describes another trace
            beside(output).unlink(missing_ok=True)
        take_place(scratch, output)
    except OSError as error:
        return f"cannot write {output}: {error.strerror}"
    return None


def take_place(scratch: Path, output: Path) -> None:
    """Give a whole file its name, and owner and mode of the file that it replaces.

    That is place.predecessor(), which nobody else can have put there. A new one belongs to who
    called sudo: root's alone, it would be a file that nobody can show.
    Raises OSError.
    """
    file = os.open(scratch, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        owner = place.caller()
        if old := place.predecessor(output):
            owner = old.st_uid, old.st_gid
            os.fchmod(file, stat.S_IMODE(old.st_mode))
        # A hard link would be to a file that is somebody else's.
        if os.geteuid() == 0 and owner and os.fstat(file).st_nlink == 1:
            with contextlib.suppress(PermissionError):  # root of a network's file system
                os.fchown(file, *owner)
    finally:
        os.close(file)
    place.take(scratch, output)


def write_new(path: Path, document: dict[str, Any]) -> None:
    """Write a document to a new file. Raises OSError."""
    write_whole(path, json.dumps(document, indent=1).encode() + b"\n")


def write_whole(path: Path, data: bytes) -> None:
    """Write a new file. Raises OSError."""
    with new_file(path) as file:
        file.write(data)


def new_file(path: Path) -> BinaryIO:
    """Open a new file that only its owner can read. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE)
    return open(descriptor, "wb")  # noqa: PTH123 (a descriptor)
