# SPDX-License-Identifier: GPL-2.0-only
"""The host's end of the line to the agent in a guest (the other is ``inside/agent.py``)."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightsleep.errors import LightsleepError

KILL_S = 20.0
"""How long a killed command may take to be reported dead."""

WATCH_S = 5.0
"""How often whoever waits for a reply looks after the guest."""


@dataclass(frozen=True)
class Completed:
    """A command that ended in the guest; ``rc`` is negative where a signal ended it."""

    rc: int
    stdout: str
    stderr: str
    duration_s: float
    """By the guest's monotonic clock."""


class AgentGone(LightsleepError):
    """The agent closed its end, does not answer in time, or talks nonsense."""


class CommandTimeout(LightsleepError):
    """A command ran longer than it may and was killed; the guest is well."""


class RequestError(LightsleepError):
    """The agent could not do what was asked; the guest is well."""


class Agent:
    """Requests and replies over a connected socket."""

    def __init__(self, line: socket.socket, watch: Callable[[], None] = lambda: None) -> None:
        """Talk over ``line``, which stays the caller's.

        ``watch`` is called now and then while a reply is waited for, and may raise.
        """
        self._line = line
        self._watch = watch
        self._pending = b""
        self._last_id = 0

    def hello(self, timeout_s: float) -> str:
        """Wait for the agent's greeting and return the guest's kernel release."""
        return str(self._receive(0, time.monotonic() + timeout_s)["hello"])

    def run(
        self,
        argv: Sequence[str],
        timeout_s: float,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        """Run a command to its end.

        Raises CommandTimeout, AgentGone, or RequestError where it cannot be started.
        """
        request = self._send({"run": list(argv), "stdin": stdin, "env": dict(env or {})})
        try:
            reply = self._receive(request, time.monotonic() + timeout_s)
        except TimeoutError:
            self._line.sendall(json.dumps({"kill": request}).encode() + b"\n")
            reply = self._finish(request, KILL_S, f"{' '.join(argv)}, killed after {timeout_s} s")
            printed = (reply["stdout"] + reply["stderr"])[-2000:]
            raise CommandTimeout(
                f"{' '.join(argv)}: killed after {timeout_s:g} s; it had printed: {printed!r}; "
                f"what it was doing:\n{reply.get('processes', '(it had just ended)')}"
            ) from None
        return Completed(**{k: reply[k] for k in ("rc", "stdout", "stderr", "duration_s")})

    def read(self, path: str, timeout_s: float) -> str:
        """Return the content of a file in the guest."""
        return str(self._finish(self._send({"read": path}), timeout_s, f"reading {path}")["text"])

    def write(self, path: str, text: str, timeout_s: float) -> None:
        """Write ``text`` to a file in the guest."""
        self._finish(self._send({"write": path, "text": text}), timeout_s, f"writing {path}")

    def clock_ns(self, timeout_s: float) -> int:
        """Return the guest's monotonic clock."""
        return int(self._finish(self._send({"clock": True}), timeout_s, "reading its clock")["ns"])

    def _send(self, request: dict[str, Any]) -> int:
        self._last_id += 1
        try:
            self._line.settimeout(KILL_S)
            self._line.sendall(json.dumps({"id": self._last_id, **request}).encode() + b"\n")
        except OSError as error:
            raise AgentGone(f"the agent takes no request: {error}") from error
        return self._last_id

    def _finish(self, request: int, timeout_s: float, what: str) -> dict[str, Any]:
        try:
            return self._receive(request, time.monotonic() + timeout_s)
        except TimeoutError:
            raise AgentGone(f"no answer within {timeout_s:g} s: {what}") from None

    def _receive(self, request: int, deadline: float) -> dict[str, Any]:
        """Return the reply to ``request``. Raises TimeoutError, AgentGone, RequestError."""
        while b"\n" not in self._pending:
            self._line.settimeout(min(max(deadline - time.monotonic(), 0.001), WATCH_S))
            try:
                data = self._line.recv(65536)
            except TimeoutError:
                if time.monotonic() >= deadline:
                    raise
                self._watch()
                continue
            except ConnectionError:
                data = b""
            if not data:
                raise AgentGone("the guest went away")
            self._pending += data
        line, self._pending = self._pending.split(b"\n", 1)
        try:
            reply = json.loads(line)
            answers = reply["id"]
        except (ValueError, TypeError, KeyError):
            raise AgentGone(f"not a reply of the agent: {line[:200]!r}") from None
        if answers != request:
            raise AgentGone(f"a reply to request {answers}, but {request} was asked")
        if "error" in reply:
            raise RequestError(str(reply["error"]))
        assert isinstance(reply, dict)
        return reply
