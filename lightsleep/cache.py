# SPDX-License-Identifier: GPL-2.0-only
"""The cache: what takes long to make is made once.

An entry is a folder named by what determines its content. It is built in a scratch folder
beside, written to the disk, and renamed into place, so an entry that exists is complete, whatever
interrupted an earlier build: a power cut, too. A builder holds the entry's lock, and the kernel
drops that lock when the builder dies: a scratch folder whose lock is free is therefore garbage.
Only what has such a lock beside it is ever removed: the folder may hold other things, too.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import fcntl
import functools
import hashlib
import os
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from lightsleep.errors import LightsleepError

KEEP_S = 30 * 24 * 3600
"""Entries unused for longer make way for new ones."""

OF_CACHE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
"""What a builder meets where the cache folder has no space, or may not be written."""


SILENT_S = 1.0
"""How long a lock is waited for without a word: sweep() holds each for a moment."""

_locks: list[Path] = []
"""The lock files that threads of this process hold."""


def folder() -> Path:
    """Return the cache folder: $LIGHTSLEEP_CACHE, or lightsleep/ in the user's cache folder.

    Raises LightsleepError where the user has none.
    """
    if own := os.environ.get("LIGHTSLEEP_CACHE"):
        return Path(own).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    if Path(base).is_absolute():  # any other is to be ignored (XDG Base Directory Specification)
        return Path(base) / "lightsleep"
    try:
        return Path.home() / ".cache/lightsleep"
    except RuntimeError as error:
        raise LightsleepError(
            f"user {os.getuid()} has no home folder to keep a cache in: set LIGHTSLEEP_CACHE to a "
            "writable folder"
        ) from error


def digest(*parts: str | bytes) -> str:
    """Return a short name for content: equal parts, equal name."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()[:16]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file ``path``; waits for whoever holds it, and says so for another process."""
    held = False
    while not held:
        try:
            with path.open("w") as file:
                _wait_for(path, file)
                if held := _is_at(path, file.fileno()):
                    _locks.append(path)
                    yield
        finally:
            if held:
                _locks.remove(path)  # only now is the lock free for other threads


def _wait_for(path: Path, file: IO[str]) -> None:
    """Lock ``file``, which is at ``path``."""
    end_s = time.monotonic() + SILENT_S
    while path in _locks or time.monotonic() < end_s:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if path in _locks:
            end_s = time.monotonic() + SILENT_S
        time.sleep(0.02)
    # On a busy machine, the last look may be long ago, and a thread of ours gone since.
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    name = path.name[1:].removesuffix(".lock")
    said = f"waiting for another process, which has the lock of {name} in {path.parent}"
    print(said, file=sys.stderr)
    fcntl.flock(file, fcntl.LOCK_EX)


def _is_at(path: Path, file: int) -> bool:
    """Whether an open file or folder that is locked still has its name.

    Who held it before may have removed it, as make clean-cache does: then others lock a new one.
    Another machine may have, on NFS: then the open one is stale.
    """
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return False
        raise


def entry(
    name: str,
    build: Callable[[Path], None],
    needs_mb: int,
    base: Path | None = None,
    lasting: bool = True,
) -> Path:
    """Return the folder of entry ``name``; where there is none, ``build(scratch)`` makes it.

    ``needs_mb`` is the space the build takes. ``base`` is the cache folder, without it folder();
    what is not ``lasting`` there need not be on the disk.
    Raises LightsleepError where there is less space, where the cache folder cannot be written, and
    for an OSError of ``build``, which is then the cause; what else ``build`` raises passes through.
    """
    base = base or folder()
    final = base / name
    _hold_environment()
    try:
        if final.is_dir():
            with contextlib.suppress(OSError):  # a cache shared read-only is fine
                os.utime(final)
            if _hold(final):  # nobody swept it away meanwhile
                return final
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(base / f".{name}.lock"):
            if not final.is_dir():
                _build(final, build, needs_mb, lasting)
            _hold(final)
    except OSError as error:
        raise LightsleepError(
            f"cannot write the cache folder {base}: {error}; "
            "set LIGHTSLEEP_CACHE to a writable folder"
        ) from error
    return final


_held: dict[Path, int] = {}
_holding = threading.Lock()


def _hold(path: Path) -> bool:
    """Return whether a folder is there; until this process ends, it stays in the cache.

    sweep() of others and make clean-cache leave it alone: they ask for a lock of the folder itself.
    Where one is just removing it, this waits. On NFS, a folder's lock is known to this machine
    only: those on another do not see it.
    """
    with _holding:
        if (file := _held.get(path)) is not None and _is_at(path, file):
            return True
        if file is not None:  # of an older one
            os.close(_held.pop(path))
        try:
            file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return path.is_dir()
        # Some file systems have no such locks.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_SH)
        if not _is_at(path, file):
            os.close(file)
            return False
        _held[path] = file
        return True


