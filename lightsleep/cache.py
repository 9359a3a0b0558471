# SPDX-License-Identifier: GPL-2.0-only
"""The cache: what takes long to make is made once.

An entry is a folder named by what determines its content. It is built in a scratch folder
beside and renamed into place, so an entry that exists is complete, whatever interrupted an
earlier build. A builder holds the entry's lock, and the kernel drops that lock when the
builder dies: a scratch folder whose lock is free is therefore garbage.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lightsleep.errors import LightsleepError

KEEP_S = 30 * 24 * 3600
"""Entries unused for longer make way for new ones."""


def folder() -> Path:
    """Return the cache folder: $LIGHTSLEEP_CACHE, or lightsleep/ in the user's cache folder."""
    if own := os.environ.get("LIGHTSLEEP_CACHE"):
        return Path(own).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lightsleep"


def digest(*parts: str | bytes) -> str:
    """Return a short name for content: equal parts, equal name."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()[:16]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file ``path``; waits for whoever holds it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def entry(name: str, build: Callable[[Path], None], needs_mb: int) -> Path:
    """Return the folder of entry ``name``; where there is none, ``build(scratch)`` makes it.

    ``needs_mb`` is the space the build takes. Raises LightsleepError where there is less, or
    where the cache folder cannot be written; what ``build`` raises passes through.
    """
    base = folder()
    final = base / name
    if final.is_dir():
        with contextlib.suppress(OSError):  # a cache shared read-only is fine
            os.utime(final)
        return final
    try:
        base.mkdir(parents=True, exist_ok=True)
        with locked(base / f".{name}.lock"):
            if not final.is_dir():
                _build(base, final, build, needs_mb)
    except OSError as error:
        raise LightsleepError(
            f"cannot write the cache folder {base}: {error}; "
            "set LIGHTSLEEP_CACHE to a writable folder"
        ) from error
    return final


def _build(base: Path, final: Path, build: Callable[[Path], None], needs_mb: int) -> None:
    scratch = base / f".{final.name}.scratch"
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
        build(scratch)
        os.utime(scratch)  # unpacking gave it the date of an archive
        scratch.rename(final)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def sweep(base: Path) -> None:
    """Remove the scratch folders whose builders died, and entries nobody used for long."""
    for old in base.glob("[!.]*"):
        if old.stat().st_mtime < time.time() - KEEP_S:
            shutil.rmtree(old, ignore_errors=True)
    for scratch in base.glob(".*.scratch"):
        lock = base / f"{scratch.name.removesuffix('.scratch')}.lock"
        with lock.open("w") as file, contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(scratch, ignore_errors=True)
