# SPDX-License-Identifier: GPL-2.0-only
"""What is added to an error: where in a comparison it happened, and in whose code."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

from lightsleep.ending import by_signal
from lightsleep.errors import LightsleepError


@contextlib.contextmanager
def telling(when: str) -> Iterator[None]:
    """Add to an error when in the comparison it happened, and to which arm."""
    try:
        yield
    except LightsleepError as error:
        error.add_note(f"this happened in: {when}")
        raise


def _runs_it(file: str) -> bool:
    """Return whether a file is of what calls an experiment's code, and not that code itself."""
    return file == contextlib.__file__ or Path(file).parent == Path(__file__).parent


@contextlib.contextmanager
def own_code() -> Iterator[None]:
    """Tell what an experiment's own code raises as an error, with its lines: it may be anybody's.

    Otherwise nothing would say in which boot, round and arm it was. So what calls sys.exit() is an
    error, whatever its status; but a signal ends all of it.
    """
    try:
        yield
    except LightsleepError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and by_signal(error):
            raise
        said = error.code if isinstance(error, SystemExit) else error
        failed = LightsleepError(f"code of the experiment: {type(error).__name__}: {said}")
        frames = traceback.extract_tb(error.__traceback__)
        lines = [x for x in frames if not _runs_it(x.filename)]
        failed.add_note("".join(traceback.format_list(lines)).rstrip() or "before its first line")
        raise failed from error