def _hold_environment() -> None:
    """Hold the Python environment that we run in, where make made it, as a command of make does.

    Who entered it in a shell runs the lab without make. What is not removed from a cache, because
    it has no lock beside it, is not held.
    """
    environment = Path(sys.prefix)
    with contextlib.suppress(OSError):
        if (environment.parent / f".{environment.name}.lock").exists():
            with contextlib.suppress(OSError):  # one of another user, or shared read-only
                os.utime(environment)
            _hold(environment)


@contextlib.contextmanager
def scratch(name: str) -> Iterator[Path]:
    """Have a folder beside the entries for as long as this lasts; ``name`` is this process's own.

    sweep() removes it where this process is killed. Raises OSError and LightsleepError.
    """
    base = folder()
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock, path = base / f".{name}.lock", base / f".{name}.scratch"
    with locked(lock):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            lock.unlink()


def code(name: str, build: Callable[[Path], None], needs_mb: int) -> Path:
    """Return an entry whose content this process will load or compile, as entry() does.

    Root does not run what another user could have written: where that is so (sudo -E, a shared
    LIGHTSLEEP_CACHE), the entry is built anew, in a folder that goes when this process ends.
    """
    base = Path(os.path.realpath(folder()))  # a link on the way could be changed meanwhile
    safe = trusted(base) and trusted(base / name)
    return entry(name, build, needs_mb, base if safe else _private(), lasting=safe)


def trusted(path: Path) -> bool:
    """Whether this process may run what ``path`` holds, or will hold: only root cares.

    Root trusts what root owns and nobody else can write to or replace.
    """
    if os.geteuid() != 0:
        return True
    return all(_of_root(x, x == path) for x in (path, *path.parents) if os.path.lexists(x))


def _of_root(path: Path, writes_count: bool) -> bool:
    status = path.lstat()
    shared = status.st_mode & 0o022 and (writes_count or not status.st_mode & stat.S_ISVTX)
    return status.st_uid == 0 and not shared and not stat.S_ISLNK(status.st_mode)


@functools.cache
def _private() -> Path:
    """Return a folder of this process alone."""
    path = tempfile.mkdtemp(prefix="lightsleep-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return Path(path)


def _build(final: Path, build: Callable[[Path], None], needs_mb: int, lasting: bool) -> None:
    base, scratch = final.parent, final.with_name(f".{final.name}.scratch")
    sweep(base)
    shutil.rmtree(scratch, ignore_errors=True)
    free_mb = shutil.disk_usage(base).free // 2**20
    if free_mb < needs_mb:
        raise LightsleepError(
            f"about {needs_mb} MB are needed under {base}, but {free_mb} MB are free: "
            "free some, or set LIGHTSLEEP_CACHE to a folder with more space"
        )
    scratch.mkdir()
    try:
        _fill(scratch, final.name, build)
        os.utime(scratch)  # unpacking gave it the date of an archive
        if lasting:  # else a busy server would write all that is in its memory for nothing
            _sync(scratch)
        scratch.rename(final)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Wait until the file system of a folder has written what it was given.

    A rename may reach the disk before the content of files: then they are empty after a crash.
    """
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(file) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(file)


def _fill(scratch: Path, name: str, build: Callable[[Path], None]) -> None:
    """Build an entry. An OSError of the builder's own is no matter of the cache folder."""
    try:
        build(scratch)
    except OSError as error:
        file = str(error.filename or "")
        if error.errno in OF_CACHE and (not file or Path(file).is_relative_to(scratch)):
            raise
        program = isinstance(error, FileNotFoundError) and file and "/" not in file
        why = f"there is no program {file}: install it" if program else error
        raise LightsleepError(f"cannot make {name} for the cache: {why}") from error


def sweep(base: Path) -> None:
    """Remove the scratch folders whose builders died, and entries nobody used for long.

    Entries that somebody holds stay, and so does an environment: see _hold().
    """
    for lock in base.glob(".[!.]*.lock"):
        name = lock.name[1:].removesuffix(".lock")
        if base / name == Path(sys.prefix):
            continue  # the environment that we run in
        with contextlib.suppress(OSError), lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(lock, file.fileno()):
                shutil.rmtree(base / f".{name}.scratch", ignore_errors=True)
                _remove_old(base / name, base / f".{name}.scratch")


def _remove_old(old: Path, scratch: Path) -> None:
    """Remove an entry that nobody used for long: all of it at once, by another name first."""
    if not (old.is_dir() and _unused(old)):
        return
    file = os.open(old, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Who holds it may have done so for long. Some file systems have no such locks.
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
        old.rename(scratch)
        if _unused(scratch):
            shutil.rmtree(scratch, ignore_errors=True)
        else:
            scratch.rename(old)  # somebody came for it just now
    finally:
        os.close(file)


def _unused(path: Path) -> bool:
    return path.stat().st_mtime < time.time() - KEEP_S
