# SPDX-License-Identifier: GPL-2.0-only
"""Ending in good order on the signals that end a program."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Handler = Callable[[int, FrameType | None], Any]


class Signals:
    """The signals of orderly_end(): how often they raise. Lent to who waits for what may hang."""

    def __init__(self, error: Callable[[int], BaseException] | None, repeated: bool) -> None:
        """Heed no signal yet."""
        self.repeated = repeated
        """Whether each signal raises, and not only the first one."""
        self.before: dict[int, Any] = {}
        self._error = error
        self._told: Callable[[int], object] | None = None

    def heed(self) -> None:
        """Have the next signal raise, or each one until ignore()."""
        for number in self.before:
            signal.signal(number, self._end)

    def ignore(self) -> None:
        """Have no signal raise, nor tell anybody."""
        for number in self.before:
            signal.signal(number, signal.SIG_IGN)
        self._told = None

    def tell(self, told: Callable[[int], object]) -> None:
        """Have each signal call ``told`` with its number in place of raising, until ignore().

        An error that one signal raises is handled somewhere, and the next one may come right there.
        """
        self._told = told

    @contextlib.contextmanager
    def heeded(self) -> Iterator[None]:
        """Have signals raise while this lasts, and not thereafter."""
        self.heed()
        try:
            yield
        finally:
            self.ignore()

    def _end(self, number: int, _frame: object) -> None:
        if self._told:
            self._told(number)
            return
        if not self.repeated:
            self.ignore()
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise self._error(number) if self._error else SystemExit(128 + number)


@contextlib.contextmanager
def orderly_end(
    error: Callable[[int], BaseException] | None = None, repeated: bool = False
) -> Iterator[Signals]:
    """Raise an error on SIGINT, SIGTERM and SIGHUP, so that contexts are left.

    That is KeyboardInterrupt for SIGINT, and for the others SystemExit, or what ``error`` makes of
    the signal's number. From then on, all three are ignored until this context is left: who presses
    Ctrl-C twice, and a terminal that closes, are to leave the other contexts in peace. Where it is
    ``repeated``, each signal raises an error. What this context lends can change that.

    A signal that is ignored before, as nohup has it, stays so. Outside of the main thread, which
    gets all signals, this does nothing.

    SIGQUIT (Ctrl-\\) is none of these: it ends at once what hangs. See ending_together().
    """
    signals = Signals(error, repeated)
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    for number in ENDING:
        if (handler := signal.getsignal(number)) is not signal.SIG_IGN:
            signals.before[number] = handler
    try:
        signals.heed()
        yield signals
    finally:
        for each, before in signals.before.items():
            signal.signal(each, before)


@contextlib.contextmanager
def ending_together() -> Iterator[None]:
    """Have Ctrl-\\ end this program as SIGTERM does, and Ctrl-Z do nothing, while this lasts.

    For who waits for a command in a session of its own, which neither key reaches. SIGQUIT would
    leave it running. SIGTSTP would stop only this program: the command would run on, and its time
    would not end before somebody continues this program.

    Stands inside of orderly_end(). Once a signal came that ends, SIGQUIT is ignored as those are.
    """

    def end(number: int, frame: FrameType | None) -> None:
        handler = signal.getsignal(signal.SIGTERM)
        if callable(handler):
            handler(number, frame)

    with _handled({signal.SIGQUIT: end, signal.SIGTSTP: lambda _number, _frame: None}):
        yield


@contextlib.contextmanager
def postponed() -> Iterator[None]:
    """Have signals raise at the end of this context, and not in the middle of it."""
    came: list[int] = []
    raising = [x for x in (*ENDING, signal.SIGQUIT) if callable(signal.getsignal(x))]
    try:
        with _handled(dict.fromkeys(raising, lambda number, _frame: came.append(number))):
            yield
    finally:
        for number in came:
            signal.raise_signal(number)


@contextlib.contextmanager
def _handled(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Handle signals while this lasts, as orderly_end() does: not those that are ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {}
    try:
        for number, handler in handlers.items():
            if (earlier := signal.getsignal(number)) is not signal.SIG_IGN:
                before[number] = earlier
                signal.signal(number, handler)
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


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
