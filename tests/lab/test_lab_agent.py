# SPDX-License-Identifier: GPL-2.0-only
"""The agent and its host side, over a socket pair instead of a virtio port."""

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import eventually, runs

from lightsleep.lab.boot.agent import Agent, AgentGone, CommandTimeout, RequestError

SERVE = "import sys; from lightsleep.lab.boot.inside import agent; agent.serve(int(sys.argv[1]))"


@pytest.fixture
def line() -> Iterator[socket.socket]:
    """The host's end of a line to a running agent."""
    ours, theirs = socket.socketpair()
    fd = theirs.fileno()
    with subprocess.Popen([sys.executable, "-c", SERVE, str(fd)], pass_fds=(fd,)) as process:
        theirs.close()
        yield ours
        ours.close()
        assert process.wait(20) == 0  # the agent ends when the host has gone


@pytest.fixture
def agent(line: socket.socket) -> Agent:
    agent = Agent(line)
    agent.hello(20)
    return agent


@pytest.fixture
def pair() -> Iterator[tuple[Agent, socket.socket]]:
    """An agent's host side, and the other end of the line to play the agent with."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Agent(ours), theirs


def test_a_command_gives_all_it_printed_and_its_status(agent: Agent) -> None:
    done = agent.run(["sh", "-c", "cat; echo $X; echo err >&2; exit 3"], 20, "in ", {"X": "ü"})
    assert (done.rc, done.stdout, done.stderr) == (3, "in ü\n", "err\n")
    assert done.duration_s > 0


def test_much_output_arrives_whole(agent: Agent) -> None:
    done = agent.run(["head", "-c", "3000000", "/dev/zero"], 60)
    assert done.stdout == "\0" * 3000000


def test_output_that_is_not_utf8_is_no_problem(agent: Agent) -> None:
    assert agent.run(["printf", r"\377"], 20).stdout == "\ufffd"


def test_a_command_that_a_signal_ends(agent: Agent) -> None:
    assert agent.run(["sh", "-c", "kill -SEGV $$"], 20).rc == -11


def test_a_command_over_its_time_dies_with_its_children(agent: Agent, tmp_path: Path) -> None:
    script = f"sleep 1000 & echo $! > {tmp_path}/pid; echo started; wait"
    with pytest.raises(CommandTimeout, match=r"after 1 s.*started") as caught:
        agent.run(["sh", "-c", script], 1)
    said = caught.value.message
    assert re.search(r"(?s)process \d+, S: sh -c .*process \d+, S: sleep 1000", said)
    child = int((tmp_path / "pid").read_text())
    eventually(lambda: not runs(child))
    assert agent.run(["echo", "well"], 20).stdout == "well\n"


def test_a_daemon_that_keeps_the_output_open_does_not_block(agent: Agent) -> None:
    assert agent.run(["sh", "-c", "sleep 30 & echo done"], 60).duration_s < 30


def test_who_watches_the_guest_may_end_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ill(Exception):
        pass

    looks = iter([None, None, Ill()])

    def watch() -> None:
        if ill := next(looks):
            raise ill

    monkeypatch.setattr("lightsleep.lab.boot.agent.WATCH_S", 0.01)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(Ill):
        Agent(ours, watch).run(["sleep", "1000"], 1000)


def test_a_program_that_is_not_there(agent: Agent) -> None:
    with pytest.raises(RequestError, match="no-such-program"):
        agent.run(["no-such-program"], 20)
    assert agent.run(["echo", "well"], 20).stdout == "well\n"


def test_files_are_written_and_read(agent: Agent, tmp_path: Path) -> None:
    agent.write(f"{tmp_path}/file", "line\nü", 20)
    assert (tmp_path / "file").read_text() == "line\nü"
    assert agent.read(f"{tmp_path}/file", 20) == "line\nü"
    with pytest.raises(RequestError, match="missing"):
        agent.read(f"{tmp_path}/missing", 20)
    with pytest.raises(RequestError, match="missing"):
        agent.write(f"{tmp_path}/missing/file", "", 20)


@pytest.mark.parametrize(
    "garbage", [b"not json\n", b"[]\n", b"\xff\n", b"{}\n", b'{"id": 1}\n', b'{"run": 5}\n', b"\n"]
)
def test_the_agent_survives_garbage(line: socket.socket, garbage: bytes) -> None:
    agent = Agent(line)
    agent.hello(20)
    line.sendall(garbage)
    line.settimeout(20)
    assert b'"error"' in line.recv(65536)
    assert agent.run(["echo", "well"], 20).stdout == "well\n"


def test_a_kill_that_comes_too_late_is_ignored(line: socket.socket) -> None:
    agent = Agent(line)
    agent.hello(20)
    assert agent.run(["true"], 20).rc == 0
    line.sendall(b'{"kill": 1}\n')
    assert agent.run(["echo", "well"], 20).stdout == "well\n"


@pytest.mark.parametrize(
    "garbage", [b"Segmentation fault\n", b"[1]\n", b'{"no": "id"}\n', b'{"id": 99}\n', b"\xff\n"]
)
def test_the_host_refuses_garbage(pair: tuple[Agent, socket.socket], garbage: bytes) -> None:
    agent, other = pair
    other.sendall(garbage)
    with pytest.raises(AgentGone):
        agent.run(["true"], 20)


def test_a_line_that_breaks_is_noticed(pair: tuple[Agent, socket.socket]) -> None:
    agent, other = pair
    other.sendall(b'{"id": 1, "rc"')
    other.close()
    with pytest.raises(AgentGone):
        agent.run(["true"], 20)


def test_an_agent_that_does_not_even_kill_is_gone(
    pair: tuple[Agent, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightsleep.lab.boot.agent.KILL_S", 0.2)
    agent, other = pair
    with pytest.raises(AgentGone, match="killed after"):
        agent.run(["sleep", "9"], 0.1)
    assert b'{"kill": 1}' in other.recv(65536)


def test_no_greeting_in_time(pair: tuple[Agent, socket.socket]) -> None:
    with pytest.raises(TimeoutError):
        pair[0].hello(0.1)
