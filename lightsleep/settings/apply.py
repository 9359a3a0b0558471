# SPDX-License-Identifier: GPL-2.0-only
"""Makes the changes that a setting consists of; the end of the session undoes them."""

import contextlib
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from lightsleep.errors import LightsleepError
from lightsleep.scan.loading import lockdown, secure_boot
from lightsleep.scan.obstacles import have_it_accepted
from lightsleep.scan.tree import Tree
from lightsleep.settings.catalogue import Change, Hold, Knob, Load, Unload
from lightsleep.settings.journalled import INSTALL_FAILED, Session

LATENCY = "dev/cpu_dma_latency"
REJECTED = ("Key was rejected", "Required key not available")
"""What modprobe says where the kernel accepts only signed modules, and not this one's key."""

DENIED = "Operation not permitted"
"""What it says instead where only lockdown asks for a signature."""


@contextlib.contextmanager
def applied(changes: Sequence[Change], session: Session, root: Path) -> Iterator[list[Change]]:
    """Make the changes; a latency limit ends with the context, all else with the session.

    Yields those that were not as wanted before. Raises LightsleepError where one cannot be made.
    """
    with contextlib.ExitStack() as held:
        made = []
        for change in changes:
            new = True
            match change:
                case Knob(path, value):
                    new = session.set(root / path, value)
                case Load(module, argv, sets):
                    knob = (root / sets.path, sets.value) if sets else None
                    if not load(session, root, module, argv, knob):
                        raise _overtaken(module, "loaded")
                case Unload(module, reload, sets):
                    knob = (root / sets.path, sets.value) if sets else None
                    if not session.unload(module, list(reload), knob):
                        raise _overtaken(module, "unloaded")
                case Hold(latency_us):
                    held.enter_context(_latency_limit(root / LATENCY, latency_us))
            made += [change] if new else []
        yield made


def _overtaken(module: str, what: str) -> LightsleepError:
    """Return the error for a plan that is out of date: who made it did not have the session."""
    return LightsleepError(f"somebody else has {what} {module} meanwhile: start again")


def load(
    session: Session,
    root: Path,
    module: str,
    argv: Sequence[str],
    sets: tuple[Path, str] | None = None,
) -> bool:
    """Load a module as Session.load() does; an error tells how to have its key accepted, too."""
    try:
        return session.load(module, list(argv), sets)
    except LightsleepError as error:
        if signature_refused(error.message, root):
            error.add_note(have_it_accepted(secure_boot(Tree(root))))
        raise


def signature_refused(refusal: str, root: Path) -> bool:
    """Return whether a module was refused because of its signature, or for want of one."""
    if any(text in refusal for text in REJECTED):
        return True
    if INSTALL_FAILED in refusal:  # to modprobe, a status of 1 is EPERM
        return False
    return DENIED in refusal and lockdown(Tree(root)) is not None


@contextlib.contextmanager
def _latency_limit(device: Path, latency_us: int) -> Iterator[None]:
    """Hold a limit; the kernel drops it with the descriptor, so however this process ends."""
    try:
        descriptor = os.open(device, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, struct.pack("=i", latency_us))
        except OSError:
            os.close(descriptor)
            raise
    except OSError as error:
        raise LightsleepError(f"cannot use /{LATENCY}: {error.strerror}") from error
    try:
        yield
    finally:
        os.close(descriptor)
