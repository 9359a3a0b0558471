# SPDX-License-Identifier: GPL-2.0-only
"""Writing a file so that a reader sees the old one or the whole new one."""

import contextlib
import json
import os
import secrets
import stat
from pathlib import Path
from typing import Any

from lightsleep.errors import LightsleepError


def write_bytes(path: Path, data: bytes) -> None:
    """Replace the content of ``path`` by ``data``, making its folder where missing.

    Whatever goes wrong, an existing file keeps its content and no scratch file stays behind.
    Raises LightsleepError where the file cannot be written.
    """
    target = path.resolve()  # replaces what a link points to, not the link
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and not target.is_file():  # a device or a pipe; a folder fails here
            target.write_bytes(data)
        else:
            _replace(target, data)
    except OSError as error:
        raise LightsleepError(f"cannot write {path}: {error.strerror}") from error


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, in UTF-8, as write_bytes() does."""
    write_bytes(path, text.encode())


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write ``document`` to ``path`` so that a reader sees the old file or the whole new one.

    Raises LightsleepError where the file cannot be written or a number is not finite.
    """
    try:
        text = json.dumps(document, indent=1, allow_nan=False)
    except ValueError as error:
        raise LightsleepError(f"cannot write {path}: {error}") from error
    write_text(path, text + "\n")


def _replace(target: Path, data: bytes) -> None:
    """Put a whole new file in the place of ``target``, whose mode it keeps."""
    kept = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    # Not named after the target, whose name may be as long as a name can be.
    scratch = target.with_name(f".lightsleep-{secrets.token_hex(8)}")
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(scratch.unlink, missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        descriptor = os.open(scratch, flags, 0o666 if kept is None else kept)
        with open(descriptor, "wb") as file:  # noqa: PTH123 (a descriptor)
            file.write(data)
        if kept is not None:
            scratch.chmod(kept)  # with what the umask took away
        scratch.replace(target)
        on_failure.pop_all()
