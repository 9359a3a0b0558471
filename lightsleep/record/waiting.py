# SPDX-License-Identifier: GPL-2.0-only
"""Waits until a recording is to end: its command, its time, or Ctrl-C. Passes signals on."""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from lightsleep.ending import Signals
from lightsleep.errors import LightsleepError
from lightsleep.record.run import KILLED, Recording
from lightsleep.terminal import remark

COUNTER_KILLED = (
    "the process that reads what the kernel has counted was killed: nothing is counted any more"
)

STDERR = 2
"""The file descriptor."""


class Terminated(KeyboardInterrupt):
    """A signal other than SIGINT: a command that this process runs has not heard of it."""

    def __init__(self, number: int) -> None:
        """Remember which signal it was."""
        super().__init__(number)
        self.number = number


def wait(
    command: tuple[str, ...],
    seconds: float | None,
    running: Recording,
    tick: Callable[[float], None],
    aside: bool = False,
    signals: Signals | None = None,
) -> int:
    """Wait for a command, else for some seconds, else for Ctrl-C; return the exit status.

    ``tick`` is called about once a second with the seconds that passed. With ``aside``, the
    command's stdout goes to stderr. The recording goes on until the command has ended, which may
    take its time after a signal: from here on, ``signals`` are passed on to it, and raise no more.
    The file of the recording is wanted from here on, too. A signal before all ``seconds`` have
    passed counts as failure. Raises LightsleepError where the command cannot be started.
    """
    if command:
        messenger = _Messenger()
        if signals:
            signals.tell(messenger.tell)
        running.begin()
        child = _start(command, aside)
        messenger.begin(child)
        return _wait_for(child, running, tick)
    running.begin()
    return _wait_until(seconds, running, tick)


def _wait_for(
    child: "subprocess.Popen[bytes]", running: Recording, tick: Callable[[float], None]
) -> int:
    """Wait for a command; return its exit status as a shell has it."""
    started, told = time.monotonic(), running.stopped
    while running.process.poll() is None:
        tick(time.monotonic() - started)
        if _ended(child, 1.0):
            break
        running.watch()
        if running.stopped != told:  # the command may run for long
            remark(f"note: {running.stopped}")
            told = running.stopped
    if running.process.poll() is not None:
        running.watch()
        died = COUNTER_KILLED if running.stop is None else running.stopped
        if died in (KILLED, COUNTER_KILLED) and died != told and child.poll() is None:
            remark(f"note: {died}")
    status = child.wait()
    return 128 - status if status < 0 else status


def _wait_until(seconds: float | None, running: Recording, tick: Callable[[float], None]) -> int:
    """Wait for some seconds, or without these for a signal; return the exit status."""
    status, started = 0, time.monotonic()
    while running.process.poll() is None:
        try:
            left_s = 1.0 if seconds is None else started + seconds - time.monotonic()
            if left_s <= 0 or running.stopped:
                break
            tick(time.monotonic() - started)
            time.sleep(min(1.0, left_s))
            running.watch()
        except KeyboardInterrupt as signalled:
            if seconds is not None:
                status = 128 + _number(signalled)
                passed = time.monotonic() - started
                remark(f"ended after {passed:.1f} s of {seconds:g} s")
            break
    if running.process.poll() is not None:
        running.watch()
    return status


@dataclass
class _Messenger:
    """Passes signals on to a command.

    Ctrl-C on a terminal reaches the command as well. In the foreground, a SIGINT may also come from
    a process that sends it to this one alone, and no one can tell. So the second is passed on.
    """

    child: "subprocess.Popen[bytes] | None" = None
    interrupted: bool = False
    kept: list[int] = field(default_factory=list)
    """Those that came before the command was there."""

    def begin(self, child: "subprocess.Popen[bytes]") -> None:
        self.child = child
        while self.kept:
            child.send_signal(self.kept.pop(0))

    def tell(self, number: int) -> None:
        if self.child is None:
            self.kept.append(number)
            return
        if number != signal.SIGINT or self.interrupted or not _in_foreground():
            self.child.send_signal(number)
        self.interrupted |= number == signal.SIGINT


def _number(signalled: KeyboardInterrupt) -> int:
    return signalled.number if isinstance(signalled, Terminated) else signal.SIGINT


def _in_foreground() -> bool:
    """Return whether this process has a terminal whose Ctrl-C reaches it."""
    try:
        terminal_of_ours = os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal_of_ours) == os.getpgrp()
    except OSError:  # the terminal was closed
        return False
    finally:
        os.close(terminal_of_ours)


def _ended(child: "subprocess.Popen[bytes]", pause_s: float) -> bool:
    """Wait for at most ``pause_s``; return whether the command has ended.

    Popen.wait() would look 20 times per second, which a recording of idle periods shows.
    """
    if child.poll() is not None:
        return True
    try:
        process = os.pidfd_open(child.pid)
    # Too many descriptors, a filter of system calls, or a Python without the function.
    except (OSError, AttributeError):
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(pause_s)
    else:
        try:
            end = select.poll()
            end.register(process, select.POLLIN)
            end.poll(pause_s * 1000)
        finally:
            os.close(process)
    return child.poll() is not None


def _start(command: tuple[str, ...], aside: bool) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(command, stdout=STDERR if aside else None)
    except OSError as error:
        raise LightsleepError(f"cannot run {command[0]}: {os.strerror(error.errno or 0)}") from None
