# SPDX-License-Identifier: GPL-2.0-only
"""The agent in a lab guest: runs commands for the host, and otherwise does not exist.

JSON lines over a virtio-serial port, one request at a time, each answered with its ``id``:

    {"id": 1, "run": [argv...], "stdin": "...", "env": {...}}
        -> {"id": 1, "rc": 0, "stdout": "...", "stderr": "...", "duration_s": 0.1}
    {"id": 2, "read": "/path"}
        -> {"id": 2, "text": "..."}
    {"id": 3, "write": "/path", "text": "..."}
        -> {"id": 3}
    {"id": 4, "clock": true}
        -> {"id": 4, "ns": 123}, its monotonic clock
    {"kill": 1}
        kills the process group of request 1, which then is answered, with "processes" beside the
        rest: what each of them was doing

What fails is answered with {"id": ..., "error": "..."}. The measured idle CPU must not be
disturbed, so the agent always blocks in one system call and never arms a timer: the host keeps
the time and sends "kill", and a command writes to memory files that nobody has to drain.

Standard library only, and nothing of lightsleep: it runs in any guest with a Python.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PORT_NAME = "lightsleep.agent"


class Port:
    """Line-wise reading and writing of a file descriptor, blocking."""

    def __init__(self, fd: int) -> None:
        """Take over ``fd``."""
        self.fd = fd
        self.pending = b""

    def receive(self) -> dict[str, Any]:
        """Return the next request; raises EOFError when the host has gone."""
        while b"\n" not in self.pending:
            data = os.read(self.fd, 65536)
            if not data:
                raise EOFError
            self.pending += data
        line, self.pending = self.pending.split(b"\n", 1)
        try:
            request = json.loads(line)
        except ValueError:
            request = None
        return request if isinstance(request, dict) else {"garbage": repr(line[:80])}

    def send(self, reply: dict[str, Any]) -> None:
        """Write one reply as a line."""
        data = json.dumps(reply).encode() + b"\n"
        while data:
            data = data[os.write(self.fd, data) :]


def memory_file(content: str = "") -> int:
    """Return a descriptor of an anonymous file that holds ``content``, at its start."""
    fd = os.memfd_create("lightsleep")
    os.write(fd, content.encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def contents(fd: int) -> str:
    """Return all of the file behind ``fd``, decoded leniently."""
    return os.pread(fd, os.fstat(fd).st_size, 0).decode(errors="replace")


def family(first: int) -> list[int]:
    """Return a process and all that descend from it, parents first."""
    children: dict[int, list[int]] = {}
    # No pattern with "stat" behind it: see _members in trial/process.py.
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            stat = (folder / "stat").read_text(errors="replace")
            parent = int(stat.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found = [first]
    for process in found:
        found += sorted(children.get(process, []))
    return found


def doing(process: int) -> str:
    """Return what a process is doing, and where in the kernel each of its threads sleeps."""
    text = ""
    with contextlib.suppress(OSError):  # it has just ended, or we are not root
        folder = Path("/proc", str(process))
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        state = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        text = f"process {process}, {state}: {' '.join(command.split())[:200]}\n"
        for thread in sorted(folder.glob("task/*")):
            with contextlib.suppress(OSError):  # others go on
                text += (thread / "stack").read_text()
    return text


def run(port: Port, request: dict[str, Any]) -> dict[str, Any]:
    """Run one command to its end, or until the host says kill."""
    processes = {}
    files = [memory_file(request.get("stdin", "")), memory_file(), memory_file()]
    start = time.monotonic()
    try:
        child = subprocess.Popen(
            request["run"],
            stdin=files[0],
            stdout=files[1],
            stderr=files[2],
            env=os.environ | request.get("env", {}),
            start_new_session=True,
        )
        child_fd = os.pidfd_open(child.pid)
        try:
            wait = select.poll()
            wait.register(child_fd, select.POLLIN)
            wait.register(port.fd, select.POLLIN)
            while not any(fd == child_fd for fd, _ in wait.poll()):
                if port.receive().get("kill") == request["id"]:
                    processes["processes"] = "".join(map(doing, family(child.pid)))
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child.pid, signal.SIGKILL)
            duration_s = time.monotonic() - start
        finally:
            os.close(child_fd)
        return {
            "rc": child.wait(),
            "stdout": contents(files[1]),
            "stderr": contents(files[2]),
            "duration_s": duration_s,
            **processes,
        }
    finally:
        for fd in files:
            os.close(fd)


def answer(port: Port, request: dict[str, Any]) -> dict[str, Any]:
    """Carry out one request and return its reply, without the id."""
    if "run" in request:
        return run(port, request)
    if "read" in request:
        return {"text": Path(request["read"]).read_text(errors="replace")}
    if "write" in request:
        Path(request["write"]).write_text(request["text"])
        return {}
    if "clock" in request:
        return {"ns": time.monotonic_ns()}
    return {"error": f"no such request: {request.get('garbage', sorted(request))}"}


def serve(fd: int) -> None:
    """Answer requests from ``fd`` until the host has gone."""
    port = Port(fd)
    # Writing blocks until the host has opened its end; reading before that would return 0.
    port.send({"id": 0, "hello": os.uname().release})
    while True:
        try:
            request = port.receive()
        except EOFError:
            return
        if "kill" in request:  # of a command that has just ended by itself
            continue
        try:
            reply = answer(port, request)
        except Exception as error:  # whatever it is, the host must hear of it
            reply = {"error": f"{type(error).__name__}: {error}"}
        port.send({"id": request.get("id"), **reply})
        with contextlib.suppress(ChildProcessError):  # orphans, where we are PID 1
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def find_port() -> Path:
    """Return the device of our virtio-serial port."""
    for name in Path("/sys/class/virtio-ports").glob("*/name"):
        if name.read_text().strip() == PORT_NAME:
            return Path("/dev") / name.parent.name
    sys.exit("no virtio-serial port named " + PORT_NAME)


if __name__ == "__main__":
    serve(os.open(find_port(), os.O_RDWR))
