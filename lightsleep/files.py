# SPDX-License-Identifier: GPL-2.0-only
"""Writing a file so that a reader sees the old one or the whole new one."""

import contextlib
import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from lightsleep import place
from lightsleep.document import text_of
from lightsleep.errors import LightsleepError


def check_writable(path: Path) -> None:
    """Find out, before work begins, whether its result could be written to ``path``.

    Makes no file and no folder: the command may refuse to run for another reason. Raises
    LightsleepError where write_bytes() would.
    """
    try:
        found = _status(path)
        if found and stat.S_ISDIR(found.st_mode):
            raise LightsleepError(f"{path} is a folder: name a file in it")
        if found is None or stat.S_ISREG(found.st_mode):
            _check_room(_followed(path))
            if found:
                _check_old(_followed(path), found)
        elif not os.access(path, os.W_OK):  # to open a pipe would wait for its reader
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise LightsleepError(f"cannot write {path}: {error.strerror}") from error


def same(path: Path, other: Path) -> bool:
    """Return whether these lead to one file, which need not be there."""
    return _followed(path) == _followed(other)


Owner = tuple[int, int]
"""User and group."""


def write_bytes(path: Path, data: bytes, mode: int = 0o666, owner: Owner | None = None) -> None:
    """Replace the content of ``path`` by ``data``, making its folder where missing.

    A file that was not there gets ``mode``, less what the umask takes away, and where root writes,
    it gets ``owner``. Until the scratch file
    is whole, an existing file keeps its content, and no scratch file stays behind. If it then can
    neither replace the file nor be copied into it, it stays, and the error names it.
    Raises LightsleepError where the file cannot be written.
    """
    with streamed(path, mode, owner) as file:
        file.write(data)


def publish(path: Path, data: bytes, mode: int) -> None:
    """Replace the content of ``path`` as write_bytes() does, in a folder of another user's, too.

    A file that was not there gets ``mode`` whatever the umask. A link is refused: who owns the
    folder could lead it anywhere. To replace it would be no better where it is /dev/stdout.
    """
    try:
        found = _status(path, follow=False)
        if found and stat.S_ISLNK(found.st_mode):
            raise LightsleepError(f"cannot write {path}: it is a link; name the file it leads to")
        if found and not stat.S_ISREG(found.st_mode):  # a device or a pipe; a folder fails here
            with open(os.open(path, os.O_WRONLY | os.O_NOFOLLOW), "wb") as file:  # noqa: PTH123
                file.write(data)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with _replaced(path, found, mode, None, exact=True) as file:
            file.write(data)
    except OSError as error:
        raise LightsleepError(f"cannot write {path}: {error.strerror or error}") from error


@contextlib.contextmanager
def streamed(path: Path, mode: int = 0o666, owner: Owner | None = None) -> Iterator[BinaryIO]:
    """Lend a file to write the new content of ``path`` to; as write_bytes(), also where it raises.

    The new content takes its place when the context is left without an exception.
    """
    try:
        found = _status(path)
        if found and not stat.S_ISREG(found.st_mode):  # a device or a pipe; a folder fails here
            with path.open("wb") as file:
                yield file
        else:
            target = _followed(path)  # replaces what a link points to, not the link
            target.parent.mkdir(parents=True, exist_ok=True)
            with _replaced(target, found, mode, owner) as file:
                yield file
    except OSError as error:
        raise LightsleepError(f"cannot write {path}: {error.strerror or error}") from error


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, in UTF-8, as write_bytes() does."""
    write_bytes(path, text.encode())


def write_json(
    path: Path, document: dict[str, Any], mode: int = 0o666, owner: Owner | None = None
) -> None:
    """Write ``document`` to ``path`` so that a reader sees the old file or the whole new one.

    A file that was not there gets ``mode`` and ``owner``, as in write_bytes().

    Raises LightsleepError where the file cannot be written or a number is not finite.
    """
    try:
        text = text_of(document)
    except ValueError as error:
        raise LightsleepError(f"cannot write {path}: {error}") from error
    write_bytes(path, f"{text}\n".encode(), mode, owner)


@contextlib.contextmanager
def written(*writes: Callable[[], None]) -> Iterator[None]:
    """Do all ``writes`` of a result, let the caller show it, then raise what could not be written.

    A result that took hours is thus in its files even if it cannot be shown (the disk of standard
    output is full, the reader of a pipe is gone), and is shown even if no file can be written.
    """
    lost = []
    for write in writes:
        try:
            write()
        except LightsleepError as error:
            lost.append(error.message)
    try:
        yield
    finally:
        if lost:
            raise LightsleepError("\n".join(lost))


def _status(path: Path, follow: bool = True) -> os.stat_result | None:
    try:
        return path.stat(follow_symlinks=follow)
    except FileNotFoundError:
        return None


def _followed(path: Path) -> Path:
    # Path.resolve() fails where links lead in a circle, and not with an OSError.
    return Path(os.path.realpath(path))


def _check_room(target: Path) -> None:
    """Raise the OSError of who would make ``target``, and its folders where they are missing."""
    there = next(folder for folder in target.parents if folder.exists())
    with tempfile.TemporaryFile(dir=there):
        pass
    longest = os.pathconf(there, "PC_NAME_MAX")
    if any(len(os.fsencode(part)) > longest for part in target.relative_to(there).parts):
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))


def _check_old(target: Path, old: os.stat_result) -> None:
    """Raise the OSError of who can neither replace an ``old`` file nor write to it in place."""
    try:
        os.close(os.open(target, os.O_WRONLY | os.O_CLOEXEC))
    except OSError as error:
        folder = target.parent.stat()
        owners = (old.st_uid, folder.st_uid)
        sticky = folder.st_mode & stat.S_ISVTX and os.geteuid() not in owners
        if sticky or error.errno != errno.EACCES:  # else its mode, which its folder overrules
            raise


@contextlib.contextmanager
def _replaced(
    target: Path,
    old: os.stat_result | None,
    mode: int,
    owner: Owner | None,
    exact: bool = False,
) -> Iterator[BinaryIO]:
    """Lend a new file that takes the place of ``target``; it has the ``old`` one's mode and owner.

    The owner only where root writes, and then both only of place.predecessor(). From ``mode`` the
    umask takes away, unless it is ``exact``.
    """
    found = old
    if os.geteuid() == 0:
        old = place.predecessor(target)
    if old:
        mode, owner = stat.S_IMODE(old.st_mode), (old.st_uid, old.st_gid)
    elif found and not exact:  # whoever put it there, what it denies to others stays denied
        mode &= stat.S_IMODE(found.st_mode)
    # Not named after the target, whose name may be as long as a name can be.
    scratch = target.with_name(f".lightsleep-{secrets.token_hex(8)}")
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(scratch.unlink, missing_ok=True)
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(descriptor, "wb") as file:  # noqa: PTH123 (a descriptor)
            yield file
            if owner and os.geteuid() == 0:
                with contextlib.suppress(PermissionError):  # root of a network's file system
                    os.fchown(file.fileno(), *owner)
            if old or exact:
                # With what the umask took away. Not by name: who owns the folder could put a link
                # there.
                os.fchmod(file.fileno(), mode)
        on_failure.pop_all()
    try:
        place.take(scratch, target)
    except OSError as error:
        where = f"{error.strerror}; what was to be written is in {scratch}"
        raise OSError(error.errno, where) from error
