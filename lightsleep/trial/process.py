# SPDX-License-Identifier: GPL-2.0-only
"""Runs a command to its end, ends what it leaves running, and keeps what it prints.

What it prints comes through a pipe. In a file it would be lost where a script opens /dev/stdout or
/dev/stderr anew, as ``> /dev/stderr`` and ``| tee /dev/stderr`` do: that truncates a file.

Whoever waits here is not to disturb the run. So it sleeps until something is printed, waits for
PAUSE_S, and reads. Where so much is printed that the pipe would be full by then, it waits for less:
until the pipe is half full, at the rate of the last read.
"""

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from lightsleep import ending
from lightsleep.errors import LightsleepError

MOST_OUTPUT = 16 << 20
"""Of what a command prints, the end: there the last match of a metric is."""
PIPE_BYTES = 1 << 20
"""What everybody may ask for, unless /proc/sys/fs/pipe-max-size was lowered."""
PAUSE_S = 0.1

END_S = 5.0
"""How long what a command leaves running has to end by itself."""
KILLED_S = 5.0
"""How long what SIGKILL ends may take to go: it may free much memory, or wait for a disk."""
LOOK_S = 0.02


def execute(
    argv: Sequence[str], limit_s: float | None = None, what: str = "the command"
) -> tuple[float, float, str]:
    """Run a command; return its wall and CPU time in seconds, and what it printed.

    It has a session of its own: Ctrl-C does not reach it, and it cannot wait for a terminal. What
    it leaves running in its session would load the machine under the next setting, so that
    is ended, too. A daemon, which has a session of its own, runs on.

    Raises LightsleepError where it cannot be started, does not end well and within ``limit_s``, or
    leaves running what nothing ends. ``what`` it is called there.
    """
    process: subprocess.Popen[bytes] | None = None
    left: set[int] = set()
    with contextlib.ExitStack() as stack:
        output, writing = _pipe(stack)
        try:
            with ending.postponed():  # until somebody knows what is to be ended
                start = time.monotonic()
                process = _started(argv, writing)
            _attend(process, output, limit_s, what)
            _, status, usage = os.wait4(process.pid, 0)
            wall_s = time.monotonic() - start
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            if process:
                left = _end(process)
        output.read()
    if process.returncode:
        how = f"exit status {process.returncode}"
        if process.returncode < 0:
            how = f"signal {_signal_name(-process.returncode)}"
        raise LightsleepError(
            f"{what} failed ({how}); its output ends with {output.text()[-300:]!r}"
        )
    if left:
        names = ", ".join(f"{pid} ({_name(pid)})" for pid in sorted(left))
        raise LightsleepError(
            f"what {what} has left running has not ended {KILLED_S:g} s after SIGKILL, and would "
            f"load the machine under the next setting: process {names}"
        )
    return wall_s, usage.ru_utime + usage.ru_stime, output.text()


def _started(argv: Sequence[str], writing: int) -> subprocess.Popen[bytes]:
    """Start a command that has this end of a pipe, which is closed here. Raises LightsleepError."""
    try:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            start_new_session=True,
        )
    except OSError as error:
        raise LightsleepError(f"cannot run {argv[0]}: {error.strerror}") from error
    finally:
        os.close(writing)


class _Output:
    """The end of what comes through a pipe."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe
        self.open = True
        self.size = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
        self._kept = bytearray()

    def read(self) -> int:
        """Take what is there now, and return how many bytes that is.

        No more than is kept, as a daemon may print without end.
        """
        taken = 0
        while self.open and taken < MOST_OUTPUT:
            try:
                piece = os.read(self.pipe, PIPE_BYTES)
            except BlockingIOError:
                break
            self.open = bool(piece)
            taken += len(piece)
            self._kept += piece
            if len(self._kept) > 2 * MOST_OUTPUT:
                del self._kept[:-MOST_OUTPUT]
        return taken

    def text(self) -> str:
        return self._kept[-MOST_OUTPUT:].decode(errors="replace")


def _pipe(stack: contextlib.ExitStack) -> tuple[_Output, int]:
    """Return both ends of a pipe; the stack closes that which is read."""
    reading, writing = os.pipe()
    stack.callback(os.close, reading)
    os.set_blocking(reading, False)
    with contextlib.suppress(OSError):  # a smaller one is enough for most
        fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return _Output(reading), writing


def _attend(
    process: subprocess.Popen[bytes], output: _Output, limit_s: float | None, what: str
) -> None:
    """Read until a command ends, and leave it to be reaped. Raises LightsleepError."""
    deadline = None if limit_s is None else time.monotonic() + limit_s
    ended = os.pidfd_open(process.pid)
    pause_s = PAUSE_S
    try:
        while True:
            left_s = None if deadline is None else max(deadline - time.monotonic(), 0)
            files = [ended, output.pipe] if output.open else [ended]
            # What has ended has, however late it is when this process gets to look.
            if ended in select.select(files, [], [], left_s)[0]:
                return
            if left_s == 0:
                raise LightsleepError(f"{what} has not ended after {limit_s:g} s")
            begin_s = time.monotonic()
            if select.select([ended], [], [], pause_s)[0]:
                return
            taken = output.read()
            pause_s = _pause_s(taken, time.monotonic() - begin_s, output.size)
    finally:
        os.close(ended)


def _pause_s(taken: int, span_s: float, size: int) -> float:
    """Return after how long a pipe is half full, as ``taken`` bytes came in ``span_s``."""
    return min(PAUSE_S, span_s * size / 2 / taken) if taken else PAUSE_S


def _signal_name(number: int) -> str:
    """Return the name of a signal; a real-time signal has none in Python."""
    return signal.Signals(number).name if number in set(signal.Signals) else str(number)


def _end(process: subprocess.Popen[bytes]) -> set[int]:
    """End what still runs of a command and of what it has started, kindly first.

    Returns what nothing has ended.
    """
    left: set[int] = set()
    try:
        for number, limit_s in ((signal.SIGTERM, END_S), (signal.SIGKILL, KILLED_S)):
            left = _end_by(number, process.pid, limit_s)
    except BaseException:  # Ctrl-C meanwhile: whoever waits for it is impatient
        for member in _members(process.pid):
            _send(member, process.pid, signal.SIGKILL)
        raise
    process.poll()  # reaps it
    return left


def _end_by(number: int, session: int, limit_s: float) -> set[int]:
    """Send a signal to all of a session; return who has not ended when their time is up."""
    told: set[int] = set()
    deadline = time.monotonic() + limit_s
    while (members := set(_members(session))) and time.monotonic() < deadline:
        for member in members - told:  # those that were started meanwhile, too
            _send(member, session, number)
        told |= members
        time.sleep(LOOK_S)
    return members


def _send(pid: int, session: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        process = os.pidfd_open(pid)
        try:
            # By now the number may be that of another process.
            if _session_of(Path(f"/proc/{pid}/stat")) == session:
                signal.pidfd_send_signal(process, number)
        finally:
            os.close(process)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "gone by now"


def _members(session: int) -> Iterator[int]:
    """Yield the processes of a session that still run."""
    # No pattern with "stat" behind it: the library then asks whether the file is there, and fails
    # with ESRCH where the process has just ended.
    for process in Path("/proc").glob("[0-9]*"):
        if _session_of(process / "stat") == session:
            yield int(process.name)


def _session_of(file: Path) -> int | None:
    """Return the session of a process that runs; one that nobody has reaped does not."""
    try:
        state, _, _, session = file.read_bytes().rpartition(b")")[2].split()[:4]
    except (OSError, ValueError):
        return None
    return None if state in (b"Z", b"X") else int(session)
