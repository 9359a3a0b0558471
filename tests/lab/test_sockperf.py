# SPDX-License-Identifier: GPL-2.0-only
"""The server on this machine that guests of poll-source-net ask, with a sockperf of ours."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from lightsleep.errors import LightsleepError
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.experiments import poll_source_net
from lightsleep.lab.experiments.poll_source_net import EXPERIMENT, server

LISTENS = """\
import socket, sys, time
time.sleep(0.5)
line = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("-p") + 1])))
while True:
    line.accept()
"""


@pytest.fixture
def sockperf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return what makes Python code the program sockperf."""

    def install(code: str) -> None:
        file = tmp_path / "sockperf"
        file.write_text(f"#!{sys.executable} -I\n{code}")
        file.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return install


def test_a_server_that_listens_late_is_waited_for(sockperf: Callable[[str], None]) -> None:
    sockperf(LISTENS)
    with server() as port:
        socket.create_connection(("127.0.0.1", port)).close()


@pytest.mark.parametrize(
    ("code", "ready_s", "said"),
    [
        ("import time\ntime.sleep(60)\n", 0.3, "does not listen on port {} of this machine"),
        ("import sys\nsys.exit('no such option')\n", 20.0, "no such option"),
    ],
)
def test_a_server_that_does_not_listen_is_named(
    code: str,
    ready_s: float,
    said: str,
    sockperf: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(poll_source_net, "READY_S", ready_s)
    sockperf(code)
    with pytest.raises(LightsleepError, match="sockperf") as raised, server():
        pytest.fail("nobody listens")
    assert said.partition("{}")[0] in raised.value.message


def test_a_host_without_sockperf_is_told_before_the_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightsleep.lab.host._path", lambda: str(tmp_path))
    with pytest.raises(LightsleepError, match="apt-get install sockperf"):
        EXPERIMENT.start(cast(Guest, None))
