# SPDX-License-Identifier: GPL-2.0-only
"""The place and the owner of a whole file, and of what describes it; standard library only."""

import errno
import os
import shutil
import stat
from pathlib import Path

DESCRIBED = ".json"
"""Behind the name of a trace: the document beside it."""


def beside(trace: Path) -> Path:
    """Return where the document that belongs beside a trace is."""
    return trace.with_name(f"{trace.name}{DESCRIBED}")


def take(scratch: Path, target: Path) -> None:
    """Give a whole file the name ``target``, which is no link.

    A mount point cannot be replaced, nor can another user's file in a sticky folder. Such a file is
    written in place, if that is allowed. Raises OSError; ``scratch`` is then still there.
    """
    try:
        scratch.replace(target)
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.EPERM) or not target.exists():
            raise
        # Without O_CREAT, which the kernel refuses for such files (fs.protected_regular).
        descriptor = os.open(target, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "wb") as file:  # noqa: PTH123 (a descriptor)
            source = os.open(scratch, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with open(source, "rb") as whole:  # noqa: PTH123 (a descriptor)
                shutil.copyfileobj(whole, file)
            file.truncate()
        scratch.unlink()


def predecessor(target: Path) -> os.stat_result | None:
    """Return the status of a file that hands on its owner and mode where root replaces it.

    None where there is no file, and where another user may have put one there to get at what root
    writes: in a folder that others can write to, only a file of root's or the caller's counts.
    """
    try:
        old = target.lstat()
    except FileNotFoundError:
        return None
    folder, ours = target.parent.stat(), {os.geteuid(), *(caller() or ())[:1]}
    safe = folder.st_uid in ours and not folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return old if stat.S_ISREG(old.st_mode) and (safe or old.st_uid in ours) else None


def caller() -> tuple[int, int] | None:
    """Return user and group of who called sudo, None without sudo."""
    ids = [os.environ.get(name, "") for name in ("SUDO_UID", "SUDO_GID")]
    return (int(ids[0]), int(ids[1])) if all(x.isdecimal() for x in ids) else None
