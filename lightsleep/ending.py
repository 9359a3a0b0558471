# SPDX-License-Identifier: GPL-2.0-only
"""Ending in good order on the signals that end a program."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def orderly_end(
    error: Callable[[int], BaseException] | None = None, repeated: bool = False
) -> Iterator[Callable[[], None]]:
    """Raise an error on SIGINT, SIGTERM and SIGHUP, so that contexts are left.

    That is KeyboardInterrupt for SIGINT, and for the others SystemExit, or what ``error`` makes of
    the signal's number. From then on, all three are ignored until this context is left: who presses
    Ctrl-C twice, and a terminal that closes, are to leave the other contexts in peace. Where it is
    ``repeated``, each signal raises an error, until the function is called that this context lends.

    A signal that is ignored before, as nohup has it, stays so. Outside of the main thread, which
    gets all signals, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def ignore() -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)

    def end(number: int, _frame: object) -> None:
        if not repeated:
            ignore()
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise error(number) if error else SystemExit(128 + number)

    before = {
        number: signal.signal(number, end)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield ignore
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def by_signal(end: SystemExit) -> bool:
    """Whether an end of the program may be of orderly_end(), which a signal brought about."""
    return end.code in (128 + signal.SIGTERM, 128 + signal.SIGHUP)


def status_of(ended: KeyboardInterrupt | SystemExit) -> int:
    """Return the exit status of a program that such a signal has ended, as a shell has it."""
    if isinstance(ended, SystemExit) and isinstance(ended.code, int):
        return ended.code
    return 128 + signal.SIGINT


@contextlib.contextmanager
def meant_to_end() -> Iterator[None]:
    """Take Ctrl-C and SIGTERM for success, where a program runs until somebody ends it.

    systemd stops a service with SIGTERM, and takes every exit status but 0 for a failure. Stands
    inside of orderly_end(), which makes an exception of SIGTERM.
    """
    try:
        yield
    except KeyboardInterrupt:
        pass
    except SystemExit as end:
        if end.code != 128 + signal.SIGTERM:
            raise
